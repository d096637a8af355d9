"""The evidence in `results/` on trained networks: packed records, weights by context, figures.

    python -m benchmarks.evidence pack runs results/mnist-m/records.jsonl.gz
    python -m benchmarks.evidence unpack results/mnist-m/records.jsonl.gz runs
    python -m benchmarks.evidence paired results/mnist-m/mnist-m.toml runs --columns dr0.9,average --seeds 30,31,32
    python -m benchmarks.evidence weights --recipe mnistm-dr0.9 --seeds 30,31,32 --root DATA
    python -m benchmarks.evidence figure results/mnist-m/mnist-m.toml runs docs/pictures/mnist-m.png
    python -m benchmarks.evidence figure results/pacs/flexible-5.toml runs docs/pictures/pacs.png --root DATA
    python -m benchmarks.evidence figure results/natural/natural.toml runs docs/pictures/natural.png --root DATA \\
      --row recommended --columns street-worst,sea-worst,breeds-worst,few-worst --seeds 50,51,52,53,54 \\
      --labels "streets,sea,8 breeds,19 breeds"

A packed run is its config, status, records, evaluations and timing; its split and its networks are not kept: `stablenet
train` with the config reproduces the split, and the network on the same machine.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

SEEDS = "30,31,32,33,34,35,36,37,38,39"  # no search has used them
KEPT = ("config.json", "status.json", "records.jsonl", "evaluation.jsonl", "timing.jsonl")


def pack(runs: Path, out: Path) -> None:
    """One line per run, its files as text."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folders = sorted(path.parent for path in runs.glob("*/config.json"))
    with gzip.GzipFile(out, "wb", mtime=0) as file:  # no timestamp: the same runs give the same bytes
        for folder in folders:
            texts = {name: (folder / name).read_text() for name in KEPT if (folder / name).exists()}
            file.write((json.dumps({"folder": folder.name, "files": texts}) + "\n").encode())
    print(f"{len(folders)} runs in {out}, {out.stat().st_size / 1e6:.1f} MB")


def unpack(packed: Path, runs: Path) -> None:
    with gzip.open(packed, "rt") as file:
        for line in file:
            run = json.loads(line)
            folder = runs / run["folder"]
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in run["files"].items():
                (folder / name).write_text(text)


def show_paired(name: str, runs: Path, columns: list[str], seeds: list[int], root: Path | None) -> None:
    """Every method of a table compared with plain training, on their common seeds."""
    from stablenet.bench import collect, find_table

    result = collect(find_table(name), runs, seeds=seeds, root=root)
    print("| method | column | seeds | plain training | method | difference, 95 % interval | worst seed | ahead |")
    print("|---" * 8 + "|")
    for row in result.rows:
        for column in (column for column in result.columns if not columns or column.id in columns):
            ours, plain = result.cell(row.id, column.id), result.cell("erm", column.id)
            if row.id == "erm" or ours.versus is None:
                continue
            told = tell_difference(ours, plain)
            print(f"| {row.title or row.id} | {column.title or column.id} | {told} |")


def tell_difference(ours: Any, plain: Any) -> str:
    """Columns of one comparison, on the common seeds of both cells."""
    versus = ours.versus
    interval = "" if versus.low is None else f" [{versus.low:+.2f}, {versus.high:+.2f}]"
    sides = (spread([v.value for v in cell.values if v.seed in versus.seeds]) for cell in (plain, ours))
    ahead = f"{versus.seeds_won} of {len(versus.seeds)}"
    figures = (*sides, f"{versus.mean:+.2f}{interval}", f"{min(versus.differences):+.2f}", ahead)
    return " | ".join((str(len(versus.seeds)), *figures)).replace("-", "−")


def spread(values: Sequence[float]) -> str:
    """Mean ± sample standard deviation."""
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def open_session(recipe: str, seed: int, root: Path | None, settings: list[str], with_target: bool = False) -> Any:
    """A StableNet run of the recipe, ready to start, on the CPU."""
    from stablenet.engine.config import assemble_config
    from stablenet.engine.run_data import open_data
    from stablenet.engine.run_folder import RunFolder
    from stablenet.engine.session import Runtime, build_session, start_fabric

    config = assemble_config(recipe, None, ["method.name=stablenet", f"seed={seed}", *settings])
    data = open_data(config, root)
    runtime = Runtime(root=root, oracle=with_target)
    return build_session(config, runtime, start_fabric("cpu", "auto"), RunFolder(Path("unused")), data)


