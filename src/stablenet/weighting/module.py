"""StableWeighting: the weights of each batch, in three lines of any training loop.

One call checks the values, joins the memory, solves and updates the memory. All of it is device work, for most settings
without a decision of the host (`may_record`), so that it can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.randomness import mix_seed
from stablenet.replay import HostSide
from stablenet.weighting import distributed
from stablenet.weighting.inputs import (
    ALL_GOOD,
    BAD_LABEL,
    Features,
    Layers,
    PendingCheck,
    check_finite,
    join_layers,
    read_labels,
)
from stablenet.weighting.kernels import (
    MOST_ROWS,
    GraphCache,
    Path,
    choose_path,
    decides_on_device,
    may_record,
    solve_fused,
)
from stablenet.weighting.memory import Memory, WeightedRows, make_memory
from stablenet.weighting.problem import solve_problem
from stablenet.weighting.settings import WeightingSettings, preset_table, settings_of
from stablenet.weighting.solver import Solution, effective_sample_size


@dataclass(frozen=True)
class StepResult:
    """weights: (B,) ones where the batch was bad.   verdict: a scalar, see `PendingCheck`; None if checked already."""

    weights: Tensor
    solution: Solution
    verdict: Tensor | None


def take_step(
    memory: Memory,
    settings: WeightingSettings,
    path: Path,
    z: Tensor,
    labels: Tensor | None,
    generator: torch.Generator,
) -> StepResult:
    """Weights of a batch z (B, m) with labels (B,) or (B, C); the memory takes it in, its counters stay."""
    verdict = valid = None
    if z.device.type != "cpu":
        z, labels, verdict = judge_values(z, labels, memory.label_width)
        valid = verdict == ALL_GOOD
    own_labels = None if labels is None else label_rows(labels, memory.label_width)
    rows, fixed, joined_labels = join_memory(memory.recall(), z, own_labels, settings)
    solve = solve_fused if path == "fused" else solve_problem
    solution = solve(rows, joined_labels, fixed, len(z), settings, generator)
    weights = solution.weights if valid is None else solution.weights.masked_fill(~valid, 1.0)
    if settings.groups:
        measure = solution.logits if settings.memory_holds == "logits" else weights
        memory.write(WeightedRows(z, measure, own_labels), valid)
    return StepResult(weights, solution, verdict)


def judge_values(z: Tensor, labels: Tensor | None, width: int | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """z (B, m) and labels, zero where not finite, and the verdict: the first bad column, BAD_LABEL or ALL_GOOD.

    Zeros, because the memory multiplies by zero what must leave no trace in it.
    """
    bad = (z - z) != 0  # x − x is zero for every finite x, and NaN for inf and NaN
    columns = bad.any(0)
    verdict = columns.to(torch.uint8).argmax().masked_fill(~columns.any(), ALL_GOOD)
    if labels is not None and labels.ndim == 1 and width is not None:
        verdict = verdict.masked_fill((verdict == ALL_GOOD) & (labels >= width).any(), BAD_LABEL)
    if labels is not None and labels.ndim == 2:
        broken = (labels - labels) != 0
        verdict = verdict.masked_fill((verdict == ALL_GOOD) & broken.any(), BAD_LABEL)
        labels = labels.masked_fill(broken, 0.0)
    return z.masked_fill(bad, 0.0), labels, verdict


def label_rows(labels: Tensor, width: int | None) -> Tensor:
    """Labels as they are compared and stored: integers, or columns where the memory averages them (width given)."""
    if labels.ndim == 2:
        return labels.to(torch.float32)
    if width is None:
        return labels
    return (labels[:, None] == torch.arange(width, device=labels.device)).to(torch.float32)


def join_memory(
    past: WeightedRows | None, z: Tensor, labels: Tensor | None, settings: WeightingSettings
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Eq. 9, concat_w: all rows, the memory's first (n, m); its weights or logits (n − B,); all labels."""
    if past is None:
        return z, z.new_empty(0), labels
    if past.labels is not None and labels is not None:
        labels = torch.cat([past.labels, labels])
    return torch.cat([past.features, z]), memory_measure(past.measure, settings), labels


def memory_measure(held: Tensor, settings: WeightingSettings) -> Tensor:
    """What the memory holds, as weights for a block simplex or as logits for a joint one."""
    wanted = "logits" if settings.logits == "joint" else "weights"
    if wanted == settings.memory_holds:
        return held
    if wanted == "logits":
        return held.clamp_min(torch.finfo(held.dtype).tiny).log()
    groups = held.view(settings.groups, -1) if settings.memory == "average" else held[None]
    return (torch.softmax(groups, 1) * groups.shape[1]).flatten()


