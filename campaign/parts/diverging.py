"""Trainings that diverge, of every method: they stop in one sentence, and what they leave can be read by every verb."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from campaign.parts.signals import describe, finish, start_command
from campaign.trial import STATUSES, Trial
from campaign.workshop import tiny
from stablenet.algorithms import ALGORITHMS

RATES = ("1e1", "1e2", "1e3", "1e6", "1e9", "1e15", "1e30", "1e38", "1e100", "1e300")
OTHERS = (
    'train.optimizer="adam"',
    "train.weight_decay=1e6",
    "train.momentum=0.999",
    'train.schedule="cosine"',
    'train.averaging="swad"',
    "data.parameters.validation=0",
    "train.log_every=1",
)
READERS = (
    ["runs", "."],
    ["report", "--runs", ".", "--panels", "0", "--output", "page"],
    ["evaluate", "out"],
    ["weights", "out", "--csv", "weights.csv"],
    ["export", "out"],
    ["diagnose", "out"],
    ["bench", "status", "--runs", "."],
    ["train", "--folder", "out", "--resume"],
)


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    method = rng.choice(sorted(ALGORITHMS))
    rate = rng.choice(RATES) if rng.random() < 0.7 else f"{10 ** rng.uniform(-1, 12):.3g}"
    settings = [f"train.learning_rate={rate}", *rng.sample(OTHERS, k=rng.choice((0, 0, 1, 2)))]
    if method == "stablenet":
        preset = rng.choice(("recommended", "paper", "published", "paper-covariance"))
        settings += [f'method.parameters.preset="{preset}"']
    words = ["train", "--method", method, "--device", "cpu", "--folder", "out", *tiny(*settings)]
    readers = rng.sample(READERS, k=2)
    told = f"diverging: stablenet {' '.join(words)}; then {' and '.join(' '.join(each) for each in readers)}"
    return Trial(call=describe(lambda: try_rate(words, readers, folder), told), inputs=1 + len(readers), patience=120.0)


def try_rate(words: list[str], readers: list[list[str]], folder: Path) -> list[str]:
    """Faults of a training and of what reads its folder afterwards."""
    faults = _run(words, folder)
    run = folder / "out"
    if run.exists():
        faults += _check_folder(run)
        for reader in readers:
            faults += _run(reader, folder)
    return faults


def _run(words: list[str], folder: Path) -> list[str]:
    log = folder.parent / "log"
    status = finish(start_command(words, folder, log))
    text = log.read_text(errors="replace")
    if "Traceback" in text or status not in STATUSES:
        return [f"{' '.join(words[:2])} ends with {status}: {text[-300:]}"]
    if status == 2 and len(text.rpartition("error: ")[2].strip()) < 10 and "Usage:" not in text:
        return [f"{' '.join(words[:2])}: empty message"]
    return []


def _check_folder(run: Path) -> list[str]:
    """Every figure is JSON, and a run that did not finish says why."""
    try:
        for file in run.glob("*.jsonl"):
            for line in file.read_text().splitlines():
                json.loads(line, parse_constant=_refuse)
        status = json.loads((run / "status.json").read_text(), parse_constant=_refuse)
    except (OSError, ValueError) as error:
        return [f"the folder is damaged: {error}"]
    explained = status["state"] == "finished" or (status["state"] == "failed" and len(status["reason"]) > 20)
    return [] if explained else [f"its status is {status}"]


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
