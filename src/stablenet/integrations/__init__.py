"""The weighting in other people's loops: one criterion for batches, one for the whole set, and small adapters.

`stablenet.integrations.lightning` and `.domainbed` are imported by name: each needs its framework or more than torch.
"""

from stablenet.integrations.criterion import StableCriterion
from stablenet.integrations.dataset import DatasetCriterion, Indexed
from stablenet.integrations.losses import LOSSES, PerSampleLoss
from stablenet.integrations.taps import FeatureTaps

__all__ = ["LOSSES", "DatasetCriterion", "FeatureTaps", "Indexed", "PerSampleLoss", "StableCriterion"]
