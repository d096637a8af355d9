"""Descriptions of data sources (origin, licence, counts, layouts, reader), and the download of their public files."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from stablenet.data.columns import Columns
from stablenet.data.image_list import ComposedList, CutoutList, ImageList
from stablenet.errors import UserError
from stablenet.files import hash_file
from stablenet.registry import IMAGE_LIST, OLD_IMAGE_LIST, Registry

AnyImageList: TypeAlias = ImageList | ComposedList | CutoutList
ReadOwn: TypeAlias = Callable[[Path | None, Columns, Path | None], ImageList]  # root, columns, an image list


@dataclass(frozen=True, kw_only=True)
class Download:
    """One public file. md5: as published; without one, the archive's CRCs are checked."""

    url: str
    file: str
    md5: str | None = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set.

    counts: images per domain as published; empty for users' own data.
    layouts: the accepted folder trees, one line each.
    by_hand: what to download manually if there is no download, or no network.
    differences: compares a folder or archive with the layouts, one sentence per difference; see `folder`.
    read_own: for users' own data, which also have columns to be named, and a list that may lie apart from its images.
    """

    name: str
    title: str
    origin: str
    licence: str
    layouts: tuple[str, ...]
    read: Callable[[Path], AnyImageList]
    counts: Mapping[str, int] = field(default_factory=dict)
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    needs_root: bool = True
    differences: Callable[[Path], tuple[str, ...]] | None = None
    read_own: ReadOwn | None = None


SOURCES: Registry[Source] = Registry("data source", renamed={OLD_IMAGE_LIST: IMAGE_LIST})


def read_source(
    name: str, root: Path | None, columns: Columns | None = None, listing: Path | None = None
) -> AnyImageList:
    """Read the image list of a source from the folder or archive at root, if it needs one.

    Of users' own data also: columns: what those of an image list are called.   listing: the image list, whose paths
    begin at root or in its own folder; without one, root is the list.
    """
    source = SOURCES[name]
    if source.read_own is not None:
        return source.read_own(root, columns or Columns(), listing)
    if listing is not None or columns not in (None, Columns()):
        raise UserError(f"the data source {name} does not read an image list: leave list and columns out")
    if not source.needs_root:
        return source.read(Path())
    if root is None:
        raise UserError(
            f"the data source {name} needs a folder or archive: give it with --root or the variable STABLENET_DATA"
        )
    if not root.exists():
        raise UserError(f"{root} does not exist: give the folder or archive that contains {name}")
    return source.read(root)


def check_layout(name: str, root: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(differences that keep a source from being read, remarks such as counts that are not the published ones).

    Where there is no difference the list of images is read, so that `read_source` is sure to succeed.
    """
    source = SOURCES[name]
    if not root.exists():
        raise UserError(f"{root} does not exist: give the folder or archive that contains {name}")
    found = source.differences(root) if source.differences is not None else ()
    if found:
        return found, ()
    try:
        table = source.read(root)
    except UserError as error:
        return (str(error),), ()
    return (), (f"{len(table.rows):,} images", *getattr(table, "notes", ()))


def compare_counts(name: str, found: Mapping[str, int], published: Mapping[str, int]) -> tuple[str, ...]:
    """One note per domain or class whose number of images differs from the published one."""
    return tuple(
        f"{name}: {key} has {found.get(key, 0)} images instead of the published {count}"
        for key, count in published.items()
        if found.get(key, 0) != count
    )


_BLOCK = 1 << 20
_TIMEOUT = 30  # seconds without data

# (file, bytes so far, bytes in total or None) -> None
Progress = Callable[[str, int, int | None], None]


def download_source(source: Source, folder: Path, progress: Progress = lambda file, done, total: None) -> list[Path]:
    """Download the files of a source into folder; complete files that are already there are kept."""
    if not source.downloads:
        raise UserError(
            f"{source.name} has no public download: {source.by_hand or 'it needs none'}{_put(source, folder)}"
        )
    try:
        return [fetch_file(download, folder, progress) for download in source.downloads]
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        links = ", ".join(f"{d.url} as {folder / d.file}" for d in source.downloads)
        raise UserError(
            f"the download of {source.name} was interrupted ({reason}): run it again to resume, "
            f"or by hand: {source.by_hand}; the files and their paths are {links}"
        ) from error


def fetch_file(download: Download, folder: Path, progress: Progress) -> Path:
    """Download one file via `<file>.part`, which an interrupted download leaves and the next one resumes."""
    path = folder / download.file
    if path.exists():
        _check_file(path, download)
        return path
    part = path.with_name(f"{path.name}.part")
    try:
        _fetch(download, part, progress)
    except OSError as error:
        if isinstance(error, urllib.error.URLError | TimeoutError | ConnectionError):
            raise
        raise UserError(f"cannot write {part}: {error.strerror}; free some space and run it again") from error
    try:
        _check_file(part, download)
    except UserError:
        part.unlink()  # resuming a wrong file would fail again
        raise
    part.replace(path)
    return path


def _fetch(download: Download, part: Path, progress: Progress) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(download.url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing left to download: the file is complete
            return
        raise
    with response:
        resumed = response.status == 206 and done > 0
        done = done if resumed else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab" if resumed else "wb") as file:
            while block := response.read(_BLOCK):
                file.write(block)
                done += len(block)
                progress(download.file, done, total)
    if total is not None and done < total:
        raise http.client.IncompleteRead(b"", total - done)


def _check_file(path: Path, download: Download) -> None:
    """Check the published MD5, or for archives without one their CRCs."""
    if download.md5 is not None:
        found = hash_file(path, "md5")
        if found != download.md5:
            raise UserError(f"{path} has the MD5 {found}, expected {download.md5}: delete it and download it again")
        return
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except zipfile.BadZipFile as error:
        raise UserError(f"{path} is not a complete zip archive ({error}): delete it and download it again") from error
    if broken is not None:
        raise UserError(f"{path} is damaged at {broken}: delete it and download it again")


def _put(source: Source, folder: Path) -> str:
    return f"; put it into {folder} in the layout {source.layouts[0]}" if source.by_hand else ""
