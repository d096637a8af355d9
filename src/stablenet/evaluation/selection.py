"""Model selection: named rules over stored records. Only the rule `oracle` uses the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from stablenet.engine.run import group_rank, pseudo_group_rank, validation_rank
from stablenet.errors import UserError
from stablenet.registry import Registry

Record: TypeAlias = Mapping[str, Any]
Kind: TypeAlias = Literal["epoch", "oracle", "averaged"]
DEFAULT_RULE = "source-validation"
AVERAGED = "averaged"
WORST_GROUP, WORST_PSEUDO_GROUP = "worst-group", "worst-pseudo-group"  # also the names of the models kept for them


@dataclass(frozen=True, kw_only=True)
class SelectionRule:
    """rank: rank of an epoch's record; among equal ones the earliest epoch is chosen.

    reads: the kind of records it uses. Rules that read "epoch" never see target metrics; a rule that reads "oracle"
    uses nothing else, and its results must be reported separately. A rule that reads "averaged" chooses the model
    with averaged weights, recorded with the last epoch.
    needs_groups: whether it needs the context of every held-out source sample; tables that use it say so.
    """

    name: str
    title: str
    reads: Kind
    rank: Callable[[Record], tuple[float, ...]]
    needs_groups: bool = False

    @property
    def looks_at_target(self) -> bool:
        return self.reads == "oracle"

    @property
    def demand(self) -> str:
        """What a reader of its results must know, as a clause; "" for rules that need no more than labels."""
        return "the epoch was chosen with the contexts of held-out source images (group labels)" * self.needs_groups


@dataclass(frozen=True)
class Choice:
    """An epoch (from 1) and the rule that chose it."""

    rule: SelectionRule
    epoch: int


RULES: Registry[SelectionRule] = Registry("selection rule")


def _add(
    name: str, title: str, reads: Kind, rank: Callable[[Record], tuple[float, ...]], needs_groups: bool = False
) -> None:
    RULES.add(name, SelectionRule(name=name, title=title, reads=reads, rank=rank, needs_groups=needs_groups))


def _rank_last(record: Record) -> tuple[float, ...]:
    return (float(record["epoch"]),)


def _rank_by_groups(record: Record) -> tuple[float, ...]:
    rank = group_rank(record)
    if rank is None:
        raise UserError(
            "the rule 'worst-group' needs validation images in two or more known contexts, whose figures are in the "
            f"records of each epoch; this run has none: choose the rule {DEFAULT_RULE!r}"
        )
    return rank


def _rank_by_pseudo_groups(record: Record) -> tuple[float, ...]:
    rank = pseudo_group_rank(record)
    if rank is None:
        raise UserError(
            "the rule 'worst-pseudo-group' needs weights of the validation samples, which the method did not have: "
            f"plain training has none, nor a run that decided not to act; choose the rule {DEFAULT_RULE!r}"
        )
    return rank


def _rank_by_target(record: Record) -> tuple[float, ...]:
    return float(record["test"]["accuracy"]), -float(record["test"]["loss"])


_add(DEFAULT_RULE, "best accuracy on images held out of the training domains", "epoch", validation_rank)
_add("last", "the last epoch", "epoch", _rank_last)
_add(
    WORST_GROUP,
    "best accuracy in the worst group of class and context on held-out source images; needs group labels",
    "epoch",
    _rank_by_groups,
    needs_groups=True,
)
_add(
    WORST_PSEUDO_GROUP,
    "best accuracy in the worst class among held-out source images of raised, or of other weights; no group labels",
    "epoch",
    _rank_by_pseudo_groups,
)
_add(AVERAGED, "weights averaged over the valley of the source validation loss (SWAD)", "averaged", _rank_last)
_add("oracle", "best accuracy on the target itself: an upper bound, not a result", "oracle", _rank_by_target)


def select_epoch(name: str, records: Sequence[Record], oracle: Sequence[Record] = ()) -> Choice:
    """The epoch chosen by a rule.   records: from records.jsonl.   oracle: from oracle.jsonl, for the rule `oracle`."""
    rule = RULES[name]
    lines = oracle if rule.looks_at_target else records
    seen = [record for record in lines if record["kind"] == rule.reads]
    if not seen:
        raise UserError(_explain_nothing(rule))
    return Choice(rule, int(max(seen, key=rule.rank)["epoch"]))


def _explain_nothing(rule: SelectionRule) -> str:
    if rule.looks_at_target:
        return (
            "the rule 'oracle' needs target metrics of every epoch, and this run has none: "
            f"train again with --oracle, or choose the rule {DEFAULT_RULE!r}"
        )
    if rule.reads == "averaged":
        return "this run has no averaged weights: train it with train.averaging=swad, or choose another rule"
    return "this run has not finished an epoch: continue with `stablenet train --resume` first"
