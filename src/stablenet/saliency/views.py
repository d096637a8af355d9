"""One run's maps of some images; kept in its folder, so that no page computes them twice."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from stablenet.engine.checkpoint import load_tensors, save_tensors
from stablenet.engine.config import hash_values
from stablenet.engine.runs import Run
from stablenet.evaluation.evaluate import load_chosen
from stablenet.evaluation.predict import find_device
from stablenet.evaluation.selection import DEFAULT_RULE, select_epoch
from stablenet.saliency.maps import SaliencySettings, smooth_gradients
from stablenet.saliency.masks import share_on_object
from stablenet.saliency.sanity import Sanity, check_maps
from stablenet.saliency.subjects import Subjects

CHECKED = 4  # images of the sanity check, which makes two more maps of each
_KEY_DIGITS = 12


@dataclass(frozen=True)
class View:
    """What a run sees in n images.

    maps: (n, s, s) of the predicted class.   predicted: (n,) class.   probability: (n,) of it.   epoch: of the model.
    shares: (n,) of the saliency on the object, NaN where a map is zero, None where the object is not known.
    """

    run: Run
    maps: Tensor
    predicted: Tensor
    probability: Tensor
    epoch: int
    sanity: Sanity
    shares: Tensor | None

    @property
    def mean_share(self) -> float | None:
        """Over the maps that are not zero everywhere; None where there are none, or the object is not known."""
        known = torch.empty(0) if self.shares is None else self.shares[~self.shares.isnan()]
        return float(known.mean()) if len(known) else None


def view_images(
    run: Run, subjects: Subjects, settings: SaliencySettings, *, rule: str = DEFAULT_RULE, device: str = "auto"
) -> View:
    """The run's maps, from its folder where they were made before."""
    epoch = select_epoch(rule, run.records, run.oracle).epoch
    path = _name_file(run, subjects, settings, f"{rule} {epoch}")
    if not path.exists():
        _make(run, subjects, settings, rule, device, path)
    tensors, meta = load_tensors(path)
    maps = tensors["maps"]
    return View(
        run=run,
        maps=maps,
        predicted=tensors["predicted"],
        probability=tensors["probability"],
        epoch=epoch,
        sanity=Sanity(**meta["sanity"]),
        shares=None if subjects.masks is None else share_on_object(maps, subjects.masks),
    )


def _make(run: Run, subjects: Subjects, settings: SaliencySettings, rule: str, device: str, path: Path) -> None:
    place = find_device(device)
    model = load_chosen(run, rule)[0].to(place).eval()
    key = torch.zeros(1, dtype=torch.int64)
    images = torch.cat([run.transform(pixels[None], key) for pixels in subjects.pixels]).to(place)
    with torch.no_grad():
        probability, predicted = model(images).softmax(1).max(1)

    def check(network: torch.nn.Module, seed: int) -> Tensor:
        return smooth_gradients(network, images[:CHECKED], predicted[:CHECKED], replace(settings, seed=seed)).cpu()

    maps = smooth_gradients(model, images, predicted, settings).cpu()
    sanity = check_maps(model, maps[:CHECKED], check, settings.seed)
    tensors = {"maps": maps, "predicted": predicted.cpu(), "probability": probability.cpu()}
    save_tensors(path, tensors, {"sanity": asdict(sanity)})


def _name_file(run: Run, subjects: Subjects, settings: SaliencySettings, model: str) -> Path:
    pixels = [hash_pixels(image) for image in subjects.pixels]
    seen = hash_values({"pixels": pixels, "settings": asdict(settings), "model": model})
    return run.path / f"saliency-{seen[:_KEY_DIGITS]}.safetensors"


def hash_pixels(pixels: Tensor) -> str:
    """SHA-256 of (H, W, 3) uint8: images of one name may differ."""
    return hashlib.sha256(bytes(str(tuple(pixels.shape)), "ascii") + pixels.contiguous().numpy().tobytes()).hexdigest()
