"""What the demo trains: a recipe of the embedded data, for two methods and a few seeds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from stablenet.engine.assemble import assemble_config
from stablenet.engine.config import RunConfig
from stablenet.errors import UserError

RECIPE = "embedded-dr0.9"
REFERENCE, METHOD = "erm", "stablenet"


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """seeds: each draws its own split, its own first weights and its own order.   epochs: None takes the recipe's 30.
    output: the folder for the page and the runs.   workers: processes at once, of one thread each; None: one a core.
    """

    output: Path = Path("demo")
    seeds: tuple[int, ...] = (0, 1, 2)
    epochs: int | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        if len(set(self.seeds)) < 2 or len(set(self.seeds)) != len(self.seeds):
            raise UserError(f"the demo needs two different seeds or more, to show a spread; got {list(self.seeds)}")
        if self.workers is not None and self.workers < 1:
            raise UserError(f"workers must be at least 1, got {self.workers}")

    @property
    def runs(self) -> Path:
        return self.output / "runs"

    @property
    def page(self) -> Path:
        return self.output / "index.html"

    def count_workers(self, tasks: int) -> int:
        return min(tasks, self.workers or os.cpu_count() or 1)


def list_settings(method: str, seed: int, epochs: int | None) -> list[str]:
    """The settings of a run beside its recipe, as `stablenet train --set` takes them."""
    chosen = [f"method.name={method}", f"seed={seed}"]
    return chosen if epochs is None else [*chosen, f"train.epochs={epochs}"]


def make_configs(settings: DemoSettings) -> list[RunConfig]:
    """One config per seed and method, pairs of a seed side by side."""
    return [
        assemble_config(RECIPE, None, list_settings(method, seed, settings.epochs))
        for seed in settings.seeds
        for method in (REFERENCE, METHOD)
    ]


def write_commands(settings: DemoSettings) -> list[str]:
    """The command lines that train the same runs one by one."""
    commands = []
    for method in (REFERENCE, METHOD):
        said = list_settings(method, 0, settings.epochs)[2:]
        words = ["stablenet train", f"--recipe {RECIPE}", f"--method {method}", "--seed 0"]
        commands.append(" ".join([*words, *(f"--set {text}" for text in said), "--device cpu"]))
    return commands
