"""Run folders with one file damaged, missing or of another kind, opened by every verb that reads runs.

A verb may refuse, or must say the same as of the sound folder: a damaged model or manifest never gives other figures.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from campaign.odd import garble, mutate_json
from campaign.trial import Ending, Trial
from campaign.workshop import tiny

VERBS: dict[str, Callable[[str], list[str]]] = {
    "runs": lambda run: ["runs", "."],
    "weights": lambda run: ["weights", run, "--csv", "weights.csv"],
    "evaluate": lambda run: ["evaluate", run],
    "predict": lambda run: ["predict", run, "photos/east/cat/0.png", "--output", "predicted.csv"],
    "export": lambda run: ["export", run],
    "report": lambda run: ["report", "--runs", ".", "--panels", "1", "--images", "1"],
    "saliency": lambda run: ["saliency", run, "--samples", "2", "--count", "1"],
    "resume": lambda run: ["train", "--folder", run, "--resume"],
    "train": lambda run: ["train", "--method", "erm", "--folder", run, "--resume", *tiny()],
    "status": lambda run: ["bench", "status", "--runs", "."],
    "diagnose": lambda run: ["diagnose", run],
}
_READ_WHOLE = ("best.safetensors", "last.safetensors", "manifest.tsv", "weights.parquet", "checkpoint.safetensors")


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    verb = rng.choice(sorted(VERBS))
    which = "stopped" if verb in ("resume", "train") else rng.choice(("plain", "weighted", "stopped"))
    shutil.copytree(workshop / "runs" / which, folder / "run")
    (folder / "photos").symlink_to(workshop / "photos")
    file = rng.choice(sorted(path for path in (folder / "run").iterdir() if path.name != ".lock"))
    damage(rng, file)
    check = partial(_check_predictions, workshop, which) if verb == "predict" and file.name in _READ_WHOLE else None
    return Trial(words=VERBS[verb]("run"), check=check)


def damage(rng: Random, file: Path) -> None:
    """Change one file: its bytes, its values, or what it is."""
    roll = rng.random()
    if roll < 0.06:
        file.unlink()
    elif roll < 0.10:
        file.unlink()
        file.mkdir()
    elif roll < 0.13:
        file.unlink()
        os.symlink(rng.choice(("/dev/null", file.name, "nowhere")), file)
    elif roll < 0.55 and file.suffix == ".json":
        file.write_text(json.dumps(mutate_json(rng, json.loads(file.read_text()))))
    elif roll < 0.55 and file.suffix in (".jsonl", ".tsv"):
        _damage_line(rng, file)
    else:
        file.write_bytes(garble(rng, file.read_bytes()))


def _damage_line(rng: Random, file: Path) -> None:
    lines = file.read_text().split("\n")
    place = rng.randrange(max(1, len(lines) - 1))
    try:
        lines[place] = json.dumps(mutate_json(rng, json.loads(lines[place])))
    except ValueError:  # a row of a manifest
        cells = lines[place].split("\t")
        cells[rng.randrange(len(cells))] = rng.choice(("", "-1", "99", "x", "1e9", "é"))
        lines[place] = "\t".join(cells)
    file.write_text("\n".join(lines))


def _check_predictions(workshop: Path, which: str, ending: Ending) -> str:
    """Predictions from a folder that was damaged are those of the sound one, or there are none."""
    if ending.status != 0:
        return ""
    wanted = reference_predictions(workshop, which)
    found = (ending.folder / "predicted.csv").read_text()
    return "" if found == wanted else "silent: other predictions from a damaged folder"


def reference_predictions(workshop: Path, which: str) -> str:
    """Computed once, here and not in the workshop: every method's own."""
    import pandas as pd

    from stablenet.engine.run import load_run
    from stablenet.evaluation.evaluate import load_chosen
    from stablenet.evaluation.predict import add_predictions, predict_images

    run = load_run(workshop / "runs" / which)
    model, _ = load_chosen(run, "source-validation")
    path = Path("photos/east/cat/0.png")
    logits = predict_images(model, [path], run.transform, stored_side=run.config.data.store_size)
    table: str = add_predictions(pd.DataFrame({"path": [str(path)]}), logits, run.classes).to_csv(index=False)
    return table
