"""Version 2 of `recommended` on MNIST-M, from its decisions and the records of version 1: results/mnist-m/version-2.md.

    python -m benchmarks.derived DATA          # DATA: MNIST's files and BSDS500

A network trained from scratch gets from version 2, where it acts, what version 1 gave it always; where it does not act,
version 2 is plain training to the bit. So its figures follow from which of the two it is, seed by seed. Decisions are
made anew from the training part of every published run; known ones are kept.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.decisions import look
from benchmarks.evidence import unpack
from benchmarks.rules import RESULTS, RULES
from stablenet.bench import collect, find_table
from stablenet.bench.collect import scan_runs
from stablenet.metrics import compare_pairs

FOLDER = RESULTS / "mnist-m"
ROW = "stablenet-recommended"
Figures = dict[str, dict[str, dict[str, dict[int, float]]]]  # rule, column, row, seed


def read_figures() -> tuple[Figures, dict[str, str]]:
    """Accuracies of both rows under both rules, and the recipe of every ratio."""
    table, found = find_table(str(FOLDER / "mnist-m.toml")), {}
    columns = [column for column in table.columns if not column.mean_of]
    with tempfile.TemporaryDirectory() as scratch:
        unpack(FOLDER / "records.jsonl.gz", Path(scratch))
        for rule in RULES:
            result = collect(table, Path(scratch), rule=rule, scan=scan_runs(Path(scratch), rule))
            found[rule] = {
                column.id: {row: result.cell(row, column.id).by_seed for row in ("erm", ROW)} for column in columns
            }
    return found, {column.id: column.recipe for column in columns}


def derive(figures: dict[str, dict[int, float]], acts: dict[int, bool]) -> dict[int, float]:
    """Accuracy of version 2, by seed."""
    return {seed: figures[ROW if act else "erm"][seed] for seed, act in acts.items()}


def say(ours: list[float], plain: list[float]) -> str:
    """The mean difference and its 95 % interval; a difference of zero in every seed has none."""
    if ours == plain:
        return "0"
    found = compare_pairs(ours, plain)
    return f"{found.differences.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}]".replace("-", "−")


def write_line(column: str, acts: dict[int, bool], figures: Figures) -> str:
    cells = [column, f"{sum(acts.values())} of {len(acts)}"]
    for rule in RULES:
        plain, first = (figures[rule][column][row] for row in ("erm", ROW))
        second = derive(figures[rule][column], acts)
        ours, base = [second[seed] for seed in acts], [plain[seed] for seed in acts]
        if rule == RULES[0]:
            cells += [f"{mean(values):.1f} ± {stdev(values):.1f}" for values in (base, ours)]
            cells.append(say([first[seed] for seed in acts], base))
        cells.append(say(ours, base))
    return f"| {' | '.join(cells)} |"


def average(figures: Figures, decided: dict[str, dict[int, bool]]) -> str:
    """The mean of all ratios, seed by seed."""
    cells = ["mean of the ratios", ""]
    for rule in RULES:
        seeds = list(next(iter(decided.values())))
        sides = {name: [0.0] * len(seeds) for name in ("plain", "first", "second")}
        for column, acts in decided.items():
            found, second = figures[rule][column], derive(figures[rule][column], acts)
            for place, seed in enumerate(seeds):
                for name, value in (("plain", found["erm"]), ("first", found[ROW]), ("second", second)):
                    sides[name][place] += value[seed] / len(decided)
        if rule == RULES[0]:
            cells += [f"{mean(sides[name]):.1f} ± {stdev(sides[name]):.1f}" for name in ("plain", "second")]
            cells.append(say(sides["first"], sides["plain"]))
        cells.append(say(sides["second"], sides["plain"]))
    return f"| {' | '.join(cells)} |"


def write_page(decided: dict[str, dict[int, bool]], figures: Figures) -> str:
    """All measured ratios, in the order of the table."""
    seeds = list(next(iter(decided.values())))
    lines = [
        "# Version 2 of the preset on MNIST-M, from its decisions",
        "",
        "`python -m benchmarks.derived data`. A network trained from scratch gets from version 2, where it acts, what",
        "version 1 gave it always, and where it does not act, version 2 is plain training to the bit. So its figures",
        "follow from its decision on every training set and the published runs of version 1 and of plain training. No",
        f"run was made for this page. 6,000 images, seeds {seeds[0]} to {seeds[-1]}; differences from plain training",
        "with their 95 % intervals, the epoch chosen on source validation but in the last column.",
        "",
        "| ratio | acts | plain training | version 2 | version 1, difference | version 2, difference | last epoch |",
        "|---" * 7 + "|",
        *(write_line(column, acts, figures) for column, acts in decided.items()),
    ]
    if len(decided) == len(figures[RULES[0]]):
        lines.append(average(figures, decided))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    root, file = parser.parse_args().data, FOLDER / "version-2.json"
    figures, recipes = read_figures()
    looks: dict[str, list[dict[str, Any]]] = json.loads(file.read_text()) if file.exists() else {}
    for column, recipe in recipes.items():
        if column not in looks:
            seeds = sorted(figures[RULES[0]][column][ROW])
            looks[column] = [look(recipe, seed, (), root) for seed in seeds]
            print(column, [row["acts"] for row in looks[column]], flush=True)
            file.write_text(json.dumps(looks, indent=1) + "\n")
    decided = {column: {row["seed"]: row["acts"] > 0 for row in looks[column]} for column in recipes}
    (FOLDER / "version-2.md").write_text(write_page(decided, figures), encoding="utf-8")


if __name__ == "__main__":
    main()
