"""Speed and memory of the weighting: ratios measured in one run.

    python -m benchmarks.weighting            # everything this machine supports; results/weighting/

Each figure is the median of repeated timings, the two sides of a ratio in alternation. Writes cpu.md and cpu.json, or
gpu.md and gpu.json if there is a CUDA device, and the scaling curves as a figure.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.published import Table, learn_weights, update_table
from stablenet import StableWeighting
from stablenet.weighting import random_fourier_features
from stablenet.weighting.problem import fitting_threads
from stablenet.weighting.settings import settings_of
from stablenet.weighting.solver import solve_weights
from stablenet.weighting.statistic import GramPairs

STEPS, BATCH, ROWS = 20, 128, 256
# The preset `paper` with the published code's covariance, on features of unit scale.
CLOSEST = {"form": "covariance", "scaling": "standard"}


@dataclass(frozen=True)
class Row:
    what: str
    measured: float
    unit: str
    bar: str
    holds: bool | None  # None where the row is information, not a bar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/weighting"))
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    rows = measure_gpu(options.repeats) if cuda else measure_cpu(options.repeats)
    growth = measure_growth("cuda" if cuda else "cpu", options.repeats)
    rows += judge_growth(growth, "cuda" if cuda else "cpu", options.repeats)
    save(options.out, "gpu" if cuda else "cpu", rows, growth)


def measure_cpu(repeats: int) -> list[Row]:
    """The Gram form with its analytic gradient against the full covariance by autograd, from the same features."""
    rows = []
    for q, bar in ((1, 8), (5, 30)):
        u = random_fourier_features(torch.randn(ROWS, 512), q, generator=torch.Generator().manual_seed(0))
        for form in ("covariance", "paper"):
            sides = [lambda u=u, form=form: direct_by_autograd(u, form), lambda u=u, form=form: gram_solve(u, form)]
            slow, fast = in_turn(sides, 3 if q > 1 else repeats, calls=[1, 10])
            what = f"direct form by autograd ÷ ours, n={ROWS}, m=512, q={q}, {STEPS} steps, {form} form"
            rows.append(Row(what, slow / fast, "×", f"≥ {bar}", slow / fast >= bar))
            rows.append(Row(f"ours, q={q}, {form} form", 1e3 * fast, "ms", "", None))
    return rows


def direct_by_autograd(u: Tensor, form: str) -> Tensor:
    """The inner loop with the (m·q)² covariance matrix, differentiated by autograd: the reference."""
    n, m, q = u.shape
    rows = u.reshape(n, -1)
    off_diagonal = ~torch.eye(m, dtype=torch.bool).repeat_interleave(q, 0).repeat_interleave(q, 1)
    theta, velocity = torch.zeros(n, requires_grad=True), torch.zeros(n)
    for _ in range(STEPS):
        w = n * torch.softmax(theta, 0)
        if form == "paper":
            x = w[:, None] * rows
            x = x - x.mean(0)
            sigma = x.T @ x / (n - 1)
        else:
            p = w / n
            mean = p @ rows
            sigma = rows.T @ (p[:, None] * rows) - torch.outer(mean, mean)
        loss = 0.5 * (sigma * off_diagonal).square().sum() + 0.1 * w.square().mean()
        (slope,) = torch.autograd.grad(loss, theta)
        with torch.no_grad():
            velocity = 0.9 * velocity + slope
            theta -= 1e-4 * velocity
    return theta.detach()


def gram_solve(u: Tensor, form: str) -> Tensor:
    """The same steps by the library, its preparation and guards included."""
    settings = settings_of("recommended", {"form": form, "pairs": "features", "steps": STEPS})
    statistic = GramPairs(u, form, settings.working_dtype(u.device))
    with fitting_threads(u.device, u.numel()):  # as `solve_problem` does
        return solve_weights(lambda step: [statistic], u.new_ones(0), len(u), settings).weights


def measure_gpu(repeats: int) -> list[Row]:
    rows = []
    for network, q, bar in (("resnet18", 1, 1.06), ("resnet18", 5, 1.15), ("resnet50", 1, 1.06)):
        plain, weighted = in_turn(training_steps(network, q), repeats, calls=20)
        what = f"{network} step (B={BATCH}, 224 px, bf16) with paper weights, q={q} ÷ without"
        rows.append(Row(what, weighted / plain, "×", f"≤ {bar}", weighted / plain <= bar))
        rows.append(Row(f"{network} step without weights", 1e3 * plain, "ms", "", None))
    for q, bar in ((1, 120), (5, 100)):
        sides = [published_step(512, q, "cpu"), published_step(512, q, "cuda")]
        sides += [module_step(512, q, **CLOSEST), module_step(512, q)]
        host, device, ours, paper = in_turn(sides, repeats, calls=5)
        what = f"what the published code computes ÷ ours in the same (covariance) form, m=512, q={q}"
        rows.append(Row(f"{what}, its draws on the host as there", host / ours, "×", f"≥ {bar}", host / ours >= bar))
        rows.append(Row(f"{what}, its draws on the GPU", device / ours, "×", "", None))
        rows.append(Row(f"the same ÷ preset paper (float64), q={q}", host / paper, "×", "", None))
        rows.append(Row(f"ours, covariance form, m=512, q={q}, one call", 1e3 * ours, "ms", "", None))
        rows.append(Row(f"preset paper, m=512, q={q}, one call", 1e3 * paper, "ms", "", None))
    extra = extra_memory()
    rows.append(Row(f"extra device memory, B={BATCH}, k=1, m=2048, q=5", extra, "MiB", "≤ 64", extra <= 64))
    return rows


def training_steps(
    network: str, q: int, device: str = "cuda", batch: int = BATCH, side: int = 224
) -> list[Callable[[], object]]:
    """One training step without and one with weights, on the same network and images."""
    import torchvision

    model = getattr(torchvision.models, network)(num_classes=7).to(device).to(memory_format=torch.channels_last)
    head, model.fc = model.fc, nn.Identity()
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=1e-3, momentum=0.9)
    x = torch.randn(batch, 3, side, side, device=device).to(memory_format=torch.channels_last)
    y = torch.randint(0, 7, (batch,), device=device)
    weighting = StableWeighting("paper", num_functions=q).to(device)

    def step(weigh: bool) -> None:
        with torch.autocast(device, dtype=torch.bfloat16):
            z = model(x)
            loss = F.cross_entropy(head(z), y, reduction="none")
        w = weighting(z, labels=y) if weigh else torch.ones_like(loss)
        optimizer.zero_grad(set_to_none=True)
        (w * loss).mean().backward()
        optimizer.step()

    return [lambda: step(False), lambda: step(True)]


def published_step(m: int, q: int, draws_on: str) -> Callable[[], object]:
    z = torch.randn(BATCH, m, device="cuda")
    table = Table(torch.randn(BATCH, m, device="cuda"), torch.zeros(BATCH, device="cuda"))

    def draw() -> tuple[Tensor, Tensor]:
        omega, phase = torch.randn(q, device=draws_on), 2 * torch.pi * torch.rand(m, q, device=draws_on)
        if draws_on == "cpu":  # there, the phases are repeated for every sample before they travel
            return omega.cuda(), phase.repeat(2 * BATCH, 1, 1).cuda()
        return omega, phase

    def step() -> None:
        logits, _ = learn_weights(z, table, draw)
        update_table(table, z, logits, iteration=11)

    return step


def module_step(m: int, q: int, device: str = "cuda", **overrides: Any) -> Callable[[], object]:
    weighting = StableWeighting("paper", num_functions=q, **overrides).to(device)
    z = torch.randn(BATCH, m, device=device)
    return lambda: weighting(z)


def extra_memory() -> float:
    """Peak over four calls, the memory's rows and the recording of the graph included."""
    z = torch.randn(BATCH, 2048, device="cuda")
    start = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    weighting = StableWeighting("paper", num_functions=5).cuda()
    for _ in range(4):
        weighting(z)
    return (torch.cuda.max_memory_allocated() - start) / 2**20


