"""Cost of a training step of every method, relative to ERM's, in one run.

    python -m benchmarks.methods                              # the paper's CNN, 28 pixels, on the CPU
    python -m benchmarks.methods --network resnet18           # ResNet-18, 64 pixels, on the CPU
    python -m benchmarks.methods --device cuda                # ResNet-18, 224 pixels, bf16, on a GPU

Images are synthetic: no data is needed. All methods have the same batch on the device; a step is what the engine does
with it: loss, backward pass, optimiser. Methods alternate, a few steps each, in a rotating order; the cost is the
median over rounds of a method's time divided by ERM's in the same round. On a CPU it is this process's CPU time on one
thread, which other load hardly affects; on a GPU it is wall-clock time. What a method does before an epoch (clusters,
augmented domains, whole-set weights) is reported separately, for one epoch of the synthetic set.

Writes speed-<device>-<network>.json and .md into --out (results/methods) and prints the table.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from stablenet.algorithms import ALGORITHMS
from stablenet.data.loader import Batch, MemoryPixels, PartSamples
from stablenet.data.manifest import Manifest
from stablenet.engine.config import RunConfig, assemble_config, merge, read_config
from stablenet.engine.run_data import RunData
from stablenet.engine.run_folder import RunFolder
from stablenet.engine.session import Runtime, Session, build_session, own_random_numbers, start_fabric
from stablenet.errors import UserError

REFERENCE = "erm"
BARS = {"focal": 1.02, "jigen": 1.3, "rsc": 2.8, "dg-mmld": 1.3}  # largest allowed cost
CLASSES, DOMAINS = 7, 3
EPOCHS, EPOCH = 30, 15  # of a synthetic run, and the one that is timed


@dataclass(frozen=True)
class Case:
    """A way to use a method. epoch: the one its steps are timed in.   note: why its settings are not the defaults."""

    method: str
    parameters: dict[str, Any] = field(default_factory=dict)
    epoch: int = EPOCH
    note: str = ""


# Methods with several kinds of steps, or with one that starts late; all others are timed as they are.
SPECIAL = {
    "stablenet": Case("stablenet", epoch=0, note="preset recommended, weights of the whole set"),
    "stablenet batch": Case("stablenet", {"solve": "batch"}, note="preset recommended, weights of each batch"),
    "stablenet paper": Case("stablenet", {"preset": "paper"}, note="preset paper"),
    "epi-fcr": Case("epi-fcr", {"warmup": 0}, note="after its warm-up"),
    "metareg": Case("metareg", note="once the penalty is learned"),
    "metareg meta": Case("metareg", epoch=0, note="while the penalty is learned"),
    "m-ada": Case("m-ada", {"interval": 0}, note="with one augmented domain"),
}


def list_cases(methods: list[str]) -> dict[str, Case]:
    """ERM first, then every registered or requested method."""
    plain = {name: Case(name) for name in ALGORITHMS if name not in SPECIAL}
    every = {REFERENCE: Case(REFERENCE), **plain, **SPECIAL}
    return {name: case for name, case in every.items() if not methods or case.method in {*methods, REFERENCE}}


class MadeUp(RunData):
    """Random images in memory, cycling through classes and domains."""

    def open_part(self, part: str) -> PartSamples:
        rows, side = self.manifest.part(part), self._config.image_size
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 256, (len(rows), side, side, 3), dtype=torch.uint8, generator=generator)
        label, domain = (torch.from_numpy(rows[name].to_numpy(copy=True)) for name in ("label", "domain"))
        count = torch.arange(len(rows))
        return PartSamples(MemoryPixels(rows["id"].tolist(), pixels), count, label, domain, count, len(rows))


def make_rows(count: int) -> Manifest:
    number = range(count)
    rows = pd.DataFrame({"id": [f"{k:06d}" for k in number], "part": "train"})
    rows["label"] = [k // DOMAINS % CLASSES for k in number]
    rows["domain"] = [k % DOMAINS for k in number]
    return Manifest("made-up", "none", {}, 0, tuple("abcdefg"), tuple("xyz"), rows)


def make_config(case: Case, options: argparse.Namespace) -> RunConfig:
    """The same for all methods, except the method itself."""
    values = assemble_config(
        settings=[
            f"data.image_size={options.image_size}",
            f"model.name={options.network}",
            f"train.epochs={EPOCHS}",
            f"train.batch_size={options.batch_size}",
            "train.learning_rate=0.001",
        ]
    ).plain()
    if options.network == "paper-cnn":
        values["model"]["parameters"] = {"image_size": options.image_size}
    return read_config(merge(values, {"method": {"name": case.method, "parameters": case.parameters}}))


@dataclass
class Contestant:
    """A method's session and batch. before: seconds of what it does before an epoch."""

    session: Session
    batch: Batch
    before: float = 0.0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.session.algorithm.step(self.batch, self.session.stepper)


