"""Predictions of a model, for a part of a split or for any image files, folders or image lists.

A table of predictions, with the labels and domains of the samples, is the input of all later computations.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from stablenet.data.augment import Transform
from stablenet.data.columns import PATH, USUAL
from stablenet.data.decode import decode, read_size
from stablenet.data.loader import BatchSettings, Loader, PartSamples
from stablenet.data.manifest import Manifest
from stablenet.data.sources.folder import IMAGE_SUFFIXES
from stablenet.data.sources.own import locate_images
from stablenet.engine.session import choose_device
from stablenet.errors import UserError
from stablenet.files import check_names, read_bytes, refuse_folder
from stablenet.frames import SUFFIXES, read_frame, write_csv, write_parquet
from stablenet.metrics import GroupCounts, calibration_error

PREFIX = "p_"  # of the probability columns, one per class


@dataclass(frozen=True)
class Predictions:
    """Logits (n, classes) float32 of the samples of one part, and their ids, classes (n,) and domains (n,)."""

    ids: Sequence[str]
    logits: Tensor
    y: Tensor
    domain: Tensor

    @property
    def probabilities(self) -> Tensor:
        """(n, classes), rows sum to one."""
        return self.logits.double().softmax(1).float()


def measure(predictions: Predictions, domains: Sequence[str], classes: Sequence[str]) -> dict[str, Any]:
    """The metrics of `GroupCounts`, the worst group, and the calibration error."""
    counts = GroupCounts(len(domains), len(classes), torch.device("cpu"))
    counts.add(predictions.logits, predictions.y, predictions.domain)
    figures = counts.figures(domains, classes)
    return {
        **figures,
        "worst_group": figures["groups"]["worst"],
        "calibration_error": calibration_error(predictions.probabilities, predictions.y),
    }


def tabulate(predictions: Predictions, manifest: Manifest) -> pd.DataFrame:
    """One row per sample: id, domain, class, right, predicted, its probability, p_<class> for all classes."""
    classes, domains = np.array(manifest.classes, object), np.array(manifest.domains, object)
    rows = pd.DataFrame(
        {
            "id": list(predictions.ids),
            "domain": domains[predictions.domain.numpy()],
            "class": classes[predictions.y.numpy()],
            "right": (predictions.logits.argmax(1) == predictions.y).numpy(),
        }
    )
    return add_predictions(rows, predictions.logits, manifest.classes)


def add_predictions(rows: pd.DataFrame, logits: Tensor, classes: Sequence[str]) -> pd.DataFrame:
    """Add the columns predicted, probability and p_<class>, replacing existing columns of these names."""
    probabilities = logits.double().softmax(1).float().numpy()
    names = np.array(classes, object)
    columns: dict[str, Any] = {
        "predicted": names[probabilities.argmax(1)],
        "probability": probabilities.max(1),
        **_name_probabilities(probabilities, classes),
    }
    kept = rows[[column for column in rows.columns if column not in columns]]
    return pd.concat([kept, pd.DataFrame(columns, index=rows.index)], axis=1)


def _name_probabilities(probabilities: Any, classes: Sequence[str]) -> dict[str, Any]:
    """One column p_<class> per class from an array (n, classes)."""
    return {f"{PREFIX}{name}": probabilities[:, number] for number, name in enumerate(classes)}


def check_table_path(path: Path) -> None:
    """Raise unless the path is CSV or Parquet."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise UserError(f"the samples are written as .csv or .parquet, got {path.name!r}")


