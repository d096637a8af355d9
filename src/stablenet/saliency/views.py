"""Where runs look, side by side: the images, each run's maps (kept in its folder), the gallery and its page."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from stablenet._version import __version__
from stablenet.engine.checkpoint import load_tensors, save_tensors
from stablenet.engine.config import hash_values
from stablenet.engine.run import Run
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import DEFAULT_RULE, load_chosen, select_epoch
from stablenet.evaluation.predict import find_device, read_pixels
from stablenet.pages import Picture, make_picture, render, write_text
from stablenet.registry import import_extra
from stablenet.saliency.maps import (
    SaliencySettings,
    Sanity,
    check_maps,
    find_known_masks,
    read_mask_files,
    share_on_object,
    smooth_gradients,
)


@dataclass(frozen=True)
class Subjects:
    """ids: names of the images.   pixels: (H, W, 3) uint8 each.   labels, domains: words, "" where unknown.
    masks: (n, s, s) bool at the network's image size, None if the object's pixels are unknown.
    """

    ids: tuple[str, ...]
    pixels: tuple[Tensor, ...]
    labels: tuple[str, ...]
    domains: tuple[str, ...]
    masks: Tensor | None

    def __len__(self) -> int:
        return len(self.ids)


def choose_subjects(run: Run, count: int, part: str = "test", root: Path | None = None) -> Subjects:
    """Images of a part, class by class in turn, spread evenly over each class; the same in every call."""
    if count < 1:
        raise UserError(f"the number of images must be at least 1, got {count}")
    data = run.open_data(root)
    samples = data.open_part(part)
    if not len(samples):
        raise UserError(f"the split of {run.path} has no images in the part {part!r}: choose another --part")
    chosen = spread_over_classes(samples.y, count)
    rows = samples.row[chosen]
    ids = tuple(samples.pixels.ids[row] for row in rows.tolist())
    return Subjects(
        ids=ids,
        pixels=tuple(samples.pixels.read(rows)),
        labels=tuple(run.classes[k] for k in samples.y[chosen].tolist()),
        domains=tuple(run.manifest.domains[k] for k in samples.domain[chosen].tolist()),
        masks=find_known_masks(data.table, run.manifest, part, ids, run.config.data.image_size),
    )


def spread_over_classes(y: Tensor, count: int) -> Tensor:
    """Positions (≤ count,) in y (n,): one of every class in turn, at even steps through each class."""
    classes = y.unique().tolist()
    turns = -(-count // len(classes))
    own = [(y == label).nonzero().squeeze(1) for label in classes]
    steps = [places[torch.linspace(0, len(places) - 1, min(turns, len(places))).round().long()] for places in own]
    dealt = [places[turn] for turn in range(turns) for places in steps if turn < len(places)]
    return torch.stack(dealt[:count])


def read_subjects(run: Run, paths: Sequence[Path], masks: Path | None = None) -> Subjects:
    """The user's own image files, with masks from a folder where there are any."""
    side = run.config.data.image_size
    return Subjects(
        ids=tuple(path.name for path in paths),
        pixels=tuple(read_pixels(path, run.stored_side) for path in paths),
        labels=("",) * len(paths),
        domains=("",) * len(paths),
        masks=None if masks is None else read_mask_files(masks, paths, side),
    )


CHECKED = 4  # images of the sanity check, which makes two more maps of each
_KEY_DIGITS = 12


@dataclass(frozen=True)
class View:
    """A run's maps and predictions for n images.

    maps: (n, s, s) of the predicted class.   predicted: (n,) class.   probability: (n,) of it.   epoch: of the model.
    shares: (n,) of the saliency on the object, NaN where a map is zero, None where the object is not known.
    """

    run: Run
    maps: Tensor
    predicted: Tensor
    probability: Tensor
    epoch: int
    sanity: Sanity
    shares: Tensor | None

    @property
    def mean_share(self) -> float | None:
        """Over the maps that are not zero everywhere; None where there are none, or the object is not known."""
        known = torch.empty(0) if self.shares is None else self.shares[~self.shares.isnan()]
        return float(known.mean()) if len(known) else None


