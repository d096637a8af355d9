"""One self-contained HTML page about a fitted table: the verdict, errors, what the weights do, and how to read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from stablenet._version import __version__
from stablenet.independence.dependence_plot import arrange_features
from stablenet.pages import draw_maps, draw_weight_histogram, render, write_text
from stablenet.tabular.fit import TableReport

MOST_COEFFICIENTS = 30
MOST_COLUMNS = 40  # of the map of dependences: the strongest, so that their names can be read


def write_page(report: TableReport, path: Path) -> None:
    """Render the page into `path`; charts are inside it, nothing is loaded from elsewhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render("tabular/page.html.jinja", gather(report)))


def gather(report: TableReport) -> dict[str, Any]:
    """Everything the template shows."""
    model, summary = report.model, summarise(report)
    errors = {name: (plain, weighted) for name, plain, weighted in summary}
    return {
        "version": __version__,
        "report": report,
        "what": "environment" if report.environments is not None else "fold",
        "measure": "RMSE" if report.task == "regression" else "share of wrong predictions",
        "left": model.dependence_after_ / model.dependence_before_ if model.dependence_before_ else 1.0,
        "ess_share": model.ess_ / len(report.x),
        "summary": summary,
        "mean": errors["mean"],
        "worst": errors["worst"],
        "better": sum(held.weighted < held.plain for held in report.held_out),
        "coefficients": compare_coefficients(report),
        "shares": environment_shares(report),
        "charts": {
            "dependence": Markup(draw_dependence(report)),
            "weights": Markup(draw_weight_histogram({"weights": model.weights_.tolist()})),
        },
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


def draw_dependence(report: TableReport) -> str:
    """Strength of dependence of all pairs of columns with equal and with learned weights; the diagonal is blank."""
    names, before, after = report.model.measure_dependence(report.x)
    order = arrange_features(before, "clustered" if len(names) > 2 else "given")
    strongest = before.nan_to_num().amax(0).argsort(descending=True)[:MOST_COLUMNS].tolist()
    rows = [column for column in order if column in set(strongest)]
    maps = {
        title: strength[rows][:, rows].tolist() for title, strength in (("equal weights", before), ("learned", after))
    }
    below = f"the same {len(rows)} columns across"
    title = "Dependence of all pairs of columns, before and after weighting"
    return draw_maps(maps, [names[row] for row in rows], title, below, lambda value: f"{value:.2f}")