def save_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table atomically as CSV or Parquet, by the path's extension."""
    check_table_path(path)
    write = write_csv if path.suffix.lower() == ".csv" else write_parquet
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(table, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


BATCH_SIZE = 128
Progress = Callable[[int, int], None]  # images done, images in total


def find_device(name: str) -> torch.device:
    """The torch device for "auto", "cpu", "cuda" or "cuda:1"."""
    kind, chosen = choose_device(name)
    return torch.device(kind, chosen[0] if isinstance(chosen, list) else 0) if kind == "cuda" else torch.device("cpu")


@torch.inference_mode()
def predict_part(
    model: nn.Module,
    samples: PartSamples,
    transform: Transform,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> Predictions:
    """Predict all samples of a part, in the order of its rows."""
    model = model.to(device).eval()
    loader = Loader(samples, BatchSettings(batch_size=batch_size, shuffle=False), transform, device=device)
    logits: list[Tensor] = []
    done = 0
    for batch in loader.epoch(0):
        logits.append(model(batch.x).float().cpu())
        done += len(batch.y)
        if progress is not None:
            progress(done, len(samples))
    ids = samples.pixels.ids
    return Predictions([ids[row] for row in samples.row.tolist()], torch.cat(logits), samples.y, samples.domain)


@torch.inference_mode()
def predict_images(
    model: nn.Module,
    paths: Sequence[Path],
    transform: Transform,
    *,
    stored_side: int | None,
    device: torch.device | str = "cpu",
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> Tensor:
    """Logits (n, classes) of image files, processed like the images of the training store.

    stored_side: side of the stored square images, None if they kept their size.
    """
    model = model.to(device).eval()
    logits: list[Tensor] = []
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(paths), batch_size):
            chosen = paths[start : start + batch_size]
            pixels = pool.map(lambda path: read_pixels(path, stored_side), chosen)
            # One by one, because images may differ in size before the transform.
            images = [transform(image[None].to(device), torch.zeros(1, dtype=torch.int64)) for image in pixels]
            logits.append(model(torch.cat(images)).float().cpu())
            if progress is not None:
                progress(start + len(chosen), len(paths))
    return torch.cat(logits)


def read_pixels(path: Path, side: int | None) -> Tensor:
    """Read an image file as (H, W, 3) uint8, as `stablenet data prepare` would store it."""
    try:
        array = decode(read_bytes(path), None if side is None else (side, side))
    except OSError as error:  # of the decoder
        raise UserError(f"cannot read the image {path}: damaged or not an image") from error
    except Exception as error:  # decoders may raise anything on broken data
        raise UserError(f"cannot read the image {path}: {error}") from error
    return torch.tensor(array)


def find_broken(paths: Sequence[Path], side: int | None) -> dict[Path, str]:
    """The files that cannot be read as images, with error messages."""

    def try_one(path: Path) -> str:
        try:
            read_pixels(path, side)
        except UserError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor() as pool:
        messages = pool.map(try_one, paths)
        return {path: message for path, message in zip(paths, messages, strict=True) if message}


def gather_images(inputs: Sequence[Path], root: Path | None = None) -> pd.DataFrame:
    """One row per image, in the given order: its path, relative to the working directory, and a list's other columns.

    A folder gives all images below it, sorted.   root: where relative paths in a list begin, if they do not begin in
    the list's folder.
    """
    check_names(inputs)
    frames = [_gather(place, root) for place in inputs]
    if not frames:
        raise UserError("no images given: pass files, folders or a CSV with a column 'path'")
    gathered = pd.concat(frames, ignore_index=True)
    missing = [path for path in gathered[PATH] if not Path(path).is_file()]
    if missing:
        raise UserError(f"{len(missing)} of {len(gathered)} images do not exist, for example {missing[0]}")
    return gathered


def check_images(paths: Sequence[Path]) -> None:
    """Raise for the first file that is no image by its header, before any is predicted."""
    for path in paths:
        try:
            read_size(path.parent, path.name)
        except Exception as error:  # decoders may raise anything on broken data
            raise UserError(f"cannot read the image {path}: {error}") from error


def _gather(place: Path, root: Path | None) -> pd.DataFrame:
    if place.is_dir():
        return _gather_folder(place)
    if not place.exists():
        raise UserError(f"{place} does not exist: pass image files, folders or a CSV with a column 'path'")
    if place.suffix.lower() in SUFFIXES:
        return _gather_list(place, root)
    if place.suffix.lower() in IMAGE_SUFFIXES:
        return pd.DataFrame({PATH: [str(place)]})
    known = ", ".join(IMAGE_SUFFIXES + SUFFIXES)
    raise UserError(f"{place} is neither an image nor a table by its extension: supported are {known}")


def _gather_folder(folder: Path) -> pd.DataFrame:
    walked = os.walk(folder, onerror=refuse_folder)
    paths = (Path(place, name) for place, _, names in walked for name in names)
    found = sorted(path for path in paths if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())
    if not found:
        raise UserError(f"the folder {folder} contains no images ({', '.join(IMAGE_SUFFIXES)})")
    check_names(found)
    return pd.DataFrame({PATH: [str(path) for path in found]})


def _gather_list(file: Path, root: Path | None) -> pd.DataFrame:
    rows = read_frame(file, as_text=True)
    named = next((name for name in USUAL[PATH] if name in rows), None)
    if named is None:
        has = ", ".join(map(str, rows.columns))
        raise UserError(f"{file} has no column {' or '.join(USUAL[PATH])}: it has {has}")
    if rows.empty:
        raise UserError(f"{file} has no rows: nothing to predict")
    base, paths = locate_images(rows[named].astype(str).tolist(), file, root)
    return rows.rename(columns={named: PATH}).assign(**{PATH: [str(base / path) for path in paths]})