class Clock:
    """Seconds of a call: CPU time of this process on a CPU, wall-clock time on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._read = time.perf_counter if device.type == "cuda" else time.process_time

    def time(self, call: Callable[[], object]) -> float:
        self._wait()
        start = self._read()
        call()
        self._wait()
        return self._read() - start

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def open_contestants(
    cases: dict[str, Case], options: argparse.Namespace, fabric: Any, folder: Path
) -> tuple[dict[str, Contestant], dict[str, str]]:
    """The methods that support the network, ready to step, and why the others do not."""
    ready, refused = {}, {}
    clock = Clock(fabric.device)
    for name, case in cases.items():
        config = make_config(case, options)
        data = MadeUp(config.data, make_rows(options.images), None)
        try:
            session = build_session(config, Runtime(graphs=False), fabric, RunFolder(folder), data)
            contestant = Contestant(session, next(iter(session.training.epoch(0))))
            algorithm = session.algorithm
            contestant.before = clock.time(
                lambda a=algorithm, e=case.epoch, s=session: a.start_epoch(e, s.training_set)
            )
            contestant.run(1)
        except UserError as error:
            refused[name] = str(error)
            continue
        except torch.OutOfMemoryError:
            refused[name] = "it does not fit into the device's memory"
            continue
        ready[name] = contestant
        print(f"  {name} is ready", flush=True)
    return ready, refused


def time_steps(
    ready: dict[str, Contestant], options: argparse.Namespace, device: torch.device
) -> dict[str, list[float]]:
    """Seconds per step of every contestant in every round, after a warm-up round."""
    clock, names = Clock(device), list(ready)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(options.rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            spent = clock.time(lambda name=name: ready[name].run(options.steps))
            if number:
                seconds[name].append(spent / options.steps)
    return seconds


def summarise(
    cases: dict[str, Case], ready: dict[str, Contestant], seconds: dict[str, list[float]]
) -> list[dict[str, Any]]:
    rows = []
    plain = seconds[REFERENCE]
    step = statistics.median(plain)
    for name, values in seconds.items():
        ratios = [value / reference for value, reference in zip(values, plain, strict=True)]
        cost, bar = statistics.median(ratios), BARS.get(name)
        rows.append(
            {
                "name": name,
                "uses_domains": ALGORITHMS[cases[name].method].uses_domains,
                "milliseconds": 1000 * statistics.median(values),
                "cost": cost,
                "least": min(ratios),
                "most": max(ratios),
                "bar": bar,
                "holds": None if bar is None else cost <= bar,
                "before_epoch_in_erm_steps": ready[name].before / step,
                "note": cases[name].note,
            }
        )
    return sorted(rows, key=lambda row: row["cost"])


def describe(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else platform.machine(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "precision": "bf16" if cuda else "32",
        **{
            name: getattr(options, name)
            for name in ("network", "image_size", "batch_size", "images", "steps", "rounds")
        },
    }


def write_note(name: str, note: str) -> str:
    """A row's note, and whether its method is an approximation.   name: of the row, which begins with its method's."""
    method = name.partition(" ")[0]
    approximates = method in set(ALGORITHMS) and bool(ALGORITHMS[method].approximation)
    return "; ".join(text for text in (note, "an approximation" * approximates) if text)


def show(machine: dict[str, Any], rows: list[dict[str, Any]], refused: dict[str, str]) -> str:
    """The table as markdown."""
    lines = [
        f"{machine['network']}, {machine['image_size']} px, batches of {machine['batch_size']}, "
        f"precision {machine['precision']} on {machine['device']}; medians of {machine['rounds']} rounds of "
        f"{machine['steps']} steps; torch {machine['torch']}.",
        "",
        "| method | ms per step | cost ÷ ERM's | over rounds | bar | before an epoch, in ERM steps | |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        bar = "" if row["bar"] is None else f"≤ {row['bar']} {'holds' if row['holds'] else '**BROKEN**'}"
        before = row["before_epoch_in_erm_steps"]
        before = "" if before < 0.05 else f"{before:.1f}"
        lines.append(
            f"| {row['name']}{'*' * row['uses_domains']} | {row['milliseconds']:.1f} | {row['cost']:.2f} | "
            f"{row['least']:.2f} – {row['most']:.2f} | {bar} | {before} | "
            f"{write_note(row['name'], row['note'])} |"
        )
    lines += ["", f"\\* learns from domain labels. The set is {machine['images']} made-up images."]
    lines += [f"- {name} is not timed: {reason}." for name, reason in refused.items()]
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--network", help="paper-cnn on a CPU, resnet18 on a GPU")
    parser.add_argument("--image-size", type=int, help="224 on a GPU; 28 for paper-cnn, else 64 on a CPU")
    parser.add_argument(
        "--batch-size", type=int, help="126 on a GPU, 63 for paper-cnn, else 21: multiples of 3 domains"
    )
    parser.add_argument("--images", type=int, help="of the made-up set: 504; 63 for larger networks on a CPU")
    parser.add_argument("--steps", type=int, default=3, help="of a method in a round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--methods", nargs="*", default=[], help="only these, beside ERM")
    parser.add_argument("--out", type=Path, default=Path("results/methods"))
    options = parser.parse_args()
    gpu = options.device == "cuda"
    options.network = options.network or ("resnet18" if gpu else "paper-cnn")
    small = options.network == "paper-cnn"
    options.image_size = options.image_size or (224 if gpu else 28 if small else 64)
    options.batch_size = options.batch_size or (126 if gpu else 63 if small else 21)
    options.images = options.images or (504 if gpu or small else 63)
    return options


def main() -> None:
    options = parse()
    if options.device == "cpu":
        torch.set_num_threads(1)
    fabric = start_fabric(options.device, "auto")
    cases = list_cases(options.methods)
    with tempfile.TemporaryDirectory() as folder, own_random_numbers(fabric.device):
        ready, refused = open_contestants(cases, options, fabric, Path(folder))
        seconds = time_steps(ready, options, fabric.device)
    rows, machine = summarise(cases, ready, seconds), describe(options, fabric.device)
    table = show(machine, rows, refused)
    print("\n" + table)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / f"speed-{options.device}-{options.network.replace('/', '-')}"
    stem.with_suffix(".md").write_text(table)
    content = {"machine": machine, "methods": rows, "refused": refused}
    stem.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    broken = [row["name"] for row in rows if row["holds"] is False]
    print(f"BROKEN BARS: {', '.join(broken)}" if broken else "all bars hold")
    raise SystemExit(bool(broken))


if __name__ == "__main__":
    main()
