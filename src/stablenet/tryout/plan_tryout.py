"""What a tryout trains, written down before it starts, so that it can be stopped, resumed and repeated by commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any
from urllib.error import URLError
from urllib.request import Request as WebRequest
from urllib.request import urlopen

import torch
from PIL import Image

from stablenet.bench.cells import flatten
from stablenet.data.columns import Columns
from stablenet.data.image_list import ImageList
from stablenet.data.sources.own import open_own, settle
from stablenet.engine.trial import time_image
from stablenet.errors import UserError
from stablenet.files import read_json, write_json
from stablenet.long_work import format_time
from stablenet.pages import write_text
from stablenet.values import Positive, check_fields, require

SMALL = 48  # pixels: below it there is little for a network pretrained on photographs to see
LOOKED_AT = 50  # images whose sizes are read
PROBE_SECONDS = 5.0
PRETRAINED = {"cuda": "resnet50", "cpu": "resnet18"}
SIDES = {"cuda": 224, "cpu": 112}  # of the images a pretrained network is given
FROM_SCRATCH = 64  # at most, for the small network
HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class NetworkChoice:
    """values: of the config, its tables data, model and train.   why: a sentence.
    least_epochs: with fewer it does not learn.   most_epochs: more gain nothing.
    """

    values: dict[str, Any]
    why: str
    least_epochs: int
    most_epochs: int

    @property
    def image_size(self) -> int:
        return int(self.values["data"]["image_size"])


def choose_network(
    images: ImageList,
    device: str,
    backbone: str = "",
    pretrained: str = "",
    can_fetch: Callable[[str], bool] | None = None,
) -> NetworkChoice:
    """device: cpu or cuda.   backbone, pretrained: what the user named, "" for nothing.
    can_fetch: whether a network's ImageNet weights are cached or can be downloaded; by default this is checked.
    """
    side = typical_side(images)
    if backbone:
        return _take_named(backbone, pretrained, device, side)
    if pretrained:
        raise UserError("--pretrained needs --backbone: name the network the weights belong to, such as resnet50")
    name = PRETRAINED[device]
    if side < SMALL:
        return _take_small(side, f"the images are small ({side} pixels)")
    if (can_fetch or has_weights)(name):
        return _take_pretrained(name, "imagenet", device, f"{name} with ImageNet weights")
    reason = "no pretrained weights are cached or can be fetched; give yours by --backbone resnet50 --pretrained FILE"
    return _take_small(side, reason)


def typical_side(images: ImageList) -> int:
    """The median of the shorter sides of some images, in pixels."""
    step = max(1, len(images.rows) // LOOKED_AT)
    sizes = []
    for path in images.rows["path"].tolist()[::step][:LOOKED_AT]:
        try:
            with Image.open(BytesIO(images.open_bytes(path))) as image:
                sizes.append(min(image.size))
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise UserError(f"the image {path} cannot be read ({error}): repair it or leave it out") from error
    return int(median(sizes))


def has_weights(name: str) -> bool:
    """Whether torchvision's ImageNet weights are in torch's cache, or can be downloaded."""
    from torchvision import models

    url: str = models.get_model_weights(name)["IMAGENET1K_V1"].url
    if (Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]).is_file():
        return True
    try:
        with urlopen(WebRequest(url, method="HEAD"), timeout=PROBE_SECONDS):
            return True
    except (URLError, OSError):
        return False


def _take_named(name: str, pretrained: str, device: str, side: int) -> NetworkChoice:
    if pretrained:
        own = Path(pretrained)
        pretrained = str(own.absolute()) if own.is_file() else pretrained
        return _take_pretrained(name, pretrained, device, f"{name} with the weights {pretrained}")
    if name == "paper-cnn":
        return _take_small(side, "you named it")
    chosen = _take_pretrained(name, "", device, f"{name} from random weights, as you named no --pretrained")
    chosen.values["train"] |= {"learning_rate": 0.01}
    del chosen.values["model"]["statistics"]
    return NetworkChoice(chosen.values, chosen.why, 15, 30)


def _take_pretrained(name: str, weights: str, device: str, why: str) -> NetworkChoice:
    """Fine-tuned as the natural beds of the results are: statistics kept, a small rate, few epochs."""
    values = {
        "data": {"image_size": SIDES[device], "augment": device == "cuda"},
        "model": {"name": name, "pretrained": weights, "statistics": "frozen"},
        "train": {"learning_rate": 0.002, "schedule": "cosine", "weight_decay": 1e-4, "batch_size": 32},
    }
    return NetworkChoice(values, f"{why}, images of {SIDES[device]} pixels", 3, 8)


def _take_small(side: int, reason: str) -> NetworkChoice:
    """The paper's CNN, with the schedule of the bundled digits."""
    size = max(28, min(side, FROM_SCRATCH))
    values = {
        "data": {"image_size": size, "mean": list(HALF), "std": list(HALF)},
        "model": {"name": "paper-cnn", "parameters": {"image_size": size}},
        "train": {"learning_rate": 0.02, "schedule": "cosine", "weight_decay": 1e-3, "batch_size": 64},
    }
    return NetworkChoice(values, f"a small network from random weights, images of {size} pixels: {reason}", 15, 40)


