"""A picture of which features depend on which, before and after weighting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from stablenet.errors import UserError
from stablenet.independence.column_features import Columns
from stablenet.independence.testing import NUM_FUNCTIONS, IndependenceResult, pairwise_independence_test
from stablenet.registry import import_extra, unknown_name
from stablenet.weighting.fourier import Bandwidth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LABELS = 24  # more names than this along a side run into each other
_MOST_LETTERS = 30  # names longer than this together stand upright below the map
_MOST_DOTS = 40  # beyond this many features a dot per cell is a smear
_LEAST_RANGE = 0.3  # the colours' least upper end, so that noise does not look like dependence


def plot_dependence(
    features: Columns,
    *,
    weights: Columns | None = None,
    names: Sequence[str] | None = None,
    order: str = "given",
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
    order: "given", or "clustered" to bring features that depend on each other together (before weighting).
    ax: axes to draw into, a pair of them with weights; None makes a figure.
    level: pairs whose adjusted p-value is at most this are counted in the title and, up to 40 features,
        dotted. After weighting, read the count as a description (see `independence_test`).
    adjustment, num_functions, bandwidth, generator: see `pairwise_independence_test`.
    """
    results = _test_twice(
        features,
        weights,
        generator,
        adjustment=adjustment,
        num_functions=num_functions,
        bandwidth=bandwidth,
    )
    import_extra("matplotlib", "plots", "a picture of dependence")
    labels = _read_names(names, features, len(results[0].statistic))
    rows = arrange_features(results[0].strength, order)
    panels = _prepare_axes(ax, len(results))
    top = max(_LEAST_RANGE, *(float(_off_diagonal(r).nan_to_num().max()) for r in results))
    titles = ["all rows equal", "weighted"] if weights is not None else [""]
    for panel, result, title in zip(panels, results, titles, strict=True):
        _draw_map(panel, _off_diagonal(result)[rows][:, rows], [labels[i] for i in rows], top)
        found = (result.p_value <= level)[rows][:, rows].cpu()
        _draw_dots(panel, found)
        panel.set_title(_word_title(title, result, int(found.sum()) // 2, level), fontsize=10)
    figure = panels[0].get_figure(root=True)
    assert figure is not None
    figure.colorbar(panels[-1].images[0], ax=list(panels), label="strength of dependence", shrink=0.8)
    return figure


def _test_twice(
    features: Columns, weights: Columns | None, generator: torch.Generator | None, **options: Any
) -> list[IndependenceResult]:
    """Test without the weights and, if there are any, with them, by the same Fourier functions."""
    same = None if generator is None else generator.clone_state()
    results = [pairwise_independence_test(features, generator=generator, **options)]
    if weights is not None:
        results.append(pairwise_independence_test(features, weights=weights, generator=same, **options))
    return results


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


def measure_twice(features: Columns, weights: Columns, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Strengths (m, m) of all pairs as `plot_dependence` draws them, without and with weights; NaN: the diagonal."""
    before, after = _test_twice(features, weights, generator)
    return _off_diagonal(before), _off_diagonal(after)


def arrange_features(strength: torch.Tensor, order: str) -> list[int]:
    """The features' positions along both sides of a map of strengths (m, m): "given" or "clustered"."""
    m = len(strength)
    if order == "given":
        return list(range(m))
    if order != "clustered":
        raise UserError(unknown_name("order", order, ["given", "clustered"]))
    from scipy.cluster.hierarchy import leaves_list, linkage

    row, column = torch.triu_indices(m, m, offset=1)
    distance = 1 - strength.cpu()[row, column].numpy()
    return [int(i) for i in leaves_list(linkage(distance, "average", optimal_ordering=True))]


def _draw_map(ax: Axes, strength: torch.Tensor, labels: list[str], top: float) -> None:
    from matplotlib import colormaps

    m = len(labels)
    shades = colormaps["Blues"].with_extremes(bad="0.8")  # the diagonal is grey: it is not tested
    ax.imshow(strength.cpu().numpy(), cmap=shades, vmin=0, vmax=top)
    shown = list(range(0, m, -(-m // _MOST_LABELS)))
    words = [labels[i] for i in shown]
    upright = len(words) * max(map(len, words)) > _MOST_LETTERS
    ax.set_xticks(shown, words, rotation=90 if upright else 0, fontsize=8)
    ax.set_yticks(shown, words, fontsize=8)


def _draw_dots(ax: Axes, found: torch.Tensor) -> None:
    m = len(found)
    if m > _MOST_DOTS:
        return
    row, column = found.nonzero(as_tuple=True)
    diameter = min(6.0, 75 / m)  # points: at most a quarter of a cell in a figure of the default size
    ax.scatter(column, row, s=diameter**2, c="white", edgecolors="black", linewidths=min(0.6, diameter / 6))


def _word_title(title: str, result: IndependenceResult, found: int, level: float) -> str:
    m = len(result.statistic)
    size = result.effective_size / result.n
    first = f"{title}, effective sample {100 * size:.0f} %\n" if size < 1 else f"{title}\n" if title else ""
    mark = " (dots)" if m <= _MOST_DOTS else ""
    return f"{first}{found} of {m * (m - 1) // 2} pairs dependent at {level:g}{mark}"
