"""The weighting in other people's loops: one criterion for all of them, and small adapters where more is needed.

`stablenet.integrations.lightning` and `.domainbed` are imported by name: each needs its framework or more than torch.
"""

from stablenet.integrations.criterion import StableCriterion
from stablenet.integrations.losses import LOSSES, PerSampleLoss
from stablenet.integrations.taps import FeatureTaps

__all__ = ["LOSSES", "FeatureTaps", "PerSampleLoss", "StableCriterion"]
