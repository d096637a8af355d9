"""The weighting in other training loops: a criterion for batches, one for the whole set, and small adapters.

In reading order: `criterion` (weights of each batch), `passes` and `held_out` (a pass over a data set before training,
and held-out samples that choose the epoch), `dataset_criterion` (weights and offsets of the whole training set), and
the adapters `lightning` and `domainbed`. The two adapters are imported by their module's name: each needs its framework
or more than torch.
"""

from stablenet.integrations.criterion import LOSSES, PerSampleLoss, StableCriterion
from stablenet.integrations.dataset_criterion import DatasetCriterion
from stablenet.integrations.held_out import EpochResult
from stablenet.integrations.passes import Indexed
from stablenet.models import FeatureTaps

__all__ = ["LOSSES", "DatasetCriterion", "EpochResult", "FeatureTaps", "Indexed", "PerSampleLoss", "StableCriterion"]
