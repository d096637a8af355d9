"""Features of a whole part, kept on disk next to the pixel stores: computed once for all runs that need the same.

An entry's name is a hash of what its features depend on: the network's body and its weights, the taps, the pixels and
the rows of the part, their size and normalization, the precision and the kind of device. So seeds, methods and settings
share an entry where these agree, and nothing has to be kept up to date. One batch is read again before an entry is
used: where it differs, by another version of a library or of the user's own network, all are.

Of several processes each keeps and reads the samples of its own share, in an entry of its own, and all of them together
either read what was kept or pass the images through the network.

Features are kept in half precision, as in `SampleStore`, so a solve reads the same bits.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from stablenet.data.cache import FEATURES, cache_folder, name_cache
from stablenet.data.loader import PartSamples
from stablenet.data.store import PixelStore
from stablenet.engine.config import hash_values
from stablenet.errors import UserError, explain_os_error
from stablenet.files import build_folder, lock, read_json, write_json
from stablenet.weighting import distributed

FORMAT = 2
WORTH_KEEPING = 2**26  # pixels that the network sees in a pass; below, reading takes seconds
HEADER = "features.json"
INDEX, LABELS = "index.i64", "labels.i64"
ROWS_AT_ONCE = 4096
PAUSE = 0.5  # seconds until a lock is tried again, on average
CLOSE = 1e-2  # of the largest feature of a tap: bfloat16 rounds by less, another network differs by more

HOST = torch.device("cpu")
NOT_KEPT = "the features could not be kept, which costs the next run another pass"

Features = Mapping[str, Tensor]
Entry = tuple[Tensor, Features, Tensor]  # index (b,), features (b, m) by tap, labels (b,)
Collect = Callable[[Tensor, Features, Tensor], None]


class Unusable(Exception):
    """The reason why an entry cannot be used, worded as the end of a sentence."""


@dataclass(frozen=True)
class FeatureKey:
    """values: what the features depend on.   source: for the entry's name."""

    source: str
    values: Mapping[str, Any]

    @property
    def path(self) -> Path:
        return cache_folder() / f"{FEATURES}{self.source}-{hash_values(dict(self.values))[:16]}"


def hash_module(module: nn.Module) -> str:
    """Hash of all parameters and buffers, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_samples(samples: PartSamples) -> str:
    """Hash of a part's pixels, rows and labels."""
    digest = hashlib.sha256()
    if isinstance(samples.pixels, PixelStore):
        digest.update(samples.pixels.header.images_sha256.encode())  # of a table with a checksum of every image
        digest.update(samples.row.numpy().data)
    else:
        for rows in samples.row.split(ROWS_AT_ONCE):
            digest.update(samples.pixels.read(rows).contiguous().numpy().data)
    for column in (samples.index, samples.y):
        digest.update(column.numpy().data)
    return digest.hexdigest()


