"""The dependence of features and label over a set that is read chunk by chunk: bounded memory at any size.

D_y(w) = Σ_i ‖U_iᵀ A Y‖²_F needs of all samples only class sums of the functions, U_cᵀ d, and its slope at a sample
needs only that sample's own row. So an evaluation reads all rows twice, and holds a block of them at a time:

    S = Uᵀ diag(d) Y,  μ = Uᵀ v          first pass
    X = s·(S − c·μ (Yᵀv)ᵀ)               D_y = ‖X‖²
    ∂D/∂d = 2s·(U X ∘ Y)1,  ∂D/∂v = −2sc·(U X Yᵀv + Y Xᵀμ)      second pass

(symbols as in `statistic`). The functions u = (√2·cos(ωz + φ) − centre)·scale are computed anew in each pass, from z as
it is stored: ω and φ take in how z is standardized, S and X the scale. As many blocks as the budget allows are kept
instead, which changes no bit. A chunk's samples are read by class, so that a block has few classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.weighting import distributed
from stablenet.weighting.chunks import Chunk, ExactSum, Moments, Rows, by_device, column_moments, require_budget
from stablenet.weighting.fourier import FourierFunctions, standardize
from stablenet.weighting.problem import draw_functions
from stablenet.weighting.settings import WeightingSettings
from stablenet.weighting.statistic import measure_weights, pull_back

# Numbers of u in a block. On a processor it should stay in the cache; on a GPU it should keep all cores busy.
BLOCK_NUMBERS = {"cpu": 2**20, "cuda": 2**25}
BUFFERS = 4  # of a block's size, while it is computed
TABLES = 8  # of classes × functions, while sums are taken
VECTORS = 24  # of n numbers, in the solver


def can_stream(settings: WeightingSettings) -> bool:
    """Whether the problem is of the kind that can be solved chunk by chunk."""
    drawn_once = settings.redraw == "batch" or settings.num_functions == 0
    plain = settings.fourier == "cosine" and settings.scaling != "phase" and settings.bandwidth != "median"
    return settings.pairs == "labels" and drawn_once and plain and settings.logits == "block"


def whole_need(total: int, width: int, columns: int, settings: WeightingSettings, device: torch.device) -> int:
    """Bytes that the solve in one piece takes: the functions and what is made on the way to them, and label columns."""
    size = settings.working_dtype(device).itemsize
    return total * (4 * width + 5 * size * function_count(width, settings) + (8 + 4 * size) * columns)


def streamed_need(total: int, width: int, columns: int, settings: WeightingSettings, device: torch.device) -> int:
    """Bytes that the solve chunk by chunk takes at least."""
    size = settings.working_dtype(device).itemsize
    functions = function_count(width, settings)
    block = block_rows(functions, device) * functions * size
    return BUFFERS * block + TABLES * (columns + 1) * functions * 8 + VECTORS * total * size


def function_count(width: int, settings: WeightingSettings) -> int:
    """Functions of one sample, m·q."""
    q = settings.num_functions
    return width * int(q) if q >= 1 else width if q == 0 else max(2, round(q * width))


def block_rows(functions: int, device: torch.device) -> int:
    """Rows of a block."""
    return max(1, by_device(BLOCK_NUMBERS, device) // functions)


class RowFunctions:
    """u of some rows, cos(ωz + φ) or z itself, less a centre; without the scale.

    kept: (k,) 0 for functions of constant columns.   factor: √2 for cosines.
    """

    def __init__(
        self, moments: Moments, settings: WeightingSettings, functions: FourierFunctions | None, dtype: torch.dtype
    ) -> None:
        self._columns = None if functions is None else functions.columns
        mean, spread, kept = self._standardizing(moments, settings)
        if functions is None:
            self._slope, self._shift, self.factor = kept / spread, -mean * kept / spread, 1.0
        else:
            bandwidth = settings.bandwidth
            assert isinstance(bandwidth, float | int)  # see `can_stream`
            omega, phase = functions.omega.T.to(mean) / bandwidth, functions.phase.T.to(mean)  # (q, m)
            self._slope, self._shift, self.factor = omega / spread, phase - omega * mean / spread, math.sqrt(2)
        self._cosine = functions is not None
        self.kept = kept.expand(self._slope.shape).reshape(-1)
        self.count = len(self.kept)
        self._slope, self._shift = (part.to(dtype).contiguous() for part in (self._slope, self._shift))
        self._dtype = dtype
        self.centre = torch.zeros(self.count, dtype=dtype, device=mean.device)

    def _standardizing(self, moments: Moments, settings: WeightingSettings) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread, peak = moments.mean, moments.spread, moments.peak
        if self._columns is not None:
            mean, spread, peak = mean[self._columns], spread[self._columns], peak[self._columns]
        if settings.scaling != "standard":
            return torch.zeros_like(mean), torch.ones_like(mean), torch.ones_like(mean)
        kept = spread > 8 * torch.finfo(torch.float32).eps * peak  # as `standardize` has it
        return mean, torch.where(kept, spread, 1.0), kept.to(mean.dtype)

    def __call__(self, z: Tensor) -> Tensor:
        """z: (b, m) as stored.   Returns (b, k)."""
        z = (z if self._columns is None else z[:, self._columns]).to(self._dtype)
        if not self._cosine:
            return torch.addcmul(self._shift, z, self._slope).sub_(self.centre)
        u = torch.addcmul(self._shift, z.unsqueeze(1), self._slope)  # (b, q, m)
        return u.cos_().view(len(z), -1).sub_(self.centre)


@dataclass(frozen=True)
class Block:
    """Some samples of a chunk.   places: (b,) among all.   classes: (k,) of those samples, None for label columns.

    codes: (b,) which of these classes is a sample's.
    """

    number: int
    chunk: Chunk
    places: Tensor
    classes: Tensor | None
    codes: Tensor | None


class StreamedLabelPairs:
    """D_y(w) over a set in chunks and its gradient; the same numbers as `DirectLabelPairs`, to rounding.

    labels: (n,) integers or (n, C) columns, of all samples.   budget: bytes.
    """

    def __init__(
        self, rows: Rows, labels: Tensor, settings: WeightingSettings, generator: torch.Generator, budget: int
    ) -> None:
        self.form = settings.form
        self._rows, self._dtype = rows, settings.working_dtype(rows.device)
        self._labels, self._label_scale, self.columns = read_labels(labels, settings, self._dtype)
        if self._labels.ndim == 1:  # not index_add, whose sums depend on the order of a GPU's threads
            self._by_class, self._label_counts = self._labels.argsort(stable=True), self._labels.bincount()
        least = streamed_need(rows.total, rows.width, self.columns, settings, rows.device)
        require_budget(budget, least, f"solving for the weights of {rows.total:,} samples")
        linear = settings.num_functions == 0
        functions = None if linear else draw_functions(rows.width, settings, generator)
        size = block_rows(function_count(rows.width, settings), rows.device)
        raw = column_moments(rows, (parts for _, parts in rows.blocks(size)), rows.width)
        self._functions = RowFunctions(raw, settings, functions, self._dtype)
        self._scale = self._functions.kept.to(self._dtype) * self._functions.factor
        self._bound = self._fit_scale(settings, size)
        self._blocks = list(self._cut(size))
        self._kept: dict[int, Tensor] = {}
        self._room = (budget - least) // (size * self._functions.count * self._dtype.itemsize)

    def _fit_scale(self, settings: WeightingSettings, size: int) -> float:
        """Set centre and scale of the functions. Returns a bound of their absolute values, before the scale."""
        parts = ((self._functions(z) for z in blocks) for _, blocks in self._rows.blocks(size))
        moments = column_moments(self._rows, parts, self._functions.count)
        if self.form == "covariance":  # see `centre_for`
            self._functions.centre = moments.mean.to(self._dtype)
        if settings.objective == "share":
            varies = moments.spread > 8 * torch.finfo(self._dtype).eps * moments.peak
            scale = varies / torch.where(varies, moments.spread, 1.0) / self._functions.count**0.5
            self._scale = self._functions.kept.to(self._dtype) * scale.to(self._dtype)
        return 2 * float(moments.peak.max())

    def _cut(self, size: int) -> Iterator[Block]:
        number = 0
        for chunk in self._rows.chunks:
            places = torch.arange(chunk.start, chunk.stop, device=self._rows.device)
            if self._labels.ndim == 1:
                places = places[self._labels[places].argsort(stable=True)]
            for part in places.split(size):
                found = None, None
                if self._labels.ndim == 1:
                    found = self._labels[part].unique_consecutive(return_inverse=True)
                yield Block(number, chunk, part, *found)
                number += 1

    def _read(self, block: Block) -> Tensor:
        """u (b, k) of a block's samples."""
        if block.number in self._kept:
            return self._kept[block.number]
        u = self._functions(self._rows.pick(block.chunk, block.places))
        if len(self._kept) < self._room:
            self._kept[block.number] = u
        return u

    def _read_labels(self, block: Block) -> Tensor:
        """Y (b, c) of a block's samples and its classes."""
        if block.classes is None or block.codes is None:
            return self._labels[block.places]
        one_hot = torch.nn.functional.one_hot(block.codes, len(block.classes)).to(self._dtype)
        return one_hot * self._label_scale[block.classes]

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w: (n,).   Returns D_y, a scalar, and ∂D_y/∂w (n,)."""
        a = measure_weights(w, self.form)
        sums, mean_u, mean_y = self._sum(a.d, a.v)
        mean_u, sums = mean_u * self._scale, sums * self._scale
        cross = (sums - a.c * torch.outer(mean_y, mean_u)).mul_(a.s)  # (C, k)
        grad_d, pulled = self._pull(cross * self._scale, (mean_y @ cross) * self._scale)
        grad_d, grad_v = 2 * grad_d, -2 * a.c * (pulled + self._label_values(cross @ mean_u))
        return cross.square().sum(), pull_back(a, a.s * grad_d, a.s * grad_v, self.form)

    def _sum(self, d: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(S (C, k), μ (k,), Yᵀv (C,)), without the functions' scale."""
        count, rows = self._functions.count, self._rows
        largest = self._bound * max(1.0, float(self._label_peak()))
        shape = (self.columns + 1, count)
        total = ExactSum(shape, self._dtype, rows, largest * float(torch.maximum(d.abs().sum(), v.abs().sum())))
        for blocks in self._by_chunk():
            part = torch.zeros(shape, dtype=self._dtype, device=rows.device)
            for block in blocks:
                y = self._read_labels(block)
                weighted = torch.cat([y * d[block.places, None], v[block.places, None]], 1)
                found = weighted.T @ self._read(block)
                if block.classes is None:
                    part += found
                else:
                    part[block.classes] += found[:-1]
                    part[-1] += found[-1]
            total.add(part)
        found = total.result()
        return found[:-1], found[-1], self._label_sums(v)

    def _pull(self, cross: Tensor, joint: Tensor) -> tuple[Tensor, Tensor]:
        """((U X ∘ Y)1, U X Yᵀv), each (n,), from X (C, k) and X Yᵀv (k,), which have the functions' scale in them."""
        found = torch.zeros(2, self._rows.total, dtype=self._dtype, device=self._rows.device)
        for block in self._blocks:
            own = cross if block.classes is None else cross[block.classes]
            products = self._read(block) @ torch.cat([own, joint[None]]).T  # (b, c + 1)
            found[0, block.places] = (products[:, :-1] * self._read_labels(block)).sum(1)
            found[1, block.places] = products[:, -1]
        if self._rows.shared:
            distributed.sum_in_place(found)  # every place is some process's, and zero elsewhere
        return found[0], found[1]

    def _by_chunk(self) -> Iterator[Iterator[Block]]:
        for chunk in self._rows.chunks:
            yield (block for block in self._blocks if block.chunk is chunk)

    def _label_sums(self, v: Tensor) -> Tensor:
        """Yᵀv (C,)."""
        if self._labels.ndim == 2:
            return self._labels.T @ v
        return torch.segment_reduce(v[self._by_class], "sum", lengths=self._label_counts) * self._label_scale

    def _label_values(self, values: Tensor) -> Tensor:
        """Y·values (n,).   values: (C,)."""
        return self._labels @ values if self._labels.ndim == 2 else (values * self._label_scale)[self._labels]

    def _label_peak(self) -> Tensor:
        return self._labels.abs().max() if self._labels.ndim == 2 else self._label_scale.max()


def read_labels(labels: Tensor, settings: WeightingSettings, dtype: torch.dtype) -> tuple[Tensor, Tensor, int]:
    """Classes (n,) numbered from 0 with what each column is multiplied with (C,), or columns (n, C); and C.

    As `unit_labels` has it with objective "share". With the other objectives classes are plain one-hot columns.
    """
    share = settings.objective == "share"
    if labels.ndim == 2:
        columns = labels.to(dtype)
        if share:
            columns = standardize(columns) / labels.shape[1] ** 0.5
        elif settings.form == "covariance":
            columns = columns - columns.mean(0)
        return columns, columns.new_ones(labels.shape[1]), labels.shape[1]
    found: tuple[Tensor, Tensor, Tensor] = labels.unique(return_inverse=True, return_counts=True)
    _, codes, counts = found
    scale = (len(labels) / counts.to(dtype)).sqrt() if share else counts.new_ones(len(counts), dtype=dtype)
    return codes, scale, len(counts)
