"""Evaluation of a finished run: which epoch counts, by named rules over its records, and its figures on the target.

Only the rule `oracle` selects on the target. Apart from `--oracle`, this is the only place where target images are
read. It adds to the run folder

    evaluation.jsonl                        one line per evaluation; the last one of a rule and part counts
    oracle-evaluation.jsonl                 the same for the rule `oracle`, which selects on the target
    predictions-<rule>-<part>.parquet       id, domain, class, right, predicted, probability, p_<class> for all classes

A line is {"kind": "evaluation", "rule", "epoch", "part", "config_hash", "manifest_hash", "predictions", "figures"}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias

from stablenet.engine.ranking import group_rank, pseudo_group_rank, validation_rank
from stablenet.engine.run import Run
from stablenet.engine.run_folder import FAILED, FINISHED
from stablenet.errors import UserError
from stablenet.evaluation.predict import (
    BATCH_SIZE,
    Predictions,
    Progress,
    find_device,
    measure,
    predict_part,
    save_table,
    tabulate,
)
from stablenet.files import Lines
from stablenet.models import Network
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
        """A clause that must accompany its results; "" for rules that need only labels."""
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
    "best accuracy of the worst class among held-out source images with raised weights, or the others; no group labels",
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


FEWEST = 10  # images, of a part or of a group; fewer say nothing
CERTAIN = 2.0  # standard deviations above chance that a network which guesses hardly reaches

_LEARN = "train longer, change train.learning_rate, or start from pretrained weights (model.pretrained)"
_DOUBT = "if it fits its training images, look at labels and split (`stablenet data check`); else train longer, or "
_DOUBT += "change train.learning_rate"
_LOOK = "look at these images (`stablenet saliency`); where contexts are known, choose the epoch by --rule worst-group"


@dataclass(frozen=True)
class Failure:
    """said: what is wrong, of a run.   remedy: what to try."""

    kind: Literal["one class", "guessing", "lost group"]
    said: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.said}: {self.remedy}"


def find_failures(figures: Mapping[str, Any], images: str = "image") -> list[Failure]:
    """The most serious failure that the metrics of a part show, or none.   figures: see `GroupCounts.figures`.

    images: what the part holds, such as "held-out image".
    """
    per_class = figures.get("per_class") or {}
    if len(per_class) > 1 and figures["count"] >= FEWEST:
        shares = sorted(per_class.values())
        if shares[-1] == 1 and shares[-2] == 0:
            only = max(per_class, key=lambda name: per_class[name])
            return [Failure("one class", f"predicts {only!r} for every {images}", _LEARN)]
        chance, mean = 1 / len(per_class), fmean(shares)
        if mean <= chance + CERTAIN * math.sqrt(chance * (1 - chance) / figures["count"]):
            said = f"is right on {100 * mean:.1f} % of the {images}s of a class, and guessing on {100 * chance:.1f} %"
            return [Failure("guessing", said, _DOUBT)]
    worst = (figures.get("groups") or {}).get("worst")
    if worst and worst["accuracy"] == 0 and worst["count"] >= FEWEST:
        said = f"is wrong for all {worst['count']:,} {images}s of {worst['class']} on {worst['domain']}"
        return [Failure("lost group", said, _LOOK)]
    return []


RECORDS, ORACLE_RECORDS = "evaluation.jsonl", "oracle-evaluation.jsonl"


@dataclass(frozen=True)
class Evaluation:
    """The metrics (see `measure`) of one part with the model of one epoch."""

    run: Run
    choice: Choice
    part: str
    figures: dict[str, Any]
    predictions: Path


def evaluate_run(
    run: Run,
    *,
    rule: str = DEFAULT_RULE,
    parts: Sequence[str] = ("test",),
    root: Path | None = None,
    device: str = "auto",
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> list[Evaluation]:
    """Predict the parts with the model chosen by the rule; save predictions and metrics in the run folder."""
    return evaluate_rules(run, (rule,), parts=parts, root=root, device=device, batch_size=batch_size, progress=progress)


def evaluate_rules(
    run: Run,
    rules: Sequence[str],
    *,
    parts: Sequence[str] = ("test",),
    root: Path | None = None,
    device: str = "auto",
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> list[Evaluation]:
    """As `evaluate_run`, for several rules: images are opened once, and a network that two rules choose is run once."""
    _refuse_unfinished(run)
    for part in parts:
        if run.manifest.part(part).empty:
            raise UserError(f"the split of {run.path} has no images in the part {part!r}: choose another --part")
    place = find_device(device)
    data, evaluations = run.open_data(root), []
    made: dict[tuple[int, bool], list[Predictions]] = {}
    for rule in rules:
        choice = select_epoch(rule, run.records, run.oracle)
        chosen = choice.epoch, choice.rule.reads == "averaged"
        if chosen not in made:
            model, _ = load_chosen(run, rule)
            made[chosen] = [
                predict_part(
                    model,
                    data.open_part(part),
                    data.evaluation_transform,
                    device=place,
                    batch_size=batch_size,
                    progress=progress,
                )
                for part in parts
            ]
        for part, predictions in zip(parts, made[chosen], strict=True):
            file = run.path / f"predictions-{rule}-{part}.parquet"
            save_table(tabulate(predictions, run.manifest), file)
            figures = measure(predictions, run.manifest.domains, run.manifest.classes)
            evaluations.append(Evaluation(run, choice, part, figures, file))
            _record(evaluations[-1])
    return evaluations


def _refuse_unfinished(run: Run) -> None:
    status = run.status
    if status["state"] == FAILED:
        raise UserError(
            f"the run {run.path} failed ({status['reason']}): fix that, delete the folder and train it again"
        )
    if status["state"] != FINISHED:
        raise UserError(
            f"the run {run.path} is {status['state']}, not finished: continue with `stablenet train --resume` first"
        )


def load_chosen(run: Run, rule: str = DEFAULT_RULE) -> tuple[Network, Choice]:
    """Load the model chosen by a rule; those of the rules that use source data are always kept, others with
    `--keep-epochs`.
    """
    records = run.records
    choice = select_epoch(rule, records, run.oracle)
    if rule in (WORST_GROUP, WORST_PSEUDO_GROUP):
        return run.load_model(rule), choice
    kept = {select_epoch(name, records).epoch: which for name, which in (("last", "last"), (DEFAULT_RULE, "best"))}
    which = "averaged" if choice.rule.reads == "averaged" else kept.get(choice.epoch, choice.epoch)
    return run.load_model(which), choice


def _record(evaluation: Evaluation) -> None:
    run, choice = evaluation.run, evaluation.choice
    lines = Lines(run.path / (ORACLE_RECORDS if choice.rule.looks_at_target else RECORDS))
    lines.append(
        {
            "kind": "evaluation",
            "rule": choice.rule.name,
            "epoch": choice.epoch,
            "part": evaluation.part,
            "config_hash": run.hash,
            "manifest_hash": run.manifest.hash,
            "predictions": evaluation.predictions.name,
            "figures": evaluation.figures,
        }
    )
    lines.close()
