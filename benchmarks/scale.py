"""Time and memory of whole-set solves and of what surrounds them, against the size of the set.

    python -m benchmarks.scale                          # everything for this machine, at the bars' sizes: results/scale
    python -m benchmarks.scale --quick                  # a tenth of the sizes; written elsewhere with --out
    python -m benchmarks.scale --parts images tables --device cpu --threads 2
    python -m benchmarks.scale --device cuda --parts replay resnet images   # minutes of a GPU: the bars that need one
    python -m benchmarks.scale --page                   # only the page, from the records that are there
    python -m benchmarks.scale --plan                   # what larger sets and clusters would take, from the records

images      weights and offsets of four components together, of 1,536 features and five functions each: on a GPU of
            1,281,167 samples in 1,000 classes, on a processor of 200,000 in 100
classes     the same of fewer samples, by the number of classes
tables      `StableRegressor` on 50 columns
processes   one process, and two over gloo that share the samples: what each holds, what travels, the bits they find
simulate    so many processes with the same number of samples each: what grows with the set although shares do not
manifests   reading a split of many images, which every process of a run does
help        `stablenet --help` against the bare interpreter
demo        `stablenet demo`, as `make demo` runs it
replay      on a GPU: StableNet batch by batch against plain training on the paper's CNN, whole steps replayed
resnet      on a GPU: a step of ResNet-18 with the weights of `paper`, q = 5, against one without

Every size has its own process (see `benchmarks.scale_measures` and `benchmarks.scale_steps`), whose peak of memory is
its own, that of the libraries included; on a GPU it is that of the device beyond the stored features. Every part writes
a record, cpu-images.json and so on, and README.md is made from all records that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.scale_measures import FEATURES, GIB, STARTS, Fit
from benchmarks.scale_plan import describe_plans

COMMAND = "python -m benchmarks.scale"
OUT = Path("results/scale")


@dataclass(frozen=True)
class Part:
    """sizes: measured, rising.   seconds, gib: bars of the last size.   linear: the time whose growth is judged.

    unit: of the sizes.   title: of its lines.   stored: bytes of every sample that a solve does not add.
    module: where it is measured.
    """

    title: str
    unit: str
    sizes: tuple[int, ...]
    seconds: float | None = None
    gib: float | None = None
    linear: Literal["seconds", "cpu_seconds", ""] = ""
    stored: int = 0
    module: str = "scale_measures"


CPU = {
    "images": Part("weights and offsets", "samples", (50_000, 100_000, 200_000), 360, 3, "cpu_seconds", 2 * FEATURES),
    "classes": Part("weights and offsets of 20,000 samples", "classes", (10, 100, 1000)),
    "tables": Part("a table of 50 columns", "rows", (250_000, 500_000, 1_000_000), 180, 2, "cpu_seconds"),
    "processes": Part("two processes that share", "samples", (131_072,)),
    "simulate": Part("a share of 524,288 samples each", "processes", (1, 2, 4)),
    "manifests": Part("reading a split", "images", (125_000, 250_000, 500_000, 1_000_000), linear="cpu_seconds"),
    "help": Part("`stablenet --help`", "starts", (STARTS,)),
    "demo": Part("`stablenet demo`", "run", (1,), 180),
}
CUDA = {
    "replay": Part("the paper's CNN at 28 pixels, batches of 128", "rounds", (5,), module="scale_steps"),
    "resnet": Part("ResNet-18 at 224 pixels, batches of 128", "repeats", (7,), module="scale_steps"),
    "images": Part("weights and offsets", "samples", (320_000, 640_000, 1_281_167), 120, 8, "seconds"),
    "classes": Part("weights and offsets of 320,000 samples", "classes", (10, 100, 1000)),
}
PARTS = {"cpu": CPU, "cuda": CUDA}
# Time is compared by the evaluation of the objective, whose number differs from set to set, and with some room.
ROOM = 1.1
FLAT = 0.25  # GiB: what the peak beside the stored features may grow by and still be flat
HALF = 0.55
HELP = 0.5  # seconds beyond the bare interpreter
REPLAY, RESNET = 1.25, 1.03  # times a step of plain training
AGREE = {"loss": 0.02, "dependence_after": 0.1}  # of means over an epoch with graphs and without: bfloat16 rounds

Line = tuple[str, str, str, str]  # what, measured, bar, whether it holds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes, without bars; needs --out")
    parser.add_argument("--parts", nargs="+", choices=list({**CPU, **CUDA}), help="all that are for the device")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page from the records")
    parser.add_argument("--plan", action="store_true", help="print what larger sets would take, from the records")
    options = parser.parse_args()
    if options.quick and options.out == OUT:
        parser.error("--quick would overwrite the published records: choose another --out")
    if options.plan:
        print("\n".join(describe_plans(read_records(options.out))))
        return
    for part in [] if options.page else options.parts or PARTS[options.device]:
        if part not in PARTS[options.device]:
            parser.error(f"{part} is not measured on {options.device}")
        save(options.out, part, options, measure(part, options))
        publish(options.out)
    publish(options.out)


def publish(folder: Path) -> None:
    """The page, after every part: what was measured is there if the next one is ended."""
    (folder / "README.md").write_text(write_page(read_records(folder)), encoding="utf-8")


def measure(part: str, options: argparse.Namespace) -> list[Fit]:
    """Every size in its own process, to measure its own peak memory."""
    fits = []
    for size in PARTS[options.device][part].sizes:
        number = max(1, size // 10) if options.quick else size
        module = f"benchmarks.{PARTS[options.device][part].module}"
        command = [sys.executable, "-m", module, part, str(number), options.device]
        printed = subprocess.run([*command, str(options.threads)], check=True, stdout=subprocess.PIPE, text=True).stdout
        fits.append(Fit(**json.loads(printed.splitlines()[-1])))
        print(fits[-1], flush=True)
    return fits


def save(folder: Path, part: str, options: argparse.Namespace, fits: Sequence[Fit]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} cores"
    environment = f"torch {torch.__version__}, Python {platform.python_version()}, {where}"
    quick = " --quick" if options.quick else ""
    command = f"{COMMAND} --device {options.device} --parts {part} --threads {options.threads}{quick}"
    record = {"command": command, "environment": environment, "fits": [asdict(fit) for fit in fits]}
    (folder / f"{options.device}-{part}.json").write_text(json.dumps(record, indent=1) + "\n")


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """The records that are there, by the names of their files."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*-*.json"))}


