"""Cost of exact HSIC compared with its Fourier estimate, by number of samples: the paper's reason for the latter.

    python -m benchmarks.hsic            # results/hsic/README.md, cost.json and docs/pictures/hsic-cost.png

Both sides solve the same weight problem with the same solver, 20 steps, on one CPU thread, kernels or functions
included; they are timed in alternation, in CPU seconds of the process. The second table shows how close the estimate's
weights are to the exact ones.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stablenet.algorithms.other_weights import HSICSettings, solve_hsic
from stablenet.weighting.problem import solve_problem

FEATURES, FUNCTIONS, STEPS = 64, 5, 20
SIZES = (32, 64, 128, 256, 512, 1024)
FURTHER = (2048, 4096)  # only for the estimate
AGREEMENT_ROWS, AGREEMENT_FEATURES, AGREEMENT_FUNCTIONS, DRAWS = 128, 8, (1, 5, 20, 100), 10
SETTINGS = HSICSettings(steps=STEPS).solver()
PAGE = f"""# What exact HSIC costs

`python -m benchmarks.hsic` measures the weight problem with the exact HSIC of every feature pair (method `hsic`) and
with its estimate by random Fourier features (q = {FUNCTIONS}): m = {FEATURES} features, {STEPS} steps of the same
solver, kernels or functions included. Medians of CPU time, measured in alternation in one run on one thread
({{environment}}). Other jobs shared the machine and its caches, so look at the ratios and the growth.

![Seconds per solve against the number of samples](../../docs/pictures/hsic-cost.png)

| samples n | exact HSIC, ms | Fourier, ms | ratio | exact: kernel matrices, MiB | Fourier: features, MiB |
|---|---|---|---|---|---|
{{cost}}

Between the two largest sizes, the exact time grows as n^{{exact_growth:.1f}}, the estimate's as
n^{{fourier_growth:.1f}}; the exact kernel matrices grow as n², the estimate's features as n.

How close the weights are (n = {AGREEMENT_ROWS}, m = {AGREEMENT_FEATURES}; {DRAWS} draws of the functions, mean ±
standard deviation; exact weights differ from one by {{spread:.3f}} on average):

| functions per feature q | mean distance of a weight from the exact one | correlation |
|---|---|---|
{{near}}

The paper's other failed alternatives, mutual information and disentanglement with variational autoencoders, are left
out on purpose: the paper gives no working form of either to compare with.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/hsic"))
    parser.add_argument("--picture", type=Path, default=Path("docs/pictures/hsic-cost.png"))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = {
        "environment": f"torch {torch.__version__}, Python {platform.python_version()}",
        "cost": [measure_cost(n, options.repeats) for n in (*SIZES, *FURTHER)],
        "agreement": [measure_agreement(q) for q in AGREEMENT_FUNCTIONS],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "cost.json").write_text(json.dumps(record, indent=1) + "\n")
    text = write_page(record)
    (options.out / "README.md").write_text(text)
    plot_cost(options.picture, record)
    print(text)


def draw_features(n: int, m: int, seed: int = 0) -> Tensor:
    """Rectified features with a few common causes, as those of a network."""
    generator = torch.Generator().manual_seed(seed)
    causes, mixing = torch.randn(n, 4, generator=generator), torch.randn(4, m, generator=generator)
    return torch.relu(causes @ mixing + torch.randn(n, m, generator=generator))


def solve_fourier(z: Tensor, q: int, seed: int = 0) -> Tensor:
    """Weights (n,) by q Fourier functions a feature, from the solver and settings of the exact side."""
    settings = replace(SETTINGS, num_functions=q, bandwidth="median")
    return solve_problem(z, None, z.new_empty(0), len(z), settings, torch.Generator().manual_seed(seed)).weights


def measure_cost(n: int, repeats: int) -> dict[str, Any]:
    """Seconds of a solve on both sides; the exact one only where it is still bearable."""
    z = draw_features(n, FEATURES)
    sides = {"fourier": lambda: solve_fourier(z, FUNCTIONS)}
    if n in SIZES:
        sides["exact"] = lambda: solve_hsic(z, SETTINGS)
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats + 1):
        for side, solve in sides.items():
            start = time.process_time()
            solve()
            times[side].append(time.process_time() - start)
    median = {side: statistics.median(each[1:]) for side, each in times.items()}  # the first round warms up
    return {"n": n, "fourier": median["fourier"], "exact": median.get("exact")}


def measure_agreement(q: int) -> dict[str, Any]:
    """Mean distance of the estimate's weights from the exact ones, over several draws of its functions."""
    z = draw_features(AGREEMENT_ROWS, AGREEMENT_FEATURES)
    exact = solve_hsic(z, SETTINGS).weights
    drawn = torch.stack([solve_fourier(z, q, seed) for seed in range(DRAWS)])
    off = (drawn - exact).abs().mean(1)
    correlation = torch.stack([torch.corrcoef(torch.stack([each, exact]))[0, 1] for each in drawn])
    spread = (exact - 1).abs().mean().item()
    return {
        "q": q,
        "distance": [off.mean().item(), off.std().item()],
        "correlation": [correlation.mean().item(), correlation.std().item()],
        "exact_spread": spread,
    }


def growth(rows: list[dict[str, Any]], side: str) -> float:
    """The exponent of n between the last two measured sizes."""
    first, last = [row for row in rows if row[side] is not None][-2:]
    return math.log(last[side] / first[side]) / math.log(last["n"] / first["n"])


def write_page(record: dict[str, Any]) -> str:
    cost, agreement = record["cost"], record["agreement"]
    near = [f"| {row['q']} | {show(row['distance'])} | {show(row['correlation'])} |" for row in agreement]
    return PAGE.format(
        environment=record["environment"],
        cost="\n".join(map(cost_line, cost)),
        exact_growth=growth(cost, "exact"),
        fourier_growth=growth(cost, "fourier"),
        spread=agreement[0]["exact_spread"],
        near="\n".join(near),
    )


def cost_line(row: dict[str, Any]) -> str:
    n, exact, fourier = row["n"], row["exact"], row["fourier"]
    times = f"{1e3 * exact:,.0f}" if exact else "–", f"{1e3 * fourier:,.0f}", f"{exact / fourier:.1f}" if exact else "–"
    memory = f"{4 * n * n * FEATURES / 2**20:,.4g}", f"{4 * n * FEATURES * FUNCTIONS / 2**20:.2g}"
    return f"| {n:,} | {' | '.join((*times, *memory))} |"


def show(pair: list[float]) -> str:
    return f"{pair[0]:.3f} ± {pair[1]:.3f}"


def plot_cost(path: Path, record: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3.8), constrained_layout=True)
    for side, name in (("exact", "exact HSIC"), ("fourier", f"Fourier features, q = {FUNCTIONS}")):
        points = [(row["n"], row[side]) for row in record["cost"] if row[side] is not None]
        axis.loglog(*zip(*points, strict=True), "o-", label=f"{name}: grows as n^{growth(record['cost'], side):.1f}")
    sizes = [row["n"] for row in record["cost"]]
    axis.set_xticks(sizes, [str(n) for n in sizes], fontsize=8)
    axis.minorticks_off()
    axis.set_xlabel("samples n")
    axis.set_ylabel("one solve, CPU seconds")
    axis.set_title(f"Sample weights, m = {FEATURES} features, {STEPS} steps", fontsize=10)
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
