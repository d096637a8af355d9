"""Weights for all N samples at once, and with offsets: features are collected first, weights looked up by index.

The paper's objection to a global solve is storage: features of every sample. Pooled features are small (60,000
samples of 1,536 numbers in half precision: 184 MB), and what a solve uses besides them is bounded: a set that does not
fit into its budget is read chunk by chunk.

`WholeSet` serves both `stablenet train` and `DatasetCriterion`, whose loss is mean(w · CE(logits + offset, y)):
features of all samples are collected before training, and the solved weights and offsets are looked up by index in
every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.values import Share, convert
from stablenet.weighting import distributed, recommended
from stablenet.weighting.chunks import CHUNK_ROWS, Rows, choose_budget, require_budget
from stablenet.weighting.inputs import Features, check_finite, join_layers, read_labels
from stablenet.weighting.offsets import DatasetOffsets
from stablenet.weighting.problem import interpolate, solve_drawn, solve_problem
from stablenet.weighting.recommended import Decision, WholeSetPlan
from stablenet.weighting.samples import SampleStore
from stablenet.weighting.settings import WeightingSettings, settings_of
from stablenet.weighting.solver import Solution, effective_sample_size
from stablenet.weighting.streamed import StreamedLabelPairs, can_stream, streamed_need, whole_need

# The dependence under weights 1 + s·(w − 1) is a polynomial of degree four in s: covariances are quadratic in the
# weights. Its values at five places give it everywhere.
PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)
# What a solve over a whole set changes in a preset: no memory is needed, linear features keep N × m·q numbers small,
# and the steps can be many because the solves are few.
DATASET_OVERRIDES: dict[str, Any] = {"groups": 0, "num_functions": 0, "steps": 100}


def dataset_settings(preset: str, overrides: dict[str, Any]) -> WeightingSettings:
    """The preset as a solve over the whole set uses it, with the user's overrides last."""
    own = recommended.WHOLE_SET if preset == recommended.NAME else DATASET_OVERRIDES
    if overrides.get("pairs", "labels") != "labels":  # what concerns labels alone has no meaning for other pairs
        own = {name: value for name, value in own.items() if name not in ("chance", "totals")}
    return settings_of(preset, {**own, **overrides})


@torch.no_grad()
def solve_dataset(
    features: Features,
    labels: Tensor | None = None,
    *,
    preset: str = "recommended",
    memory: str | None = None,
    **overrides: Any,
) -> Solution:
    """Weights of all N samples, solved together (Eq. 7, learning_weight as it stands, no batches and no memory).

    features: (N, m), or a dict of layers by name.   labels: (N,) integer classes or (N, C) columns.
    memory: what the solve may use besides the features, such as "4GiB"; None takes a share of what is free. A set that
        fits is solved in one piece, a larger one chunk by chunk, with the same result up to rounding.
    overrides: fields of `WeightingSettings`, on top of what a whole set changes in the preset (see this module).
    Returns a `Solution` whose weights (N,) sum to N.

    >>> x = torch.randn(64, 1, generator=torch.Generator().manual_seed(0))
    >>> solution = solve_dataset(torch.cat([x, x], 1), pairs="features")
    >>> bool(solution.dependence[1] < solution.dependence[0])
    True
    """
    settings = dataset_settings(preset, overrides)
    z, layers = join_layers(features)
    labels = read_labels(labels, len(z), needed=settings.pairs != "features")
    check_finite(z, layers)
    return solve_rows(Rows(z), labels, settings, memory)


def solve_rows(
    rows: Rows, labels: Tensor | None, settings: WeightingSettings, memory: str | None, strengths: Sequence[float] = ()
) -> Solution:
    """Solve in one piece where the budget allows it, else chunk by chunk.   labels: (n,) or (n, C), of all samples."""
    generator = torch.Generator(rows.device).manual_seed(settings.seed)
    columns = 0 if labels is None else labels.shape[1] if labels.ndim == 2 else len(labels.unique())
    need = whole_need(rows.total, rows.width, columns, settings, rows.device)
    budget = choose_budget(memory, rows.device)
    fixed = torch.empty(0, device=rows.device)
    if not rows.apart and (need <= budget or (memory is None and not can_stream(settings))):
        return solve_problem(rows.whole(), labels, fixed, rows.total, settings, generator, strengths)
    if not can_stream(settings):
        require_budget(budget, need, "with these settings, which need all samples at once, a solve")
    assert labels is not None  # label pairs have labels
    with torch.autocast(rows.device.type, enabled=False):
        statistic = StreamedLabelPairs(rows.divided(CHUNK_ROWS), labels, settings, generator, budget)
        return solve_drawn(lambda step: [statistic], labels, fixed, rows.total, settings, strengths)