def measure_growth(device: str, repeats: int) -> dict[str, list[tuple[int, float]]]:
    """Milliseconds of one call against the width m (q=1 and q=5) and against q (m=512)."""
    widths, functions = (256, 512, 1024, 2048, 4096), (1, 2, 5, 10, 20)
    curves = {
        "m, q = 1": [(m, module_step(m, 1, device)) for m in widths],
        "m, q = 5": [(m, module_step(m, 5, device)) for m in widths],
        "q, m = 512": [(q, module_step(512, q, device)) for q in functions],
    }
    return {
        name: [(size, 1e3 * in_turn([step], repeats, calls=3)[0]) for size, step in points]
        for name, points in curves.items()
    }


def judge_growth(curves: dict[str, list[tuple[int, float]]], device: str, repeats: int) -> list[Row]:
    """The time of an inner step may grow at most as its size does; that of a whole call is also reported."""
    rows = []
    for name, points in curves.items():
        first, last = points[0][0], points[-1][0]
        ends = [(size, int(name[-1])) if name[0] == "m" else (512, size) for size in (first, last)]
        small, large = (time_of_step(m, q, device, repeats) for m, q in ends)
        what = f"{name}: {first} → {last}"
        growth, size = large / small, last / first
        rows.append(Row(f"growth of an inner step's time, {what}", growth, "×", f"≤ {size:g} (linear)", growth <= size))
        rows.append(Row(f"growth of a whole call's time, {what}", points[-1][1] / points[0][1], "×", "", None))
    return rows


