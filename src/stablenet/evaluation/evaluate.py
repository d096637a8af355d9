"""Evaluation of a finished run on the target: apart from `--oracle`, the only place where target images are read.

Adds to the run folder

    evaluation.jsonl                        one line per evaluation; the last one of a rule and part counts
    oracle-evaluation.jsonl                 the same for the rule `oracle`, which selects on the target
    predictions-<rule>-<part>.parquet       id, domain, class, right, predicted, probability, p_<class> for all classes

A line is {"kind": "evaluation", "rule", "epoch", "part", "config_hash", "manifest_hash", "predictions", "figures"}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from stablenet.engine.run import FAILED, FINISHED, Run
from stablenet.errors import UserError
from stablenet.evaluation.predict import BATCH_SIZE, Progress, find_device, measure, predict_part, save_table, tabulate
from stablenet.evaluation.selection import DEFAULT_RULE, WORST_GROUP, WORST_PSEUDO_GROUP, Choice, select_epoch
from stablenet.files import Lines
from stablenet.models import Network

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
    """The gravest failure that the metrics of a part show, or none.   figures: see `GroupCounts.figures`.

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
            said = f"is right for {100 * mean:.1f} % of a class's {images}s, and guessing for {100 * chance:.1f} %"
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
    _refuse_unfinished(run)
    for part in parts:
        if run.manifest.part(part).empty:
            raise UserError(f"the split of {run.path} has no images in the part {part!r}: choose another --part")
    place = find_device(device)
    model, choice = load_chosen(run, rule)
    data, evaluations = run.open_data(root), []
    for part in parts:
        samples, transform = data.open_part(part), data.evaluation_transform
        predictions = predict_part(model, samples, transform, device=place, batch_size=batch_size, progress=progress)
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
            f"the run {run.path} failed ({status['reason']}): mend that, delete the folder and train it again"
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
