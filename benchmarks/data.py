"""Speed of the data path, as ratios of two alternatives measured in alternation in one run.

    python benchmarks/data.py --data FOLDER [--parts prepare feed gpu] [--out results/data]

prepare  decoding PACS into a store with all cores, against one core                       bar 1.6 on two cores
feed     batches from the store, against a DataLoader over the image files, same cores     bar 5
gpu      ResNet-18 training from the store, against constant synthetic batches             bar 0.95 (needs CUDA)
         and the Triton programs of the transforms alone, against batched operations of torch
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18
from torchvision.transforms import v2

from stablenet.data.augment import Augment, Normalization, Resize, Transform
from stablenet.data.image_list import ImageList
from stablenet.data.loader import BatchSettings, Loader, PartSamples
from stablenet.data.prepare import prepare
from stablenet.data.sources import read_source
from stablenet.data.store import PixelStore
from stablenet.data.transforms import Draws, apply_draws

BATCH = 128
GPU_BATCH = 64
SIZE = 224
NORMALIZATION = Normalization()


@dataclass
class Result:
    """Images per second of the new and the usual way (best of the rounds), and their ratio."""

    part: str
    what: str
    new: float
    old: float
    bar: float | None

    @property
    def ratio(self) -> float:
        return self.new / self.old


def measure_in_turn(ways: list[Callable[[], float]], rounds: int) -> list[float]:
    """The best figure of each way, because other load can only slow it down. The ways alternate."""
    figures = [[way() for way in ways] for _ in range(rounds)]
    best = [max(column) for column in zip(*figures, strict=True)]
    print("  " + " against ".join(f"{figure:,.0f}" for figure in best) + " images/s", flush=True)
    return best


def bench_prepare(table: ImageList, place: Path, rounds: int) -> list[Result]:
    """The whole of `prepare`: sizes, decoding, hashing, writing, flushing to disk; in wall-clock and in CPU time.

    If other jobs use the cores, wall-clock time depends on how the cores were shared; CPU time is the work done.
    """
    spent: dict[int, list[float]] = {}

    def run(workers: int) -> float:
        shutil.rmtree(place, ignore_errors=True)
        start, used = time.perf_counter(), _processor_seconds()
        prepare(table, place, workers=workers)
        spent.setdefault(workers, []).append(len(table.rows) / (_processor_seconds() - used))
        return len(table.rows) / (time.perf_counter() - start)

    cores = os.cpu_count() or 1
    new, old = measure_in_turn([lambda: run(cores), lambda: run(1)], rounds)
    name = f"{cores} processes / 1 process"
    return [
        Result("prepare", name, new, old, 1.6 if cores == 2 else None),
        Result("prepare", f"{name}, per second of processor time", max(spent[cores]), max(spent[1]), None),
    ]


def _processor_seconds() -> float:
    """CPU seconds of this process and of its finished children."""
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


class ImageFiles(Dataset[tuple[Tensor, int, int, int]]):
    """The usual way: one encoded file per image, decoded on access."""

    def __init__(self, folder: Path, rows: list[tuple[str, int, int]], transform: Callable[[object], Tensor]) -> None:
        self.folder, self.rows, self.transform = folder, rows, transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int, int]:
        path, label, domain = self.rows[index]
        with Image.open(BytesIO((self.folder / path).read_bytes())) as image:
            return self.transform(image.convert("RGB")), label, domain, index


class Raw:
    """No transform: raw pixels."""

    def __call__(self, pixels: Tensor, key: Tensor) -> Tensor:
        return pixels

    def draw(self, key: Tensor, height: int, width: int) -> Tensor:
        return torch.empty(len(key), 0)

    def apply(self, pixels: Tensor, draws: Tensor, rows: Tensor | None = None) -> Tensor:
        return pixels if rows is None else pixels[rows]


class BatchedAugment(Augment):
    """The augmentation as it runs without Triton."""

    def apply(self, pixels: Tensor, draws: Tensor, rows: Tensor | None = None) -> Tensor:
        images = apply_draws(pixels if rows is None else pixels[rows], Draws.unpack(draws), self.size)
        return self.normalization(images)


class BatchedResize(Resize):
    """The resizing as it runs without Triton."""

    def apply(self, pixels: Tensor, draws: Tensor, rows: Tensor | None = None) -> Tensor:
        return self._resize(pixels if rows is None else pixels[rows])


def file_transforms() -> dict[str, Callable[[object], Tensor]]:
    """torchvision's, image by image, in the worker processes."""
    finish = [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(NORMALIZATION.mean, NORMALIZATION.std),
    ]
    augment = [
        v2.RandomResizedCrop(SIZE, (0.8, 1.0), antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.4, 0.4, 0.4, 0.4),
        v2.RandomGrayscale(0.1),
    ]
    return {
        "pixels": v2.PILToTensor(),
        "resized, normalized": v2.Compose([v2.Resize((SIZE, SIZE)), *finish]),
        "augmented, on the processor": v2.Compose([*augment, *finish]),
    }


