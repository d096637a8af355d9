"""A machine that says no: files that may not grow, few open files, no home, paths that are devices or in the way."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

from campaign.trial import Trial
from campaign.workshop import tiny

FIT = ["table", "fit", "table.csv", "--target", "y"]
WRITERS = {
    "train": lambda out: ["train", "--method", "erm", "--runs", out, "--device", "cpu", *tiny("train.max_steps=2")],
    "weighted": lambda out: ["train", "--method", "stablenet", "--runs", out, "--device", "cpu", *tiny()],
    "evaluate": lambda out: ["evaluate", "run"],
    "predict": lambda out: ["predict", "run", "photos", "--output", f"{out}.csv"],
    "parquet": lambda out: ["predict", "run", "photos", "--output", f"{out}.parquet"],
    "export": lambda out: ["export", "run", "--output", out],
    "torch": lambda out: ["export", "run", "--format", "torch", "--output", out],
    "report": lambda out: ["report", "--runs", ".", "--panels", "0", "--output", out],
    "saliency": lambda out: ["saliency", "run", "--samples", "2", "--count", "1", "--output", f"{out}.html"],
    "weights": lambda out: ["weights", "run", "--csv", f"{out}.csv", "--output", f"{out}.png"],
    "split": lambda out: ["data", "split", "folder", "classic", "--root", "photos", "--target", "west", "--out", out],
    "show": lambda out: ["data", "show", "split.tsv", "--root", "photos", "--out", f"{out}.png"],
    "prepare": lambda out: ["data", "prepare", "folder", "--root", "photos", "--store", out],
    "cache": lambda out: ["data", "prepare", "folder", "--root", "photos"],
    "fit": lambda out: [*FIT, "--page", out, "--weights", f"{out}.w", "--save", f"{out}.m"],
    "diagnose": lambda out: ["diagnose", "table.csv", "--target", "y", "--output", out],
    "search": lambda out: ["bench", "status", "--runs", out],
}  # fmt: skip


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    shutil.copytree(workshop / "runs" / "weighted", folder / "run")
    for name in ("photos", "table.csv", "split.tsv"):
        (folder / name).symlink_to(workshop / name)
    out, limits, environment = "out", {}, {}
    roll = rng.random()
    if roll < 0.4:
        limits = {"FSIZE": rng.choice((0, 1, 100, 1000, 5000, 20_000, 100_000, 400_000))}
    elif roll < 0.5:
        limits = {"NOFILE": rng.choice((4, 8, 16, 24))}
    elif roll < 0.65:
        environment = rng.choice(
            (
                {"HOME": "/nonexistent", "STABLENET_CACHE": ""},
                {"HOME": "", "STABLENET_CACHE": ""},
                {"STABLENET_CACHE": "/proc/none"},
                {"STABLENET_CACHE": str(folder / "table.csv")},
                {"TMPDIR": "/nonexistent"},
                {"STABLENET_DATA": "/nonexistent"},
                {"TERM": "dumb", "COLUMNS": "1"},
                {"COLUMNS": "0"},
                {"NO_COLOR": "1", "LANG": "C", "PYTHONIOENCODING": "ascii"},
            )
        )
    else:
        out = _put_in_the_way(rng, folder)
    return Trial(words=WRITERS[rng.choice(sorted(WRITERS))](out), limits=limits, environment=environment)


def _put_in_the_way(rng: Random, folder: Path) -> str:
    for suffix in ("", ".csv", ".parquet", ".html", ".png", ".w", ".m"):
        place = folder / f"full{suffix}"
        place.mkdir()
        (place / "kept").write_text("here")
        (folder / f"file{suffix}").write_text("here")
        (folder / f"device{suffix}").symlink_to("/dev/full")
    (folder / "circle").symlink_to("circle")
    choices = ("full", "file", "file/below", "circle", "device", "/dev/null/x", "/proc/x", "x" * 300, "a" * 200 + "/b")
    return rng.choice((*choices, "new/deep/er", "é[/b]", "\udcff", "/sys/x", "", "."))
