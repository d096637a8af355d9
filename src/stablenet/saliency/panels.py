"""Methods side by side: the same images, one column per run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.engine.runs import Run
from stablenet.errors import UserError
from stablenet.evaluation.selection import DEFAULT_RULE
from stablenet.page import encode_image
from stablenet.saliency.maps import SaliencySettings
from stablenet.saliency.subjects import Subjects
from stablenet.saliency.views import View, view_images

_BRIGHTEST = 0.99  # quantile of a map that is drawn at full brightness; single pixels stand out far


@dataclass(frozen=True)
class Glance:
    """One map on a panel.   uri: its picture.   blank: the map is zero everywhere.
    right: None where the class is not known.   share: None where it is blank or the object is not known.
    """

    uri: str
    blank: bool
    predicted: str
    probability: float
    right: bool | None
    share: float | None


@dataclass(frozen=True)
class Panel:
    """An image and what every run sees in it.   area: the object's share of the image, None where unknown."""

    uri: str
    id: str
    label: str
    domain: str
    area: float | None
    glances: tuple[Glance, ...]


@dataclass(frozen=True)
class Gallery:
    """panels: one per image.   views: one per run, in the panels' order.   area: mean over the images."""

    panels: tuple[Panel, ...]
    views: tuple[View, ...]
    settings: SaliencySettings
    area: float | None


def look(
    runs: Sequence[Run],
    subjects: Subjects,
    settings: SaliencySettings | None = None,
    *,
    rule: str = DEFAULT_RULE,
    device: str = "auto",
) -> Gallery:
    """The maps of all runs on all images."""
    settings = settings or SaliencySettings()
    _check_comparable(runs)
    views = tuple(view_images(run, subjects, settings, rule=rule, device=device) for run in runs)
    areas = None if subjects.masks is None else subjects.masks.float().mean((1, 2))
    panels = tuple(_make_panel(subjects, number, views, areas) for number in range(len(subjects)))
    return Gallery(panels, views, settings, None if areas is None else float(areas.mean()))


def check_same_split(runs: Sequence[Run]) -> None:
    """Images of one run's test part may be training images of a run that was split otherwise."""
    for run in runs[1:]:
        if run.manifest.hash != runs[0].manifest.hash:
            raise UserError(
                f"{runs[0].path.name} and {run.path.name} were trained on different splits: compare runs of one data "
                "setting and seed, or name images of your own with --images"
            )


def _check_comparable(runs: Sequence[Run]) -> None:
    if not runs:
        raise UserError("no runs were named: saliency needs at least one finished run")
    for run in runs[1:]:
        if run.classes != runs[0].classes:
            raise UserError(f"{runs[0].path.name} and {run.path.name} know different classes: compare them apart")


def _make_panel(subjects: Subjects, number: int, views: Sequence[View], areas: Tensor | None) -> Panel:
    label = subjects.labels[number]
    return Panel(
        uri=encode_image(subjects.pixels[number]),
        id=subjects.ids[number],
        label=label,
        domain=subjects.domains[number],
        area=None if areas is None else float(areas[number]),
        glances=tuple(_glance(view, number, label) for view in views),
    )


def _glance(view: View, number: int, label: str) -> Glance:
    predicted = view.run.classes[int(view.predicted[number])]
    return Glance(
        uri=encode_image(colour_map(view.maps[number])),
        blank=not bool(view.maps[number].any()),
        predicted=predicted,
        probability=float(view.probability[number]),
        right=predicted == label if label else None,
        share=None if view.shares is None or view.shares[number].isnan() else float(view.shares[number]),
    )


def colour_map(saliency: Tensor) -> Tensor:
    """(s, s) non-negative to (s, s, 3) uint8: the brighter, the more it matters."""
    from matplotlib import colormaps

    top = saliency.flatten().quantile(_BRIGHTEST).clamp_min(torch.finfo(saliency.dtype).tiny)
    colours = colormaps["inferno"]((saliency / top).clamp(max=1).numpy())
    return torch.from_numpy((255 * colours[..., :3]).round().astype("uint8"))
