"""Fetch a source's public files: progress, resume, checksum; without a network, what to do by hand."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

from stablenet.data.sources.base import Download, Source
from stablenet.errors import UserError
from stablenet.files import hash_file

_BLOCK = 1 << 20
_TIMEOUT = 30  # seconds without a byte

# (file, bytes so far, bytes in all or None) -> None
Progress = Callable[[str, int, int | None], None]


def download_source(source: Source, folder: Path, progress: Progress = lambda file, done, total: None) -> list[Path]:
    """Fetch every file of a source into folder; what is there and whole is left alone."""
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
            f"the download of {source.name} broke off ({reason}): run it again to go on where it stopped, "
            f"or by hand: {source.by_hand}; the files and their places are {links}"
        ) from error


def fetch_file(download: Download, folder: Path, progress: Progress) -> Path:
    """One file, through `<file>.part`, which a broken run leaves and the next one goes on with."""
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
        part.unlink()  # resuming a wrong file would never end well
        raise
    part.replace(path)
    return path


def _fetch(download: Download, part: Path, progress: Progress) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(download.url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing beyond what is there: the file is whole
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
    """The publisher's MD5, or for archives without one their own CRCs."""
    if download.md5 is not None:
        found = hash_file(path, "md5")
        if found != download.md5:
            raise UserError(f"{path} has the MD5 {found}, expected {download.md5}: delete it and download it again")
        return
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except zipfile.BadZipFile as error:
        raise UserError(f"{path} is no whole zip archive ({error}): delete it and download it again") from error
    if broken is not None:
        raise UserError(f"{path} is damaged at {broken}: delete it and download it again")


def _put(source: Source, folder: Path) -> str:
    return f"; put it into {folder} in the layout {source.layouts[0]}" if source.by_hand else ""