def weigh(recipe: str, seed: int, root: Path | None, settings: list[str]) -> dict[str, float]:
    """The weights a StableNet run of the recipe starts with, by context; tie: Cramér's V of context and label."""
    from stablenet.diagnose.measure import cramer_v, find_minority, one_hot
    from stablenet.weighting import effective_sample_size

    session = open_session(recipe, seed, root, settings)
    told = session.algorithm.start_epoch(0, session.training_set)
    samples = session.training.samples
    w = session.algorithm.strategy.whole_set.weighting.weights[samples.index]
    where, what = one_hot(samples.domain), one_hot(samples.y)
    minority = find_minority(where, what)
    ess = {
        name: float(effective_sample_size(w[rows])) / int(rows.sum())
        for name, rows in (("minority_ess", minority), ("majority_ess", ~minority))
    }
    means = {"minority_weight": float(w[minority].mean()), "majority_weight": float(w[~minority].mean())}
    tables = ((v, where.T @ (v.double()[:, None] * what)) for v in (torch.ones_like(w), w))
    ties = [cramer_v(table.numpy(), float(effective_sample_size(v))) for v, table in tables]
    return {**means, **ess, **told, "tie_before": ties[0], "tie_after": ties[1]}


def show_weights(recipe: str, seeds: list[int], root: Path | None, settings: list[str]) -> None:
    rows = [weigh(recipe, seed, root, settings) for seed in seeds]
    names = list(rows[0])
    print("| seed | " + " | ".join(name.replace("_", " ") for name in names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for seed, row in zip(seeds, rows, strict=True):
        print(f"| {seed} | " + " | ".join(f"{row[name]:.3f}" for name in names) + " |")
    means = [sum(row[name] for row in rows) / len(rows) for name in names]
    print("| mean | " + " | ".join(f"{mean:.3f}" for mean in means) + " |")


def draw(
    name: str,
    runs: Path,
    out: Path,
    seeds: list[int],
    root: Path | None,
    *,
    method: str,
    chosen: list[str],
    labels: list[str],
) -> None:
    """Accuracy of a table's columns, and every seed's difference from plain training.

    method: the row beside plain training.   chosen: columns; none for all that are no mean.   labels: below them.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    from stablenet.bench import collect, find_table

    table = find_table(name)
    result = collect(table, runs, seeds=seeds, root=root)
    columns = [c for c in result.columns if (c.id in chosen if chosen else not c.mean_of)]
    worst = all(column.metric == "worst-group" for column in columns)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for row, title, colour in (("erm", "plain training", "#888888"), (method, "StableNet", "#1769aa")):
        cells: list[Any] = [result.cell(row, column.id) for column in columns]
        left.errorbar(
            range(len(cells)),
            [c.mean for c in cells],
            [c.deviation for c in cells],
            label=title,
            color=colour,
            capsize=3,
            fmt="o-" if table.x_title else "o",
        )
    for place, column in enumerate(columns):
        versus = result.cell(method, column.id).versus
        right.scatter([place] * len(versus.differences), versus.differences, color="#1769aa", alpha=0.5, s=16, lw=0)
        right.plot([place - 0.25, place + 0.25], [versus.mean] * 2, color="#0b3d66", lw=2)
    right.axhline(0, color="#888888", lw=1)
    left.set_ylabel("accuracy of the worst group, %" if worst else "accuracy on the target, %")
    right.set_ylabel("StableNet − plain training, points")
    for axis in (left, right):
        axis.set_xticks(range(len(columns)), labels or [column.title.removeprefix("DR") for column in columns])
        axis.set_xlabel(table.x_title or ("" if labels else "target"))
        axis.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, loc="best" if worst else "lower left")
    figure.savefig(out, dpi=140)


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("pack", "unpack"):
        verb = verbs.add_parser(name)
        verb.add_argument("source", type=Path)
        verb.add_argument("out", type=Path)
        verb.add_argument("--seeds", default=SEEDS)
    verb = verbs.add_parser("figure")
    verb.add_argument("table")
    verb.add_argument("runs", type=Path)
    verb.add_argument("out", type=Path)
    verb.add_argument("--row", default="stablenet-recommended")
    verb.add_argument("--columns", default="")
    verb.add_argument("--labels", default="", help="below the columns, instead of their titles")
    verb.add_argument("--seeds", default=SEEDS)
    verb.add_argument("--root", type=Path)
    verb = verbs.add_parser("paired")
    verb.add_argument("table")
    verb.add_argument("runs", type=Path)
    verb.add_argument("--columns", default="")
    verb.add_argument("--seeds", default=SEEDS)
    verb.add_argument("--root", type=Path)
    verb = verbs.add_parser("weights")
    verb.add_argument("--recipe", default="mnistm-dr0.9")
    verb.add_argument("--set", action="append", default=[], help="a setting of the run, as model.name=resnet50")
    verb.add_argument("--seeds", default=SEEDS)
    verb.add_argument("--root", type=Path)
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    if arguments.verb == "weights":
        show_weights(arguments.recipe, seeds, arguments.root, arguments.set)
    elif arguments.verb == "paired":
        show_paired(arguments.table, arguments.runs, _list(arguments.columns), seeds, arguments.root)
    elif arguments.verb == "figure":
        named = {"method": arguments.row, "chosen": _list(arguments.columns), "labels": _list(arguments.labels)}
        draw(arguments.table, arguments.runs, arguments.out, seeds, arguments.root, **named)
    else:
        {"pack": pack, "unpack": unpack}[arguments.verb](arguments.source, arguments.out)


if __name__ == "__main__":
    main()
