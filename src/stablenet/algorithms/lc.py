"""Logit Correction: logits shifted by how often classes go with what a biased network, trained beside, predicts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, classify
from stablenet.algorithms.lff import amplify, make_biased
from stablenet.algorithms.ula import tabulate
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.values import NonNegative, ShareBelowOne, check_fields

SMALLEST = 1e-4  # added to probabilities before their logarithm (published code)


@dataclass(frozen=True, kw_only=True)
class LCSettings:
    """strength: η, the power of the table's probabilities; 0 is ERM beside a network of no effect.
    amplification: q of the biased network's generalised cross-entropy.
    memory: of the moving average that the table is.
    """

    strength: NonNegative = 1.0  # the authors' published code
    amplification: NonNegative = 0.7  # the authors' published code
    memory: ShareBelowOne = 0.5  # of a published re-implementation by uLA's authors

    def __post_init__(self) -> None:
        check_fields(self)


class LC(Algorithm[LCSettings]):
    r"""min_{θ,b} 1/n Σ_i CE(g_θ(x_i) + log(p(ŷ_i, ·)^η + 10⁻⁴), y_i) + q·p_b(y_i | x_i)^q·CE(g_b(x_i), y_i).

    Avoiding spurious correlations via logit correction (Liu, Zhang, Sekhar, Wu, Singhal and Fernandez-Granda, ICLR
    2023). g_b is a biased network as in LfF, ŷ_i the class that it predicts. The table p(ŷ, y) of classes × classes
    is a moving average over batches of Σ_i p_b(ŷ | x_i)·[y_i = y]/b. g_θ predicts, without the shift. No group labels
    are used in training.

    Departures: the paper's GroupMixUp, which mixes images of rare pairs of class and predicted class with others of
    the same class, is left out. Both networks start from the same body, each with a new last layer, and share the
    run's optimiser. The table starts uniform.
    """

    title = "logits shifted by how classes go with what a biased network predicts"
    settings_type = LCSettings
    selects_by_groups = True
    one_plain_pass = False  # a second network learns beside it
    several_processes = False  # the table is that of one process's samples

    table: Tensor

    def __init__(self, network: Network, settings: LCSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        self.biased = make_biased(network)
        size = context.num_classes
        self.register_buffer("table", torch.full((size, size), 1 / size**2))

    def loss(self, batch: Batch) -> StepOutput:
        told = self.biased(batch.x)
        logits, _ = self.run_network(batch.x)
        if self.training:
            joint = tabulate(told.detach().float().softmax(1), batch.y)
            self.table.mul_(self.settings.memory).add_((1 - self.settings.memory) * joint)
        shift = (self.table[told.argmax(1)] ** self.settings.strength + SMALLEST).log()
        per_sample, accuracy = classify(logits, batch.y, shift)
        total = per_sample + amplify(told, batch.y, self.settings.amplification)
        agreement = (told.argmax(1) == batch.y).float().mean()
        return StepOutput(total, None, {"accuracy": accuracy, "biased_accuracy": agreement})
