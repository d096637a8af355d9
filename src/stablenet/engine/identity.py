"""What a run is known by: hashes of its config, with files by their contents. Built here alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from stablenet.data.manifest import Manifest
from stablenet.engine.config import RunConfig, hash_values
from stablenet.files import hash_file
from stablenet.models.build import find_weights

_BESIDE_MANIFEST = ("store_size", "image_size", "augment", "augmentation", "mean", "std")  # that data still says


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Hashes of the files a config names, "" where it names none: the same on every machine, wherever they lie."""

    manifest: str = ""
    weights: str = ""


@dataclass(frozen=True)
class Identity:
    """hashed: the plain values that the hashes are taken of."""

    hashed: dict[str, Any]

    @property
    def hash(self) -> str:
        """Of the config: two runs with the same one give the same records."""
        return hash_values(self.hashed)

    @property
    def series(self) -> str:
        """Of all but the seed, the same for all seeds of a config."""
        return hash_values({name: value for name, value in self.hashed.items() if name != "seed"})


def identify(config: RunConfig, contents: Contents) -> Identity:
    """What a config computes; how people call it, and settings that nothing reads, do not count."""
    plain = config.plain()
    del plain["label"]
    if config.train.averaging == "none":
        del plain["train"]["averaging"], plain["train"]["swad"]  # nothing reads them
    if config.data.manifest:
        plain["data"] = {"manifest": contents.manifest, **{name: plain["data"][name] for name in _BESIDE_MANIFEST}}
    if contents.weights:
        plain["model"]["pretrained"] = contents.weights
    return Identity(plain)


def read_contents(config: RunConfig, root: Path | None, manifest: Manifest | None = None) -> Contents:
    """Of the files as they are now.   manifest: the one the config names, where it has been read already."""
    if not config.data.manifest:
        split = ""
    else:
        split = manifest.hash if manifest is not None else _hash_manifest(*_stamp(Path(config.data.manifest)))
    weights = _hash_file(*_stamp(find_weights(config.model.pretrained, root))) if _names_weights(config) else ""
    return Contents(manifest=split, weights=weights)


def recall_contents(config: RunConfig, hashed: Mapping[str, Any]) -> Contents:
    """Of the files as they were, from what a run folder's config was `hashed` by.

    An older version may have hashed fewer settings: those count with their defaults once it is identified anew.
    """
    return Contents(
        manifest=hashed["data"]["manifest"] if config.data.manifest else "",
        weights=hashed["model"]["pretrained"] if _names_weights(config) else "",
    )


def _names_weights(config: RunConfig) -> bool:
    """Whether the network starts from a file rather than from weights that have a name."""
    return config.model.pretrained.endswith(".safetensors")


def _stamp(path: Path) -> tuple[Path, int, int]:
    """What a file's hash may be remembered by: many runs of a table name the same file."""
    if not path.exists():
        return path, 0, 0  # whoever reads it says so
    found = path.stat()
    return path, found.st_mtime_ns, found.st_size


@cache
def _hash_file(path: Path, *stamp: int) -> str:
    return hash_file(path)


@cache
def _hash_manifest(path: Path, *stamp: int) -> str:
    return Manifest.load(path).hash
