"""Measurements of `benchmarks.scale`: each is made in a process of its own, whose peak memory is its own.

Features are drawn block by block from a seed, so that a sample is a function of its place, whatever the number of
samples and processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablenet.weighting import WholeSet, distributed, recommended
from stablenet.weighting.samples import own_range

FEATURES, CONTEXTS, COLUMNS = 1536, 20, 50
DRAWN = 4096  # rows of a block
GIB = 2**30
# The processor's budget leaves room for the features and the libraries.
MEMORY = {"cuda": "4GiB", "cpu": "1GiB"}
CLASSES = {"cuda": 1000, "cpu": 100}
SHARED_MEMORY, STEPS = "512MiB", 3  # of solves by several processes, whose steps are all alike
SIMULATED = {"samples": 524_288, "width": 16, "classes": 10}  # of each process
STARTS = 15  # of the command, in turn with the bare interpreter


@dataclass(frozen=True)
class Fit:
    """What one measurement took.

    gib: the peak, on a GPU beyond the features.   load: of the machine, at its end.   found: what came out.
    """

    part: str
    size: int
    seconds: float
    cpu_seconds: float
    gib: float
    load: float
    found: dict[str, Any] = field(default_factory=dict)


class Clock:
    """Time and the peak of memory of what is done inside.   features: bytes on a GPU that do not count."""

    def __init__(self, device: str = "cpu", features: int = 0) -> None:
        self._device, self._features = device, features

    def __enter__(self) -> Clock:
        if self._device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()
        self.seconds, self.cpu_seconds = time.perf_counter() - self._wall, time.process_time() - self._cpu
        held = torch.cuda.max_memory_reserved() - self._features if self._device == "cuda" else resident_peak()
        self.gib = held / GIB

    def fit(self, part: str, size: int, **found: Any) -> Fit:
        return Fit(part, size, self.seconds, self.cpu_seconds, self.gib, os.getloadavg()[0], found)


def resident_peak() -> float:
    """Bytes: the largest resident size of this process so far.

    What Linux tells as `ru_maxrss` is at least the size that the parent had when it started this process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return 1024.0 * int(re.search(r"VmHWM:\s*(\d+)", status.read_text())[1])  # type: ignore[index]
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def draw_block(start: int, stop: int, classes: int, device: str, width: int) -> tuple[Tensor, Tensor]:
    """Features (stop − start, width) and labels of samples whose context agrees with their class half of the time.

    `start` is a multiple of `DRAWN`.
    """
    generator = torch.Generator(device).manual_seed(1 + start // DRAWN)
    centres = torch.randn(CONTEXTS, width, generator=torch.Generator().manual_seed(0)).to(device)
    size = stop - start
    labels = torch.randint(0, classes, (size,), generator=generator, device=device)
    other = torch.randint(0, CONTEXTS, (size,), generator=generator, device=device)
    agrees = torch.rand(size, generator=generator, device=device) < 0.5
    context = torch.where(agrees, labels % CONTEXTS, other)
    noise = torch.randn(size, width, generator=generator, device=device)
    return noise.add_(centres[context], alpha=0.5), labels


def make_whole_set(samples: int, classes: int, memory: str, **overrides: Any) -> WholeSet:
    """Weights and offsets of four components, together."""
    plan = recommended.WholeSetPlan(strength=1.0, offset=0.5, components=recommended.PRETRAINED_COMPONENTS)
    given = {"preset": recommended.NAME, "fold_seed": 0, "overrides": {"seed": 0, **overrides}, "memory": memory}
    return WholeSet(plan, samples, classes, **given)


def collect(
    whole_set: WholeSet, first: int, last: int, classes: int, device: str = "cpu", width: int = FEATURES
) -> None:
    """Collect the samples first … last − 1."""
    for start in range(first, last, DRAWN):
        stop = min(start + DRAWN, last)
        features, labels = draw_block(start, stop, classes, device, width)
        whole_set.collect(torch.arange(start, stop, device=device), {"stages": features}, labels)


def measure_images(samples: int, device: str) -> Fit:
    return measure_solve("images", samples, CLASSES[device], device, samples)


def measure_classes(classes: int, device: str) -> Fit:
    """The same of a fixed number of samples, by the number of classes."""
    return measure_solve("classes", 320_000 if device == "cuda" else 20_000, classes, device, classes)


def measure_solve(part: str, samples: int, classes: int, device: str, size: int) -> Fit:
    whole_set = make_whole_set(samples, classes, MEMORY[device])
    collect(whole_set, 0, samples, classes, device)
    assert whole_set.weighting is not None
    assert whole_set.offsets is not None
    seconds: dict[str, float] = {}
    for name, store in (("weights", whole_set.weighting), ("offsets", whole_set.offsets)):
        store.solve = timed(store.solve, name, seconds, device)  # type: ignore[method-assign]
    with Clock(device, samples * FEATURES * 2) as clock:
        found = whole_set.solve()
    solution = whole_set.weighting.last_solution
    assert solution is not None
    evaluations = len(solution.objective)
    return clock.fit(part, size, **found, samples=samples, classes=classes, evaluations=evaluations, seconds=seconds)


def timed(work: Callable[..., Any], name: str, seconds: dict[str, float], device: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with Clock() as clock:
            result = work(*args)
            if device == "cuda":
                torch.cuda.synchronize()
        seconds[name] = clock.seconds
        return result

    return call


def measure_tables(rows: int, device: str) -> Fit:
    """A fit of a table of 50 columns, the table itself and the final regression included."""
    from stablenet.tabular import StableRegressor

    generator = np.random.default_rng(0)
    x = generator.standard_normal((rows, COLUMNS))
    for column in range(COLUMNS - 1, 0, -1):
        x[:, column] += 0.5 * x[:, column - 1]
    y = x[:, :5].sum(1) + generator.standard_normal(rows)
    with Clock() as clock:
        model = StableRegressor().fit(x, y)
    left = model.dependence_after_ / model.dependence_before_
    return clock.fit("tables", rows, dependence_left=left, ess_share=model.ess_ / rows)


def measure_manifests(rows: int, device: str) -> Fit:
    """A split of so many images is written, read and its training part taken, as every process of a run does."""
    import pandas as pd

    from stablenet.data.manifest import Manifest

    number = np.arange(rows)
    names = [f"n{k % 1000:08d}/n{k % 1000:08d}_{k}.JPEG" for k in range(rows)]
    table = pd.DataFrame({"id": names, "label": number % 1000, "domain": 0, "part": "train"})
    classes = tuple(f"class {k}" for k in range(1000))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "split.tsv"
        Manifest("made", "by hand", {}, 0, classes, ("all",), table).save(path)
        written = path.stat().st_size
        command = [sys.executable, "-m", "benchmarks.scale_measures", "read", str(path)]
        read = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    seconds, cpu_seconds, gib = map(float, read.split())
    return Fit("manifests", rows, seconds, cpu_seconds, gib, os.getloadavg()[0], {"file_mib": written / 2**20})


def read_manifest(path: Path) -> None:
    from stablenet.data.manifest import Manifest

    with Clock() as clock:
        Manifest.load(path).part("train")
    print(clock.seconds, clock.cpu_seconds, clock.gib)


def measure_help(starts: int, device: str) -> Fit:
    """`--help` and a bare interpreter in turn: medians."""
    commands = {"bare": ["-c", "pass"], "help": ["-m", "stablenet", "--help"]}
    times: dict[str, list[float]] = {name: [] for name in commands}
    with Clock() as clock:
        for _ in range(starts):
            for name, arguments in commands.items():
                start = time.perf_counter()
                subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
                times[name].append(time.perf_counter() - start)
    middle = {name: float(np.median(each)) for name, each in times.items()}
    return clock.fit("help", starts, **middle, beyond=middle["help"] - middle["bare"])


def measure_demo(runs: int, device: str) -> Fit:
    """The demo from its start to its page, as `make demo` runs it once everything is installed."""
    with tempfile.TemporaryDirectory() as folder, Clock() as clock:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
        command = [sys.executable, "-m", "stablenet", "demo"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, env=environment)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Fit("demo", runs, clock.seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20, os.getloadavg()[0])


def measure_processes(samples: int, device: str) -> Fit:
    """One process, then two over gloo that share the samples: what each holds, what travels, and the bits they find.

    Few steps are taken, since all steps are alike.
    """
    with Clock() as clock:
        alone, *two = (found for number in (1, 2) for found in run_processes(number, samples, FEATURES, CLASSES["cpu"]))
    same = len({found["bits"] for found in (alone, *two)}) == 1
    return clock.fit("processes", samples, one=alone, two=two, same_bits=same)


def measure_simulate(processes: int, device: str) -> Fit:
    """So many processes with the same number of samples each: what grows with the set although shares do not.

    Few features and classes leave what is kept and sent for every sample of the set.
    """
    with Clock() as clock:
        found = run_processes(processes, processes * SIMULATED["samples"], SIMULATED["width"], SIMULATED["classes"])
    return clock.fit("simulate", processes, **SIMULATED, each=found)


def run_processes(number: int, samples: int, width: int, classes: int) -> list[dict[str, Any]]:
    """What every process found that solves for these samples together with the others."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.scale_measures", "solve"]
    workers = [
        subprocess.Popen(
            [*command, *map(str, (rank, number, samples, width, classes))],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(number)
    ]
    printed = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        raise SystemExit("a process of the measurement failed: see what it printed")
    return [json.loads(text) for text in printed]


def solve_shared(rank: int, processes: int, samples: int, width: int, classes: int) -> dict[str, Any]:
    """What one of several processes holds and sends in a solve."""
    torch.set_num_threads(1)
    if processes > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=processes)
    whole_set = make_whole_set(samples, classes, SHARED_MEMORY, steps=STEPS)
    before = resident_peak()
    with count_traffic() as pass_traffic:
        collect(whole_set, *own_range(samples, rank, processes), classes, width=width)
    store = whole_set.weighting
    assert store is not None
    features = store.features if store._shelf is None else store._shelf.features
    held = features.numel() * features.itemsize
    with Clock() as clock, count_traffic() as traffic:
        whole_set.solve()
    solution = store.last_solution
    assert solution is not None
    bits = hashlib.sha256(solution.weights.numpy().tobytes())
    for index in torch.arange(samples).split(DRAWN):
        for values in whole_set(index):
            bits.update(values.numpy().tobytes())
    if processes > 1:
        torch.distributed.destroy_process_group()
    return {
        "features_gib": held / GIB,
        "peak_gib": clock.gib,
        "libraries_gib": before / GIB,
        "seconds": clock.seconds,
        "evaluations": len(solution.objective),
        "sent_in_pass_mib": sum(pass_traffic.values()) / 2**20,
        "sent_in_solve_mib": sum(traffic.values()) / 2**20,
        "bits": bits.hexdigest(),
    }


@contextmanager
def count_traffic() -> Iterator[dict[str, int]]:
    """Bytes of the tensors that this process gives to collective operations, by the operation."""
    sent: dict[str, int] = {}
    originals = {name: getattr(torch.distributed, name) for name in ("all_reduce", "all_gather")}

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            tensor = args[-1] if name == "all_gather" else args[0]
            sent[name] = sent.get(name, 0) + tensor.numel() * tensor.itemsize
            return originals[name](*args, **options)

        return call

    try:
        for name in originals:
            setattr(distributed.dist, name, counted(name))
        yield sent
    finally:
        for name, original in originals.items():
            setattr(distributed.dist, name, original)


MEASURES: dict[str, Callable[[int, str], Fit]] = {
    "images": measure_images,
    "classes": measure_classes,
    "tables": measure_tables,
    "processes": measure_processes,
    "simulate": measure_simulate,
    "manifests": measure_manifests,
    "help": measure_help,
    "demo": measure_demo,
}


def main() -> None:
    """One measurement, of which the last line printed is the answer; started by `benchmarks.scale`."""
    part, *rest = sys.argv[1:]
    if part == "read":
        read_manifest(Path(rest[0]))
    elif part == "solve":
        print(json.dumps(solve_shared(*map(int, rest))))
    else:
        print_fit(MEASURES[part], *rest)


def print_fit(measure: Callable[[int, str], Fit], size: str, device: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    print(json.dumps(asdict(measure(int(size), device))))


if __name__ == "__main__":
    main()