def write_page(records: Mapping[str, Mapping[str, Any]]) -> str:
    """README.md from all records that are there."""
    lines = ["# Whole sets of growing size", "", *INTRODUCTION]
    for name, record in records.items():
        device, _, part = name.partition("-")
        fits = [Fit(**fit) for fit in record["fits"]]
        lines += [f"## {TITLES[device]}: {part}", "", f"`{record['command']}` ({record['environment']})", ""]
        lines += ["| what | measured | bar | |", "|---|---|---|---|"]
        judge = JUDGES.get(part, judge_growth)
        lines += ["| " + " | ".join(line) + " |" for line in judge(PARTS[device][part], fits)] + [""]
    lines += describe_plans(records)
    return "\n".join(lines).rstrip() + "\n"


TITLES = {"cpu": "Processor", "cuda": "GPU"}
INTRODUCTION = [
    "Written by `python -m benchmarks.scale`, which says what is measured; the records with all figures lie beside",
    "this page. Peaks of memory on a processor are those of the whole process, libraries and features included; on a",
    "GPU those of the device beyond the features. The load is that of the whole machine at the end, so that a timing",
    "that others disturbed can be told. [How whole sets scale](../../docs/scale.md) draws conclusions.",
    "",
]


def judge_growth(part: Part, fits: Sequence[Fit]) -> list[Line]:
    """Time and memory of every size, with the bars of the largest, and how both grow."""
    lines: list[Line] = []
    for fit in fits:
        at_bar = fit.size == part.sizes[-1]
        name = f"{part.title}, {fit.size:,} {part.unit}"
        used = f"{fit.seconds:.1f} s ({fit.cpu_seconds:.0f} s of processor time, load {fit.load:.1f})"
        lines.append((f"{name}: time", used, *verdict(fit.seconds, part.seconds if at_bar else None, "s")))
        lines.append((f"{name}: peak", f"{fit.gib:.2f} GiB", *verdict(fit.gib, part.gib if at_bar else None, "GiB")))
        phases = fit.found.get("seconds", {})
        if phases:
            told = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.items())
            lines.append((f"{name}: of these", f"{told}; {fit.found['evaluations']} evaluations", "", ""))
    if part.linear and fits[-1].size == part.sizes[-1]:
        lines += judge_linear(part, fits)
    return lines