@dataclass(frozen=True)
class LastSolve:
    """The latest solve and the path that computed it."""

    solution: Solution
    path: str


class StableWeighting(nn.Module, HostSide):
    """Sample weights under which the features of a batch, joined to a memory of past ones, are independent.

    >>> weighting = StableWeighting(preset="paper", seed=0)
    >>> z = torch.randn(8, 4)
    >>> w = weighting(z)
    >>> w.shape, round(w.sum().item(), 4)
    (torch.Size([8]), 8.0)

    preset: "paper" (formulas and values as written), "paper-covariance" (the same with the weighted covariance),
        "published" (what the authors' code computes) or
        "recommended" (scale-free; made for shallow, pooled features against the label, see `pool_maps`).
    overrides: any field of `WeightingSettings` by name: num_functions, bandwidth, form, pairs, groups, alphas, steps,
        learning_rate, penalty, min_ess, method, seed, …

    In `eval()` the weights are ones and the memory is left alone. Features are detached from the graph: their gradient
    is that of the weighted loss. Random numbers come from the module's own generator.
    """

    def __init__(self, preset: str = "recommended", **overrides: Any) -> None:
        super().__init__()
        _keep_out_of_graphs()
        self.preset = preset
        self.settings: WeightingSettings = settings_of(preset, overrides)
        self.memory = make_memory(self.settings)
        self._calls = 0  # solves so far; with the seed it fixes the Fourier functions of the next one
        self._last: LastSolve | None = None
        self._pending = PendingCheck()
        self._graphs: GraphCache[StepResult] = GraphCache()

    @staticmethod
    def preset_table() -> str:
        """The presets side by side, one setting a line."""
        return preset_table()

    @torch.no_grad()
    def forward(self, features: Features, labels: Tensor | None = None) -> Tensor:
        """Weights of the batch, (B,) float32, detached, non-negative, summing to B.

        features: (B, m) floating-point, or a dict of such layers by name.
        labels: (B,) integer classes, or (B, C) columns (soft labels, targets); needed for label pairs only.
        With several processes B is the joined batch's size, and each rank gets its slice.
        """
        z, layers = join_layers(features)
        labels = read_labels(labels, len(z), needed=self.settings.pairs != "features")
        if not self.training:
            return z.new_ones(len(z))
        if self.draws is not None:
            return self._do_device_work(z, labels, self.draws)
        self._pending.raise_if_bad(self.memory)
        if self._calls < self.settings.warmup:
            self._calls += 1
            return z.new_full((len(z),), float(len(z)) if self.settings.warmup_loss == "sum" else 1.0)
        with torch.autocast(z.device.type, enabled=False):
            return self._weights(z, labels, layers)

    def reset(self) -> None:
        """Forget all past batches."""
        self.memory.reset()
        self._pending.clear()
        self._graphs = GraphCache()  # the old ones hold buffers that are no longer used

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Statistics of the latest solve. Reading them waits for the device; training without reading them does not.

        dependence_before / dependence_after: D with uniform batch weights and with the returned ones.
        ess_ratio: effective sample size over batch size.   steps: inner steps done.   kept_step: the one returned.
        guard_events: iterates blended by the ESS guard; whether uniform weights were the best.
        optimality_gap: how much a linear model of the objective could still fall; path: which code computed it.
        """
        if self._last is None:
            return {}
        solution = self._last.solution
        before, after = solution.dependence.tolist()
        return {
            "dependence_before": before,
            "dependence_after": after,
            "ess_ratio": float(effective_sample_size(solution.weights)) / len(solution.weights),
            "steps": len(solution.objective) - 1,
            "kept_step": int(solution.kept),
            "guard_events": {"ess": int(solution.guarded), "uniform": int(solution.kept) == 0},
            "optimality_gap": float(solution.gap),
            "path": self._last.path,
        }

    @property
    def last_solution(self) -> Solution | None:
        """The latest solve as tensors on the device, until the next call; reading them is the caller's decision."""
        return self._last.solution if self._last else None

    def extra_repr(self) -> str:
        s = self.settings
        return f"preset={self.preset!r}, pairs={s.pairs!r}, form={s.form!r}, memory={s.memory!r}, groups={s.groups}"

    def _weights(self, z: Tensor, labels: Tensor | None, layers: Layers) -> Tensor:
        own = slice(None)
        if distributed.processes() > 1:
            sizes = distributed.gather_sizes(len(z), z.device)
            z = distributed.gather_rows(z, sizes)
            labels = None if labels is None else distributed.gather_rows(labels, sizes)
            own = distributed.own_slice(sizes)
        self.memory.check(z, labels)
        if z.device.type == "cpu":
            check_finite(z, layers)
        if labels is not None:
            self._settle_label_width(labels)
        first = self.memory.filled == 0
        self.memory.start(z, labels)
        result, path = self._run_step(z, labels)
        if result.verdict is not None:
            self._pending.watch(result.verdict, layers, first)
        if self.settings.groups:
            self.memory.advance(len(z))
        self._last = LastSolve(result.solution, path)
        self._calls += 1
        return result.weights[own].clone() if path == "graph" else result.weights[own]

    def _do_device_work(self, z: Tensor, labels: Tensor | None, draws: torch.Generator) -> Tensor:
        """The same as `_weights`, as device work alone: nothing is counted, no verdict is waited for."""
        path = choose_path(self._num_rows(len(z)), z.device, self.settings)
        with torch.autocast(z.device.type, enabled=False):
            result = take_step(self.memory, self.settings, path, z, labels, draws)
        if result.verdict is not None:
            self._pending.note(result.verdict)
        self._last = LastSolve(result.solution, "graph")
        return result.weights

    def recording_key(self, size: int) -> Hashable | None:
        """The memory's place; None while it warms up, where the host decides, and with several processes."""
        num_rows = self._num_rows(size)
        possible = self._calls >= self.settings.warmup and num_rows <= MOST_ROWS and distributed.processes() == 1
        return (num_rows, self.memory.place()) if possible and decides_on_device(self.settings) else None

    def before_replay(self, draws: torch.Generator) -> None:
        draws.manual_seed(mix_seed(self.settings.seed, self._calls))

    def after_replay(self, size: int) -> None:
        if self.settings.groups:
            self.memory.advance(size)
        self._pending.count_replay()
        self._calls += 1

    def _num_rows(self, size: int) -> int:
        """Rows of the memory and of a batch of that size."""
        groups = self.settings.groups if self.settings.memory == "average" else 1
        return groups * self.memory.filled + size

    def _run_step(self, z: Tensor, labels: Tensor | None) -> tuple[StepResult, str]:
        num_rows = self._num_rows(len(z))
        path = choose_path(num_rows, z.device, self.settings)
        seed = mix_seed(self.settings.seed, self._calls)
        step = partial(take_step, self.memory, self.settings, path)
        if not may_record(path, num_rows, z.device, self.settings):
            return step(z, labels, torch.Generator(z.device).manual_seed(seed)), path
        label_key = None if labels is None else (labels.shape, labels.dtype)
        result, graphed = self._graphs.run((z.shape, label_key, self.memory.place()), step, z, labels, seed)
        return result, "graph" if graphed else path

    def _settle_label_width(self, labels: Tensor) -> None:
        """The width of averaged one-hot labels. Reads the device, once, when the user has not said it.

        A class beyond it is an error: at once on the CPU, elsewhere with the verdict of the batch.
        """
        averaged = self.settings.memory == "average" and self.settings.groups
        if labels.ndim == 2 or not averaged:
            return
        if labels.device.type == "cpu" and int(labels.min()) < 0:
            raise UserError(f"label {int(labels.min())} was found, but classes are numbered from 0")
        if self.memory.label_width is None:
            self.memory.label_width = self.settings.num_classes or int(labels.max()) + 1
        if labels.device.type == "cpu" and (seen := int(labels.max()) + 1) > self.memory.label_width:
            raise UserError(
                f"label {seen - 1} was found, but the memory averages labels of {self.memory.label_width} classes; "
                f"build StableWeighting with num_classes={seen} or more"
            )

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self._calls])

    def set_extra_state(self, state: Tensor) -> None:
        self._calls = int(state[0])
        self._graphs = GraphCache()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        _keep_out_of_graphs()


@cache
def _keep_out_of_graphs() -> None:
    """Let `torch.compile` leave the forward pass alone; not at import, as this loads the compiler: 150 MB, a second."""
    StableWeighting.forward = torch.compiler.disable(StableWeighting.forward)  # type: ignore[method-assign]
