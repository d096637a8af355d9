"""A table over the tiny source, and real runs of it, made in this process."""

from pathlib import Path

import torch

from stablenet.bench.paper_tables import find_table
from stablenet.bench.plan import TablePart, make_orders, make_plan
from stablenet.bench.worker import perform

CONFIG = """
[data]
source = "tiny"
image_size = 12
parameters = { validation = 0.2 }
[model]
parameters = { image_size = 12 }
[train]
batch_size = 8
log_every = 2
learning_rate = 0.02
milestones = [2]
"""
TABLE = """
title = "Bars"
imports = ["tests.engine.tiny"]
x_title = "dominant ratio"
[settings.train]
epochs = 2
[[column]]
id = "half"
title = "DR0.5"
config = "half.toml"
x = 0.5
[[column]]
id = "most"
title = "DR0.9"
config = "most.toml"
x = 0.9
[[column]]
id = "colour"
config = "half.toml"
domain = "colour4"
[[column]]
id = "nowhere"
config = "most.toml"
empty = "no such domain"
[[column]]
id = "average"
mean_of = ["half", "most"]
[[row]]
id = "erm"
title = "ERM"
method = "erm"
paper = ["50.0", "_40.0_", "", "-", "45.0"]
[[row]]
id = "stablenet"
title = "StableNet"
method = "stablenet"
parameters = { preset = "paper" }
paper = ["**60.0**", "**41.0**", "", "-", "**50.5**"]
[[row]]
id = "recommended"
method = "stablenet"
extra = true
"""
METHODS, SEEDS = ("erm", "stablenet"), (0, 1)


def write_table(folder: Path, text: str = TABLE) -> str:
    """The table's file, with the configs it names beside it."""
    for name, ratio in (("half", 0.5), ("most", 0.9)):
        head = f'label = "bars-{name}"\n'
        ratio_line = f"ratio = {ratio}, validation = 0.2"
        (folder / f"{name}.toml").write_text(head + CONFIG.replace("validation = 0.2", ratio_line))
    path = folder / "bars.toml"
    path.write_text(text)
    return str(path)


def make_runs(table: str, runs: Path, methods=METHODS, seeds=SEEDS, columns=()) -> None:
    """Train and evaluate the runs of a table in this process, as a worker would."""
    before = torch.get_num_threads()
    found = find_table(table)
    plan = make_plan(found, runs, TablePart(methods=tuple(methods), seeds=tuple(seeds), columns=tuple(columns)))
    for order in make_orders(plan.left, found, runs, device="cpu"):
        outcome = perform(order)
        assert outcome.state == "finished", outcome.reason
    torch.set_num_threads(before)
