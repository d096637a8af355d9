"""Whether what is prepared (`benchmarks.program`) would run: every step at a tiny size on the CPU.

    python -m benchmarks.rehearsal DATA                        # one run of each row of every step
    python -m benchmarks.rehearsal DATA --only paper --every   # each row in each column

A run keeps its method, split, parameters and number of epochs; of its images a few of every class and domain are left,
a ResNet-50 becomes a ResNet-18 with random weights from a file, images shrink to 36 pixels, epochs to two steps. It is
trained and evaluated by both rules, as a worker does. Its figures mean nothing and are thrown away.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.program import STEPS, Step, open_table
from stablenet.bench.cells import CellRun, choose_rows, make_run
from stablenet.bench.paper_tables import PaperTable
from stablenet.bench.plan import RULES, choose_columns
from stablenet.bench.worker import RunOrder, perform
from stablenet.data.loader import PartSamples
from stablenet.engine.checkpoint import save_tensors
from stablenet.engine.config import RunConfig
from stablenet.engine.run_data import RunData
from stablenet.evaluation.evaluate import AVERAGED
from stablenet.models import build_network

FEW, MOST, SIDE = 24, 240, 36  # images of a class and domain, images of a part, pixels
QUICK: dict[str, dict[str, Any]] = {
    "m-ada": {"interval": 1, "ascent_steps": 2, "autoencoder_epochs": 1, "largest_domain": 8, "copy_size": 8},
    "epi-fcr": {"warmup": 1},
}


def thin(samples: PartSamples) -> PartSamples:
    """The first few images of every class and domain, and of many domains only some."""
    group = samples.y * (int(samples.domain.max()) + 1) + samples.domain
    order = torch.argsort(group, stable=True)
    place = torch.arange(len(order)) - torch.searchsorted(group[order], group[order])
    kept = order[place < FEW].sort().values
    kept = kept[:: -(-len(kept) // MOST)]
    columns = (samples.row, samples.y, samples.domain, samples.index)
    return PartSamples(samples.pixels, *(column[kept] for column in columns), samples.size)


def thin_parts() -> None:
    """From here on, this process reads only a few images of every part."""
    whole = RunData.open_part
    RunData.open_part = lambda data, part: thin(whole(data, part))  # type: ignore[method-assign]


def shrink(config: RunConfig, weights: Path) -> RunConfig:
    data, model, train, method = config.data, config.model, config.train, config.method
    if model.name == "resnet50":
        model = replace(model, name="resnet18", pretrained=str(weights) if model.pretrained else "")
        data = replace(data, image_size=SIDE)
    epochs = min(train.epochs, 4)
    milestones = tuple(epoch for epoch in train.milestones if epoch < epochs)
    batch = 48 if train.balance_domains else 16  # 48 are divided evenly among 3 or 4 domains
    train = replace(train, epochs=epochs, milestones=milestones, epoch_steps=2, batch_size=batch)
    method = replace(method, parameters={**method.parameters, **QUICK.get(method.name, {})})
    return replace(config, data=data, model=model, train=train, method=method)


def list_runs(step: Step, every: bool, root: Path) -> Iterator[tuple[PaperTable, str, CellRun]]:
    """Each row in the table's first column, or in all; columns that read one run differently count once."""
    table, seen = open_table(step), set()
    columns = choose_columns(table, step.columns)
    for row in choose_rows(table, step.methods):
        for column in columns if every else columns[:1]:
            run = make_run(table, row, column, step.seeds[0], None, root)
            if run.hash not in seen:
                seen.add(run.hash)
                yield table, f"{step.name}, {row.id}, {column.id}", run


def rehearse(table: PaperTable, run: CellRun, folder: Path, weights: Path, root: Path) -> str:
    """What went wrong with a run; empty if nothing did."""
    config = shrink(run.config, weights)
    rules = (*RULES, AVERAGED) if config.train.averaging != "none" else RULES
    order = RunOrder(
        name=config.name,
        config=config.plain(),
        series=run.series,
        folder=str(folder / run.hash),
        rules=rules,
        speeds=str(folder / "speeds.jsonl"),
        root=str(root),
        device="cpu",
        imports=table.imports,
        folders=tuple(map(str, table.folders)),
        figures_only=True,
    )
    return perform(order).reason


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", default="", help="names of steps, separated by commas")
    parser.add_argument("--every", action="store_true", help="each row in each column")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else [step.name for step in STEPS]
    thin_parts()
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        weights = folder / "resnet18.safetensors"
        save_tensors(weights, build_network("resnet18", 1000).body.state_dict(), {})
        for step in (step for step in STEPS if step.name in names):
            for table, name, run in list_runs(step, arguments.every, arguments.data):
                start = time.monotonic()
                reason = rehearse(table, run, folder, weights, arguments.data)
                print(f"{name}: {reason or 'runs'} ({time.monotonic() - start:.1f} s)", flush=True)
                failed += [name] if reason else []
    if failed:
        sys.exit(f"{len(failed)} would fail: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
