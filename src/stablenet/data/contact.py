"""Contact sheets of a split: domains by classes, or the backgrounds of composed sets in training and at test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from stablenet.data.decode import decode
from stablenet.data.image_list import ComposedList, CutoutList, ImageList
from stablenet.data.loader import render_part
from stablenet.data.manifest import SOURCE_PARTS, TARGET_PARTS, Manifest
from stablenet.data.sources.source import AnyImageList
from stablenet.errors import UserError, explain_os_error
from stablenet.files import write_whole

SOURCE_COLOUR, TARGET_COLOUR, INK, FAINT, PAPER = "#2f6db3", "#c8472f", "#222222", "#e4e4e4", "#ffffff"
_THUMB, _BORDER, _GAP, _TEXT = 56, 3, 6, 13  # pixels
_PER_CELL = 3  # images per domain and class
_PER_SIDE = 8  # images per class on its main background
_NOT_IN_FONT = str.maketrans({"×": "x", "−": "-", "–": "-"})  # missing in Pillow's own font
_PARTS = (("blue: source (train, validation)", SOURCE_COLOUR), ("red: target (test)", TARGET_COLOUR))

_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True)
class SheetCell:
    """Thumbnails in a row, framed in the colours of their parts, with a line of text below."""

    images: Sequence[NDArray[np.uint8]]
    colours: Sequence[str]
    caption: str = ""


def write_contact_sheet(manifest: Manifest, table: AnyImageList, path: Path) -> None:
    """Draw the contact sheet of a manifest whose source is `table`, and save it as PNG."""
    if isinstance(table, ImageList) == manifest.composed:
        raise UserError(f"the manifest of {manifest.source} does not belong to the source {table.name}")
    sheet = _draw_composed(manifest, table) if isinstance(table, ComposedList) else _draw_images(manifest, table)
    save_sheet(sheet, path)


def save_sheet(sheet: Image.Image, path: Path) -> None:
    """Save a sheet as PNG."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda partial: sheet.save(partial, format="PNG"))
    except (OSError, UserError) as error:
        reason = explain_os_error(error, path) if isinstance(error, OSError) else error
        raise UserError(f"cannot write the contact sheet: {reason}") from error


def _draw_images(manifest: Manifest, table: ImageList | CutoutList) -> Image.Image:
    """A row per domain, a column per class; a few images of each, those of the source first."""
    if isinstance(table, ImageList):
        read = partial(_read_files, manifest, table)
    else:
        read = partial(_compose_cutouts, manifest, table)
    cells = [
        [_read_cell(read, _choose(manifest, domain, label)) for label in range(len(manifest.classes))]
        for domain in range(len(manifest.domains))
    ]
    title = f"{manifest.source}, {manifest.split}, seed {manifest.seed}"
    return draw_grid(title, manifest.classes, manifest.domains, cells, _PER_CELL, _PARTS)


def _choose(manifest: Manifest, domain: int, label: int) -> pd.DataFrame:
    """Rows of a domain and class: source and target alternate, so that both are shown if both exist."""
    rows = manifest.rows
    rows = rows[(rows["domain"] == domain) & (rows["label"] == label)]
    target = rows["part"].isin(TARGET_PARTS)
    turn = rows.groupby(target).cumcount()
    return rows.assign(turn=turn, target=target).sort_values(["turn", "target"], kind="stable")


def _read_cell(read: Callable[[pd.DataFrame], list[NDArray[np.uint8]]], rows: pd.DataFrame) -> SheetCell:
    shown = rows[:_PER_CELL]
    images = read(shown)
    source, target = (int(rows["part"].isin(parts).sum()) for parts in (SOURCE_PARTS, TARGET_PARTS))
    counts = [f"{count} {word}" for count, word in ((source, "source"), (target, "target")) if count]
    return SheetCell(images, [TARGET_COLOUR if hit else SOURCE_COLOUR for hit in shown["target"]], ", ".join(counts))


def _read_files(manifest: Manifest, table: ImageList, rows: pd.DataFrame) -> list[NDArray[np.uint8]]:
    known = table.rows.loc[table.rows["id"].isin(rows["id"])].set_index("id")["path"]
    unknown = rows.loc[~rows["id"].isin(known.index), "id"]
    if len(unknown):
        raise UserError(f"the source {table.root} has no image {unknown.iloc[0]}: is it {manifest.source}?")
    return [_decode_or_blank(table, known[name]) for name in rows["id"]]


def _compose_cutouts(manifest: Manifest, table: CutoutList, rows: pd.DataFrame) -> list[NDArray[np.uint8]]:
    images = (Image.fromarray(pixels) for pixels in table.place(manifest, rows).compose())
    return [np.asarray(image.resize((_THUMB, _THUMB), Image.Resampling.BILINEAR)) for image in images]


