"""EIIL: environments that a reference network violates most, then GroupDRO over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.algorithms.algorithm import Context, StepOutput, classify
from stablenet.algorithms.group_dro import mean_by_group, weigh_samples
from stablenet.algorithms.irm import scale_slope
from stablenet.algorithms.two_stage import Outputs, TwoStage
from stablenet.data.loader import Batch
from stablenet.long_work import count_steps
from stablenet.models import Network
from stablenet.randomness import combine_seed
from stablenet.values import Count, NonNegative, Positive, ShareBelowOne, check_fields

ENVIRONMENTS = 2


@dataclass(frozen=True, kw_only=True)
class EIILSettings:
    """share: of the epochs, rounded up, that train the reference network; 0 is ERM.
    steps, inference_rate: of Adam on the assignment of samples to environments.
    rate: η of GroupDRO; 0 keeps all groups alike.
    """

    share: ShareBelowOne = 0.05  # ours: early, as the reference shall learn the shortcut alone
    steps: Count = 10_000  # the authors' published code
    inference_rate: Positive = 0.001  # the authors' published code
    rate: NonNegative = 0.01  # as GroupDRO

    def __post_init__(self) -> None:
        check_fields(self)


class EIIL(TwoStage[EIILSettings]):
    r"""max_q Σ_e (1/n Σ_i q_i(e)·s_i)², s_i = ∂CE(s·f̃(x_i), y_i)/∂s at s = 1; then GroupDRO over class and environment.

    Environment Inference for Invariant Learning (Creager, Jacobsen and Zemel, ICML 2021). f̃ is a reference network
    trained by cross-entropy. The soft assignment q of the training samples to two environments makes IRM's penalty
    (its published form) of f̃ as large as possible; each sample goes to the likelier environment. Then a network
    is trained from the start by GroupDRO, whose groups are pairs of class and inferred environment.

    Departures: both stages share the run's epochs and schedule; q starts from small random numbers that depend on the
    run's seed. The paper trains with IRM or GroupDRO and its own schedules; only GroupDRO is here, without adjustment
    for group sizes, and a batch's absent groups keep their weight.
    """

    title = "environments that a reference network violates most, then GroupDRO"
    settings_type = EIILSettings
    selects_by_groups = True

    environment: Tensor
    log_q: Tensor

    def __init__(self, network: Network, settings: EIILSettings, context: Context) -> None:
        super().__init__(network, settings, context, settings.share)
        self.register_buffer("environment", torch.zeros(context.num_samples, dtype=torch.int64))
        self.register_buffer("log_q", torch.zeros(ENVIRONMENTS * context.num_classes).log_softmax(0))

    def look(self, outputs: Outputs) -> dict[str, float]:
        generator = torch.Generator().manual_seed(combine_seed(self.context.seed))
        start = torch.randn(len(outputs.y), generator=generator).to(outputs.logits)
        slope = scale_slope(outputs.logits, outputs.y)
        found = infer_environments(slope, start, self.settings.steps, self.settings.inference_rate)
        self.environment[outputs.index] = found
        return {"first_environment": float((found == 0).float().mean())}

    def second_loss(self, batch: Batch) -> StepOutput:
        logits, _ = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        if not self.first_epochs:
            return StepOutput(per_sample, None, {"accuracy": accuracy})
        group = batch.y * ENVIRONMENTS + self.environment[batch.index]
        losses, count = mean_by_group(per_sample.detach(), group, len(self.log_q))
        if self.training:
            self.log_q = torch.log_softmax(self.log_q + self.settings.rate * losses, 0)
        return StepOutput(per_sample, weigh_samples(self.log_q, group, count), {"accuracy": accuracy})


def infer_environments(slope: Tensor, start: Tensor, steps: int, rate: float) -> Tensor:
    """Environments (n,), 0 or 1, by Adam on the logits of belonging to 0.   slope, start: (n,).

    The slope of −½·[(mean q·s)² + (mean (1 − q)·s)²] is written out: thousands of steps on a few numbers each.
    """
    logits = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.Adam([logits], rate)
    for _ in count_steps(steps, "inferring environments"):
        q = logits.detach().sigmoid()
        here = (q * slope).mean()
        logits.grad = -(2 * here - slope.mean()) * slope * q * (1 - q) / len(slope)
        optimizer.step()
    return (logits.detach() <= 0).long()
