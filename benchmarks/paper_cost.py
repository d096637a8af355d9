"""GPU minutes that `paper-resnet50` is expected to take, from numbers of steps and published times.

    python -m benchmarks.paper_cost

No run of the table has been timed. A step of plain training is taken to cost what steps of ResNet-50 cost in published
sessions, many runs at once and everything counted: a constant, and a part that grows with the pixels of a batch, by
least squares. Those runs wrote checkpoints after every epoch, which `--figures-only` spares; these are shorter, so that
starts and evaluations weigh more. Steps of other methods cost what results/methods measured relative to plain training,
with ResNet-18 at 224 pixels; those of the preset `published` what they did with ResNet-50.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stablenet.bench.cells import choose_rows, flatten
from stablenet.bench.paper_tables import Row, find_table
from stablenet.bench.plan import choose_columns
from stablenet.engine.config import RunConfig, assemble_config, merge

ROOT = Path(__file__).parents[1]
TABLE, SEEDS = "paper-resnet50", 3
DOMAIN_MAKING = 75 * 200 / 128  # M-ADA: steps of 128 images for 3 domains, 25 ascents each of 200 images
PUBLISHED = 77.7 / 44.8  # seconds of an epoch, `published` over `paper`, PACS classic at 112 pixels


@dataclass(frozen=True)
class Session:
    """Published runs of ResNet-50 that ran side by side.   started: hour of the first, as in their timing.jsonl.
    seconds: from the first start to the last end.
    """

    started: str
    steps: int
    seconds: float
    side: int
    batch: int

    @property
    def pixels(self) -> float:
        """Millions in a batch."""
        return self.batch * self.side**2 / 1e6


SESSIONS = (
    Session("2026-11-16T06:43", 33_920, 1339, 224, 128),  # results/pacs
    Session("2026-11-16T09:43", 55_374, 841, 112, 128),  # results/pacs
    Session("2026-11-19T06:51", 20_584, 254, 128, 64),  # results/natural
)


def fit_step() -> tuple[float, float]:
    """Milliseconds of a step, and of a million pixels."""
    pixels = np.array([[1.0, session.pixels] for session in SESSIONS])
    cost = np.array([1000 * session.seconds / session.steps for session in SESSIONS])
    constant, slope = np.linalg.lstsq(pixels, cost, rcond=None)[0]
    return float(constant), float(slope)


def read_ratios() -> dict[str, float]:
    """Cost of a method's step over that of plain training, in batches of the same size."""
    text = (ROOT / "results" / "methods" / "speed-cuda-resnet18.json").read_text(encoding="utf-8")
    measured = {entry["name"]: float(entry["cost"]) for entry in json.loads(text)["methods"]}
    return {**measured, "stablenet-published": PUBLISHED, "stablenet-recommended": measured["stablenet"]}


def cost_run(row: Row, config: RunConfig, ratios: Mapping[str, float]) -> tuple[int, float]:
    """Steps of a run, and its GPU seconds."""
    constant, slope = fit_step()
    train, copies = config.train, 2 if row.method == "rsc" else 1
    assert train.epoch_steps is not None
    steps = train.epochs * train.epoch_steps
    pixels = copies * train.batch_size * config.data.image_size**2 / 1e6
    plain = steps * ratios[row.id] + (DOMAIN_MAKING if row.method == "m-ada" else 0.0)
    return steps, plain * (constant + slope * pixels) / 1000


def main() -> None:
    table, ratios = find_table(TABLE), read_ratios()
    recipes = dict.fromkeys(column.recipe for column in choose_columns(table, ()))
    constant, slope = fit_step()
    print(f"a step: {constant:.1f} ms, and {slope:.1f} ms for a million pixels; {len(recipes)} splits, {SEEDS} seeds\n")
    print("| row | steps | images in a batch | GPU minutes of all runs |\n|---|---|---|---|")
    total = 0.0
    for row in choose_rows(table):
        config = assemble_config(next(iter(recipes)), None, flatten(merge(table.settings, row.values)))
        steps, seconds = cost_run(row, config, ratios)
        total += seconds * len(recipes) * SEEDS / 60
        print(f"| {row.id} | {steps} | {config.train.batch_size} | {seconds * len(recipes) * SEEDS / 60:.1f} |")
    print(f"| all | | | {total:.1f} |")


if __name__ == "__main__":
    main()
