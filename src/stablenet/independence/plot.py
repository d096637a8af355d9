"""A picture of which features depend on which, before and after weighting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from stablenet.errors import UserError
from stablenet.independence.inputs import Columns
from stablenet.independence.testing import NUM_FUNCTIONS, IndependenceResult, pairwise_independence_test
from stablenet.weighting.fourier import Bandwidth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LABELS = 24  # more names than this along a side run into each other
_MOST_DOTS = 40  # beyond this many features a dot per cell is a smear
_LEAST_RANGE = 0.3  # the colours' least upper end, so that noise does not look like dependence


def plot_dependence(
    features: Columns,
    *,
    weights: Columns | None = None,
    names: Sequence[str] | None = None,
    ax: Axes | Sequence[Axes] | None = None,
    level: float = 0.05,
    adjustment: str = "holm",
    num_functions: int = NUM_FUNCTIONS,
    bandwidth: Bandwidth = "median",
    generator: torch.Generator | None = None,
) -> Figure:
    """Draw the strength of dependence of all pairs of features as a heat map, and return the figure.

    features: (n, m), m ≥ 2.
    weights: (n,) or None; with weights two maps stand side by side, before and after, in the same colours
        and with the same Fourier functions.
    names: m names; the columns of a data frame by default, else their numbers.
    ax: axes to draw into, a pair of them with weights; None makes a figure.
    level: pairs whose adjusted p-value is at most this are counted in the title and, up to 40 features,
        dotted. After weighting, read the count as a description (see `independence_test`).
    adjustment, num_functions, bandwidth, generator: see `pairwise_independence_test`.
    """
    first = None if generator is None else generator.clone_state()

    def test(chosen: Columns | None, draw: torch.Generator | None) -> IndependenceResult:
        return pairwise_independence_test(
            features,
            weights=chosen,
            adjustment=adjustment,
            num_functions=num_functions,
            bandwidth=bandwidth,
            generator=draw,
        )

    results = [test(None, first)] + ([] if weights is None else [test(weights, generator)])
    labels = _read_names(names, features, len(results[0].statistic))
    panels = _prepare_axes(ax, len(results))
    top = max(_LEAST_RANGE, *(float(_off_diagonal(r).nan_to_num().max()) for r in results))
    titles = ["all rows equal", "weighted"] if weights is not None else [""]
    for panel, result, title in zip(panels, results, titles, strict=True):
        _draw_map(panel, result, labels, top, title, level)
    figure = panels[0].get_figure(root=True)
    assert figure is not None
    figure.colorbar(panels[-1].images[0], ax=list(panels), label="strength of dependence", shrink=0.8)
    return figure


def _off_diagonal(result: IndependenceResult) -> torch.Tensor:
    return result.strength.clone().fill_diagonal_(torch.nan)


def _read_names(names: Sequence[str] | None, features: Columns, m: int) -> list[str]:
    found = getattr(features, "columns", range(m)) if names is None else names
    labels = [str(name) for name in found]
    if len(labels) != m:
        raise UserError(f"names has {len(labels)} entries: expected one for each of the {m} features")
    return labels


def _prepare_axes(ax: Axes | Sequence[Axes] | None, count: int) -> list[Axes]:
    if ax is None:
        from matplotlib import pyplot as plt

        _, grid = plt.subplots(1, count, figsize=(0.8 + 5.2 * count, 4.8), squeeze=False, layout="constrained")
        return list(grid[0])
    panels = list(np.ravel(np.asarray(ax, dtype=object)))
    if len(panels) != count:
        raise UserError(f"ax holds {len(panels)} axes: expected {count}, a pair when weights are given")
    return panels


def _draw_map(ax: Axes, result: IndependenceResult, labels: list[str], top: float, title: str, level: float) -> None:
    from matplotlib import colormaps

    m = len(labels)
    shades = colormaps["magma_r"].with_extremes(bad="0.85")  # grey diagonal: a feature is not tested with itself
    ax.imshow(_off_diagonal(result).cpu().numpy(), cmap=shades, vmin=0, vmax=top)
    found = (result.p_value <= level).cpu()
    if m <= _MOST_DOTS:
        row, column = found.nonzero(as_tuple=True)
        size = (160 / m) ** 2 / 40
        ax.scatter(column, row, s=size, c="white", edgecolors="black", linewidths=0.6)
    shown = range(0, m, -(-m // _MOST_LABELS))
    upright = max(len(labels[i]) for i in shown) <= 3
    ax.set_xticks(list(shown), [labels[i] for i in shown], rotation=0 if upright else 90, fontsize=8)
    ax.set_yticks(list(shown), [labels[i] for i in shown], fontsize=8)
    pairs = m * (m - 1) // 2
    share = result.effective_size / result.n
    prefix = f"{title}, effective sample {share:.0%}\n" if share < 1 else f"{title}\n" if title else ""
    ax.set_title(f"{prefix}{int(found.sum()) // 2} of {pairs} pairs dependent at {level:g}", fontsize=10)
