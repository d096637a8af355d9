"""What the records say: how epochs are ranked by source validation. The fields are told in `stablenet.engine`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def validation_rank(record: Mapping[str, Any]) -> tuple[float, float]:
    """How good an epoch's record is by source validation alone: accuracy, then the smaller loss.

    Both under the weights of the validation samples where the method has such (`Algorithm.validation_weights`); an
    accuracy is then known to one effective sample, and what differs by less is told apart by the loss.
    Of equal ranks the earlier epoch is the better one. Without a validation part the latest epoch is the best.
    """
    validation = record["validation"]
    if validation is None:
        return float(record["epoch"]), 0.0
    if "weighted_accuracy" not in validation:
        return float(validation["accuracy"]), -float(validation["loss"])
    count = float(validation["weighted_count"])
    return round(count * validation["weighted_accuracy"]) / count, -float(validation["weighted_loss"])


def find_best(records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The epoch record of the best source validation, None before the first validated epoch."""
    epochs = [record for record in records if record["kind"] == "epoch" and record["validation"]]
    return max(epochs, key=validation_rank) if epochs else None