def store_transforms() -> dict[str, Transform]:
    return {
        "pixels": Raw(),
        "resized, normalized": Resize(SIZE, NORMALIZATION),
        "augmented, on the processor": Augment(SIZE, NORMALIZATION),
    }


def bench_feed(table: ImageList, store: PixelStore, folder: Path, rounds: int, batches: int) -> list[Result]:
    rows = list(zip(table.rows["path"], table.rows["label"], table.rows["domain"], strict=True))
    results = []
    for name, transform in file_transforms().items():
        files = ImageFiles(folder, rows, transform)

        def from_files(files: ImageFiles = files) -> float:
            loader = DataLoader(files, BATCH, shuffle=True, num_workers=os.cpu_count() or 1, drop_last=True)
            return _rate(iter(loader), batches)

        def from_store(name: str = name) -> float:
            settings = BatchSettings(batch_size=BATCH, drop_last=True)
            return _rate(Loader(take_all(store), settings, store_transforms()[name]).epoch(0), batches)

        new, old = measure_in_turn([from_store, from_files], rounds)
        results.append(Result("feed", name, new, old, 5.0 if name == "pixels" else None))
    return results


def _rate(loader: Iterator[object], batches: int) -> float:
    """Images per second, after the first batch (the start of the workers is not counted)."""
    next(loader)
    start = time.perf_counter()
    for _ in range(batches):
        next(loader)
    return batches * BATCH / (time.perf_counter() - start)


def take_all(store: PixelStore) -> PartSamples:
    """The whole store as one part."""
    y, domain = (torch.tensor(store.rows[name].to_numpy()) for name in ("label", "domain"))
    index = torch.arange(len(store))
    return PartSamples(store, index, y, domain, index, len(store))


def bench_gpu(store: PixelStore, rounds: int, steps: int) -> list[Result]:
    """Training steps per second, each way on the same network, in bfloat16 and in TF32."""
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    feeds = {
        "on the device, augmented": ("device", Augment(SIZE, NORMALIZATION)),
        "streamed, augmented": ("stream", Augment(SIZE, NORMALIZATION)),
        "on the device, augmented, without Triton": ("device", BatchedAugment(SIZE, NORMALIZATION)),
        "on the device, resized": ("device", Resize(SIZE, NORMALIZATION)),
        "on the device, resized, without Triton": ("device", BatchedResize(SIZE, NORMALIZATION)),
    }
    loaders = {name: open_loader(store, transform, place) for name, (place, transform) in feeds.items()}
    results = bench_transforms(loaders, rounds, steps)
    for precision in ("bfloat16", "tf32"):
        train = Trainer(precision)
        x = torch.randn(GPU_BATCH, 3, SIZE, SIZE, device="cuda").contiguous(memory_format=torch.channels_last)
        fixed = (x, torch.randint(7, (GPU_BATCH,), device="cuda"))
        for name, loader in loaders.items():

            def from_store(loader: Loader = loader, train: Trainer = train) -> float:
                return train.rate(_repeat(loader), steps)

            def synthetic(train: Trainer = train, fixed: tuple[Tensor, Tensor] = fixed) -> float:
                return train.rate(iter(lambda: fixed, None), steps)

            print(f"{precision}, {name}", flush=True)
            new, old = measure_in_turn([from_store, synthetic], rounds)
            bar = 0.95 if name == "on the device, augmented" else None
            results.append(Result("gpu", f"{precision}: {name}", new, old, bar))
    return results


def open_loader(store: PixelStore, transform: Transform, place: str) -> Loader:
    settings = BatchSettings(batch_size=GPU_BATCH, drop_last=True)
    return Loader(take_all(store), settings, transform, device="cuda", place=place)


