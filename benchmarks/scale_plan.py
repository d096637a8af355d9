"""What larger sets and clusters would take, from the records of `benchmarks.scale`: extrapolated, not measured.

Times and sizes that were measured are taken to grow in proportion to samples (rows), which the records show over the
sizes that were measured. What a solve needs at least is asked of the library; bytes kept for every sample are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.scale_measures import COLUMNS, FEATURES, GIB, make_whole_set
from stablenet.weighting import offsets, recommended, streamed
from stablenet.weighting.dataset import dataset_settings

# Training images a second of ResNet-18 at 224 pixels, forward and backward: 128 in 10.8 ms (results/weighting/gpu.md).
# A pass without the backward pass is faster where the images come fast enough.
IMAGES_A_SECOND = 128 / 10.8e-3
STORED_IMAGE = 256 * 256 * 3  # bytes in the pixel store
PRICE = 3.0  # of a GPU for an hour; an assumption
SENT_IN_EVALUATION = 8  # bytes for every sample of the set: two numbers of the slope, see `StreamedLabelPairs`
COUNTED = 100_000  # samples, to count what is kept for each


@dataclass(frozen=True)
class Plan:
    name: str
    samples: int
    classes: int
    processes: int


PLANS = (
    Plan("ImageNet-1k, one GPU", 1_281_167, 1000, 1),
    Plan("ImageNet-1k, 8 GPUs", 1_281_167, 1000, 8),
    Plan("100 million images, 64 GPUs", 100_000_000, 1000, 64),
)
BILLION = 1_000_000_000

Records = Mapping[str, Mapping[str, Any]]


def describe_plans(records: Records) -> list[str]:
    """Lines of the page: a table of images and one of tables, as far as the records go."""
    lines = ["## Larger sets: extrapolated", "", *HEAD]
    rows = [(what, [tell(plan, records) for plan in PLANS]) for what, tell in ROWS.items()]
    lines += ["| | " + " | ".join(plan.name for plan in PLANS) + " |", "|---" * (len(PLANS) + 1) + "|"]
    lines += [f"| {what} | " + " | ".join(cells) + " |" for what, cells in rows]
    return [*lines, "", *describe_table(records)]


HEAD = [
    "`python -m benchmarks.scale --plan` makes this from the records above: times and sizes in proportion to the",
    "number of samples. None of it was measured. c: calculated from the code; p: proportional to a record; a: assumed.",
    "",
]


def fits_of(records: Records, name: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = records[name]["fits"] if name in records else []
    return found


def slope(fits: Sequence[Mapping[str, Any]], value: str) -> float:
    """How much more of it one more sample takes, from the smallest and the largest size."""
    return float((fits[-1][value] - fits[0][value]) / (fits[-1]["size"] - fits[0]["size"]))


def show_bytes(size: float) -> str:
    return f"{size / GIB:.3g} GiB" if size >= 0.1 * GIB else f"{size / 2**20:.3g} MiB"


def show_seconds(seconds: float) -> str:
    return (
        f"{seconds:.3g} s"
        if seconds < 300
        else f"{seconds / 60:.3g} min"
        if seconds < 18_000
        else f"{seconds / 3600:.3g} h"
    )


def tell_store(plan: Plan, records: Records) -> str:
    return f"{plan.samples * STORED_IMAGE / 1e12:.3g} TB, {plan.samples * STORED_IMAGE / plan.processes / 1e9:.3g} GB"


def tell_manifest(plan: Plan, records: Records) -> str:
    fits = fits_of(records, "cpu-manifests")
    if not fits:
        return NO_RECORD
    return (
        f"{show_seconds(slope(fits, 'seconds') * plan.samples)}, {show_bytes(slope(fits, 'gib') * GIB * plan.samples)}"
    )


def tell_pass(plan: Plan, records: Records) -> str:
    return show_seconds(plan.samples / plan.processes / IMAGES_A_SECOND)


def tell_features(plan: Plan, records: Records) -> str:
    return show_bytes(plan.samples / plan.processes * FEATURES * 2)


def tell_least(plan: Plan, records: Records) -> str:
    device, settings = torch.device("cuda"), dataset_settings(recommended.NAME, {})
    weights = streamed.streamed_need(plan.samples, FEATURES, plan.classes, settings, device)
    components = recommended.PRETRAINED_COMPONENTS
    added = offsets.streamed_need(plan.samples, FEATURES, plan.classes, components, device)
    return show_bytes(max(weights, added))


def tell_kept(plan: Plan, records: Records) -> str:
    whole_set = make_whole_set(COUNTED, plan.classes, "1KiB")  # in the form of sets whose offsets are many
    small = make_whole_set(COUNTED // 2, plan.classes, "1KiB")
    held = [sum(b.numel() * b.itemsize for b in each.buffers()) for each in (small, whole_set)]
    return show_bytes((held[1] - held[0]) / (COUNTED - COUNTED // 2) * plan.samples)


def count_evaluations(records: Records) -> int:
    """Of the largest solve that is recorded."""
    fits = fits_of(records, "cuda-images") or fits_of(records, "cpu-images")
    return int(fits[-1]["found"]["evaluations"]) if fits else 0


def tell_traffic(plan: Plan, records: Records) -> str:
    fits = fits_of(records, "cpu-simulate")
    if not fits or not count_evaluations(records):
        return NO_RECORD
    if plan.processes == 1:
        return "none"
    largest = fits[-1]
    one = largest["found"]["each"][0]
    samples = largest["size"] * largest["found"]["samples"]
    once = one["sent_in_solve_mib"] * 2**20 / samples - SENT_IN_EVALUATION * one["evaluations"]
    return show_bytes((once + SENT_IN_EVALUATION * count_evaluations(records)) * plan.samples)


def tell_solve(device: str) -> Any:
    def tell(plan: Plan, records: Records) -> str:
        fits = fits_of(records, f"{device}-images")
        if not fits:
            return NO_RECORD
        return show_seconds(slope(fits, "seconds") * plan.samples / plan.processes)

    return tell


def tell_cost(plan: Plan, records: Records) -> str:
    hours = plan.samples / IMAGES_A_SECOND / 3600
    return f"{hours:.2g} GPU-hours, {PRICE * hours:.2g} $"


NO_RECORD = "not recorded yet"
ROWS = {
    "pixel store at 256², whole and of a process (c)": tell_store,
    "reading the split, time and memory of every process (p: cpu-manifests)": tell_manifest,
    "feature pass by ResNet-18 at 224 pixels, where images come fast enough (c, below)": tell_pass,
    "features of a process in half precision (c)": tell_features,
    "least budget of a solve in every process (c)": tell_least,
    "kept for training in every process: weights, and what offsets are computed from (c)": tell_kept,
    "given to collective operations by a process in the solve (p: cpu-simulate)": tell_traffic,
    "solve of weights and offsets on a GPU (p: cuda-images)": tell_solve("cuda"),
    "the same on two cores for every process (p: cpu-images, 100 classes)": tell_solve("cpu"),
    "cost of the feature pass (c; a: 3 $ for an hour of a GPU)": tell_cost,
}


def describe_table(records: Records) -> list[str]:
    """A table of a billion rows."""
    fits = fits_of(records, "cpu-tables")
    if not fits:
        return []
    memory = show_bytes(slope(fits, "gib") * GIB * BILLION)
    time = show_seconds(slope(fits, "seconds") * BILLION)
    return [
        f"A table of a billion rows and {COLUMNS} columns has {show_bytes(BILLION * COLUMNS * 8)} (c). "
        f"`StableRegressor` would take {memory} of memory and {time} on two cores (p: cpu-tables).",
        "",
    ]