class DatasetWeighting(SampleStore):
    """Every sample's weight, kept until the next solve.

    >>> weighting = DatasetWeighting(num_samples=4)
    >>> weighting.collect(torch.arange(4), torch.randn(4, 3), labels=torch.tensor([0, 0, 1, 1]))
    >>> _ = weighting.solve()
    >>> weighting(torch.tensor([2, 0])).shape
    torch.Size([2])

    Over an epoch, `collect` each batch's pooled features with the samples' indices; then `solve`; during the next
    epoch, calling the module with a batch's indices gives its weights. They sum to N over the whole set, not to B in
    every batch, so `(w * loss).mean()` is an unbiased estimate of the weighted loss. Samples never collected weigh one.

    strength: how far the handed-out weights are from ones, 1 + strength·(w − 1); let it rise from 0 over the first
        epochs (`set_strength`), because uneven weights disturb a network that has learned nothing yet.
    storage, memory, place: see `SampleStore`.
    """

    weights: Tensor
    strength: Tensor
    dependence: Tensor
    course: Tensor
    handed: Tensor
    ess: Tensor

    def __init__(
        self,
        num_samples: int,
        preset: str = "recommended",
        *,
        storage: torch.dtype = torch.float16,
        memory: str | None = None,
        place: str | Path = "device",
        **overrides: Any,
    ) -> None:
        settings = dataset_settings(preset, overrides)
        super().__init__(num_samples, storage, memory, place, with_labels=settings.pairs != "features")
        self.preset = preset
        self.settings = settings
        self.last_solution: Solution | None = None
        self.register_buffer("weights", torch.ones(num_samples))
        self.register_buffer("strength", torch.ones(()))
        self.register_buffer("dependence", torch.full((2,), float("nan")))  # under ones, and as handed out
        self.register_buffer("course", torch.full((len(PLACES),), float("nan")))  # of the dependence, at PLACES
        self.register_buffer("handed", torch.ones(num_samples), persistent=False)  # the weights at their strength
        self.register_buffer("ess", torch.ones(()), persistent=False)  # of those, per sample

    def needs_chunks(self, width: int, budget: int, device: torch.device) -> bool:
        need = whole_need(self.num_samples, width, 0, self.settings, device)
        return can_stream(self.settings) and need > budget

    def least_need(self, width: int, columns: int, device: torch.device) -> int:
        return streamed_need(self.num_samples, width, columns, self.settings, device)

    @torch.no_grad()
    def forward(self, index: Tensor) -> Tensor:
        """The weights of the samples with these indices (B,); ones in `eval()`."""
        self._check_index(index, len(index))
        if not self.training:
            return torch.ones(len(index), device=self.weights.device)
        return self.handed[index.to(self.handed.device)]

    def set_strength(self, strength: float) -> None:
        """strength: from 0 (ones) to 1 (the weights as they were solved)."""
        self.strength.fill_(convert(strength, Share, "the strength of weights"))
        self._hand_out()

    @torch.no_grad()
    def solve(self) -> Solution:
        """Solve for the samples collected since the last solve, and forget the features.

        The solution's weights are those of the collected samples in the order of their indices.
        """
        chosen, rows, labels = self.read()
        solution = solve_rows(rows, labels, self.settings, self.memory, PLACES[1:-1])
        self.weights.fill_(1.0)
        self.weights[chosen] = solution.weights
        before, after = solution.dependence.split(1)
        assert solution.halfway is not None
        self.course.copy_(torch.cat([before, solution.halfway, after]))
        self._hand_out()
        self.forget()
        self.last_solution = solution
        return solution

    def _hand_out(self) -> None:
        """Once for all batches of an epoch, so that a step only looks its weights up."""
        self.handed.copy_(torch.lerp(torch.ones_like(self.weights), self.weights, self.strength))  # exact at both ends
        self.ess.copy_(effective_sample_size(self.handed) / self.num_samples)
        self.dependence.copy_(torch.stack([self.course[0], interpolate(self.course, PLACES, self.strength)]))

    def describe(self) -> dict[str, float]:
        """Statistics of the weights as they are looked up. Reads the device."""
        before, after = self.dependence.tolist()
        largest = float(self.handed.max())
        return {
            "dependence_before": before,
            "dependence_after": after,
            "ess_ratio": float(self.ess),
            "largest_weight": largest,
        }

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        if (name := f"{prefix}course") not in state_dict:  # states of release 0.1 have its two ends
            before, after = state_dict.get(f"{prefix}dependence", self.dependence).split(1)
            unknown = before.new_full((len(PLACES) - 2,), float("nan"))
            state_dict = {**state_dict, name: torch.cat([before, unknown, after])}
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._hand_out()


