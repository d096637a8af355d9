"""The headline figures of `results/`, from the tables beside the records: results/summary.json and one table of it.

    python -m benchmarks.summary            # rewrites results/summary.json and the table in results/README.md

Nothing is typed in: every figure is read from a table's CSV file, which `stablenet report` made from records, those of
the last epoch from results/rules.csv (`python -m benchmarks.rules`). A test compares the two files and the README of
the project with what this computes.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import stdev

ROOT = Path(__file__).parents[1] / "results"
BEGIN, END = "<!-- begin summary -->\n", "<!-- end summary -->"


@dataclass(frozen=True)
class Source:
    """data, measure: for readers.   preset: version of `recommended`.   table, row, column: of results/<table>.csv."""

    data: str
    measure: str
    preset: str
    table: str
    row: str
    column: str


MNIST = "MNIST-M, 6,000 images, the paper's CNN, from scratch"
LARGE = "MNIST-M, 60,000 images, the same"
PACS = "PACS, ImageNet ResNet-50"
SMALL = "PACS at 112 pixels, few epochs"
PETS = "pets over places, ImageNet ResNet-50, 95 % on their own place"
SOURCES = (
    Source(PETS, "four beds, all images", "2", "natural/natural", "recommended", "mean"),
    Source(PETS, "four beds, worst group", "2", "natural/natural", "recommended", "mean-worst"),
    Source(PETS, "streets or mountains, worst group", "2", "natural/natural", "recommended", "street-worst"),
    Source(PETS, "sea or glaciers, worst group", "2", "natural/natural", "recommended", "sea-worst"),
    Source(PETS, "8 look-alike breeds, worst group", "2", "natural/natural", "recommended", "breeds-worst"),
    Source(PETS, "19 breeds, 25 images each, worst group", "2", "natural/natural", "recommended", "few-worst"),
    Source(MNIST, "ratio 0.95", "1", "mnist-m/mnist-m", "stablenet-recommended", "dr0.95"),
    Source(MNIST, "ratio 0.9", "1", "mnist-m/mnist-m", "stablenet-recommended", "dr0.9"),
    Source(MNIST, "mean of seven ratios", "1", "mnist-m/mnist-m", "stablenet-recommended", "average"),
    Source(MNIST, "backgrounds at random", "1", "mnist-m/mnist-m", "stablenet-recommended", "random"),
    Source(LARGE, "mean of seven ratios", "1", "mnist-m/sixty-thousand", "stablenet-recommended", "average"),
    Source(PACS, "unbalanced + flexible 5:1:1", "1", "pacs/flexible-5", "stablenet-recommended", "overall"),
    Source(PACS, "classic, mean of four targets", "1", "pacs/classic", "stablenet-recommended", "average"),
    Source(
        PACS, "unbalanced 5:1:1, mean of four targets", "1", "pacs/unbalanced-5", "stablenet-recommended", "average"
    ),
    Source(SMALL, "classic, mean of four targets", "1", "pacs/classic-112", "stablenet-recommended", "average"),
    Source(SMALL, "unbalanced 5:1:1, mean", "1", "pacs/unbalanced-5-112", "stablenet-recommended", "average"),
)


@dataclass(frozen=True)
class Figure:
    """Accuracy in percent over the same seeds; low, high: the 95 % interval of the paired difference.

    The epoch is that chosen on source validation; last, last_low, last_high: the same difference in the last epoch.
    """

    data: str
    measure: str
    preset: str
    seeds: int
    plain: float
    plain_deviation: float
    ours: float
    ours_deviation: float
    difference: float
    low: float
    high: float
    last: float
    last_low: float
    last_high: float
    table: str
    row: str
    column: str


def find_cell(table: str, row: str, column: str) -> dict[str, str]:
    with (ROOT / f"{table}.csv").open(encoding="utf-8") as file:
        [cell] = [line for line in csv.DictReader(file) if (line["row"], line["column"]) == (row, column)]
    return cell


def find_difference(table: str, row: str, column: str, rule: str) -> list[float]:
    """The difference from plain training under a rule, and its interval."""
    with (ROOT / "rules.csv").open(encoding="utf-8") as file:
        wanted = (table, row, column, rule)
        keys = ("table", "row", "column", "rule")
        [line] = [line for line in csv.DictReader(file) if tuple(line[key] for key in keys) == wanted]
    return [float(line[name]) for name in ("difference", "low", "high")]


def compute(source: Source) -> Figure:
    ours = find_cell(source.table, source.row, source.column)
    plain = find_cell(source.table, "erm", source.column)
    mean, deviation = float(plain["mean"]), float(plain["deviation"])
    if plain["seeds"] != ours["seeds"]:
        mean, deviation = describe_common(source.table, plain["runs"].split(), ours["runs"].split())
    figures = [mean, deviation, float(ours["mean"]), float(ours["deviation"]), float(ours["versus"])]
    figures += [float(ours["versus_low"]), float(ours["versus_high"])]
    figures += find_difference(source.table, source.row, source.column, "last")
    return Figure(
        source.data,
        source.measure,
        source.preset,
        int(ours["seeds"]),
        *(round(value, 1) for value in figures),
        source.table,
        source.row,
        source.column,
    )


def describe_common(table: str, plain: Sequence[str], ours: Sequence[str]) -> tuple[float, float]:
    """Mean and deviation of the accuracy of plain runs on the seeds of others, from the packed records."""
    seeds = {name.rsplit("-seed", 1)[1].split("-")[0] for name in ours}
    wanted = {name for name in plain if name.rsplit("-seed", 1)[1].split("-")[0] in seeds}
    values = []
    with gzip.open((ROOT / table).parent / "records.jsonl.gz", "rt", encoding="utf-8") as file:
        for run in map(json.loads, file):
            if run["folder"] in wanted:
                lines = [json.loads(line) for line in run["files"]["evaluation.jsonl"].splitlines()]
                [found] = {
                    line["figures"]["accuracy"]
                    for line in lines
                    if (line["part"], line["rule"]) == ("test", "source-validation")
                }
                values.append(100 * found)
    assert len(values) == len(wanted) == len(seeds)
    return sum(values) / len(values), stdev(values)


def write_table(figures: Sequence[Figure]) -> str:
    lines = [
        "| data | measure | preset | seeds | plain training | `recommended` | difference, 95 % interval "
        "| in the last epoch |",
        "|---" * 8 + "|",
    ]
    for figure in figures:
        plain = f"{figure.plain:.1f} ± {figure.plain_deviation:.1f}"
        ours = f"{figure.ours:.1f} ± {figure.ours_deviation:.1f}"
        difference = say_difference(figure.difference, figure.low, figure.high)
        last = say_difference(figure.last, figure.last_low, figure.last_high)
        place = f"[{figure.data}]({figure.table.split('/')[0]})"
        cells = (place, figure.measure, figure.preset, str(figure.seeds), plain, ours, difference, last)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def say_difference(mean: float, low: float, high: float) -> str:
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "−")


def put(page: str, table: str) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + table + END + rest.split(END)[1]


def main() -> None:
    figures = [compute(source) for source in SOURCES]
    text = json.dumps([asdict(figure) for figure in figures], indent=1, ensure_ascii=False)
    (ROOT / "summary.json").write_text(text + "\n", encoding="utf-8")
    page = ROOT / "README.md"
    page.write_text(put(page.read_text(encoding="utf-8"), write_table(figures)), encoding="utf-8")
    print(write_table(figures))


if __name__ == "__main__":
    main()
