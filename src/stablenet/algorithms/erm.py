"""Empirical risk minimisation: plain cross-entropy, every sample alike."""

from __future__ import annotations

from dataclasses import dataclass

from stablenet.algorithms.algorithm import Algorithm, StepOutput, classify
from stablenet.data.loader import Batch


@dataclass(frozen=True, kw_only=True)
class ERMSettings:
    """There is nothing to choose."""


class ERM(Algorithm[ERMSettings]):
    """min 1/n Σ CE(g(f(x_i)), y_i): the reference every method is compared with."""

    title = "plain cross-entropy, the equally tuned reference"
    settings_type = ERMSettings
    replayable = True

    def loss(self, batch: Batch) -> StepOutput:
        logits, _ = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        return StepOutput(per_sample, None, {"accuracy": accuracy})