class WholeSet(nn.Module):
    """The weights and offsets that a plan needs, and no more: even weights are not solved for.

    plan: see `WholeSetPlan`.   preset, overrides: of `DatasetWeighting`.   fold_seed: of the offsets' folds.
    """

    acts: Tensor
    known: Tensor
    weighting: DatasetWeighting | None
    offsets: DatasetOffsets | None

    def __init__(
        self,
        plan: WholeSetPlan,
        num_samples: int,
        num_classes: int,
        *,
        preset: str,
        fold_seed: int,
        overrides: Mapping[str, Any],
        storage: torch.dtype = torch.float16,
        memory: str | None = None,
        place: str | Path = "device",
    ) -> None:
        super().__init__()
        self.plan, self.num_samples, self._num_classes, self._memory = plan, num_samples, num_classes, memory
        self._checked = False  # whether the budget is enough
        self.register_buffer("acts", torch.ones((), dtype=torch.bool))
        self.register_buffer("known", torch.zeros((), dtype=torch.bool))
        self._acts, self._known = True, False  # the same, on the host
        self.weighting = None
        if plan.strength > 0:
            self.weighting = DatasetWeighting(
                num_samples, preset, storage=storage, memory=memory, place=place, **overrides
            )
        self.offsets = None
        if plan.offset > 0:
            self.offsets = DatasetOffsets(
                num_samples,
                num_classes,
                strength=plan.offset,
                components=plan.components,
                seed=fold_seed,
                storage=storage,
                memory=memory,
                place=place,
            )
        self._lends = self.weighting is not None and self.weighting.settings.pairs != "features"  # it keeps labels
        if self.weighting is not None and self.offsets is not None and self._lends:
            self.offsets.borrow(self.weighting)

    def settle(self, decision: Decision) -> None:
        """Follow a decision. If it is not to act, losses are those of plain training, bit for bit."""
        self.acts.fill_(decision.act)
        self._acts = decision.act

    @property
    def act(self) -> bool:
        """Whether weights and offsets enter the loss."""
        return self._acts

    @property
    def solved(self) -> bool:
        """Whether there was a solve."""
        return self._known

    @property
    def lost(self) -> bool:
        """Whether an interruption has cost features that were collected, see `SampleStore.collect`."""
        return any(store is not None and store.lost for store in (self.weighting, self.offsets))

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        # Older states always acted, and did not ask whether there was a solve.
        older = {f"{prefix}acts": torch.ones((), dtype=torch.bool), f"{prefix}known": torch.zeros_like(self.known)}
        state = {**older, **state_dict}
        self._acts, self._known = bool(state[f"{prefix}acts"]), bool(state[f"{prefix}known"])
        super()._load_from_state_dict(state, prefix, *args)

    def collect(self, index: Tensor, features: Mapping[str, Tensor], labels: Tensor) -> None:
        """Remember a batch.   index: (B,).   features: (B, m) of every tap, the first tap first.   labels: (B,).

        Weights and leading components are solved from all taps, other offsets from the first.
        """
        first = next(iter(features.values()))
        if not self._checked:
            self._check_budget(first.shape[1], sum(each.shape[1] for each in features.values()), first.device)
        if self.weighting is not None:
            self.weighting.collect(index, dict(features), labels)
        if self.offsets is None:
            return
        if self._lends:
            self.offsets.columns.fill_(0 if self.offsets.components else first.shape[1])
        else:
            self.offsets.collect(index, dict(features) if self.offsets.components else first, labels)

    def _check_budget(self, first: int, width: int, device: torch.device) -> None:
        """Refuse a budget in which the solves do not fit now: a pass over all samples may be long.

        first, width: columns of the first tap, and of all.
        """
        budget = distributed.smallest(choose_budget(self._memory, device), device)
        least = 0
        for store in (self.weighting, self.offsets):
            alone = isinstance(store, DatasetOffsets) and not store.components
            columns = first if alone else width
            if store is not None and store.needs_chunks(columns, budget, device):
                least = max(least, store.least_need(columns, self._num_classes, device))
        require_budget(budget, least, f"solving for {self.num_samples:,} samples")
        self._checked = True

    def solve(self) -> dict[str, float]:
        """Solve from what was collected. Returns diagnostics of what enters the loss at the plan's full strength.

        ess_ratio, largest_weight: 1 for even weights.   dependence_before, dependence_after: with weights.
        context_explains: with offsets, the share of the label's entropy that their regression predicts.
        """
        self.known.fill_(True)
        self._known = True
        if not self._acts:
            self._forget()
            return {"ess_ratio": 1.0, "largest_weight": 1.0}
        explained = None if self.offsets is None else self.offsets.solve().explained  # first: the weights forget
        if self.weighting is None:
            found = {"ess_ratio": 1.0, "largest_weight": 1.0}
        else:
            self.weighting.solve()
            present = float(self.weighting.strength)
            self.weighting.set_strength(self.plan.strength)
            found = self.weighting.describe()
            self.weighting.set_strength(present)
        if explained is not None:
            found["context_explains"] = explained
        return found

    def _forget(self) -> None:
        """Free the memory of features that are not needed."""
        for store in (self.weighting, self.offsets):
            if store is not None:
                store.forget()

    def set_epoch(self, epoch: int, epochs: int) -> None:
        """Let the weights be as strong as the plan has them in epoch `epoch` (from 0) of `epochs`."""
        if self.weighting is not None:
            self.weighting.set_strength(self.plan.strength_in(epoch, epochs))

    def forward(self, index: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Weights (B,) and offsets (B, C) of samples, as they enter the loss; None where there are none.

        The module decides nothing by itself: see `settle`.
        """
        if not self._acts:
            return None, None
        weights = None if self.weighting is None else self.weighting(index)
        return weights, None if self.offsets is None else self.offsets(index)

    def answer(self, plain: float, weighted: float, effective: float) -> tuple[dict[str, float], float, str]:
        """After an epoch: whether the network uses the context, by its accuracies on held-out samples, see
        `context_use`. Where it clearly predicts against it, the offsets are halved.

        Returns context_use and, where they were halved, offsets_left, 0 to 1; the penalty of the epoch, see `penalize`;
        and a note. All are empty where it is not clear.
        """
        use = recommended.context_use(plain, weighted, effective)
        if not recommended.is_clear(use):
            return {}, 0.0, ""
        found, note = {"context_use": use}, f"the network predicts {'with' if use > 0 else 'against'} the context"
        if use < 0 and self.offsets is not None and self.offsets.act:
            found["offsets_left"] = left = self.offsets.weaken(recommended.WEAKEN)
            note += f", {left:.3g} of the offsets left"
        return found, recommended.penalize(plain, weighted, use), note

    def diagnose_step(self, device: torch.device) -> dict[str, Tensor]:
        """Scalars on the device that describe the weights of this epoch."""
        if self.weighting is None or not self._acts:
            return {"ess_ratio": torch.ones((), device=device)}
        before, after = self.weighting.dependence.unbind()
        return {"dependence_before": before, "dependence_after": after, "ess_ratio": self.weighting.ess}

    def describe_samples(self) -> dict[str, Tensor]:
        """What last entered the loss of every sample.

        weight: (N,).   With offsets, offset: (N, C), added to the logits, and context: (N, C), by how much the context
        raises the log-probability of every class, log p(y | c) − log p(y), as far as it is trusted; both (N,), of the
        sample's own class, where N × C numbers are too many to keep.
        """
        columns = {"weight": torch.ones(self.num_samples) if self.weighting is None else self.weighting.handed}
        if self.offsets is not None:
            used = self.offsets.strength * float(self.offsets.left)
            columns["offset"] = self.offsets.describe()
            columns["context"] = columns["offset"] / used if used else columns["offset"]
        return columns
