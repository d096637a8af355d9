"""The data of a run: its manifest, and its parts on demand. A part that is not asked for is not touched."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch

from stablenet.data.augment import Augment, AugmentSettings, Normalization, Resize, Transform
from stablenet.data.cache import default_store_path, prepare
from stablenet.data.manifest import Manifest
from stablenet.data.order import BatchSettings
from stablenet.data.pipeline import Loader, Samples, read_part, render_part
from stablenet.data.settings import apply_setting
from stablenet.data.sources import Table, read_source
from stablenet.data.store import PixelStore
from stablenet.data.table import ComposedTable
from stablenet.engine.config import DataConfig, RunConfig, TrainConfig
from stablenet.errors import UserError
from stablenet.values import read_fields

Progress = Callable[[int, int], None]


def open_data(config: RunConfig, root: Path | None, progress: Progress | None = None) -> RunData:
    """The data of a config, with the split it asks for: the file it names, or one drawn now from the source's table."""
    data = config.data
    if data.manifest:
        return RunData(data, Manifest.load(Path(data.manifest)), root, progress)
    seed = config.seed if data.split_seed is None else data.split_seed
    table = read_source(data.source, root)
    split = apply_setting(table, data.setting, seed, data.parameters, "data.parameters")
    return RunData(data, split, root, progress, table)


def make_normalization(data: DataConfig) -> Normalization:
    mean, std = data.mean, data.std
    return Normalization((mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))


class RunData:
    """root: where the source lies.   progress: told while images are decoded for the first time.
    table: of the source, where it has been read already; else it is, once, when it is first needed.
    """

    def __init__(
        self,
        config: DataConfig,
        manifest: Manifest,
        root: Path | None,
        progress: Progress | None = None,
        table: Table | None = None,
    ) -> None:
        self.manifest = manifest
        self._config, self._root, self._progress, self._read_table = config, root, progress, table

    def open_part(self, part: str) -> Samples:
        """One part with its pixels, blended in memory or mapped from the store."""
        if isinstance(self.table, ComposedTable):
            return render_part(self.table, self.manifest, part)
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
    def table(self) -> Table:
        """Of the source, all parts of it."""
        return read_source(self.manifest.source, self._root) if self._read_table is None else self._read_table

    @cached_property
    def _store(self) -> PixelStore:
        assert not isinstance(self.table, ComposedTable)
        size = self._config.store_size
        path = default_store_path(self.table, size)
        # Whoever made a store with gaps said so with --skip-bad; `read_part` knows what is missing.
        return prepare(self.table, path, size=size, accept_gaps=True, progress=self._progress).store


class Feeder:
    """Loaders for one process among several."""

    def __init__(
        self, data: RunData, train: TrainConfig, seed: int, device: torch.device, rank: int, world: int
    ) -> None:
        self._data, self._train, self._seed = data, train, seed
        self._device, self._rank, self._world = device, rank, world

    def training(self, samples: Samples) -> Loader:
        """Shuffled batches of the training part, augmented where the config says so."""
        if not len(samples):
            raise UserError(f"the split of {self._data.manifest.source} has no training images")
        settings = BatchSettings(
            batch_size=self._train.batch_size,
            seed=self._seed,
            balance_domains=self._train.balance_domains,
            drop_last=self._train.drop_last,
        )
        return self._loader(samples, settings, self._data.training_transform)

    def reading(self, samples: Samples) -> Loader:
        """All samples in the manifest's order, without augmentation."""
        settings = BatchSettings(batch_size=self._train.batch_size, seed=self._seed, shuffle=False)
        return self._loader(samples, settings, self._data.evaluation_transform)

    def _loader(self, samples: Samples, settings: BatchSettings, transform: Transform) -> Loader:
        return Loader(samples, settings, transform, device=self._device, rank=self._rank, world_size=self._world)
