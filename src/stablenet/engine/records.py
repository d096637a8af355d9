"""What the records say: how epochs are ranked by source validation. The fields are told in `stablenet.engine`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def validation_rank(record: Mapping[str, Any]) -> tuple[float, float]:
    """How good an epoch's record is by source validation alone: accuracy, then the smaller loss.

    Of equal ranks the earlier epoch is the better one. Without a validation part all epochs but the last rank alike,
    so the number of the epoch decides.
    """
    validation = record["validation"]
    if validation is None:
        return float(record["epoch"]), 0.0
    return float(validation["accuracy"]), -float(validation["loss"])