class KeptFeatures:
    """A complete entry. Raises `Unusable` if it is incomplete."""

    def __init__(self, path: Path) -> None:
        try:
            header = read_json(path / HEADER)
        except UserError as error:
            raise Unusable("their header cannot be read") from error
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise Unusable("another version wrote them")
        self.path, self.count = path, int(header["count"])
        self._widths: dict[str, int] = header["taps"]
        sizes = {INDEX: 8 * self.count, LABELS: 8 * self.count}
        sizes |= {_file(place): 2 * self.count * width for place, width in enumerate(self._widths.values())}
        for name, size in sizes.items():
            file = path / name
            if not file.is_file() or file.stat().st_size != size:
                raise Unusable(f"{name} is damaged")
        # Mapped now: from here on nobody who removes the files is in the way.
        self._index, self._labels = (np.memmap(path / name, np.int64, "r") for name in (INDEX, LABELS))
        self._columns = {
            tap: np.memmap(path / _file(place), np.float16, "r", shape=(self.count, width))
            for place, (tap, width) in enumerate(self._widths.items())
        }

    @property
    def blocks(self) -> int:
        """How many there are to read."""
        return -(-self.count // ROWS_AT_ONCE)

    def read(self, blocks: int) -> Iterator[Entry]:
        """Some blocks of samples, in the order in which they were kept; blocks after the last sample are empty."""
        for start in range(0, blocks * ROWS_AT_ONCE, ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            features = {tap: torch.from_numpy(np.array(column[rows])) for tap, column in self._columns.items()}
            yield (
                torch.from_numpy(np.array(self._index[rows])),
                {tap: values.float() for tap, values in features.items()},
                torch.from_numpy(np.array(self._labels[rows])),
            )

    def check(self, index: Tensor, features: Features) -> None:
        """Raise unless these, read now, are those of the first samples.   index: (b,).   features: (b, m) by tap."""
        kept_index, kept, _ = next(self.read(1))
        same = list(features) == list(self._widths) and torch.equal(index.cpu(), kept_index[: len(index)])
        for tap, values in features.items() if same else ():
            now, before = values.float().cpu(), kept[tap][: len(index)]
            same = same and now.shape == before.shape and bool((now - before).abs().max() <= CLOSE * now.abs().max())
        if not same:
            raise Unusable("the network now gives others")


class FeatureWriter:
    """Writes an entry batch by batch into a folder, which then gets its header."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._widths: dict[str, int] = {}
        self._open = ExitStack()
        self._files: list[BinaryIO] = []

    def add(self, index: Tensor, features: Features, labels: Tensor) -> None:
        if not self._files:
            self._widths = {tap: values.shape[1] for tap, values in features.items()}
            names = [INDEX, LABELS, *(_file(place) for place in range(len(features)))]
            self._files = [self._open.enter_context((self._folder / name).open("wb")) for name in names]
        self._count += len(index)
        columns = [index.long(), labels.long(), *(features[tap].half() for tap in self._widths)]
        for file, column in zip(self._files, columns, strict=True):
            file.write(column.detach().cpu().contiguous().numpy().data)

    def close(self) -> None:
        self._open.close()

    def finish(self, key: FeatureKey) -> None:
        self.close()
        header = {"format": FORMAT, "source": key.source, "count": self._count, "taps": self._widths}
        write_json(self._folder / HEADER, {**header, "key": dict(key.values)})


class FeatureCache:
    """Reads features through the cache.   tell: is given one sentence about what was kept or found.

    device: where several processes agree.
    """

    def __init__(self, key: FeatureKey, tell: Callable[[str], None], device: torch.device = HOST) -> None:
        self._key, self._tell, self._device = key, tell, device
        self._begun = self._done = False

    def read(self, read_all: Callable[[Collect], None], read_first: Callable[[], Entry], collect: Collect) -> None:
        """Collect the features of all samples, from the disk where they are there.

        read_all: passes all samples through the network.   read_first: the first batch alone.
        Of several runs that read the same the first one writes, and the others wait for it.
        """
        with ExitStack() as held:
            refusal = self._take_lock(held)
            kept = self._find(read_first) if refusal is None else None
            if distributed.smallest(int(kept is not None), self._device):
                assert kept is not None
                self._collect_kept(kept, collect)
                return
            if kept is not None:
                self._tell(f"the features kept in {kept.path} are read again: another process of this run has none")
            if refusal is None:
                self._read_and_keep(read_all, collect)
                return
        self._tell(f"{NOT_KEPT}: {refusal}")
        read_all(collect)

    def _take_lock(self, held: ExitStack) -> Exception | None:
        """Wait for the entry's lock; of several processes none waits while it holds one, or two runs could block.

        Returns why there is none.
        """
        while True:
            with ExitStack() as tried:
                refusal = None
                try:
                    taken = tried.enter_context(lock(self._key.path, wait=False))
                except (UserError, OSError) as error:
                    refusal, taken = error, True  # nothing to wait for
                if distributed.smallest(int(taken), self._device):
                    held.push(tried.pop_all())
                    return refusal
            time.sleep(random.SystemRandom().uniform(0, 2 * PAUSE))  # two runs need not be in step

    def _find(self, read_first: Callable[[], Entry]) -> KeptFeatures | None:
        """The entry, if it is there and can be used."""
        if not self._key.path.exists():
            return None
        try:
            kept = KeptFeatures(self._key.path)
            kept.check(*read_first()[:2])
        except (Unusable, OSError) as error:
            self._tell(f"the features kept in {self._key.path} are read again: {error}")
            return None
        return kept

    def _collect_kept(self, kept: KeptFeatures, collect: Collect) -> None:
        blocks = -distributed.smallest(-kept.blocks, self._device)  # what all do together, they do equally often
        for entry in kept.read(blocks):
            collect(*entry)
        self._tell(f"features of {kept.count:,} images taken from {kept.path}")

    def _read_and_keep(self, read_all: Callable[[Collect], None], collect: Collect) -> None:
        try:
            name_cache(self._key.path)
            with build_folder(self._key.path) as folder:
                self._read_and_write(folder, read_all, collect)
            self._tell(f"features kept in {self._key.path}, for all runs with this network and these data")
        except (UserError, OSError) as error:
            if self._begun and not self._done:
                raise  # of the pass itself
            self._tell(f"{NOT_KEPT}: {error}")
            if not self._done:
                read_all(collect)

    def _read_and_write(self, folder: Path, read_all: Callable[[Collect], None], collect: Collect) -> None:
        failure: list[OSError] = []

        def collect_and_write(index: Tensor, features: Features, labels: Tensor) -> None:
            collect(index, features, labels)
            try:
                if not failure:
                    writer.add(index, features, labels)
            except OSError as error:  # a full disk is no reason to end the pass
                failure.append(error)

        with closing(FeatureWriter(folder)) as writer:
            self._begun = True
            read_all(collect_and_write)
            self._done = True
            if failure:
                raise explain_os_error(failure[0], self._key.path)
            writer.finish(self._key)


def _file(place: int) -> str:
    return f"tap{place}.f16"