def bench_transforms(loaders: dict[str, Loader], rounds: int, steps: int) -> list[Result]:
    """Batches per second without a network: the Triton programs, against batched torch operations."""

    def run(loader: Loader) -> float:
        batches = _repeat(loader)
        for _ in range(10):
            next(batches)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            next(batches)
        torch.cuda.synchronize()
        return steps * GPU_BATCH / (time.perf_counter() - start)

    results = []
    for name in ("on the device, augmented", "on the device, resized"):
        new, old = measure_in_turn(
            [lambda name=name: run(loaders[name]), lambda name=name: run(loaders[f"{name}, without Triton"])], rounds
        )
        results.append(Result("gpu", f"no network: {name}, with Triton / without", new, old, None))
    return results


def _repeat(loader: Loader) -> Iterator[tuple[Tensor, Tensor]]:
    epoch = 0
    while True:
        for batch in loader.epoch(epoch):
            yield batch.x, batch.y
        epoch += 1


class Trainer:
    """ResNet-18 with seven classes, SGD, channels last."""

    def __init__(self, precision: str) -> None:
        self.network = resnet18(num_classes=7).cuda().to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01, momentum=0.9)
        self.low = precision == "bfloat16"

    def rate(self, batches: Iterator[tuple[Tensor, Tensor]], steps: int) -> float:
        """Images per second over `steps` steps, after warm-up steps (compiling, choosing kernels)."""
        for _ in range(10):
            self.step(*next(batches))
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            self.step(*next(batches))
        torch.cuda.synchronize()
        return steps * GPU_BATCH / (time.perf_counter() - start)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16) if self.low else nullcontext():
            loss = nn.functional.cross_entropy(self.network(x.contiguous(memory_format=torch.channels_last)), y)
        loss.backward()
        self.optimizer.step()


def unpack(table: ImageList, folder: Path) -> Path:
    """Image files for the usual way."""
    if table.root.is_dir():
        return table.root
    with zipfile.ZipFile(table.root) as archive:
        archive.extractall(folder, table.rows["path"])
    return folder


def describe_machine(load_before: float) -> str:
    """The machine measured on; a load near or above the number of cores makes the figures unreliable."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    load = f"load {load_before:.1f} before and {os.getloadavg()[0]:.1f} after"
    return f"{platform.machine()}, {os.cpu_count()} cores, {load}, {device}, torch {torch.__version__}"


def report(results: list[Result], machine: str, out: Path) -> None:
    table = Table("part", "what", "images/s", "beside", "ratio", "bar", title=f"data path: {machine}")
    for result in results:
        bar = "" if result.bar is None else f"{result.bar:g} {'met' if result.ratio >= result.bar else 'MISSED'}"
        figures = f"{result.new:,.0f}", f"{result.old:,.0f}", f"{result.ratio:.2f}"
        table.add_row(result.part, result.what, *figures, bar)
    Console(width=140).print(table)
    save(results, machine, out / ("speed-gpu.json" if torch.cuda.is_available() else "speed-cpu.json"))


def save(results: list[Result], machine: str, path: Path) -> None:
    """Part by part, each with the machine it was measured on; parts not measured now are kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = json.loads(path.read_text()) if path.exists() else {}
    for part in sorted({result.part for result in results}):
        records = [asdict(result) | {"ratio": result.ratio} for result in results if result.part == part]
        parts[part] = {"machine": machine, "results": records}
    path.write_text(json.dumps(parts, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("STABLENET_DATA"), help="folder with PACS")
    parser.add_argument("--parts", nargs="+", choices=["prepare", "feed", "gpu"], help="default: all that can run")
    parser.add_argument("--out", type=Path, default=Path("results/data"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=10, help="batches per round of feed")
    parser.add_argument("--steps", type=int, default=100, help="training steps per round of gpu")
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    parts = arguments.parts or ["prepare", "feed", *(["gpu"] if torch.cuda.is_available() else [])]
    table = read_source("pacs", arguments.data)
    assert isinstance(table, ImageList)
    with tempfile.TemporaryDirectory() as scratch:
        place, results = Path(scratch) / "store", []
        if "prepare" in parts:
            results += bench_prepare(table, place, arguments.rounds)
        store = prepare(table, place).store
        if "feed" in parts:
            folder = unpack(table, Path(scratch) / "files")
            results += bench_feed(table, store, folder, arguments.rounds, arguments.batches)
        if "gpu" in parts:
            results += bench_gpu(store, arguments.rounds, arguments.steps)
    report(results, describe_machine(load_before), arguments.out)


if __name__ == "__main__":
    main()
