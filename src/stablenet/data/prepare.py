"""Decode a source once, on all cores, into a pixel store, which is written atomically.

Cut-outs are composed into one store per split and part: only the images of that part are read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from stablenet.data.cache import HEADER, cache_folder, name_cache
from stablenet.data.check import find_duplicates
from stablenet.data.decode import Decoded, OtherSize, Task, read_size, run_tasks
from stablenet.data.image_list import CutoutList, ImageList, PlacedList
from stablenet.data.manifest import Manifest
from stablenet.data.store import FORMAT, IMAGES, PIXELS, Header, PixelStore, read_stamps
from stablenet.errors import UserError
from stablenet.files import build_folder, hash_file, lock, resolve
from stablenet.frames import write_parquet

Progress = Callable[[int, int], None]  # images done, images in total
QUICKLY_DECODED = 1000  # images: of no more, one error can list the damaged ones too
_CHUNK = 16  # images per task: enough to make the overhead negligible, few enough for a smooth progress bar
_FLUSH = 32  # tasks between flushes to disk, during decoding, so that the last flush is short


@dataclass(frozen=True)
class Prepared:
    """The store, whether it was made now, and why an existing one was replaced."""

    store: PixelStore
    made: bool
    replaced: str = ""


def default_store_path(table: ImageList, size: int | None) -> Path:
    """The default path of a source's store: one folder per source, root and size."""
    place = hashlib.sha256(os.fsencode(resolve(table.root))).hexdigest()[:8]
    return cache_folder() / f"{table.name}-{size or 'native'}-{place}"


def prepare_part(
    table: CutoutList, manifest: Manifest, part: str, *, workers: int | None = None, progress: Progress | None = None
) -> PixelStore:
    """The composed images of a part: made now, or found at their default path."""
    placed = table.place(manifest, manifest.part(part), f"-{part}-{manifest.hash[:12]}")
    return prepare(placed, default_store_path(placed, None), workers=workers, progress=progress).store


