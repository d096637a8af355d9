"""Hashes that identify a run's config, with files represented by their contents. Computed only here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from stablenet.algorithms import ALGORITHMS
from stablenet.data.columns import Columns
from stablenet.data.manifest import Manifest
from stablenet.engine.config import RunConfig, hash_values
from stablenet.files import hash_file
from stablenet.models.build import find_weights, is_file
from stablenet.registry import OLD_SPLIT, hash_data
from stablenet.weighting.recommended import FIRST

_BESIDE_MANIFEST = ("store_size", "image_size", "augment", "augmentation", "mean", "std")  # data settings still used
VERSION = "preset_version"  # in the hashed settings of the method, and in the first record


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Hashes of the files a config refers to, "" for none: independent of machine and path."""

    manifest: str = ""
    image_list: str = ""
    weights: str = ""


@dataclass(frozen=True)
class Identity:
    """hashed: the plain values from which the hashes are computed."""

    hashed: dict[str, Any]

    @property
    def hash(self) -> str:
        """Hash of the config: two runs with the same hash give the same records."""
        return hash_values(self.hashed)

    @property
    def series(self) -> str:
        """Hash without the seed, the same for all seeds of a config."""
        return hash_values({name: value for name, value in self.hashed.items() if name != "seed"})


def identify(config: RunConfig, contents: Contents, version: str | None = None) -> Identity:
    """The identity of a config; its label and settings that are not used are left out.

    version: of the method's defaults, see `name_version`; None for today's.
    """
    plain = config.plain()
    plain["data"] = hash_data(plain["data"])
    del plain["label"]
    version = name_version(config) if version is None else version
    if version not in ("", FIRST):
        plain["method"][VERSION] = version
    if config.train.averaging == "none":
        del plain["train"]["averaging"], plain["train"]["swad"]  # not used
    if config.train.epoch_steps is None:
        del plain["train"]["epoch_steps"]  # as before there was a choice
    if config.model.head == "default":
        del plain["model"]["head"]  # as before there was a choice
    if config.model.statistics == "batch":
        del plain["model"]["statistics"]  # as before there was a choice
    if not config.data.split:
        plain["data"][OLD_SPLIT] = "adversarial"  # once the default, by which published runs are found
    if config.data.columns == Columns():
        del plain["data"]["columns"]  # as before there was a choice
    if config.data.image_list:
        plain["data"]["image_list"] = contents.image_list
    else:
        del plain["data"]["image_list"]  # as before there was a choice
    if config.data.manifest:
        plain["data"] = {"manifest": contents.manifest, **{name: plain["data"][name] for name in _BESIDE_MANIFEST}}
    if contents.weights:
        plain["model"]["pretrained"] = contents.weights
    return Identity(plain)


def name_version(config: RunConfig) -> str:
    """Today's version of the defaults that the config leaves to its method; "" if there is one version only."""
    name = config.method.name
    return ALGORITHMS[name].version(config.method.parameters) if name in set(ALGORITHMS) else ""


def recall_version(config: RunConfig, hashed: Mapping[str, Any]) -> str:
    """The version with which a run folder was begun, from its `hashed` values."""
    return str(hashed["method"].get(VERSION, FIRST)) if name_version(config) else ""


def restate(config: RunConfig, version: str) -> RunConfig:
    """The current config that does what this one did under an earlier version of its method's defaults."""
    if version == name_version(config):
        return config
    kind, pretrained = ALGORITHMS[config.method.name], bool(config.model.pretrained)
    parameters = kind.restate(config.method.parameters, version, pretrained)
    return replace(config, method=replace(config.method, parameters=parameters))


def recall_identity(config: RunConfig, hashed: Mapping[str, Any]) -> Identity:
    """The identity that a run folder has now, with the defaults of an earlier preset version stated."""
    return identify(restate(config, recall_version(config, hashed)), recall_contents(config, hashed))


def read_contents(config: RunConfig, root: Path | None, manifest: Manifest | None = None) -> Contents:
    """Hashes of the files as they are now.   manifest: the config's manifest, if it has already been read."""
    if not config.data.manifest:
        split = ""
    else:
        split = manifest.hash if manifest is not None else _hash_manifest(*_stamp(Path(config.data.manifest)))
    weights = _hash_file(*_stamp(find_weights(config.model.pretrained, root))) if _names_weights(config) else ""
    listed = _hash_file(*_stamp(Path(config.data.image_list))) if _names_image_list(config) else ""
    return Contents(manifest=split, image_list=listed, weights=weights)


def describe_weights(config: RunConfig, root: Path | None) -> dict[str, str]:
    """The SHA-256 of the file that the network starts from, for the records; empty where there is none."""
    weights = read_contents(config, root).weights if _names_weights(config) else ""
    return {"weights_sha256": weights} if weights else {}


def tell_weights(config: RunConfig, root: Path | None) -> list[str]:
    """A sentence about the file that the network starts from; none where there is no file."""
    return [
        f"initial weights: {config.model.pretrained}, SHA-256 {found}"
        for found in describe_weights(config, root).values()
    ]


def recall_contents(config: RunConfig, hashed: Mapping[str, Any]) -> Contents:
    """Hashes of the files at training time, from the `hashed` values of a run folder's config.

    An older version may have hashed fewer settings: a new identity includes their defaults.
    """
    return Contents(
        manifest=hashed["data"]["manifest"] if config.data.manifest else "",
        image_list=hashed["data"]["image_list"] if _names_image_list(config) else "",
        weights=hashed["model"]["pretrained"] if _names_weights(config) else "",
    )


def _names_image_list(config: RunConfig) -> bool:
    """Whether the images are those of a list, and not of a manifest, which lists them too."""
    return bool(config.data.image_list) and not config.data.manifest


def _names_weights(config: RunConfig) -> bool:
    """Whether the network starts from a weights file rather than from named weights."""
    return is_file(config.model.pretrained)


def _stamp(path: Path) -> tuple[Path, int, int]:
    """Cache key for the hash of a file: many runs of a table use the same file."""
    if not path.exists():
        return path, 0, 0  # reading it will raise
    found = path.stat()
    return path, found.st_mtime_ns, found.st_size


@cache
def _hash_file(path: Path, *stamp: int) -> str:
    return hash_file(path)


@cache
def _hash_manifest(path: Path, *stamp: int) -> str:
    return Manifest.load(path).hash
