"""JTT: a first network's mistakes are drawn more often when a second one is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stablenet.algorithms.algorithm import Context
from stablenet.algorithms.two_stage import Outputs, TwoDraws
from stablenet.models import Network
from stablenet.values import AtLeast, ShareBelowOne, check_fields


@dataclass(frozen=True, kw_only=True)
class JTTSettings:
    """share: of the epochs, rounded up, that train the first network; 0 is ERM.
    upsampling: λ_up, how often its mistakes are drawn relative to all other samples; 1 is ERM in the epochs left.
    """

    share: ShareBelowOne = 0.2  # its paper on Waterbirds: 60 of 300 epochs; on CelebA 1 of 50
    upsampling: Annotated[float, AtLeast(1)] = 100.0  # its paper on Waterbirds; on CelebA 50

    def __post_init__(self) -> None:
        check_fields(self)


class JTT(TwoDraws[JTTSettings]):
    r"""min_θ λ_up·Σ_{i∈E} CE_i(θ) + Σ_{i∉E} CE_i(θ), E = {i : argmax f_id(x_i) ≠ y_i}.

    Just Train Twice: Improving Group Robustness without Training Group Information (Liu et al., ICML 2021). f_id is
    trained by cross-entropy for a few epochs; E are the training samples that it then misclassifies. A second
    network is trained from the start, with samples of E drawn λ_up times as often. No group labels are used in
    training; the paper chose λ_up, the epochs of f_id and the epoch by the worst group of labelled validation samples.

    Departures: both stages share the run's epochs and schedule, where the paper trains the second network as long as
    ERM; an epoch keeps its length, where upsampling makes it longer. The first network has the weight decay of the run.
    """

    title = "a second network, for which a first one's mistakes are drawn more often"
    settings_type = JTTSettings
    selects_by_groups = True

    def __init__(self, network: Network, settings: JTTSettings, context: Context) -> None:
        super().__init__(network, settings, context, settings.share)

    def look(self, outputs: Outputs) -> dict[str, float]:
        self.draws[outputs.index[outputs.wrong]] = self.settings.upsampling
        return {"mistakes": float(outputs.wrong.float().mean())}
