"""The data of a run: its manifest, and its parts on demand. Parts that are not requested are not read.

Also the checks of a config that need neither data nor files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from stablenet.algorithms import read_settings
from stablenet.data.augment import Augment, AugmentSettings, Normalization, Resize, Transform
from stablenet.data.image_list import ComposedList, CutoutList, ImageList
from stablenet.data.loader import BatchSettings, Loader, PartSamples, read_part, render_part
from stablenet.data.manifest import Manifest
from stablenet.data.prepare import default_store_path, have_one_size, prepare, prepare_part
from stablenet.data.sources import SOURCES, AnyImageList, read_source
from stablenet.data.splits import apply_split, read_parameters
from stablenet.data.store import PixelStore
from stablenet.engine.config import DataConfig, RunConfig, TrainConfig
from stablenet.errors import UserError
from stablenet.models.build import check_backbone
from stablenet.values import read_fields, require
from stablenet.weighting.samples import pass_range

Progress = Callable[[int, int], None]


def open_data(config: RunConfig, root: Path | None, progress: Progress | None = None) -> RunData:
    """The data of a config, with its split: read from its manifest, or drawn now from the source's image list."""
    data = config.data
    if data.manifest:
        return RunData(data, Manifest.load(Path(data.manifest)), root, progress)
    seed = config.seed if data.split_seed is None else data.split_seed
    table = read_image_list(data, data.source, root)
    split = apply_split(table, data.split, seed, data.parameters, "data.parameters")
    return RunData(data, split, root, progress, table)


def read_image_list(data: DataConfig, source: str, root: Path | None) -> AnyImageList:
    """The image list of a source; of users' own images with the config's names of columns."""
    return read_source(source, root, data.columns, Path(data.image_list) if data.image_list else None)


def make_normalization(data: DataConfig) -> Normalization:
    mean, std = data.mean, data.std
    return Normalization((mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))


class RunData:
    """root: folder of the source.   progress: called while images are decoded for the first time.
    table: the source's image list, if already read; otherwise it is read once, when first needed.
    """

    def __init__(
        self,
        config: DataConfig,
        manifest: Manifest,
        root: Path | None,
        progress: Progress | None = None,
        table: AnyImageList | None = None,
    ) -> None:
        self.manifest = manifest
        self._config, self._root, self._progress, self._read_table = config, root, progress, table

    def open_part(self, part: str) -> PartSamples:
        """One part with its pixels, blended in memory or memory-mapped from a store."""
        if isinstance(self.table, ComposedList):
            return render_part(self.table, self.manifest, part)
        if isinstance(self.table, CutoutList):
            store = prepare_part(self.table, self.manifest, part, progress=self._progress)
            return read_part(store, self.manifest, part)
        return read_part(self._store, self.manifest, part)

    @property
    def evaluation_transform(self) -> Transform:
        return Resize(self._config.image_size, make_normalization(self._config))

    @property
    def training_transform(self) -> Transform:
        if not self._config.augment:
            return self.evaluation_transform
        settings = read_fields(AugmentSettings, self._config.augmentation, "data.augmentation")
        return Augment(self._config.image_size, make_normalization(self._config), settings)

    @cached_property
    def table(self) -> AnyImageList:
        """The image list of the source, with all parts."""
        if self._read_table is not None:
            return self._read_table
        return read_image_list(self._config, self.manifest.source, self._root)

    @cached_property
    def stored_side(self) -> int | None:
        """Side of the stored square images, None where they keep their size, which then is one for all."""
        data = self._config
        if data.store_size is not None or not isinstance(self.table, ImageList) or have_one_size(self.table):
            return data.store_size
        return data.image_size * 8 // 7 if data.augment else data.image_size  # a margin for crops: 256 for 224

    @cached_property
    def _store(self) -> PixelStore:
        assert isinstance(self.table, ImageList)
        size = self.stored_side
        path = default_store_path(self.table, size)
        # A store with gaps was made on purpose, with --skip-bad; `read_part` handles missing images.
        return prepare(self.table, path, size=size, accept_gaps=True, progress=self._progress).store


class Feeder:
    """Loaders for one process among several."""

    def __init__(
        self, data: RunData, train: TrainConfig, seed: int, device: torch.device, rank: int, world: int
    ) -> None:
        self._data, self._train, self._seed = data, train, seed
        self._device, self._rank, self._world = device, rank, world

    def training(self, samples: PartSamples) -> Loader:
        """Shuffled batches of the training part, augmented if configured."""
        if not len(samples):
            raise UserError(f"the split of {self._data.manifest.source} has no training images")
        settings = BatchSettings(
            batch_size=self._train.batch_size,
            seed=self._seed,
            balance_domains=self._train.balance_domains,
            drop_last=self._train.drop_last,
            most=self._train.epoch_steps,
        )
        return self._loader(samples, settings, self._data.training_transform)

    def reading(self, samples: PartSamples) -> Loader:
        """All samples in the manifest's order, without augmentation."""
        settings = BatchSettings(batch_size=self._train.batch_size, seed=self._seed, shuffle=False)
        return self._loader(samples, settings, self._data.evaluation_transform)

    def passing(self, samples: PartSamples) -> Loader:
        """As `reading`, but each of several processes reads only a range of the samples, that of `pass_range`."""
        firsts = [pass_range(samples.size, rank, self._world)[0] for rank in range(self._world)]
        places = torch.searchsorted(samples.index, torch.tensor([*firsts, samples.size])).tolist()
        ranges = [range(first, last) for first, last in pairwise(places)]
        settings = BatchSettings(batch_size=self._train.batch_size, seed=self._seed, shuffle=False)
        return self._loader(samples, settings, self._data.evaluation_transform, ranges)

    def _loader(
        self,
        samples: PartSamples,
        settings: BatchSettings,
        transform: Transform,
        ranges: Sequence[range] | None = None,
    ) -> Loader:
        place: dict[str, Any] = {"device": self._device, "rank": self._rank, "world_size": self._world}
        return Loader(samples, settings, transform, ranges=ranges, **place)


def check_config(config: RunConfig) -> None:
    """Raise for wrong names and values of method, split, augmentation and model."""
    read_settings(config.method.name, config.method.parameters)
    if not config.data.manifest:
        SOURCES[config.data.source]  # raises for an unknown one
        if config.data.split:
            read_parameters(config.data.split, config.data.parameters, "data.parameters")
    read_fields(AugmentSettings, config.data.augmentation, "data.augmentation")
    size = config.network_parameters.get("image_size", config.data.image_size)
    built = f"data.image_size, {config.data.image_size}, for which the network is built"
    require(size == config.data.image_size, "model.parameters.image_size", built, size)
    check_backbone(config.model.name, config.network_parameters)
