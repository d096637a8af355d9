"""Weights and offsets of every training sample: what `stablenet train` and `DatasetCriterion` train on alike.

    mean(w · CE(logits + offset, y))

Features of all samples are collected before training, solved from once, and looked up by index in every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.weighting.dataset import DatasetWeighting
from stablenet.weighting.offsets import DatasetOffsets
from stablenet.weighting.recommended import Decision, WholeSetPlan


class WholeSet(nn.Module):
    """What a plan needs of the whole set, and nothing more: even weights are not solved for.

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
        self.plan, self.num_samples = plan, num_samples
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
        """Follow a decision. Where it is not to act, losses are those of plain training, to the bit."""
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
        if self.weighting is not None:
            self.weighting.collect(index, dict(features), labels)
        if self.offsets is None:
            return
        if self._lends:
            self.offsets.columns.fill_(0 if self.offsets.components else first.shape[1])
        else:
            self.offsets.collect(index, dict(features) if self.offsets.components else first, labels)

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
        """Give back the memory of features that are not needed."""
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

    def diagnose_step(self, device: torch.device) -> dict[str, Tensor]:
        """Scalars on the device that describe the weights of this epoch."""
        if self.weighting is None or not self._acts:
            return {"ess_ratio": torch.ones((), device=device)}
        before, after = self.weighting.dependence.unbind()
        return {"dependence_before": before, "dependence_after": after, "ess_ratio": self.weighting.ess}

    def describe_samples(self) -> dict[str, Tensor]:
        """What entered the loss of every sample last.

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
