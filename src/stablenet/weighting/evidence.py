"""Evidence, from training data alone, of whether context and label are correlated: the basis of `recommended.decide`.

Two signs, both cheap and without a network:

- THE BORDER AGAINST THE MIDDLE: how much of the label colours and textures predict at the border of the image, where
  mostly the surroundings are, and in the middle, where mostly the object is. Where the border predicts about as much as
  the middle, it is the surroundings that predict the label; where the middle predicts far more, it is the object.
- NAMED CONTEXTS (domains, sites, seasons), where there are several: how much of the label they predict.

In order: the hand-made features of border and middle, then what they predict. Only sums over samples are kept, and one
number of every image, so that data sets of any size fit into memory, and several processes add theirs. The sums are
kept for ten parts of the samples, so that each part can be left out in turn, which gives the standard error of the
quotient of border and middle (a jackknife). Images that occur again and again, as where rare classes are repeated, are
no new evidence: what chance gives and the standard error are those of as many samples as there are different images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from stablenet.errors import UserError
from stablenet.weighting import distributed
from stablenet.weighting.inputs import pool_maps

BORDER = 8  # the border is one part in eight of the side, on each side
MIDDLE = 4  # the middle leaves one part in four of the side, on each side
SCALES = (1, 2, 4)  # pixels between the two ends of a contrast
SIDE = 64  # statistics of colour and texture change little above this
WIDTH = 36  # features of an image

DESCRIPTION = (
    "hand-made: mean and spread of colours, colour differences and contrasts in four directions at three scales"
)


class Described(NamedTuple):
    """Features (b, 36) of whole images, of their borders and of their middles; the borders' median colours (b, 3)."""

    whole: Tensor
    border: Tensor
    middle: Tensor
    edge: Tensor


