"""The weighting in other training loops: a criterion for batches, one for the whole set, and small adapters.

In reading order: `criterion` (weights of each batch; weights and offsets of the whole training set), and the adapters
`lightning` and `domainbed`. The two adapters are imported by their module's name: each needs its framework or more than
torch.
"""

from stablenet.integrations.criterion import LOSSES, DatasetCriterion, Indexed, PerSampleLoss, StableCriterion
from stablenet.models import FeatureTaps

__all__ = ["LOSSES", "DatasetCriterion", "FeatureTaps", "Indexed", "PerSampleLoss", "StableCriterion"]
