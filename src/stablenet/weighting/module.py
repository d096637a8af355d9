"""StableWeighting: the weights of each batch, in three lines of anybody's training loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.randomness import mix_seed
from stablenet.weighting import distributed
from stablenet.weighting.inputs import Features, Layers, check_finite, check_labels, join_layers
from stablenet.weighting.kernels import choose_path, may_record
from stablenet.weighting.kernels.graph import GraphCache
from stablenet.weighting.memory import make_memory
from stablenet.weighting.pending import PendingCheck
from stablenet.weighting.presets import preset_table, settings_of
from stablenet.weighting.settings import WeightingSettings
from stablenet.weighting.solver import Solution, effective_sample_size
from stablenet.weighting.step import StepResult, take_step


@dataclass(frozen=True)
class LastSolve:
    """The latest solve and the path that computed it."""

    solution: Solution
    path: str


class StableWeighting(nn.Module):
    """Sample weights under which the features of a batch, joined to a memory of past ones, are independent.

    >>> weighting = StableWeighting(preset="paper", seed=0)
    >>> z = torch.randn(8, 4)
    >>> w = weighting(z)
    >>> w.shape, round(w.sum().item(), 4)
    (torch.Size([8]), 8.0)

    preset: "paper" (formulas and values as written), "published" (what the authors' code computes) or
        "recommended" (scale-free; made for shallow, pooled features against the label, see `pool_maps`).
    overrides: any field of `WeightingSettings` by name: num_functions, bandwidth, form, pairs, groups, alphas, steps,
        learning_rate, penalty, min_ess, method, seed, …

    In `eval()` the weights are ones and the memory is left alone. Features are cut off from the graph: their gradient
    is that of the weighted loss. Random numbers come from a generator of the module's own.
    """

    def __init__(self, preset: str = "recommended", **overrides: Any) -> None:
        super().__init__()
        self.preset = preset
        self.settings: WeightingSettings = settings_of(preset, overrides)
        self.memory = make_memory(self.settings)
        self._calls = 0  # solves so far; with the seed it fixes the Fourier functions of the next one
        self._last: LastSolve | None = None
        self._pending = PendingCheck()
        self._graphs: GraphCache[StepResult] = GraphCache()

    @staticmethod
    def preset_table() -> str:
        """The three presets side by side, one setting a line."""
        return preset_table()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def forward(self, features: Features, labels: Tensor | None = None) -> Tensor:
        """Weights of the batch, (B,) float32, detached, non-negative, summing to B.

        features: (B, m) floating-point, or a dict of such layers by name.
        labels: (B,) integer classes, or (B, C) columns (soft labels, targets); needed for label pairs only.
        With several processes B is the joined batch's size, and each rank gets its slice.
        """
        z, layers = join_layers(features)
        with_labels = self.settings.pairs != "features"
        check_labels(labels, len(z), with_labels)
        if not self.training:
            return z.new_ones(len(z))
        self._pending.raise_if_bad(self.memory)
        if self._calls < self.settings.warmup:
            self._calls += 1
            return z.new_full((len(z),), float(len(z)) if self.settings.warmup_loss == "sum" else 1.0)
        with torch.autocast(z.device.type, enabled=False):
            return self._weights(z, labels if with_labels else None, layers)

    def reset(self) -> None:
        """Forget all past batches."""
        self.memory.reset()
        self._pending.clear()
        self._graphs = GraphCache()  # the old ones hold buffers that are no longer used

    @property
    def diagnostics(self) -> dict[str, Any]:
        """The latest solve in numbers. Reading it waits for the device; training without reading it does not.

        dependence_before / dependence_after: D with uniform batch weights and with the returned ones.
        ess_ratio: effective sample size over batch size.   steps: inner steps done.   kept_step: the one returned.
        guard_events: iterates blended by the ESS guard; whether uniform weights were the best.
        optimality_gap: what a linear model of the objective could still gain; path: which code computed it.
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
        self.memory.check(z)
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

    def _run_step(self, z: Tensor, labels: Tensor | None) -> tuple[StepResult, str]:
        groups = self.settings.groups if self.settings.memory == "average" else 1
        num_rows = groups * self.memory.filled + len(z)
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
