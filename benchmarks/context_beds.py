"""The sets to develop on of results/natural/division.md, and features of their images, for `benchmarks.context`.

Features of a pretrained ResNet-50 are read from the files of an earlier call where there are some.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from benchmarks import coloured
from stablenet.data.augment import Normalization, Resize
from stablenet.data.image_list import ComposedList, CutoutList, ImageList
from stablenet.data.loader import PartSamples, read_part, render_part
from stablenet.data.manifest import Manifest
from stablenet.data.prepare import default_store_path, prepare, prepare_part
from stablenet.data.sources import read_source
from stablenet.data.splits import split_images
from stablenet.models import build_network
from stablenet.models.taps import LAST
from stablenet.weighting.recommended import BORDER_TAP, TAPS

KEPT = (LAST, *TAPS, BORDER_TAP)
WEIGHTS = "resnet50-imagenet-caffe-fp16.safetensors"
SIDE = 112  # of composed images and of the network's
MOST = 1200  # training images a bed for the heads; without the network all are looked at, up to
LOOKED_AT = 1500
PACS_SHARE, PACS_LEAST = 0.27, 60  # of the images of every class and domain, for the network

STEEP = {"ratio": 0.95}
CATS = ("Birman", "Ragdoll", "Siamese", "Bengal", "Egyptian_Mau", "Abyssinian", "Maine_Coon", "Persian")
REPORTED = (
    *("american_pit_bull_terrier", "staffordshire_bull_terrier", "american_bulldog", "boxer"),
    *("havanese", "wheaten_terrier", "yorkshire_terrier", "beagle"),
)


@dataclass(frozen=True)
class Bed:
    """A set, how it is split, and whether to act on it: where acting gains, by the heads or by published runs.

    per_class: training images of every class, drawn from the split's; None keeps all.
    network: whether heads are fitted on features of a pretrained network.
    """

    name: str
    source: str
    split: str
    acts: bool
    parameters: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    per_class: int | None = None
    network: bool = False


@dataclass(frozen=True)
class Images:
    """y, context: (n,).   ids: their names.   features: by name, (n, m) each."""

    y: Tensor
    context: Tensor
    ids: tuple[str, ...]
    features: dict[str, Tensor]

    def choose(self, rows: Tensor) -> Images:
        ids = tuple(self.ids[row] for row in rows.tolist())
        return Images(self.y[rows], self.context[rows], ids, {name: z[rows] for name, z in self.features.items()})


def list_beds() -> Iterator[Bed]:
    for ratio in ("random", 0.8, 0.9, 0.95):
        for name, parameters in PETS.items():
            network = ratio != 0.9
            for seed in (0, 1) if ratio == 0.95 and name != "18 breeds" else (0,):
                title = f"{name}, {ratio}" + (f", seed {seed}" if seed else "")
                yield Bed(title, "pets-places", "correlated", ratio != "random", {"ratio": ratio, **parameters},
                          seed, network=network)  # fmt: skip
    for target in ("art_painting", "sketch"):
        yield Bed(f"PACS classic, {target}", "pacs", "classic", False, {"target": target}, network=True)
    for target in ("art_painting", "cartoon"):
        found = {"target": target, "ratio": "5:1:1"}
        yield Bed(f"PACS unbalanced, {target}", "pacs", "unbalanced", False, found, network=True)
    yield Bed("PACS flexible, published", "pacs", "unbalanced+flexible", True, {"ratio": "5:1:1"}, network=True)
    for seed in range(5):
        drawn = {"ratio": "5:1:1", "published": False, "allow_shortfall": True}
        yield Bed(f"PACS flexible, drawn {seed}", "pacs", "unbalanced+flexible", True, drawn, seed, network=True)
    for target in ("art_painting", "sketch"):
        yield Bed(f"PACS, 25 a class, {target}", "pacs", "classic", False, {"target": target}, 0, 25, network=True)
    for ratio in ("random", 0.5, 0.8, 0.9, 0.95):
        for seed in range(5) if ratio == "random" else (0,):
            drawn = {"ratio": ratio, "train_size": 6000}
            yield Bed(f"MNIST-M, {ratio}, seed {seed}", "mnist-m", "adversarial", ratio != "random", drawn, seed)
        yield Bed(f"embedded, {ratio}", "embedded", "adversarial", ratio != "random", {"ratio": ratio})
    yield Bed("coloured digits", "coloured", "classic", True, {"target": "abroad"})
    yield Bed("places as classes", "places", "", False)


PETS: dict[str, dict[str, Any]] = {
    "2 species": {"contexts": ("buildings", "forest"), "train_size": 1000, "test_size": 480},
    "8 breeds": {"classes": "breed", "only": CATS, "train_size": 1000, "test": "crossed", "test_size": 480},
    "18 breeds": {"classes": "breed", "per_class": 25, "test": "crossed", "test_size": 432},
}


class Opener:
    """Images of beds.   data: folder of the sources.   cache: of features and drawn sets."""

    def __init__(self, data: Path, cache: Path) -> None:
        self._data, self._cache = data, cache
        self._network: Any = None

    def open(self, bed: Bed, part: str) -> PartSamples:
        """The images of a part, as they are stored."""
        if bed.source == "places":
            return _classify_places(read_source("pets-places", self._data))
        table = self._read(bed.source)
        parameters = dict(bed.parameters)
        if isinstance(table, CutoutList):
            parameters = {"validation": 0.0, "side": SIDE, **parameters}
            if parameters.get("per_class"):
                parameters["only"] = _name_breeds(table)
            table = table if parameters.get("classes") else _keep_even(table)
        return _open_part(table, split_images(table, bed.split, bed.seed, **parameters), part)

    def read_features(self, bed: Bed, part: str) -> Images:
        """Features of a pretrained network of the images of a part, at most `MOST`."""
        if bed.source != "pacs":
            if part == "test":  # the same at every ratio
                bed = replace(bed, name=bed.name.split(",")[0] + f", {bed.seed}", parameters=bed.parameters | STEEP)
            name = f"{bed.source}-{bed.name}-{part}".replace(", ", "-").replace(" ", "-")
            return self._keep(name, lambda: self.open(bed, part))
        whole = self._keep("pacs", self._open_pacs)
        row = {name: number for number, name in enumerate(whole.ids)}
        split = split_images(self._read("pacs"), bed.split, bed.seed, **bed.parameters).part(part)
        rows = torch.tensor([row[name] for name in split["id"] if name in row])
        if bed.per_class and part == "train":
            y, order = whole.y[rows], torch.randperm(len(rows), generator=torch.Generator().manual_seed(bed.seed))
            kept = [order[y[order] == label][: bed.per_class] for label in y.unique()]
            rows = rows[torch.cat(kept)]
        return whole.choose(draw_rows(rows, MOST))

    def _read(self, source: str) -> Any:
        if source != "coloured":
            return read_source(source, self._data)
        folder = self._cache / "coloured"
        if not folder.exists():
            coloured.draw(self._data, folder)
        return read_source("folder", folder)

    def _open_pacs(self) -> PartSamples:
        """The same share of every class and domain, by a hash of the image's name."""
        table = self._read("pacs")
        rows = table.rows
        rank = _hash(rows["id"]).groupby([rows["label"], rows["domain"]]).rank()
        size = rows.groupby(["label", "domain"])["id"].transform("size")
        kept = rank <= (PACS_SHARE * size).clip(lower=PACS_LEAST)
        return _open_list(replace(table, rows=rows), kept)

    def _keep(self, name: str, open_samples: Any) -> Images:
        file = self._cache / f"{name}.pt"
        if not file.exists():
            samples = open_samples()
            ids = tuple(samples.pixels.ids[row] for row in samples.row.tolist())
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save([samples.y, samples.domain, ids, self._run_network(samples)], file)
        return Images(*torch.load(file))

    @torch.no_grad()
    def _run_network(self, samples: PartSamples) -> dict[str, Tensor]:
        if self._network is None:
            self._network = build_network("resnet50", 2, pretrained=WEIGHTS, root=self._data).eval()
            self._network.tap(KEPT, detach=True)
        resize, found = Resize(SIDE, Normalization()), []
        for rows in samples.row.split(32):
            images = resize(samples.pixels.read(rows), torch.zeros(len(rows), dtype=torch.int64))
            found.append([features.half() for features in self._network.forward_taps(images)[1:]])
        return {name: torch.cat(parts) for name, parts in zip(KEPT, zip(*found, strict=True), strict=True)}


