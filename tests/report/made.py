"""Real runs, tiny: a table of one's own on the embedded data, trained and evaluated in seconds."""

import shutil
from functools import cache
from pathlib import Path

import pytest

from stablenet.bench import find_table
from stablenet.bench.cells import make_run
from stablenet.data.sources import digits
from stablenet.data.sources.digits import draw_textures
from stablenet.engine.session import Runtime
from stablenet.engine.train import train
from stablenet.evaluation.evaluate import evaluate_run

SEEDS = (0, 1)
TABLE = """
title = "Tiny <table>"
caption = "Made for tests."
x_title = "dominant ratio"
notes = ["a note"]
[settings.train]
epochs = 2
milestones = [1]
batch_size = 20
learning_rate = 0.01
[settings.data.parameters]
train_size = 60
test_size = 40
validation = 0.25
backgrounds = 20
[[column]]
id = "easy"
title = "DR0.5"
group = "Digits"
recipe = "embedded-dr0.5"
x = 0.5
[[column]]
id = "hard"
title = "DR0.9"
group = "Digits"
recipe = "embedded-dr0.9"
x = 0.9
[[column]]
id = "average"
title = "Avg."
mean_of = ["easy", "hard"]
[[column]]
id = "none"
title = "None"
recipe = "embedded-dr0.6"
empty = "no such images"
[[row]]
id = "erm"
title = "ERM"
method = "erm"
paper = ["60.00", "_45.00_", "52.50", "-"]
[[row]]
id = "coral"
title = "CORAL"
method = "coral"
paper = ["", "10.25", "", "-"]
[[row]]
id = "stablenet"
title = "StableNet"
method = "stablenet"
paper = ["**62.33**", "**50.49**", "56.41", "-"]
"""


def write_table(folder: Path) -> Path:
    path = folder / "tiny.toml"
    path.write_text(TABLE)
    return path


def make_runs(folder: Path) -> Path:
    """Runs of ERM and StableNet in both columns for two seeds; CORAL has nothing, and one run is not evaluated."""
    table = find_table(str(write_table(folder)))
    runtime = Runtime(runs=folder / "runs", device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "draw_textures", cache(draw_textures))  # the same textures for all, drawn once
        for row in table.rows:
            for column in table.columns[:2]:
                for seed in SEEDS if row.id != "coral" else ():
                    evaluate_run(train(make_run(table, row, column, seed).config, runtime), device="cpu")
        train(make_run(table, table.rows[1], table.columns[1], 0).config, runtime)
    return runtime.runs


def copy_runs(made: Path, folder: Path) -> Path:
    """A copy of the table and the runs, to be changed."""
    shutil.copytree(made, folder, dirs_exist_ok=True)
    return folder / "runs"