def time_of_step(m: int, q: int, device: str, repeats: int) -> float:
    """Seconds of one inner step: what forty further steps add to a call, divided by forty."""
    sides = [module_step(m, q, device, steps=STEPS), module_step(m, q, device, steps=STEPS + 40)]
    short, long = in_turn(sides, repeats, calls=3)
    return (long - short) / 40


def in_turn(calls_of: list[Callable[[], object]], repeats: int, calls: int | list[int] = 1) -> list[float]:
    """Median seconds of a call of each, measured in alternation, a few calls at a time, after two warm-up rounds."""
    times: list[list[float]] = [[] for _ in calls_of]
    counts = [calls] * len(calls_of) if isinstance(calls, int) else calls
    for repeat in range(repeats + 2):
        for index, (call, count) in enumerate(zip(calls_of, counts, strict=True)):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(count):
                call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if repeat >= 2:
                times[index].append((time.perf_counter() - start) / count)
    return [statistics.median(each) for each in times]


def save(folder: Path, name: str, rows: list[Row], growth: dict[str, list[tuple[int, float]]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    where = torch.cuda.get_device_name() if name == "gpu" else f"{torch.get_num_threads()} threads"
    head = f"torch {torch.__version__}, Python {platform.python_version()}, {where}"
    lines = [
        f"# Speed of the weighting ({name.upper()})",
        "",
        f"{head}. Regenerate: `python -m benchmarks.weighting`.",
        "",
        "| what | measured | bar | |",
        "|---|---|---|---|",
    ]
    marks = {True: "holds", False: "**missed**", None: ""}
    lines += [f"| {r.what} | {r.measured:.3g} {r.unit} | {r.bar} | {marks[r.holds]} |" for r in rows]
    text = "\n".join(lines) + "\n"
    (folder / f"{name}.md").write_text(text)
    record = {"environment": head, "rows": [asdict(r) for r in rows], "growth_ms": growth}
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    plot_growth(folder / f"growth-{name}.png", growth, head)
    print(text)


def plot_growth(path: Path, growth: dict[str, list[tuple[int, float]]], head: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    for name, points in growth.items():
        axis = axes[0] if name.startswith("m") else axes[1]
        size, milliseconds = zip(*points, strict=True)
        axis.loglog(size, milliseconds, "o-", label=name.split(", ")[1])
        axis.loglog(size, [milliseconds[0] * s / size[0] for s in size], ":", color="grey", lw=1)
        axis.set_xticks(size, [str(s) for s in size])
        axis.minorticks_off()
    for axis, label in zip(axes, ("features m", "functions per feature q"), strict=True):
        axis.set_xlabel(label)
        axis.set_ylabel("one call, ms")
        axis.legend(frameon=False, title="dotted: linear")
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"Time of one call, preset paper, B={BATCH}, k=1, {STEPS} steps ({head})", fontsize=9)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
