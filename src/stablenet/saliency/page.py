"""A gallery as one page, and its numbers as CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from stablenet._version import __version__
from stablenet.engine.runs import Run
from stablenet.page import render, write_text
from stablenet.saliency.panels import Gallery


def write_page(gallery: Gallery, path: Path) -> None:
    names = name_runs([view.run for view in gallery.views])
    values = {"gallery": gallery, "names": names, "version": __version__}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render("saliency/page.html.jinja", values))


def name_runs(runs: Sequence[Run]) -> list[str]:
    """The method's name, or the folder's where a method occurs twice."""
    counts = Counter(run.config.method.name for run in runs)
    return [run.config.method.name if counts[run.config.method.name] == 1 else run.path.name for run in runs]


def tabulate(gallery: Gallery) -> pd.DataFrame:
    """One row per image and run: run, image, class, domain, predicted, probability, share_on_object, object_area."""
    return pd.DataFrame(
        [
            {
                "run": view.run.path.name,
                "method": view.run.config.method.name,
                "image": panel.id,
                "class": panel.label,
                "domain": panel.domain,
                "predicted": glance.predicted,
                "probability": glance.probability,
                "share_on_object": glance.share,
                "object_area": panel.area,
            }
            for panel in gallery.panels
            for view, glance in zip(gallery.views, panel.glances, strict=True)
        ]
    )
