"""From a model and pixels to logits: a part of a split, or any images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor, nn

from stablenet.data.augment import Transform
from stablenet.data.decode import decode
from stablenet.data.order import BatchSettings
from stablenet.data.pipeline import Loader, Samples
from stablenet.engine.devices import choose_device
from stablenet.errors import UserError
from stablenet.evaluation.predictions import Predictions

BATCH_SIZE = 128
Progress = Callable[[int, int], None]  # images done, images in all


def find_device(name: str) -> torch.device:
    """ "auto", "cpu", "cuda" or "cuda:1" as torch's device."""
    kind, chosen = choose_device(name)
    return torch.device(kind, chosen[0] if isinstance(chosen, list) else 0) if kind == "cuda" else torch.device("cpu")


@torch.inference_mode()
def predict_part(
    model: nn.Module,
    samples: Samples,
    transform: Transform,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> Predictions:
    """The logits of all samples of a part, in the order of its rows."""
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
    """Logits (n, classes) of image files, each treated as an image of the training's store.

    stored_side: side of the squares that were stored, None where images kept their own size.
    """
    model = model.to(device).eval()
    logits: list[Tensor] = []
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(paths), batch_size):
            chosen = paths[start : start + batch_size]
            pixels = pool.map(lambda path: read_pixels(path, stored_side), chosen)
            # One by one, because images may differ in size until the transform has seen them.
            images = [transform(image[None].to(device), torch.zeros(1, dtype=torch.int64)) for image in pixels]
            logits.append(model(torch.cat(images)).float().cpu())
            if progress is not None:
                progress(start + len(chosen), len(paths))
    return torch.cat(logits)


def read_pixels(path: Path, side: int | None) -> Tensor:
    """One image file as (H, W, 3) uint8, as `stablenet data prepare` would store it."""
    try:
        array = decode(path.read_bytes(), None if side is None else (side, side))
    except OSError as error:  # of the disk, or of the decoder, which raises the same kind
        raise UserError(f"cannot read the image {path}: {error.strerror or 'it is damaged or no image'}") from error
    except Exception as error:  # decoders raise whatever they like on broken bytes
        raise UserError(f"cannot read the image {path}: {error}") from error
    return torch.tensor(array)


def find_broken(paths: Sequence[Path], side: int | None) -> dict[Path, str]:
    """The files that cannot be read as images, each with one sentence."""

    def try_one(path: Path) -> str:
        try:
            read_pixels(path, side)
        except UserError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor() as pool:
        messages = pool.map(try_one, paths)
        return {path: message for path, message in zip(paths, messages, strict=True) if message}