def judge_linear(part: Part, fits: Sequence[Fit]) -> list[Line]:
    """How time grows, and of solves what is needed beside the stored features."""
    first, last = fits[0], fits[-1]
    assert part.linear
    times = [getattr(fit, part.linear) / fit.found.get("evaluations", 1) for fit in (first, last)]
    size, growth = last.size / first.size, times[1] / times[0]
    time = "processor time" if part.linear == "cpu_seconds" else "time"
    by = " of an evaluation" if "evaluations" in first.found else ""
    many = f"{part.unit} × {size:.3g}"
    lines = [(f"{part.title}: growth of the {time}{by}, {many}", f"{growth:.2f} ×", *verdict(growth, ROOM * size, "×"))]
    if "evaluations" in first.found:
        peaks = [fit.gib - part.stored * fit.size / GIB for fit in (first, last)]
        told = f"{peaks[0]:.2f} → {peaks[1]:.2f} GiB"
        flat = f"at most {FLAT} GiB more", mark(peaks[1] <= peaks[0] + FLAT)
        lines.append((f"{part.title}: peak beside the stored features, {many}", told, *flat))
    return lines


def judge_processes(part: Part, fits: Sequence[Fit]) -> list[Line]:
    lines: list[Line] = []
    for fit in fits:
        one, two = fit.found["one"], fit.found["two"]
        name = f"{fit.size:,} {part.unit}"
        most = max(each["features_gib"] for each in two)
        share = most / one["features_gib"]
        told = f"{one['features_gib']:.3f} → {most:.3f} GiB, {share:.2f} ×"
        lines.append((f"{name}: features of a process, one → two", told, *verdict(share, HALF, "×")))
        peaks = [one["peak_gib"], max(each["peak_gib"] for each in two)]
        lines.append((f"{name}: peak of a process, one → two", f"{peaks[0]:.2f} → {peaks[1]:.2f} GiB", "", ""))
        seconds = [one["seconds"], max(each["seconds"] for each in two)]
        told = f"{seconds[0]:.1f} → {seconds[1]:.1f} s, {one['evaluations']} evaluations"
        lines.append((f"{name}: the solve, one → two, a thread each", told, "", ""))
        sent = [max(each[f"sent_in_{when}_mib"] for each in two) for when in ("pass", "solve")]
        told = f"{sent[0]:.1f} MiB in the pass, {sent[1]:.1f} MiB in the solve"
        lines.append((f"{name}: given to collective operations by a process of two", told, "", ""))
        same = "the same bits" if fit.found["same_bits"] else "others"
        lines.append((f"{name}: weights and offsets of two", same, "those of one", mark(fit.found["same_bits"])))
    return lines


def judge_help(part: Part, fits: Sequence[Fit]) -> list[Line]:
    found = fits[-1].found
    told = f"{found['help']:.2f} s against {found['bare']:.2f} s, medians of {fits[-1].size}, load {fits[-1].load:.1f}"
    return [(f"{part.title}: beyond the bare interpreter", told, *verdict(found["beyond"], HELP, "s"))]


def judge_replay(part: Part, fits: Sequence[Fit]) -> list[Line]:
    lines: list[Line] = []
    for name, ratio in fits[-1].found["ratios"].items():
        what = f"{part.title}: {name}"
        lines.append((f"{what}, time ÷ plain training's", f"{ratio:.3f} ×", *verdict(ratio, REPLAY, "×")))
        graphs, plain = (fits[-1].found["epochs"][name][kind] for kind in ("graphs", "plain"))
        told = [f"{mean} {plain[mean]:.4f} → {graphs[mean]:.4f}" for mean in AGREE]
        same = all(abs(graphs[mean] - plain[mean]) <= share * abs(plain[mean]) for mean, share in AGREE.items())
        replayed = f"{graphs['replayed_steps']} steps replayed"
        bar = "within " + " and ".join(f"{share:.0%}" for share in AGREE.values())
        lines.append((f"{what}, an epoch without graphs → with", "; ".join([replayed, *told]), bar, mark(same)))
    return lines


def judge_resnet(part: Part, fits: Sequence[Fit]) -> list[Line]:
    found = fits[-1].found
    ratio = found["weighted"] / found["plain"]
    told = f"{1e3 * found['plain']:.2f} ms, a call of the weighting alone {1e3 * found['call']:.3f} ms"
    return [
        (
            f"{part.title}: step with weights of `paper`, q = 5 ÷ without",
            f"{ratio:.3f} ×",
            *verdict(ratio, RESNET, "×"),
        ),
        (f"{part.title}: step without weights", told, "", ""),
    ]


JUDGES: dict[str, Callable[[Part, Sequence[Fit]], list[Line]]] = {
    "processes": judge_processes,
    "help": judge_help,
    "replay": judge_replay,
    "resnet": judge_resnet,
}


def verdict(measured: float, bar: float | None, unit: str) -> tuple[str, str]:
    return ("", "") if bar is None else (f"≤ {bar:.3g} {unit}", mark(measured <= bar))


def mark(holds: bool) -> str:
    return "holds" if holds else "**missed**"


if __name__ == "__main__":
    main()
