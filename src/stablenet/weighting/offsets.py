"""Offsets: what the context predicts of the label, added to the logits in training so that the network learns the rest.

Weights lose their effect once a network fits every sample: a loss near zero stays near zero under any weight. They also
cannot raise samples that do not exist: a class that no training image shows in some context. Offsets have neither
weakness. With p(y | c) the label's probability given the context c of a sample, training on

    CE(g(f(x)) + log p(· | c) − log p(·), y)

lets the network explain only what the context leaves open; it is used without the offset. Under the model
p(y | x) ∝ p_object(y | x)·p(y | c)/p(y) the logits g(f(x)) then are those of the object alone.

The context is not known. Shallow features serve as a proxy: p(y | c) is a logistic regression on them, cross-fitted, so
that no sample's own label takes part in its offset, with the ridge that predicts held-out labels best.

On all features such a regression may identify the object, too. The share U of the label's entropy that it explains
determines how far it is trusted: offsets are multiplied by √U, as a correlation is the root of a share of variance. A
pretrained network's features identify the object more than the context. There the few leading components, with their
products, serve as the proxy (`components`): they show the style and less of the object, and are trusted fully. Labels
that features do not predict leave every offset at zero. Where features predict nearly everything, they identify the
object, or nothing would be left to learn: as U goes from 1 − `LEFT` to 1 the offsets fade to zero.

A set that does not fit into the given memory is read chunk by chunk. Where N × C offsets are too many to keep, the
components of every sample and the regressions are kept instead, or the offsets are kept in half precision.

Offsets can be too strong, above all together with weights and with noisy labels: the network then predicts against the
context. Held-out source samples show this (`context_use`), and `DatasetOffsets.weaken` is the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.values import Count, NonNegative, Whole, check_arguments
from stablenet.weighting import distributed
from stablenet.weighting.chunks import (
    CHUNK_ROWS,
    LARGEST_DEFAULT,
    MemorySize,
    Rows,
    by_device,
    choose_budget,
    column_moments,
    read_size,
    require_budget,
)
from stablenet.weighting.inputs import Features, check_finite, join_layers
from stablenet.weighting.logistic import (
    BUFFERS,
    FOLDS,
    LOGITS_AT_ONCE,
    ROWS_AT_ONCE,
    STEPS,
    Regression,
    Regressors,
    block_rows,
    cross_fit,
    deal_folds,
    leading_components,
    predict,
    standardizing,
    stream_components,
    whole_regressors,
)
from stablenet.weighting.memory import refuse_saved_shapes
from stablenet.weighting.recommended import WEAKEN
from stablenet.weighting.samples import SampleStore

LEFT = 0.1  # of the label's entropy: offsets that leave less to be learned fade. By argument; published runs have more
KEPT = ("offsets", "truth", "predicted.context", "predicted.slopes")  # in one of several forms
LIKE_SAVED = "give num_samples, num_classes, components and memory, which decides how offsets are kept, as it had them"
STORED_SHARE = 0.25  # of the budget that the offsets of all samples may take, kept as they are


@dataclass(frozen=True)
class Offsets:
    """What the context predicts of the labels of a set.

    explained: U, of the label's entropy, 0 to 1.   log_prior: (C,) of the classes.   trust: factor of the log-odds.
    """

    context: Regressors
    regression: Regression
    log_prior: Tensor
    explained: float
    trust: float

    @property
    def ridge(self) -> float:
        """The chosen one."""
        return self.regression.ridge

    @cached_property
    def values(self) -> Tensor:
        """(N, C), what is added to the logits."""
        rows = self.context.rows
        return self.write(torch.zeros(rows.total, len(self.log_prior), dtype=rows.dtype, device=rows.device))

    def write(self, room: Tensor, places: Tensor | None = None, factor: Tensor | float = 1.0) -> Tensor:
        """Write the offsets, times a factor, into zeros (N', C), those of all processes.   places: (N,) in these."""
        for part, values in self.parts():
            room[part if places is None else places[part]] = (factor * values).to(room.dtype)
        if self.context.rows.shared:
            distributed.sum_in_place(room)  # every sample is some process's, and zero elsewhere
        return room

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Places and offsets (b, C) of one block after the other."""
        fold = self.regression.fold
        for _, blocks in self.context.chunks():
            for places, z in blocks:
                yield places, weigh_odds(self.regression.predict(z, fold[places]), self.log_prior, self.trust)


def weigh_odds(predicted: Tensor, log_prior: Tensor, trust: float | Tensor) -> Tensor:
    """trust·(log p(y | c) − log p(y)); 0 for classes without samples.   predicted: (b, C).   log_prior: (C,)."""
    return torch.where(log_prior.isfinite(), trust * (predicted - log_prior), 0.0)


@torch.no_grad()
def solve_offsets(
    features: Features,
    labels: Tensor,
    num_classes: Count | None = None,
    *,
    components: Whole = 0,
    seed: int = 0,
    memory: MemorySize | None = None,
) -> Offsets:
    """Offsets of all N samples.

    features: (N, m), or a dict of layers by name: of layers that show the context, not yet the object.
    labels: (N,) integer classes below num_classes; None takes those that occur.   seed: of the folds.
    components: 0 regresses on all features and scales by √U; k > 0 regresses on k leading components, without that
        factor. Both fade as U goes from 1 − `LEFT` to 1.
    memory: as in `solve_dataset`.

    >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> offsets = solve_offsets(x, (x[:, 0] > 0).long())
    >>> offsets.values.shape, offsets.explained > 0.8
    (torch.Size([200, 2]), True)
    """
    check_arguments(solve_offsets, locals())
    z, layers = join_layers(features)
    _check_classes(labels, len(z), num_classes)
    check_finite(z, layers)
    return solve_rows(Rows(z), labels, num_classes or int(labels.max()) + 1, components, seed, memory)


def solve_rows(rows: Rows, labels: Tensor, classes: int, components: int, seed: int, memory: str | None) -> Offsets:
    """As `solve_offsets`, in one piece where the budget allows it, else chunk by chunk.

    labels: (n,), of all samples.
    """
    labels = labels.long()
    log_prior = (torch.bincount(labels, minlength=classes) / len(labels)).log()  # −inf for a class without samples
    entropy = -float(log_prior[labels].mean())
    with torch.autocast(rows.device.type, enabled=False):
        context = read_context(rows, classes, components, choose_budget(memory, rows.device))
        regression = cross_fit(context, labels, classes, deal_folds(labels, seed))
    explained = max(0.0, 1 - regression.loss / entropy) if entropy > 0 else 0.0
    trust = (1.0 if components else explained**0.5) * min(1.0, (1 - explained) / LEFT) if explained else 0.0
    return Offsets(context, regression, log_prior, explained, trust)


def whole_need(total: int, width: int, classes: int) -> int:
    """Bytes that the solve in one piece takes: features, what is made of them, and logits of all folds."""
    return 4 * total * (4 * width + BUFFERS * FOLDS * classes)


def streamed_need(total: int, width: int, classes: int, components: int, device: torch.device) -> int:
    """Bytes that the solve chunk by chunk takes at least: blocks of logits, what L-BFGS remembers, components."""
    regressors = components + components * (components + 1) // 2 if components else width
    block = by_device(LOGITS_AT_ONCE, device)
    memory = 2 * STEPS * FOLDS * (regressors + 1) * classes
    need = 4 * (BUFFERS * block + memory + 4 * FOLDS * total)
    return need + 24 * (total * regressors + width**2) if components else need


def read_context(rows: Rows, classes: int, components: int, budget: int) -> Regressors:
    """The proxy for the context of each sample: all features or their leading components, standardized."""
    if not rows.apart and (rows.total < rows.width or whole_need(rows.total, rows.width, classes) <= budget):
        z = rows.whole()
        return whole_regressors(leading_components(z, components) if components else _scale(z))
    least = streamed_need(rows.total, rows.width, classes, components, rows.device)
    require_budget(budget, least, f"solving for the offsets of {rows.total:,} samples")
    rows, block = rows.divided(CHUNK_ROWS), block_rows(classes, rows.device)
    if components:
        found = stream_components(rows, components)
        return Regressors(rows.beside(found), block, float(found.abs().max()))
    moments = column_moments(rows, (parts for _, parts in rows.blocks(ROWS_AT_ONCE)), rows.width)
    mean, slope = standardizing(moments)
    peak = float(((moments.peak + moments.mean.abs()) * slope).max())
    return Regressors(rows, block, peak, partial(_standardize, mean=mean, slope=slope))


def _standardize(z: Tensor, mean: Tensor, slope: Tensor) -> Tensor:
    return (z - mean).mul_(slope)


class PredictedOffsets(nn.Module):
    """Offsets that are computed when they are looked up, from the few components of every sample: N × k numbers."""

    context: Tensor  # (N, k)
    fold: Tensor  # (N,)
    slopes: Tensor  # (folds, k, C)
    levels: Tensor  # (folds, 1, C)
    log_prior: Tensor  # (C,)
    trust: Tensor  # (N,) 0 for samples that took no part

    def __init__(self, num_samples: int, num_classes: int, components: int) -> None:
        super().__init__()
        width = components + components * (components + 1) // 2
        self.register_buffer("context", torch.zeros(num_samples, width))
        self.register_buffer("fold", torch.zeros(num_samples, dtype=torch.uint8))
        self.register_buffer("slopes", torch.zeros(FOLDS, width, num_classes))
        self.register_buffer("levels", torch.zeros(FOLDS, 1, num_classes))
        self.register_buffer("log_prior", torch.zeros(num_classes))
        self.register_buffer("trust", torch.zeros(num_samples))

    def keep(self, chosen: Tensor, solution: Offsets) -> None:
        """Take over a solution of the samples with these indices (n,)."""
        self.to(chosen.device)
        regression = solution.regression
        self.trust.zero_()
        self.trust[chosen] = solution.trust
        self.fold[chosen] = regression.fold.to(self.fold.dtype)
        folds, width, _ = regression.slopes.shape  # fewer than there is room for, of very few samples or features
        self.context[chosen, :width] = solution.context.rows.whole()
        self.slopes[:folds, :width] = regression.slopes
        self.levels[:folds] = regression.levels
        self.log_prior.copy_(solution.log_prior)

    def forward(self, index: Tensor) -> Tensor:
        """index: (B,).   Returns (B, C), at full strength."""
        predicted = predict(self.context[index], self.fold[index].long(), self.slopes, self.levels)
        return weigh_odds(predicted, self.log_prior, self.trust[index, None])


class DatasetOffsets(SampleStore):
    """Every sample's offsets, kept until the next solve.

    >>> offsets = DatasetOffsets(num_samples=4, num_classes=2)
    >>> offsets.collect(torch.arange(4), torch.randn(4, 3), labels=torch.tensor([0, 0, 1, 1]))
    >>> _ = offsets.solve()
    >>> offsets(torch.tensor([2, 0])).shape
    torch.Size([2, 2])

    In training, `cross_entropy(logits + offsets(index), y)`; to evaluate, the logits alone. Keeps N × C numbers; where
    these are more than a quarter of the memory, what they are computed from (with components), or half precision.

    strength: offsets are multiplied by it; together with weights that make context and label independent, full offsets
        would remove the dependence twice.
    components: as in `solve_offsets`.   storage, memory, place: see `SampleStore`. `weaken` them if the network begins
    to predict against the context, see `context_use`.
    """

    offsets: Tensor  # (N, C), or empty with `predicted`
    predicted: PredictedOffsets | None
    truth: Tensor | None  # (N,) labels, with `predicted` and in half precision
    columns: Tensor  # how many of another store's features it is solved from, 0 for all
    left: Tensor  # what `weaken` has left of the strength

    def __init__(
        self,
        num_samples: Count,
        num_classes: Count,
        *,
        strength: NonNegative = 1.0,
        components: Whole = 0,
        seed: int = 0,
        storage: torch.dtype = torch.float16,
        memory: MemorySize | None = None,
        place: str | Path = "device",
    ) -> None:
        check_arguments(DatasetOffsets.__init__, locals())
        super().__init__(num_samples, storage, memory, place, with_labels=True)
        self.strength, self.components, self.seed = strength, components, seed
        self.num_classes = num_classes
        self._lender: list[SampleStore] = []  # in a list: its state is its own, not a part of this one's
        self.register_buffer("columns", torch.zeros((), dtype=torch.int64))
        budget = LARGEST_DEFAULT if memory is None else read_size(memory)
        many = 4 * num_samples * num_classes > STORED_SHARE * budget
        self.predicted = PredictedOffsets(num_samples, num_classes, components) if many and components else None
        kept = 0 if self.predicted is not None else num_samples
        self.register_buffer("offsets", torch.zeros(kept, num_classes, dtype=torch.float16 if many else torch.float32))
        self.register_buffer("left", torch.ones(()))
        # The one of C columns that is written down for every sample; not needed where all are kept.
        self.register_buffer("truth", torch.zeros(num_samples, dtype=torch.int64) if many else None)

    @torch.no_grad()
    def forward(self, index: Tensor) -> Tensor:
        """The offsets (B, C) of the samples with these indices (B,); zeros in `eval()`."""
        self._check_index(index, len(index))
        index = index.to(self.offsets.device)
        if not self.training:
            return torch.zeros(len(index), self.num_classes, device=index.device)
        return self._look_up(index)

    def needs_chunks(self, width: int, budget: int, device: torch.device) -> bool:
        return self.num_samples >= width and whole_need(self.num_samples, width, self.num_classes) > budget

    def least_need(self, width: int, columns: int, device: torch.device) -> int:
        return streamed_need(self.num_samples, width, columns, self.components, device)

    @torch.no_grad()
    def describe(self) -> Tensor:
        """(N, C) as they enter the loss; (N,), those of the samples' own classes, where N × C are not kept."""
        if self.truth is None:
            return self.offsets
        places = torch.arange(self.num_samples, device=self.offsets.device).split(ROWS_AT_ONCE)
        found = [self._look_up(part).gather(1, self.truth[part, None]).squeeze(1) for part in places]
        return torch.cat(found)

    @property
    def act(self) -> bool:
        """Whether any offset is not zero. Reads the device."""
        if self.predicted is not None:
            return bool(self.left * self.predicted.trust.any())
        return bool(self.offsets.any())

    def _look_up(self, index: Tensor) -> Tensor:
        if self.predicted is not None:
            whole: Tensor = self.predicted(index)
            return self.strength * self.left * whole
        return self.offsets[index].float()

    def borrow(self, lender: SampleStore) -> None:
        """Solve from the features of another store, the first `columns` of them, and keep none here."""
        self._lender = [lender]

    @torch.no_grad()
    def weaken(self, factor: float = WEAKEN) -> float:
        """Multiply the offsets, also of later solves, by the factor. Returns what is left of the strength, 0 to 1."""
        if not 0 <= factor <= 1:
            raise UserError(f"offsets are weakened by a factor from 0 to 1, got {factor}")
        self.left *= factor
        self.offsets *= factor
        return float(self.left)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        # For states from before offsets could be weakened or borrow features.
        whole = {f"{prefix}left": torch.ones(()), f"{prefix}columns": torch.zeros((), dtype=torch.int64)}
        refuse_saved_shapes(self, KEPT, state_dict, prefix, LIKE_SAVED)
        super()._load_from_state_dict({**whole, **state_dict}, prefix, *args)

    @torch.no_grad()
    def solve(self) -> Offsets:
        """Solve for the samples collected since the last solve, and forget the features.

        The solution is of the collected samples in the order of their indices, at full strength.
        """
        chosen, rows, labels = (self._lender[0] if self._lender else self).read()
        self.to(chosen.device)
        if self._lender and self.columns > 0:
            rows = rows.narrowed(int(self.columns))
        assert labels is not None
        _check_classes(labels, len(labels), self.num_classes)
        solution = solve_rows(rows, labels, self.num_classes, self.components, self.seed, self.memory)
        if self.truth is not None:
            self.truth = self.truth.to(labels.device)
            self.truth[chosen] = labels.long()
        if self.predicted is not None:
            self.predicted.keep(chosen, solution)
        else:
            self.offsets.zero_()
            solution.write(self.offsets, chosen, self.strength * self.left)
        self.forget()
        return solution


def _scale(z: Tensor) -> Tensor:
    """Columns with mean 0 and standard deviation 1; constant ones become zeros."""
    centred = z - z.mean(0)
    deviation = centred.square().mean(0).sqrt()
    return centred / torch.where(deviation > 1e-6, deviation, 1.0) * (deviation > 1e-6)


def _check_classes(labels: Tensor, size: int, num_classes: int | None) -> None:
    if labels.shape != (size,) or labels.is_floating_point():
        raise UserError(
            f"offsets need one integer class per sample, shape ({size},), got {labels.dtype} {tuple(labels.shape)}"
        )
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or (num_classes is not None and most >= num_classes):
        raise UserError(f"labels must be classes from 0 on, below num_classes={num_classes}, got {least} to {most}")
