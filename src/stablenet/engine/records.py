"""What the records say: how epochs are ranked by source validation. The fields are told in `stablenet.engine`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def validation_rank(record: Mapping[str, Any]) -> tuple[float, float]:
    """How good an epoch's record is by source validation alone: accuracy, then the smaller loss.

    Both under the weights of the validation samples where the method has such (`Algorithm.validation_weights`); an
    accuracy is then known to one effective sample, and what differs by less is told apart by the loss.
    Where the network clearly uses the context (`context_use`), the difference of plain and weighted accuracy is taken
    off, so that an epoch that does without it comes first, unless it is far worse.
    Of equal ranks the earlier epoch is the better one. Without a validation part the latest epoch is the best.
    """
    validation = record["validation"]
    if validation is None:
        return float(record["epoch"]), 0.0
    plain = float(validation["accuracy"])
    if "weighted_accuracy" not in validation:
        return plain, -float(validation["loss"])
    weighted, count = float(validation["weighted_accuracy"]), float(validation["weighted_count"])
    if "context_use" in record.get("judged", {}):
        weighted -= abs(plain - weighted)
    return round(count * weighted) / count, -float(validation["weighted_loss"])


def find_best(records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The epoch record of the best source validation, None before the first validated epoch."""
    epochs = [record for record in records if record["kind"] == "epoch" and record["validation"]]
    return max(epochs, key=validation_rank) if epochs else None
