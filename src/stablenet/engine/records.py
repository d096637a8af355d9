"""What the records say: how epochs are ranked by source validation. The fields are told in `stablenet.engine`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def validation_rank(record: Mapping[str, Any]) -> tuple[float, float]:
    """How good an epoch's record is by source validation alone: accuracy, then the smaller loss.

    Of equal ranks the earlier epoch is the better one. Without a validation part the latest epoch is the best.
    """
    validation = record["validation"]
    if validation is None:
        return float(record["epoch"]), 0.0
    return float(validation["accuracy"]), -float(validation["loss"])


def find_best(records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The epoch record of the best source validation, None before the first validated epoch."""
    epochs = [record for record in records if record["kind"] == "epoch" and record["validation"]]
    return max(epochs, key=validation_rank) if epochs else None
