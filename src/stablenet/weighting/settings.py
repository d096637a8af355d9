"""The settings of the weighting, every choice by name with its reason, and the presets: sets of such choices.

`paper`, `paper-covariance` and `published` are stated here; `recommended` joins them from its own module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import torch

from stablenet.registry import Registry
from stablenet.values import (
    LARGEST_COUNT,
    AtLeast,
    AtMost,
    Count,
    NonNegative,
    Positive,
    SettingError,
    Share,
    ShareBelowOne,
    Whole,
    check_fields,
    read_values,
    require,
)
from stablenet.weighting.statistic import Form

FourierMap = Literal["cosine", "cosine-sine"]
Scaling = Literal["none", "standard", "phase"]
Redraw = Literal["batch", "step"]
Pairs = Literal["features", "labels", "both"]
Pairing = Literal["all", "same"]
Objective = Literal["sum", "relative", "scaled-sum", "share"]
Totals = Literal["all", "classes"]
Logits = Literal["block", "joint"]
Keep = Literal["best", "last"]
OnRise = Literal["go-on", "retreat"]
MemoryKind = Literal["average", "queue"]
MemoryStart = Literal["fill", "running-mean"]
Holds = Literal["weights", "logits"]
WarmupLoss = Literal["mean", "sum"]
SolveMethod = Literal["auto", "direct", "gram", "fused"]

# The longest-lived and the shortest-lived group of the paper's memory, when no `alphas` are given.
LOWEST_ALPHA, HIGHEST_ALPHA = 0.9, 0.99
SINGLE_PRECISION = 1e-2  # the smallest tolerance that float32 reaches safely


@dataclass(frozen=True)
class WholeOrShare:
    """A number of functions per feature, or the share of the features that have one."""

    def holds(self, value: float) -> bool:
        return value < 1 or value.is_integer()

    def __str__(self) -> str:
        return "a whole number, or a share below 1"


@dataclass(frozen=True, kw_only=True)
class WeightingSettings:
    """All settings of `StableWeighting`. The defaults are those of the preset `recommended`."""

    # The Fourier functions (Eq. 4, rff_transform)
    num_functions: Annotated[float, AtLeast(0), AtMost(LARGEST_COUNT), WholeOrShare()] = (
        5  # q ≥ 1 per feature; 0 < q < 1 a share of the features, per batch; 0 linear
    )
    bandwidth: Positive | Literal["median"] = 1.0  # σ, or "median": the median distance of each feature
    fourier: FourierMap = "cosine"  # "cosine-sine": √(2/q)·[cos, sin], one ω per function for all features
    scaling: Scaling = "standard"  # σ = 1 means something only on features of unit scale
    redraw: Redraw = "batch"  # new functions per batch, or per inner step (nothing else can be prepared ahead then)

    # The objective
    form: Form = "covariance"  # zero for independent features under any weights; see statistic.py
    pairs: Pairs = "labels"  # what is made independent: features of each other, of the label, or both
    pairing: Pairing = "all"  # all q×q functions of a pair, or the same function only, counted for i ≠ j
    objective: Objective = "relative"  # D/D(1): one penalty serves a 16-wide and a 2048-wide network; see `Objective`
    penalty: NonNegative = 0.5  # λ·mean(w²); a batch and its memory are few samples: 0.02 kept networks from learning
    chance: NonNegative = 0.0  # with objective="share": λ grows by so many times the doubt; see problem.py
    totals: Totals = "all"  # what the weights keep: the number of samples, or that of every class (needs a tolerance)

    # The inner optimiser
    steps: Count = 20  # inner steps per batch (published code; the paper gives no number)
    learning_rate: Positive = 0.05  # of the logits, with the scale-free objective
    momentum: ShareBelowOne = 0.9
    decay_after: Whole | None = None  # inner step after which the rate is a tenth
    logits: Logits = "block"  # the batch's weights sum to its size; "joint": one softmax with the memory
    keep: Keep = "best"  # the iterate with the lowest objective (the one minimised), or the last
    on_rise: OnRise = "go-on"  # "retreat": an iterate that raised the objective is undone and the rate quartered
    min_ess: Share = 0.2  # floor of the effective sample size, as a share of the batch; 0 leaves two samples
    tolerance: Positive | None = None  # stop when the optimality gap falls below this share of the objective

    # The memory (Eqs. 9 and 10, concat_w and save_w)
    memory: MemoryKind = "queue"  # real past samples; "average" is the paper's running mean of rows
    groups: Whole = 1  # k; 0 solves inside each batch only
    alphas: tuple[ShareBelowOne, ...] | None = None  # one per group; geometric between 0.9 and 0.99 when None
    memory_rows: Count | None = None  # rows of a group; the first batch's size when None
    memory_start: MemoryStart = "fill"  # "running-mean": zeros at first, plain mean over ten batches
    memory_holds: Holds = "weights"

    # Around it
    warmup: Whole = 0  # calls that only fill the memory and return ones
    warmup_loss: WarmupLoss = "mean"  # "sum": the batch size instead of ones, an unnormalised loss
    num_classes: Count | None = None  # width of averaged labels; taken from the first batch when None
    method: SolveMethod = "auto"  # "fused" on CUDA where it applies, else Gram or direct by counting
    graphs: bool = True  # replay a call as one CUDA graph where that is possible; False runs it launch by launch
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        _check_combinations(self)

    def working_dtype(self, device: torch.device) -> torch.dtype:
        """The type a solve computes in; its result is float32 in every case.

        The `paper` form loses four digits or more to the subtraction of large numbers, and a small tolerance is below
        float32's reach, so both take float64 wherever the device has it (MPS has not).
        """
        wants_double = self.form == "paper" or (self.tolerance is not None and self.tolerance < SINGLE_PRECISION)
        return torch.float64 if wants_double and device.type != "mps" else torch.float32

    def alpha_of_groups(self) -> tuple[float, ...]:
        """α_1 … α_k, short-term memory first."""
        if self.alphas is not None:
            return self.alphas
        if self.groups <= 1:
            return (LOWEST_ALPHA,) * self.groups
        ratio = (HIGHEST_ALPHA / LOWEST_ALPHA) ** (1 / (self.groups - 1))
        return tuple(LOWEST_ALPHA * ratio**i for i in range(self.groups))


def _check_combinations(s: WeightingSettings) -> None:
    if s.alphas is not None:
        require(len(s.alphas) == s.groups, "alphas", f"one value per group ({s.groups})", s.alphas)
    if s.objective == "scaled-sum":
        require(s.penalty > 0, "penalty", "positive with objective='scaled-sum'", s.penalty)
    if s.fourier == "cosine-sine" or s.scaling == "phase":
        require(s.num_functions >= 1, "num_functions", "at least 1 with this Fourier map", s.num_functions)
    if s.on_rise == "retreat":
        require(s.keep == "best", "keep", "'best' with on_rise='retreat'", s.keep)
    if s.memory == "queue":
        require(s.memory_start == "fill", "memory_start", "'fill' with a queue", s.memory_start)
        require(s.alphas is None, "alphas", "left out with a queue, which averages nothing", s.alphas)
    if s.objective == "share":
        require(s.form == "covariance", "form", "'covariance' with objective='share'", s.form)
    if s.chance:
        require(s.objective == "share", "objective", "'share' with chance above 0", s.objective)
        require(s.pairs == "labels", "pairs", "'labels' with chance above 0", s.pairs)
    if s.totals == "classes":
        require(s.tolerance is not None, "tolerance", "set with totals='classes'", s.tolerance)
        require(s.pairs != "features", "pairs", "'labels' or 'both' with totals='classes'", s.pairs)
    if s.logits == "joint":
        require(s.tolerance is None, "tolerance", "None with logits='joint', which has no gap", s.tolerance)


PRESETS: Registry[WeightingSettings] = Registry("preset")
PAPER = WeightingSettings(
    # As written; what the paper leaves open is taken from the published code (steps, momentum). A rate of 3.0 on a
    # sum over m(m−1)/2 pairs overshoots on most features, so it is the first rate tried: `retreat` quarters it.
    num_functions=5,
    scaling="none",
    form="paper",
    pairs="features",
    objective="sum",
    penalty=0.3,
    learning_rate=3.0,
    on_rise="retreat",
    memory="average",
)
PRESETS.add("paper", PAPER)
PRESETS.add(
    # Eq. 6, sigmaabw, taken literally grows with any unevenness of the weights, so that `paper` stays near ones. Here
    # it is read as the weighted covariance, as the authors' code computes it, of standardised features and relative to
    # its start, so that one penalty serves any number of features; all else is the paper's.
    "paper-covariance",
    replace(PAPER, form="covariance", scaling="standard", objective="relative"),
)
PRESETS.add(
    # What the authors' code computes with its default options. Its logits start at 1, which by the softmax's shift
    # invariance is the same as 0; its weights sum to 1 and its loss is their sum, which is our mean.
    "published",
    WeightingSettings(
        num_functions=1,
        fourier="cosine-sine",
        scaling="phase",
        redraw="step",
        form="covariance",
        pairs="features",
        pairing="same",
        objective="scaled-sum",
        penalty=70.0,
        learning_rate=1.0,
        decay_after=10,
        logits="joint",
        keep="last",
        min_ess=0.0,
        memory="average",
        memory_rows=128,
        memory_start="running-mean",
        memory_holds="logits",
        warmup_loss="sum",
    ),
)


def settings_of(preset: str, overrides: Mapping[str, Any], where: str = "") -> WeightingSettings:
    """The preset with some settings replaced; a wrong name or value is one sentence.

    where: the dotted name of the overrides, for messages.
    """
    chosen = PRESETS[preset]
    values = read_values(WeightingSettings, overrides, where)
    try:
        return replace(chosen, **values)
    except SettingError as error:
        raise error.within(where) from error


def preset_table() -> str:
    """The presets side by side, one setting a line."""
    names = list(PRESETS)
    rows = [["setting", *names]]
    for field in fields(WeightingSettings):
        rows.append([field.name, *(str(getattr(PRESETS[name], field.name)) for name in names)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)
