"""Options and arguments of every verb, with words of every kind; what is needed besides is right."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import typer

from campaign.odd import draw_word
from campaign.parts.signals import BENCH
from campaign.trial import Trial
from campaign.workshop import TABLE, tiny

NEEDED = {
    "train": lambda w: [*tiny("train.max_steps=1")],
    "evaluate": lambda w: [str(w / "copy")],
    "predict": lambda w: [str(w / "copy"), str(w / "photos")],
    "export": lambda w: [str(w / "copy")],
    "report": lambda w: ["--runs", str(w / "none"), "--panels", "0"],
    "saliency": lambda w: [str(w / "copy"), "--samples", "2", "--count", "1"],
    "runs": lambda w: [],
    "weights": lambda w: [str(w / "copy")],
    "diagnose": lambda w: [str(w / "table.csv"), "--target", "y"],
    "list": lambda w: [],
    "data list": lambda w: [],
    "data split": lambda w: ["folder", "classic", "--root", str(w / "photos"), "--target", "west"],
    "data check": lambda w: [str(w / "split.tsv")],
    "data show": lambda w: [str(w / "split.tsv"), "--no-sheet"],
    "data prepare": lambda w: ["folder", "--root", str(w / "photos")],
    "table fit": lambda w: [str(w / "table.csv"), "--target", "y", "--page", "page.html"],
    "bench list": lambda w: [],
    "bench plan": lambda w: ["unbalanced-5", "--runs", "bench"],
    "bench status": lambda w: ["--runs", "bench"],
    "bench run": lambda w: ["mine.toml", *BENCH],
    "bench search": lambda w: ["mine.toml", "--budget", "1", *BENCH],
    "demo": lambda w: ["--seeds", "2", "--epochs", "1", "--workers", "1"],
    "paper": lambda w: ["--runs", "none"],
}
SELDOM = ("bench run", "bench search", "demo")  # where the words are right, they take long
_SELDOM_SHARE = 0.05
SLOW = ("watch", "show", "help", "ray_address", "install_completion", "show_completion")


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    import shutil

    verb = rng.choice(SELDOM if rng.random() < _SELDOM_SHARE else sorted(set(NEEDED) - set(SELDOM)))
    shutil.copytree(workshop / "runs" / "weighted", folder / "copy")
    for name in ("photos", "table.csv", "split.tsv"):
        (folder / name).symlink_to(workshop / name)
    (folder / "mine.toml").write_text(TABLE)
    words = [*verb.split(), *NEEDED[verb](Path())]
    for option in rng.sample(list_verbs()[verb], k=min(rng.choice((1, 1, 2)), len(list_verbs()[verb]))):
        words += _use(rng, option)
    if rng.random() < 0.15:  # one of the words that were right
        words[rng.randrange(len(verb.split()), len(words) + 1) : 0] = []
        place = rng.randrange(len(verb.split()), len(words) + 1)
        words[place : place + 1] = [draw_word(rng)]
    return Trial(words=words, patience=300.0 if verb in SELDOM else Trial.patience)


def _use(rng: Random, option: Any) -> list[str]:
    if option.param_type_name == "argument":
        return [draw_word(rng)]
    name = rng.choice(option.opts + option.secondary_opts)
    return [name] if option.is_flag else [name, draw_word(rng)]


@cache
def list_verbs() -> dict[str, list[Any]]:
    """Every verb, such as "data split", with its options."""
    from stablenet.cli.verbs import app

    return dict(_walk(typer.main.get_command(app), ()))


def _walk(command: Any, names: tuple[str, ...]) -> list[tuple[str, list[Any]]]:
    if not hasattr(command, "commands"):
        return [(" ".join(names), [option for option in command.params if option.name not in SLOW])]
    return [found for name, inner in command.commands.items() for found in _walk(inner, (*names, name))]
