"""Time and memory of whole-set solves, against the number of samples.

    python -m benchmarks.scale                          # everything at the bars' sizes; results/scale/
    python -m benchmarks.scale --quick                  # a tenth of the samples
    python -m benchmarks.scale --parts images tables --device cpu --threads 2

images: weights and offsets of four components together, of 1,536 features and five functions each: on a GPU of
1,281,167 samples in 1,000 classes, on a processor of 200,000 in 100. tables: `StableRegressor` on 50 columns.
Features are drawn chunk by chunk from a seed. Every size has its own process, whose peak is its own; on a GPU the peak
is that of the device beyond the stored features. Writes cpu.md and cpu.json, or cuda.md and cuda.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablenet.weighting import WholeSet, recommended
from stablenet.weighting.chunks import CHUNK_ROWS

FEATURES, CONTEXTS, COLUMNS = 1536, 20, 50
GIB = 2**30
# Samples, classes and memory of the bars. The processor's budget leaves room for the features and the libraries.
IMAGES = {
    "cuda": {"full": (320_000, 640_000, 1_281_167), "classes": 1000, "memory": "4GiB", "seconds": 120, "gib": 8},
    "cpu": {"full": (50_000, 100_000, 200_000), "classes": 100, "memory": "1GiB", "seconds": 360, "gib": 3},
}
TABLES: dict[str, Any] = {"full": (250_000, 500_000, 1_000_000), "seconds": 180, "gib": 2}


@dataclass(frozen=True)
class Fit:
    """What one solve took.   gib: the peak, on a GPU beyond the features.   found: what came out."""

    part: str
    samples: int
    seconds: float
    cpu_seconds: float
    gib: float
    load: float
    found: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a tenth of the samples")
    size.add_argument("--full", action="store_true", help="the bars' sizes, the default")
    parser.add_argument("--parts", nargs="+", choices=["images", "tables"], help="all that are for the device")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/scale"))
    parser.add_argument("--one", nargs=2, metavar=("PART", "SAMPLES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        part, samples = options.one
        fit = measure_images(int(samples), options.device) if part == "images" else measure_table(int(samples))
        print(json.dumps(asdict(fit)))
        return
    parts = options.parts or (["images"] if options.device == "cuda" else ["images", "tables"])
    fits = [fit for part in parts for fit in measure(part, options)]
    save(options.out, options, fits)


def measure(part: str, options: argparse.Namespace) -> list[Fit]:
    """Every size in its own process, to measure its own peak memory."""
    sizes = IMAGES[options.device]["full"] if part == "images" else TABLES["full"]
    fits = []
    for samples in sizes:
        number = samples // 10 if options.quick else samples
        settings = ["--device", options.device, "--threads", str(options.threads)]
        command = [sys.executable, "-m", "benchmarks.scale", "--one", part, str(number), *settings]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        fits.append(Fit(**json.loads(printed.splitlines()[-1])))
        print(show(fits[-1]), flush=True)
    return fits


def show(fit: Fit) -> str:
    return f"{fit.part}, {fit.samples:,}: {fit.seconds:.1f} s, {fit.gib:.2f} GiB, {fit.found}"


def draw_chunk(start: int, stop: int, classes: int, device: str) -> tuple[Tensor, Tensor]:
    """Features (stop − start, 1536) and labels of samples whose context agrees with their class half of the time.

    `start` is a multiple of `CHUNK_ROWS`: a chunk is a function of its place, whatever the number of samples.
    """
    generator = torch.Generator(device).manual_seed(1 + start // CHUNK_ROWS)
    centres = torch.randn(CONTEXTS, FEATURES, generator=torch.Generator().manual_seed(0)).to(device)
    size = stop - start
    labels = torch.randint(0, classes, (size,), generator=generator, device=device)
    other = torch.randint(0, CONTEXTS, (size,), generator=generator, device=device)
    agrees = torch.rand(size, generator=generator, device=device) < 0.5
    context = torch.where(agrees, labels % CONTEXTS, other)
    noise = torch.randn(size, FEATURES, generator=generator, device=device)
    return noise.add_(centres[context], alpha=0.5), labels


def measure_images(samples: int, device: str) -> Fit:
    """Weights and offsets of four components, together."""
    setting = IMAGES[device]
    plan = recommended.WholeSetPlan(strength=1.0, offset=0.5, components=recommended.PRETRAINED_COMPONENTS)
    whole_set = WholeSet(
        plan,
        samples,
        setting["classes"],
        preset=recommended.NAME,
        fold_seed=0,
        overrides={"seed": 0},
        memory=setting["memory"],
    )
    for start in range(0, samples, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, samples)
        features, labels = draw_chunk(start, stop, setting["classes"], device)
        whole_set.collect(torch.arange(start, stop, device=device), {"stages": features}, labels)
    del features, labels
    before = 0
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = samples * FEATURES * 2
    wall, cpu = time.perf_counter(), time.process_time()
    found = whole_set.solve()
    if device == "cuda":
        torch.cuda.synchronize()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = torch.cuda.max_memory_reserved() if device == "cuda" else resident_peak()
    assert whole_set.weighting is not None
    solution = whole_set.weighting.last_solution
    assert solution is not None
    found["evaluations"] = len(solution.objective)
    return Fit("images", samples, wall, cpu, (peak - before) / GIB, os.getloadavg()[0], found)


def measure_table(rows: int) -> Fit:
    """A fit of a table of 50 columns, the table itself and the final regression included."""
    from stablenet.tabular import StableRegressor

    generator = np.random.default_rng(0)
    x = generator.standard_normal((rows, COLUMNS))
    for column in range(COLUMNS - 1, 0, -1):
        x[:, column] += 0.5 * x[:, column - 1]
    y = x[:, :5].sum(1) + generator.standard_normal(rows)
    wall, cpu = time.perf_counter(), time.process_time()
    model = StableRegressor().fit(x, y)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    found = {"dependence_left": model.dependence_after_ / model.dependence_before_, "ess_share": model.ess_ / rows}
    return Fit("tables", rows, wall, cpu, resident_peak() / GIB, os.getloadavg()[0], found)


def resident_peak() -> float:
    """Bytes: the largest resident size of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def judge(part: str, fits: Sequence[Fit], options: argparse.Namespace) -> list[tuple[str, str, str, str]]:
    """Lines of the table: what, measured, bar, whether it holds. Bars are for the full sizes."""
    bars = IMAGES[options.device] if part == "images" else TABLES
    first, last = fits[0], fits[-1]
    size = last.samples / first.samples
    lines = []
    for fit in fits:
        at_bar = fit is last and not options.quick
        name = f"{part}, {fit.samples:,} samples"
        time_bar = bars["seconds"] if at_bar else None
        lines.append((f"{name}: time", f"{fit.seconds:.1f} s", *verdict(fit.seconds, time_bar, "s")))
        lines.append((f"{name}: processor time", f"{fit.cpu_seconds:.0f} s, load {fit.load:.1f}", "", ""))
        lines.append(
            (f"{name}: peak memory", f"{fit.gib:.2f} GiB", *verdict(fit.gib, bars["gib"] if at_bar else None, "GiB"))
        )
    work = [fit.cpu_seconds if options.device == "cpu" else fit.seconds for fit in fits]
    per_step = [w / fit.found.get("evaluations", 1) for w, fit in zip(work, fits, strict=True)]
    growth = per_step[-1] / per_step[0]
    bar = 1.1 * size
    name = "processor time" if options.device == "cpu" else "time"
    lines.append(
        (
            f"{part}: growth of {name} for each evaluation, samples × {size:.3g}",
            f"{growth:.2f} ×",
            *verdict(growth, bar, "×"),
        )
    )
    return lines


def verdict(measured: float, bar: float | None, unit: str) -> tuple[str, str]:
    if bar is None:
        return "", ""
    return f"≤ {bar:.3g} {unit}", "holds" if measured <= bar else "**missed**"


def save(folder: Path, options: argparse.Namespace, fits: Sequence[Fit]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = options.device + ("-quick" if options.quick else "")
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{options.threads} threads"
    head = f"torch {torch.__version__}, Python {platform.python_version()}, {where}"
    command = f"python -m benchmarks.scale --device {options.device} {'--quick' if options.quick else '--full'}"
    lines = [f"# Whole sets of growing size ({options.device.upper()})", "", f"{head}. Regenerate: `{command}`.", ""]
    lines += ["| what | measured | bar | |", "|---|---|---|---|"]
    parts = list(dict.fromkeys(fit.part for fit in fits))
    judged = [line for part in parts for line in judge(part, [fit for fit in fits if fit.part == part], options)]
    lines += ["| " + " | ".join(line) + " |" for line in judged]
    text = "\n".join(lines) + "\n"
    (folder / f"{name}.md").write_text(text)
    record = {"environment": head, "fits": [asdict(fit) for fit in fits]}
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
