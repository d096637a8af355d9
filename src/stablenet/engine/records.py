"""What the records say: how epochs are ranked by source validation. The fields are told in `stablenet.engine`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stablenet.algorithms import Judgement

PENALTY = "rank_penalty"  # the field of an epoch's record
# Records of version 0.1 name this finding and no penalty, which was the difference of plain and weighted accuracy.
OLD_FINDING = "context_use"


def validation_rank(record: Mapping[str, Any]) -> tuple[float, float]:
    """How good an epoch's record is by source validation alone: accuracy, then the smaller loss.

    Both under the weights of the validation samples where the method has such (`EpochJudge.weights`); an accuracy is
    then known to one effective sample, and what differs by less is told apart by the loss. What the method found in
    the epoch may take a penalty off the accuracy (`Judgement.penalty`).
    Of equal ranks the earlier epoch is the better one. Without a validation part the latest epoch is the best.
    """
    validation = record["validation"]
    if validation is None:
        return float(record["epoch"]), 0.0
    if "weighted_accuracy" not in validation:
        return float(validation["accuracy"]) - _find_penalty(record), -float(validation["loss"])
    count, accuracy = float(validation["weighted_count"]), float(validation["weighted_accuracy"])
    return round(count * (accuracy - _find_penalty(record))) / count, -float(validation["weighted_loss"])


def describe_judgement(judgement: Judgement) -> dict[str, Any]:
    """Fields of an epoch's record; none where nothing was found."""
    judged = {"judged": judgement.figures} if judgement.figures else {}
    return {**judged, PENALTY: judgement.penalty} if judgement.penalty else judged


def _find_penalty(record: Mapping[str, Any]) -> float:
    """What is taken off an epoch's accuracy."""
    if PENALTY not in record and OLD_FINDING in record.get("judged", {}):
        validation = record["validation"]
        return abs(float(validation["accuracy"]) - float(validation["weighted_accuracy"]))
    return float(record.get(PENALTY, 0.0))


def find_best(records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The epoch record of the best source validation, None before the first validated epoch."""
    epochs = [record for record in records if record["kind"] == "epoch" and record["validation"]]
    return max(epochs, key=validation_rank) if epochs else None