def extract_bank(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """pixels: (b, h, w, 3) uint8.   Returns features of the whole image and of its border, (b, 36) each."""
    found = describe_pixels(pixels)
    return found.whole, found.border


def describe_pixels(pixels: Tensor) -> Described:
    """pixels: (b, h, w, 3) uint8, as they are stored."""
    return describe_images(pixels.permute(0, 3, 1, 2).float() / 255)


def describe_images(images: Tensor) -> Described:
    """images: (b, 3, h, w) in 0..1, of any size."""
    maps = draw_maps(shrink(images))
    edge = cut_border(maps[:, :3]).flatten(2).median(2).values
    return Described(pool_maps(maps), pool_border(maps), pool_maps(maps[:, :, mask_middle(*maps.shape[2:])]), edge)


def shrink(images: Tensor) -> Tensor:
    """Images (b, 3, h, w) with sides of at most `SIDE` pixels, as `stablenet.data.decode` resizes them."""
    size = [min(side, SIDE) for side in images.shape[2:]]
    if size == list(images.shape[2:]):
        return images
    return interpolate(images, size, mode="bilinear", antialias=True)


class UnitRange:
    """Images of any normalization to 0..1, for loops that provide nothing else.

    The range of every channel is taken from the first batch, assuming that each channel is black somewhere in it, and
    saturated somewhere.
    """

    def __init__(self, shared: bool = False) -> None:
        """shared: whether the first batch is spread over all processes."""
        self._shared = shared
        self._low: Tensor | None = None
        self._span: Tensor | None = None

    def __call__(self, images: Tensor) -> Tensor:
        """images: (b, c, h, w), c of 1 or 3 or more, of which the first three count.   Returns (b, 3, h, w)."""
        if images.ndim != 4:
            raise UserError(f"images must be (batch, channels, height, width), got {tuple(images.shape)}")
        images = images.detach().float()
        images = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
        if self._low is None or self._span is None:
            least = images.new_full((1, *images.shape[1:]), -torch.inf)  # a process may have none of a short batch
            ends = torch.stack([torch.cat([part, least]).amax((0, 2, 3), keepdim=True) for part in (-images, images)])
            if self._shared:
                distributed.max_in_place(ends)
            self._low = -ends[0]
            self._span = (ends[1] - self._low).clamp_min(torch.finfo(torch.float32).tiny)
        return (images - self._low) / self._span


def draw_maps(images: Tensor) -> Tensor:
    """Images (b, 3, s, s) in 0..1 to maps (b, 18, s, s): colours, their differences, absolute contrasts."""
    red, green, blue = images.unbind(1)
    differences = torch.stack([red - green, (red + green) / 2 - blue, images.amax(1) - images.amin(1)], 1)
    grey = images.mean(1, keepdim=True)
    contrasts = [contrast for distance in SCALES for contrast in _draw_contrasts(grey, distance)]
    return torch.cat([images, differences, *contrasts], 1)


def _draw_contrasts(grey: Tensor, distance: int) -> list[Tensor]:
    """|difference| across, down and along both diagonals, (b, 1, s, s) each; zero where the image ends."""
    height, width = grey.shape[2:]
    across = pad(grey[..., distance:] - grey[..., :-distance], (0, min(distance, width)))
    down = pad(grey[..., distance:, :] - grey[..., :-distance, :], (0, 0, 0, min(distance, height)))
    half = 0.5**0.5
    return [across.abs(), down.abs(), half * (across + down).abs(), half * (across - down).abs()]


def pool_border(maps: Tensor) -> Tensor:
    """As `pool_maps`, over the outermost eighth on each side, at least one position.   maps: (b, c, h, w)."""
    return pool_maps(cut_border(maps))


def cut_border(maps: Tensor) -> Tensor:
    """The outermost eighth on each side, (b, c, positions), or the maps (b, c, h, w) where all of them is border."""
    height, width = maps.shape[2:]
    top, left = max(1, height // BORDER), max(1, width // BORDER)
    if height <= 2 * top or width <= 2 * left:
        return maps
    between = maps[:, :, top : height - top]
    strips = (maps[:, :, :top], maps[:, :, height - top :], between[..., :left], between[..., width - left :])
    return torch.cat([strip.flatten(2) for strip in strips], 2)


def mask_middle(height: int, width: int) -> Tensor:
    """(h, w) bool: the middle half of each side."""
    mask = torch.zeros(height, width, dtype=torch.bool)
    top, left = height // MIDDLE, width // MIDDLE
    mask[top : height - top, left : width - left] = True
    return mask


PARTS = 10  # of the samples, each left out in turn
ERRORS = 2  # standard errors between the quotient and what it is at least
LITTLE = 1e-3  # shares below it count as this much in the quotient
MOST_AXES = 64  # principal axes that may predict the label; more would only add noise
ROWS_PER_AXIS = 10
LEFT_OUT = 1e-4  # share of the variance that the axes may miss
DEVIATIONS = 3  # of what random labels give, above which a share is no chance
STEPS = 1000  # of every feature between images that count as different
SHADES = 16  # of each of three colours between borders that count as different


@dataclass(frozen=True)
class Evidence:
    """border, middle: share of the label's variance that colours and textures predict there, less what chance gives, 0
    to 1; None if the inputs are not images.
    quotient: border over middle.   least: two standard errors below it.
    chance: three standard deviations of what random labels give at the border.   classes: that occur.
    blank: the largest share of the images whose borders have the same median colour.
    contexts: share of the label's entropy that the named contexts predict, each sample from the others, less chance;
        None where fewer than two are named.
    """

    border: float | None = None
    middle: float | None = None
    quotient: float | None = None
    least: float | None = None
    contexts: float | None = None
    chance: float | None = None
    classes: int = 2
    blank: float | None = None


class EvidenceSums:
    """Collects the evidence of a training set, batch by batch.

    >>> sums = EvidenceSums(num_classes=2, num_contexts=2)
    >>> y = torch.arange(40) % 2
    >>> sums.add(y, contexts=y)
    >>> found = sums.weigh()
    >>> round(found.contexts, 2)
    0.9
    """

    def __init__(self, num_classes: int, num_contexts: int = 0, shared: bool = False) -> None:
        """shared: whether each of several processes adds its own samples; otherwise each adds all of them."""
        self._classes, self._contexts, self._shared = num_classes, num_contexts, shared
        self._moments: Tensor | None = None  # (2, parts, 1 + m, 1 + m + C) of border and middle
        self._table: Tensor | None = None
        self._edges: Tensor | None = None  # images by the median colour of their border
        self._prints: list[Tensor] = []

    @torch.no_grad()
    def add(
        self,
        labels: Tensor,
        index: Tensor | None = None,
        described: Described | None = None,
        contexts: Tensor | None = None,
    ) -> None:
        """labels: (b,).   index: (b,) places in the set, needed with `described`.   contexts: (b,) below num_contexts.

        described: features of the images, where the inputs are some.
        """
        least, most = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
        if least < 0 or most >= self._classes:
            raise UserError(
                f"labels must be classes from 0 on, below num_classes={self._classes}, got {least} to {most}"
            )
        if described is not None:
            assert index is not None
            found = self._multiply(labels.long(), index.to(labels.device) % PARTS, described)
            self._moments = found if self._moments is None else self._moments + found
            self._prints.append(fingerprint(described.whole))
            shades = count_shades(described.edge)
            self._edges = shades if self._edges is None else self._edges + shades
        if contexts is not None and self._contexts > 1:
            cell = contexts.long() * self._classes + labels.long()
            count = torch.bincount(cell, minlength=self._contexts * self._classes).double()
            self._table = count if self._table is None else self._table + count

    def _multiply(self, labels: Tensor, part: Tensor, described: Described) -> Tensor:
        """Sums of the products of (1, features) and (1, features, one-hot label), for border and middle and part."""
        truth = torch.nn.functional.one_hot(labels, self._classes).double()
        ones = torch.ones(len(labels), 1, dtype=torch.float64, device=labels.device)
        found = []
        for features in (described.border, described.middle):
            rows = torch.cat([ones, features.double()], 1)
            columns = torch.cat([rows, truth], 1)
            found += [rows[part == k].T @ columns[part == k] for k in range(PARTS)]
        return torch.stack(found).view(2, PARTS, 1 + WIDTH, -1)

    @torch.no_grad()
    def weigh(self) -> Evidence:
        """The evidence of everything added; rounded, so that the order of the sums has no effect."""
        contexts = None
        if self._table is not None:
            table = self._join(self._table).view(self._contexts, self._classes)
            contexts = round(explained_by_table(table), 6) if int((table.sum(1) > 0).sum()) > 1 else None
        if self._moments is None or self._edges is None:
            return Evidence(contexts=contexts)
        border, middle = self._join(self._moments).cpu()
        if not bool(border.isfinite().all() & middle.isfinite().all()):
            raise UserError("the images hold NaN or infinite values: mend or leave out those that do")
        distinct, edges = self._measure_distinct(), self._join(self._edges)
        quotient, least = compare_shares(border, middle, distinct)
        share, deviation = explain(border.sum(0), distinct)
        return Evidence(
            border=round(share, 6),
            middle=round(explain(middle.sum(0), distinct).share, 6),
            quotient=round(quotient, 6),
            least=round(least, 6),
            contexts=contexts,
            chance=round(DEVIATIONS * deviation, 6),
            classes=int((border.sum(0)[0, 1 + WIDTH :] > 0).sum()),
            blank=round(float(edges.max() / edges.sum()), 6),
        )

    def _measure_distinct(self) -> float:
        """Different images over samples, 0 to 1."""
        prints = torch.cat(self._prints)
        if self._shared and distributed.processes() > 1:
            prints = distributed.gather_rows(prints, distributed.gather_sizes(len(prints), prints.device))
        return len(prints.unique()) / max(len(prints), 1)

    def _join(self, sums: Tensor) -> Tensor:
        joined = sums.clone()
        if self._shared:
            distributed.sum_in_place(joined)
        return joined


def fingerprint(whole: Tensor) -> Tensor:
    """A number of every image, (b,), the same for the same pixels.   whole: features (b, 36)."""
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(2**47, (WIDTH,), generator=generator)  # a sum of steps times these stays below 2^63
    return ((STEPS * whole.double()).round().long() * factors.to(whole.device)).sum(1)


def count_shades(colours: Tensor) -> Tensor:
    """How many of the colours (b, 3) in 0..1 are in each of `SHADES`³ cells."""
    red, green, blue = (SHADES * colours).long().clamp(0, SHADES - 1).unbind(1)
    return torch.bincount((red * SHADES + green) * SHADES + blue, minlength=SHADES**3).double()


def compare_shares(border: Tensor, middle: Tensor, distinct: float = 1.0) -> tuple[float, float]:
    """The quotient of the shares that two kinds of features explain, and its lower bound.

    border, middle: (parts, 1 + m, 1 + m + C), as `explain` takes their sums. The error is that of the quotient's
    logarithm by the jackknife: (k − 1)/k·Σ (l_j − l̄)², l_j without part j of k. Repeated images are in several parts,
    so that it is divided by √`distinct`.
    """
    logarithms = []
    for without in (None, *range(PARTS)):
        kept = torch.ones(PARTS, dtype=torch.bool)
        if without is not None:
            kept[without] = False
        shares = [max(explain(sums[kept].sum(0), distinct).share, LITTLE) for sums in (border, middle)]
        logarithms.append(math.log(shares[0] / shares[1]))
    whole, parts = logarithms[0], torch.tensor(logarithms[1:], dtype=torch.float64)
    error = math.sqrt((PARTS - 1) * float(parts.var(correction=0)) / max(distinct, LITTLE))
    return math.exp(whole), math.exp(whole - ERRORS * error)


class ExplainedShare(NamedTuple):
    """share: of the labels' variance, less chance.   deviation: its standard deviation where labels are random."""

    share: float
    deviation: float


NOTHING = ExplainedShare(0.0, 0.0)


def explain(moments: Tensor, distinct: float = 1.0) -> ExplainedShare:
    """Share of the variance of one-hot labels that a linear function of features explains, less chance.

    moments: (1 + m, 1 + m + C), the sum over samples of the product of (1, features) and (1, features, one-hot label).
    distinct: share of the samples that are different images; others do not count as samples.
    The features enter as their leading principal axes, at most one for ten samples. Random labels are explained by
    k/(n − 1) on average with k axes, with the variance 2k/(n − 1)²·tr(V²)/tr(V)², V the covariance of one-hot labels.
    """
    n, width = moments[0, 0], len(moments) - 1
    if n < 1:
        return NOTHING
    mean = moments[0] / n
    covariance = moments[1:, 1:] / n - torch.outer(mean[1 : 1 + width], mean[1:])
    deviation = covariance.diagonal().clamp_min(0).sqrt()
    slope = torch.where(deviation > 1e-9, 1 / deviation.clamp_min(1e-9), 0.0)
    variances, axes = torch.linalg.eigh(slope[:, None] * covariance[:, :width] * slope)
    variances, axes = variances.flip(0).clamp_min(0), axes.flip(1)
    share = mean[1 + width :]
    total = float((share - share.square()).sum())
    if total <= 0 or float(variances.sum()) <= 0:
        return NOTHING
    samples = float(n) * distinct
    missed = 1 - variances.cumsum(0) / variances.sum()
    kept = int((missed > LEFT_OUT).sum()) + 1
    count = max(1, min(MOST_AXES, int(samples) // ROWS_PER_AXIS, kept))
    shared = axes[:, :count].T @ (slope[:, None] * covariance[:, width:])
    raw = float((shared.square() / variances[:count, None].clamp_min(1e-12)).sum()) / total
    chance = count / max(samples - 1, 1.0)
    if chance >= 1:
        return NOTHING
    spread = float((share.square() - 2 * share**3).sum() + share.square().sum().square()) / total**2
    random = math.sqrt(2 * count * spread) / (samples - 1) / (1 - chance)
    return ExplainedShare(max(0.0, (raw - chance) / (1 - chance)), random)


def explained_by_table(table: Tensor) -> float:
    """Share of the label's entropy that contexts predict, by counts.   table: (contexts, classes).

    Every sample is predicted by the others of its context, p(y | k) = (n_ky + p(y)·√C)/(n_k + √C), so that contexts of
    few samples do not predict by chance. Two standard deviations of what independence gives are taken off: 2nH·U of
    counts is χ² with (K − 1)(C − 1) degrees of freedom, whose deviation is √(2(K − 1)(C − 1)).
    """
    n = table.sum()
    prior = table.sum(0) / n
    seen = prior > 0
    table, prior = table[table.sum(1) > 0][:, seen], prior[seen]
    entropy = -float((prior * prior.log()).sum())
    if entropy <= 0:
        return 0.0
    strength = float(len(prior)) ** 0.5
    others = (table - 1 + strength * prior).clamp_min(1e-12)  # where there is none of a cell, it does not count
    predicted = others.log() - (table.sum(1, keepdim=True) - 1 + strength).clamp_min(1e-12).log()
    loss = -float((table * predicted).sum() / n)
    freedom = (len(table) - 1) * (len(prior) - 1)
    chance = math.sqrt(2 * freedom) / (2 * float(n) * entropy)
    return max(0.0, 1 - loss / entropy - 2 * chance)
