"""One self-contained HTML page about a fitted table: numbers, pictures, and how to read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stablenet._version import __version__
from stablenet.imports import import_extra
from stablenet.pages import encode_figure, render, write_text
from stablenet.tabular.fit import TableReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_COEFFICIENTS = 30


def check_pictures() -> None:
    """Refuse, before anything is fitted, where the page's pictures cannot be drawn."""
    import_extra("matplotlib", "plots", "the page of a table")


def write_page(report: TableReport, path: Path) -> None:
    """Render the page into `path`; pictures are inside it, nothing is loaded from elsewhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render("tabular/templates/table.html.j2", gather(report)))


def gather(report: TableReport) -> dict[str, Any]:
    """Everything the template shows."""
    model = report.model
    return {
        "version": __version__,
        "report": report,
        "measure": "RMSE" if report.task == "regression" else "share of wrong predictions",
        "left": model.dependence_after_ / model.dependence_before_ if model.dependence_before_ else 1.0,
        "ess_share": model.ess_ / len(report.x),
        "summary": summarise(report),
        "coefficients": compare_coefficients(report),
        "shares": environment_shares(report),
        "dependence_picture": encode_figure(draw_dependence(report)),
        "weights_picture": encode_figure(draw_weights(report)),
    }


def summarise(report: TableReport) -> list[tuple[str, float, float]]:
    """Mean, sample deviation and worst of the held-out errors: (what, plain, weighted)."""
    errors = np.array([[h.plain, h.weighted] for h in report.held_out])
    found = {"mean": errors.mean(0), "spread": errors.std(0, ddof=1), "worst": errors.max(0)}
    return [(name, float(plain), float(weighted)) for name, (plain, weighted) in found.items()]


def compare_coefficients(report: TableReport) -> list[tuple[str, float, float]]:
    """Coefficients of a linear model with equal weights and with the learned ones, largest change first."""
    pair = [np.atleast_2d(getattr(m.estimator_, "coef_", np.empty((0, 0)))) for m in (report.plain, report.model)]
    if pair[0].shape[0] != 1 or pair[0].shape != pair[1].shape:
        return []
    names = report.model.encoding_.column_names
    rows = [(name, float(a), float(b)) for name, a, b in zip(names, *(p[0] for p in pair), strict=True)]
    return sorted(rows, key=lambda row: -abs(row[2] - row[1]))[:MOST_COEFFICIENTS]


def environment_shares(report: TableReport) -> list[tuple[str, float, float]]:
    """Each environment's share of the rows, and of the weight."""
    if report.environments is None:
        return []
    weight = report.model.weights_ / len(report.x)
    names = sorted(set(report.environments))
    own = [report.environments == name for name in names]
    return [(name, float(o.mean()), float(weight[o].sum())) for name, o in zip(names, own, strict=True)]


def draw_dependence(report: TableReport) -> Figure:
    return report.model.plot_dependence(report.x, order="clustered" if report.x.shape[1] > 2 else "given")


def draw_weights(report: TableReport) -> Figure:
    from matplotlib import pyplot as plt

    figure, ax = plt.subplots(figsize=(10, 2.8), layout="constrained")
    ax.hist(report.model.weights_, bins=50, color="#3b6ea5")
    ax.axvline(1, color="0.4", linewidth=1, linestyle="--")
    ax.set_xlabel("weight (1: as without weighting)")
    ax.set_ylabel("rows")
    return figure
