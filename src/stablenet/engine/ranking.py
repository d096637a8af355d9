"""How epochs are ranked by source validation: for all samples, and for their worst group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from stablenet.algorithms import Judgement

PENALTY = "rank_penalty"  # the field of an epoch's record
WORST = float("-inf")  # rank of figures that are not finite


def validation_rank(record: Mapping[str, Any]) -> tuple[float, float]:
    """Rank of an epoch's record by source validation only: accuracy, then the smaller loss.

    Both are weighted if the method weights the validation samples (`EpochJudge.weights`); accuracies are then compared
    up to one effective sample, and smaller differences are decided by the loss. The method's findings in the epoch may
    subtract a penalty from the accuracy (`Judgement.penalty`).
    Among equal ranks the earliest epoch is best. Without a validation part the latest epoch is best.
    """
    validation = record["validation"]
    if validation is None:
        return float(record["epoch"]), 0.0
    kind = "weighted_" if "weighted_accuracy" in validation else ""
    accuracy, loss = validation[f"{kind}accuracy"], validation[f"{kind}loss"]
    if not _is_finite(accuracy) or not _is_finite(loss):  # of a network that has diverged
        return WORST, WORST
    ranked = float(accuracy) - _find_penalty(record)
    if kind:
        count = float(validation["weighted_count"])
        ranked = round(count * ranked) / count
    return ranked, -float(loss)


def _is_finite(value: float | None) -> bool:
    """A record has None for what was not finite."""
    return value is not None and math.isfinite(value)


GroupRank: TypeAlias = tuple[float, float, float]


def group_rank(record: Mapping[str, Any]) -> GroupRank | None:
    """Rank of an epoch's record by the groups of source validation; None where it has no two known contexts.

    The lowest accuracy of any group of class and context, however small: with few samples many epochs are equal, and
    the mean over groups decides, then the loss. It needs the context of every validation sample.
    """
    validation = record["validation"]
    groups = (validation or {}).get("groups")
    if groups is None or groups["contexts"] < 2:
        return None
    if not _is_finite(validation["loss"]):  # of a network that has diverged
        return WORST, WORST, WORST
    return float(validation["worst_group_accuracy"]), float(groups["mean"]), -float(validation["loss"])


def pseudo_group_rank(record: Mapping[str, Any]) -> GroupRank | None:
    """As `group_rank` without group labels: of classes among samples with raised weights, and with others.

    None where the method has no weights for the validation samples. Groups of a few samples do not decide.
    """
    validation = record["validation"]
    groups = (validation or {}).get("pseudo_groups")
    if groups is None:
        return None
    if not _is_finite(validation["loss"]):  # of a network that has diverged
        return WORST, WORST, WORST
    return float(groups["worst"]["accuracy"]), float(groups["mean"]), -float(validation["loss"])


def describe_judgement(judgement: Judgement) -> dict[str, Any]:
    """Fields for an epoch's record; empty if nothing was found."""
    judged = {"judged": judgement.figures} if judgement.figures else {}
    return {**judged, PENALTY: judgement.penalty} if judged or judgement.penalty else {}


def _find_penalty(record: Mapping[str, Any]) -> float:
    """The penalty subtracted from an epoch's accuracy.

    Records of version 0.1 have findings without it: it was the difference of plain and weighted accuracy.
    """
    if PENALTY not in record and record.get("judged"):
        validation = record["validation"]
        return abs(float(validation["accuracy"]) - float(validation["weighted_accuracy"]))
    return float(record.get(PENALTY, 0.0))


def find_best(records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The epoch record with the best source validation, None before the first validated epoch."""
    epochs = [record for record in records if record["kind"] == "epoch" and record["validation"]]
    return max(epochs, key=validation_rank) if epochs else None
