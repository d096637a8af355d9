"""What a verb writes must be none of the files that it reads, and two outputs must be two files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from stablenet.errors import UserError, shorten_path
from stablenet.files import resolve


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Refuse to overwrite an input, before any work is done.   outputs: by option.   inputs: files, or other paths."""
    given = {option: _locate(path) for option, path in outputs.items() if path is not None and not _is_stream(path)}
    read = {_locate(path) for path in inputs if path is not None and path.is_file()}
    taken: dict[str, str] = {}
    for option, place in given.items():
        if place in read:
            raise UserError(f"{option} would overwrite {shorten_path(outputs[option])}, which is read: name another")
        if place in taken:
            raise UserError(f"{taken[place]} and {option} name the same file {shorten_path(outputs[option])}: name two")
        taken[place] = option


def name_beside(path: Path, suffix: str) -> Path:
    """The path with another ending; "." and ".." have none."""
    if path.is_dir():
        raise UserError(f"{shorten_path(path)} is a folder, but a file is needed: choose another path")
    return path.with_suffix(suffix)


def _is_stream(path: Path) -> bool:
    """A device or a pipe, which may take several outputs."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _locate(path: Path) -> str:
    return os.path.normcase(resolve(path))