def view_images(
    run: Run, subjects: Subjects, settings: SaliencySettings, *, rule: str = DEFAULT_RULE, device: str = "auto"
) -> View:
    """The run's maps, from its folder where they were made before."""
    epoch = select_epoch(rule, run.records, run.oracle).epoch
    path = _name_file(run, subjects, settings, f"{rule} {epoch}")
    if not path.exists():
        _make(run, subjects, settings, rule, device, path)
    tensors, meta = load_tensors(path)
    maps = tensors["maps"]
    return View(
        run=run,
        maps=maps,
        predicted=tensors["predicted"],
        probability=tensors["probability"],
        epoch=epoch,
        sanity=Sanity(**meta["sanity"]),
        shares=None if subjects.masks is None else share_on_object(maps, subjects.masks),
    )


def _make(run: Run, subjects: Subjects, settings: SaliencySettings, rule: str, device: str, path: Path) -> None:
    place = find_device(device)
    model = load_chosen(run, rule)[0].to(place).eval()
    key = torch.zeros(1, dtype=torch.int64)
    images = torch.cat([run.transform(pixels[None], key) for pixels in subjects.pixels]).to(place)
    with torch.no_grad():
        probability, predicted = model(images).softmax(1).max(1)

    def check(network: torch.nn.Module, seed: int) -> Tensor:
        return smooth_gradients(network, images[:CHECKED], predicted[:CHECKED], replace(settings, seed=seed)).cpu()

    maps = smooth_gradients(model, images, predicted, settings).cpu()
    sanity = check_maps(model, maps[:CHECKED], check, settings.seed)
    tensors = {"maps": maps, "predicted": predicted.cpu(), "probability": probability.cpu()}
    save_tensors(path, tensors, {"sanity": asdict(sanity)})


def _name_file(run: Run, subjects: Subjects, settings: SaliencySettings, model: str) -> Path:
    pixels = [hash_pixels(image) for image in subjects.pixels]
    seen = hash_values({"pixels": pixels, "settings": asdict(settings), "model": model})
    return run.path / f"saliency-{seen[:_KEY_DIGITS]}.safetensors"


def hash_pixels(pixels: Tensor) -> str:
    """SHA-256 of (H, W, 3) uint8: images of one name may differ."""
    return hashlib.sha256(bytes(str(tuple(pixels.shape)), "ascii") + pixels.contiguous().numpy().tobytes()).hexdigest()


_BRIGHTEST = 0.99  # quantile of a map that is drawn at full brightness; single pixels stand out far


@dataclass(frozen=True)
class Glance:
    """One map on a panel.   blank: the map is zero everywhere.   right: None where the class is not known.
    share: None where it is blank or the object is not known.
    """

    picture: Picture
    blank: bool
    predicted: str
    probability: float
    right: bool | None
    share: float | None


@dataclass(frozen=True)
class Panel:
    """An image with the maps of every run.   area: the object's share of the image, None if unknown."""

    picture: Picture
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
    for module in ("captum", "matplotlib"):
        import_extra(module, "plots", "a saliency map")
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
                "split and seed, or name images of your own with --images"
            )


def _check_comparable(runs: Sequence[Run]) -> None:
    if not runs:
        raise UserError("no runs were named: saliency needs at least one finished run")
    for run in runs[1:]:
        if run.classes != runs[0].classes:
            raise UserError(f"{runs[0].path.name} and {run.path.name} have different classes: compare them separately")


def _make_panel(subjects: Subjects, number: int, views: Sequence[View], areas: Tensor | None) -> Panel:
    label, names = subjects.labels[number], name_runs([view.run for view in views])
    return Panel(
        picture=make_picture(subjects.pixels[number], label or subjects.ids[number]),
        id=subjects.ids[number],
        label=label,
        domain=subjects.domains[number],
        area=None if areas is None else float(areas[number]),
        glances=tuple(_glance(view, number, label, name) for view, name in zip(views, names, strict=True)),
    )


def _glance(view: View, number: int, label: str, name: str) -> Glance:
    predicted = view.run.classes[int(view.predicted[number])]
    return Glance(
        picture=make_picture(colour_map(view.maps[number]), f"saliency of {name}" + (f" for {label}" if label else "")),
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


def write_page(gallery: Gallery, path: Path) -> None:
    names = name_runs([view.run for view in gallery.views])
    values = {"gallery": gallery, "names": names, "version": __version__}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render("saliency/page.html.jinja", values))


def name_runs(runs: Sequence[Run]) -> list[str]:
    """The method's name, or the folder's where a method occurs twice."""
    counts = Counter(run.config.method.name for run in runs)
    return [run.config.method.name if counts[run.config.method.name] == 1 else run.path.name for run in runs]


def tabulate_views(gallery: Gallery) -> pd.DataFrame:
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