OVERHEAD = 1.4  # of an epoch over its bare steps: reading, validation, records
FOR_TRAINING = 0.8  # of the minutes; the rest is for the diagnosis and the pages


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asks for.   place: folder, zip archive or image list.   label, context, part: columns of a list.
    root: where a list's paths begin.   unseen: a context to keep out of training, as the target; "" for none.
    minutes: about how long it may take.   seeds: how many; each draws its own split and its own weights.
    """

    place: Path
    output: Path
    label: str = ""
    context: str = ""
    part: str = ""
    root: Path | None = None
    unseen: str = ""
    minutes: Positive = 10.0
    seeds: int = 3
    backbone: str = ""
    pretrained: str = ""
    device: str = "auto"

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.seeds > 1, "seeds", "2 or more, to show a spread", self.seeds)

    @property
    def runs(self) -> Path:
        return self.output / "runs"

    @property
    def table(self) -> Path:
        return self.output / "table.toml"

    @property
    def data_root(self) -> Path:
        """The value of `--root` for the other verbs."""
        return settle(self.place, self.columns) if self.root is None else self.root

    @property
    def columns(self) -> Columns:
        return Columns(label=self.label, context=self.context, part=self.part)

    def open(self) -> ImageList:
        return open_own(self.place, label=self.label, context=self.context, part=self.part, root=self.root)

    @property
    def reading(self) -> list[str]:
        """The options that say how the images are read, of `try` and of `diagnose`."""
        options = [f"--{name}={value}" for name in ("label", "context", "part") if (value := getattr(self, name))]
        return options + ([f"--root={self.root}"] if self.root is not None else [])

    def commands(self) -> list[str]:
        """The same by single commands."""
        shared = ["--runs", str(self.runs), "--root", str(self.data_root), "--device", self.device]
        words = (
            ["diagnose", str(self.place), *self.reading, "-o", str(self.output / "diagnosis.html")],
            ["bench", "run", str(self.table), "--seeds", str(self.seeds), *shared],
            ["report", str(self.table), *shared, "-o", str(self.output)],
        )
        return [shlex.join(["stablenet", *line]) for line in words]


def plan_tryout(request: Request, images: ImageList, device: str, at_once: int) -> str:
    """Write the plan, or find the one of an earlier start of the same request. Returns what will be trained, in words.

    device: cpu or cuda.   at_once: runs in parallel.
    """
    file = request.output / "request.json"
    asked = {name: str(value) for name, value in asdict(request).items()}
    if file.exists():
        before = read_json(file)
        if not isinstance(before, Mapping) or before.get("request") != asked:
            raise UserError(
                f"{request.output} holds a tryout of other data or with other options: choose another --output, "
                "or delete that folder"
            )
        return str(before["plan"])
    network = choose_network(images, device, request.backbone, request.pretrained)
    samples = _count_training(images)
    seconds = time_epoch(network, samples, len(images.classes), device)
    epochs = fit_epochs(request, network, seconds, at_once)
    _write_files(request, images, network, epochs, samples)
    expected = 2 * request.seeds * epochs * seconds / min(at_once, 2 * request.seeds)
    said = f"{network.why}; {epochs} epochs, {request.seeds} seeds, plain training and StableNet: "
    said += f"about {format_time(expected)}"
    if expected > 60 * request.minutes:
        asked_for = format_time(60 * request.minutes)
        said += f", longer than the {asked_for} of --minutes, as with fewer than {epochs} epochs it learns nothing"
    write_json(file, {"request": asked, "plan": said})
    return said


def fit_epochs(request: Request, network: NetworkChoice, seconds: float, at_once: int) -> int:
    """As many epochs as the minutes allow, between the least with which a network learns and the most."""
    allowed = FOR_TRAINING * 60 * request.minutes * at_once / (2 * request.seeds * seconds)
    return max(network.least_epochs, min(network.most_epochs, int(allowed)))


def time_epoch(network: NetworkChoice, samples: int, classes: int, device: str) -> float:
    """Seconds of an epoch; on a processor with one thread, as runs have."""
    model, train = network.values["model"], network.values["train"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = time_image(
            model["name"], model.get("parameters", {}), network.image_size, classes, int(train["batch_size"]), device
        )
    finally:
        torch.set_num_threads(threads)
    return OVERHEAD * seconds * samples


def _count_training(images: ImageList) -> int:
    return int(images.given_parts.get("train", 0.72 * len(images.rows)))  # else a fifth and a tenth are held out


def _write_files(request: Request, images: ImageList, network: NetworkChoice, epochs: int, samples: int) -> None:
    """The config of the data and training, and the table of two rows."""
    data: dict[str, Any] = {"source": images.name, **network.values["data"]}
    columns = {name: value for name in ("label", "context", "part") if (value := getattr(request, name))}
    data |= {"columns": columns} if columns else {}
    data |= {"image_list": str(request.place.absolute())} if request.root is not None else {}
    data |= {"split": "classic", "parameters": {"target": request.unseen}} if request.unseen else {}
    train = {**network.values["train"], "epochs": epochs}
    train["batch_size"] = max(2, min(train["batch_size"], samples // 4))
    values = {"label": "try", "data": data, "model": network.values["model"], "train": train}
    write_text(request.output / "data.toml", "\n".join(line.replace("=", " = ", 1) for line in flatten(values)) + "\n")
    write_text(request.table, _write_table(images))


def _write_table(images: ImageList) -> str:
    figures = [("all", "test images", "accuracy")]
    if images.contexts:
        figures += [("worst", "worst group of class and context", "worst-group")]
    columns = [
        f'[[column]]\nid = "{name}"\ntitle = "{title}"\nconfig = "data.toml"\nmetric = "{metric}"\n'
        for name, title, metric in figures
    ]
    rows = [
        '[[row]]\nid = "erm"\ntitle = "ERM"\nmethod = "erm"\n',
        '[[row]]\nid = "stablenet"\ntitle = "StableNet"\nmethod = "stablenet"\n',
    ]
    return "\n".join(['title = "Your images"\n', *columns, *rows])