def prepare(
    table: ImageList,
    path: Path,
    *,
    size: int | None = None,
    skip_bad: bool = False,
    accept_gaps: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Create the store at `path`, unless it exists there complete and up to date.

    size: side of the stored square images; None keeps the original size, which must then be the same for all.
    skip_bad: leave out and record images that cannot be decoded; otherwise one error lists all of them, of large sets
    before any is decoded those that are no images at all.
    accept_gaps: accept an existing, up-to-date store made with skip_bad; a new one is made without gaps.
    workers: number of decoding processes; None for one per core. A small set is decoded in this process.
    """
    _check_place(table, path)
    workers = workers or os.cpu_count() or 1
    with lock(path):
        current, replaced = _find_current(table, path, size, skip_bad or accept_gaps)
        if current is not None:
            return Prepared(current, made=False)
        if not skip_bad and len(table.rows) > QUICKLY_DECODED:
            check_headers(table, _advise_leaving_out(table, size))
        name_cache(path)
        shape = (size, size) if size else _first_size(table)
        with build_folder(path) as folder:
            rows, left_out = _decode_table(folder, table, size, shape, skip_bad, workers, progress)
            _write_tables(folder, table, size, shape, rows, left_out)
    return Prepared(PixelStore.open(path), made=True, replaced=replaced)


def _check_place(table: ImageList, path: Path) -> None:
    if table.contains(path):
        raise UserError(f"the store {path} would be inside its source {table.root}: choose another path")
    foreign = path.is_file() or (path.is_dir() and any(path.iterdir()) and not (path / HEADER).exists())
    if foreign:
        raise UserError(f"{path} exists and is not a pixel store: choose another path, or delete it")


def _find_current(table: ImageList, path: Path, size: int | None, gaps: bool) -> tuple[PixelStore | None, str]:
    """The store at `path` if it can be used, else None and why an existing one cannot."""
    if not path.exists():
        return None, ""
    try:
        store = PixelStore.open(path)
    except UserError as error:
        return None, str(error)
    if store.header.size != size:
        return None, f"the existing store had the size {store.header.size or 'native'}"
    if store.header.left_out and not gaps:
        return None, f"the existing store left out {len(store.header.left_out)} images"
    changes = store.compare(table)
    return (None, f"the source changed: {changes}") if changes else (store, "")


def check_headers(table: ImageList, advice: str) -> None:
    """Raise with all files that are no images, by their headers alone: seconds, where decoding takes minutes."""
    reasons: dict[str, str] = {}
    for name, path in zip(table.rows["id"], table.rows["path"], strict=True):
        try:
            read_size(table.root, path)
        except Exception as error:  # decoders may raise anything on broken data
            reasons[name] = f"{error}" or type(error).__name__
    if reasons:
        raise UserError(_list_bad(table, reasons, advice))


def _read_sizes(table: ImageList) -> Iterator[tuple[int, int]]:
    """The sizes (H, W) of all images whose header can be read."""
    for path in table.rows["path"]:
        try:
            yield read_size(table.root, path)
        except Exception:  # decoders may raise anything; decoding will list this image
            continue


def _first_size(table: ImageList) -> tuple[int, int]:
    """The size (H, W) that all images should have, or are composed to."""
    if isinstance(table, PlacedList):
        return table.side, table.side
    return next(_read_sizes(table), (1, 1))  # none readable: decoding will list them all


def have_one_size(table: ImageList) -> bool:
    """Whether all images have the same size; a store of images in their own size proves it."""
    path = default_store_path(table, None)
    if _find_current(table, path, None, gaps=True)[0] is not None:
        return True
    sizes = _read_sizes(table)
    first = next(sizes, None)
    return all(size == first for size in sizes)


def _list_sizes(table: ImageList) -> str:
    sizes = Counter(_read_sizes(table))
    (height, width), count = sizes.most_common(1)[0]
    return (
        f"the images of {table.name} have {len(sizes)} different sizes (most often {height} × {width}, "
        f"{count} of {sizes.total()}): choose one for all with --size, for example --size 256"
    )


def _decode_table(
    folder: Path,
    table: ImageList,
    size: int | None,
    shape: tuple[int, int],
    skip_bad: bool,
    workers: int,
    progress: Progress | None,
) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    """Write the pixels; return the rows of the stored images and the records of those left out."""
    image_bytes = shape[0] * shape[1] * 3
    _check_space(folder, len(table.rows) * image_bytes)
    stamps = read_stamps(table)  # before decoding, so that a file that changes meanwhile is noticed later
    (folder / PIXELS).touch()
    decoded = _decode_all(table, _make_tasks(table, size, shape, folder / PIXELS), workers, progress)
    good = [k for k, record in enumerate(decoded) if not record.reason]
    bad = [k for k, record in enumerate(decoded) if record.reason]
    if bad and (not skip_bad or not good):
        reasons = {table.rows["id"].iloc[k]: decoded[k].reason for k in bad}
        raise UserError(_list_bad(table, reasons, _advise_leaving_out(table, size)))
    _close_gaps(folder / PIXELS, good, image_bytes)
    rows = table.rows[["id", "label", "domain"]].assign(
        stamp=stamps, content=[d.content for d in decoded], crc=[d.crc for d in decoded]
    )
    return rows.iloc[good], [_record_left_out(table, k, stamps[k], decoded[k].reason) for k in bad]


def _record_left_out(table: ImageList, row: int, stamp: str, reason: str) -> dict[str, str]:
    image = table.rows.iloc[row]
    names = {"class": table.classes[int(image["label"])], "domain": table.domains[int(image["domain"])]}
    return {"id": str(image["id"]), "stamp": stamp, **names, "reason": reason}


def _make_tasks(table: ImageList, size: int | None, shape: tuple[int, int], file: Path) -> list[Task]:
    paths = table.rows["path"].tolist()
    below = table.backgrounds if isinstance(table, PlacedList) else None
    placements = table.placements if isinstance(table, PlacedList) else ()
    return [
        Task(
            root=table.root,
            paths=tuple(paths[k : k + _CHUNK]),
            shape=shape,
            resize=size is not None,
            file=file,
            first=k,
            backgrounds=below,
            placements=placements[k : k + _CHUNK],
        )
        for k in range(0, len(paths), _CHUNK)
    ]


def _decode_all(table: ImageList, tasks: list[Task], workers: int, progress: Progress | None) -> list[Decoded]:
    """Decode every row to its position in the file."""
    decoded: list[Decoded] = []
    try:
        with closing(run_tasks(tasks, workers)) as done, open(tasks[0].file, "r+b") as file:
            for number, records in enumerate(done, 1):
                decoded += records
                if number % _FLUSH == 0:
                    os.fsync(file.fileno())
                if progress:
                    progress(len(decoded), len(table.rows))
    except OtherSize as error:
        raise UserError(_list_sizes(table)) from error
    return decoded


def _close_gaps(path: Path, good: list[int], image_bytes: int) -> None:
    """Close the gaps that bad images left in the file."""
    with open(path, "r+b") as file:
        for new, old in enumerate(good):
            if new != old:
                file.seek(old * image_bytes)
                image = file.read(image_bytes)
                file.seek(new * image_bytes)
                file.write(image)
        file.truncate(len(good) * image_bytes)


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"the store needs {needed / 1e9:.2f} GB, but {folder.parent} has only {free / 1e9:.2f} GB free: "
            "free some space, choose another folder with STABLENET_CACHE, or store smaller images (data.store_size)"
        )


def _advise_leaving_out(table: ImageList, size: int | None) -> str:
    if isinstance(table, PlacedList):
        return "or remove them and split again"
    asked = f" --size {size}" if size else ""
    return f"or leave them out with `stablenet data prepare {table.name}{asked} --skip-bad`"


def _list_bad(table: ImageList, reasons: dict[str, str], advice: str) -> str:
    """reasons: by the ids of the images."""
    lines = [f"  {name}: {reason}" for name, reason in reasons.items()]
    said = f"{len(reasons)} of {len(table.rows)} images of {table.known_as} cannot be decoded; repair them, {advice}:"
    return "\n".join([said, *lines])


def _write_tables(
    folder: Path,
    table: ImageList,
    size: int | None,
    shape: tuple[int, int],
    rows: pd.DataFrame,
    left_out: list[dict[str, str]],
) -> None:
    write_parquet(rows, folder / IMAGES)
    header = Header(
        format=FORMAT,
        source=table.name,
        classes=list(table.classes),
        domains=list(table.domains),
        size=size,
        height=shape[0],
        width=shape[1],
        count=len(rows),
        images_sha256=hash_file(folder / IMAGES),
        left_out=left_out,
        duplicates=find_duplicates(rows, rows["content"]),
    )
    (folder / HEADER).write_text(json.dumps(asdict(header), indent=1), encoding="utf-8")