def draw_rows(rows: Tensor, most: int) -> Tensor:
    """At most so many of the rows, drawn."""
    return (
        rows
        if len(rows) <= most
        else rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))][:most]
    )


def _open_part(table: Any, split: Manifest, part: str) -> PartSamples:
    if isinstance(table, ComposedList):
        return render_part(table, split, part)
    if isinstance(table, CutoutList):
        return read_part(prepare_part(table, split, part), split, part)
    return read_part(prepare(table, default_store_path(table, None)).store, split, part)


def _open_list(table: ImageList, kept: pd.Series, size: int | None = None) -> PartSamples:
    """Images of a list without a split; its store holds all of them."""
    store = prepare(table, default_store_path(table, size), size=size).store
    place = {name: number for number, name in enumerate(store.ids)}
    rows = table.rows[kept]
    columns = (torch.tensor(rows[name].to_numpy().copy()) for name in ("label", "domain"))
    row = torch.tensor([place[name] for name in rows["id"]])
    return PartSamples(store, row, *columns, torch.arange(len(rows)), len(rows))


def _classify_places(table: CutoutList) -> PartSamples:
    """Photographs of places, to be told apart: what is at the border is what they show."""
    rows = table.backgrounds.rows.assign(label=table.backgrounds.rows["domain"])
    few = (rows["subset"] == "train") & (rows.groupby(["subset", "domain"]).cumcount() < 200)
    return _open_list(
        replace(table.backgrounds, name="places", rows=rows, classes=table.backgrounds.domains), few, SIDE
    )


def _hash(names: pd.Series) -> pd.Series:
    return names.map(lambda name: int(hashlib.sha256(name.encode()).hexdigest(), 16))


def _keep_even(table: CutoutList) -> CutoutList:
    """The half of the pets that is set aside to develop on."""
    rows = table.foregrounds.rows
    return replace(
        table, foregrounds=replace(table.foregrounds, rows=rows[_hash(rows["id"]).map(lambda h: h % 2 == 0)])
    )


@cache
def _sorted(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(names))


def _name_breeds(table: CutoutList) -> tuple[str, ...]:
    """The 12 cats, whose names begin with a capital, and the first six dogs that are not among the reported eight."""
    names = _sorted(tuple(table.foregrounds.domains))
    dogs = [name for name in names if name[0].islower() and name not in REPORTED]
    return (*(name for name in names if name[0].isupper()), *dogs[:6])