def _decode_or_blank(table: ImageList, path: str) -> NDArray[np.uint8]:
    """A thumbnail, or a cross for a broken image; `prepare` lists all broken images with reasons."""
    try:
        return decode(table.open_bytes(path), (_THUMB, _THUMB))
    except Exception:  # decoders may raise anything on broken data
        cross = Image.new("RGB", (_THUMB, _THUMB), FAINT)
        ImageDraw.Draw(cross).line([(0, 0), (_THUMB, _THUMB), (0, _THUMB), (_THUMB, 0)], fill=INK)
        return np.asarray(cross)


def _draw_composed(manifest: Manifest, table: ComposedList) -> Image.Image:
    """One row per class: its main background and images on it, in training and at test."""
    parts = (("train", SOURCE_COLOUR), ("test", TARGET_COLOUR))
    sides = [_main_background(manifest, table, part, colour) for part, colour in parts]
    cells = [list(row) for row in zip(*sides, strict=True)]
    ratio = manifest.parameters.get("ratio")
    title = f"{manifest.source}, {manifest.split} {ratio}, seed {manifest.seed}: the main background of each class"
    return draw_grid(title, ("training", "test"), manifest.classes, cells, _PER_SIDE + 1, _PARTS)


def _main_background(manifest: Manifest, table: ComposedList, part: str, colour: str) -> list[SheetCell]:
    """Per class: its most frequent background, then some of the images on it."""
    samples, backgrounds = render_part(table, manifest, part), table.read_backgrounds()
    cells = []
    for label in range(len(manifest.classes)):
        domains = samples.domain[samples.y == label]
        if not len(domains):
            cells.append(SheetCell([], [], "no images"))
            continue
        main = int(torch.bincount(domains).argmax())
        chosen = ((samples.y == label) & (samples.domain == main)).nonzero().squeeze(1)
        whole = Image.fromarray(backgrounds[main]).resize((_THUMB, _THUMB), Image.Resampling.BILINEAR)
        images = [np.asarray(whole), *samples.pixels.read(samples.row[chosen[:_PER_SIDE]]).numpy()]
        caption = f"{manifest.domains[main]}: {len(chosen)} of {len(domains)}"
        cells.append(SheetCell(images, [INK, *[colour] * (len(images) - 1)], caption))
    return cells


def draw_grid(
    title: str,
    columns: Sequence[str],
    rows: Sequence[str],
    cells: list[list[SheetCell]],
    per_cell: int,
    legend: Sequence[tuple[str, str]],
) -> Image.Image:
    """A sheet with a cell per row and column.   per_cell: largest number of images.   legend: texts and colours."""
    font = ImageFont.load_default(_TEXT)
    step = _THUMB + 2 * _BORDER + 2
    width, height = per_cell * step + 2 * _GAP, step + _TEXT + 2 * _GAP
    left = int(max(font.getlength(name) for name in rows)) + 2 * _GAP
    top = 3 * (_TEXT + _GAP) + _GAP
    sheet = Image.new("RGB", (left + width * len(columns) + _GAP, top + height * len(rows)), PAPER)
    draw = ImageDraw.Draw(sheet)
    _write(draw, font, (_GAP, _GAP), title)
    for number, (text, colour) in enumerate(legend):
        _write(draw, font, (_GAP + 240 * number, 2 * _GAP + _TEXT), text, colour)
    for number, name in enumerate(columns):
        _write(draw, font, (left + number * width, top - _TEXT - _GAP), name)
    for number, (name, line) in enumerate(zip(rows, cells, strict=True)):
        _write(draw, font, (_GAP, top + number * height + step // 2 - _TEXT // 2), name)
        for place, cell in enumerate(line):
            _draw_cell(sheet, draw, font, cell, (left + place * width, top + number * height))
    return sheet


def _draw_cell(
    sheet: Image.Image,
    draw: ImageDraw.ImageDraw,
    font: _Font,
    cell: SheetCell,
    corner: tuple[int, int],
) -> None:
    x, y = corner
    for image, colour in zip(cell.images, cell.colours, strict=True):
        draw.rectangle([x, y, x + _THUMB + 2 * _BORDER - 1, y + _THUMB + 2 * _BORDER - 1], fill=colour)
        thumb = Image.fromarray(image).resize((_THUMB, _THUMB), Image.Resampling.NEAREST)
        sheet.paste(thumb, (x + _BORDER, y + _BORDER))
        x += _THUMB + 2 * _BORDER + 2
    _write(draw, font, (corner[0], y + _THUMB + 2 * _BORDER + 1), cell.caption or "–", INK if cell.caption else FAINT)


def _write(draw: ImageDraw.ImageDraw, font: _Font, corner: tuple[int, int], text: str, colour: str = INK) -> None:
    draw.text(corner, text.translate(_NOT_IN_FONT), colour, font)
