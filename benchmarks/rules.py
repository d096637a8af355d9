"""Every published comparison under both rules: the epoch by source validation, and the last epoch.

    python -m benchmarks.rules DATA       # rewrites results/rules.csv and results/rules.md from the packed records

Nothing is trained. DATA holds the pretrained network that the tables of PACS and of natural images name: runs are found
by its contents.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.evidence import unpack
from stablenet.bench import collect, find_table
from stablenet.bench.collect import scan_runs
from stablenet.bench.results import BenchResult, ResultCell

RESULTS = Path("results")
TABLES = {
    "natural": ("natural",),
    "mnist-m": ("mnist-m", "weights", "known-contexts", "sixty-thousand", "ablations"),
    "pacs": ("flexible-5", "classic", "unbalanced-5", "classic-112", "unbalanced-5-112", "ablations-112"),
    "coloured": ("table",),
}
CHOSEN, LAST = RULES = ("source-validation", "last")
APART = 3.0  # points between the rules from which a difference is listed
HEAD = """# Both rules: the epoch by source validation, and the last epoch

Points above plain training on the same seeds, first with the epoch that source validation chooses, then with the last
epoch; the number of seeds in brackets. **Bold** where the 95 % interval of that figure excludes zero. Rows that average
weights (SWAD) have no epoch to choose: both figures compare the averaged network, with plain training under either
rule. `rules.csv` has accuracies and intervals. All of it is computed from the packed records by

```bash
python -m benchmarks.rules data
```
"""


@dataclass(frozen=True)
class Line:
    """One method on one column under one rule; low, high: the 95 % interval of the paired difference."""

    table: str
    row: str
    title: str
    column: str
    rule: str
    seeds: int
    mean: float
    deviation: float | None
    difference: float | None
    low: float | None
    high: float | None


def round_figure(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def read_cell(name: str, result: BenchResult, row: str, title: str, cell: ResultCell) -> Line:
    versus = cell.versus
    seeds, difference, low, high = cell.count, None, None, None
    if versus is not None:
        seeds, difference, low, high = len(versus.seeds), versus.mean, versus.low, versus.high
    figures = (cell.mean, cell.deviation, difference, low, high)
    return Line(name, row, title, cell.column, result.rule, seeds, *map(round_figure, figures))  # type: ignore[arg-type]


def read_folder(folder: str, root: Path) -> Iterator[Line]:
    """All tables of one folder of results under both rules."""
    with tempfile.TemporaryDirectory() as scratch:
        runs = Path(scratch)
        unpack(RESULTS / folder / "records.jsonl.gz", runs)
        for rule in RULES:
            scan = scan_runs(runs, rule)
            for name in TABLES[folder]:
                table = find_table(str(RESULTS / folder / f"{name}.toml"))
                result = collect(table, runs, rule=rule, root=root, scan=scan)
                for row in table.rows:
                    for column in result.columns:
                        cell = result.cell(row.id, column.id)
                        if cell.count:
                            yield read_cell(f"{folder}/{name}", result, row.id, row.title or row.id, cell)


def show_pair(pair: Sequence[Line]) -> str:
    """Both differences of a cell; of plain training both accuracies."""
    if pair[0].difference is None:
        return " / ".join(f"{line.mean:.1f}" for line in pair)
    parts = []
    for line in pair:
        assert line.difference is not None
        figure = f"{line.difference:+.1f}".replace("-0.0", "0.0").replace("+0.0", "0.0").replace("-", "−")
        clear = line.low is not None and line.high is not None and (line.low > 0 or line.high < 0)
        parts.append(f"**{figure}**" if clear else figure)
    return " / ".join(parts) + f" [{pair[0].seeds}]"


def pair_lines(lines: Sequence[Line]) -> dict[tuple[str, str, str], list[Line]]:
    """By table, row and column, both rules; cells that have no figure under one of them are left out."""
    pairs: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        pairs.setdefault((line.table, line.row, line.column), []).append(line)
    return {key: pair for key, pair in pairs.items() if [line.rule for line in pair] == list(RULES)}


def write_section(table: str, pairs: dict[tuple[str, str, str], list[Line]]) -> str:
    own = {key[1:]: pair for key, pair in pairs.items() if key[0] == table}
    columns = list(dict.fromkeys(column for _, column in own))
    rows = {row: pair[0].title for (row, _), pair in own.items()}
    lines = [f"## `{table}`", "", f"| | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for row, title in rows.items():
        cells = [show_pair(own[row, column]) if (row, column) in own else "" for column in columns]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write_apart(pairs: dict[tuple[str, str, str], list[Line]]) -> str:
    """The cells for which the rule matters most."""
    compared = [(key, pair) for key, pair in pairs.items() if all(line.difference is not None for line in pair)]
    gap = {key: abs(pair[0].difference - pair[1].difference) for key, pair in compared}  # type: ignore[operator]
    far = sorted((key for key in gap if gap[key] > APART), key=lambda key: -gap[key])
    head = f"## Where the rule matters by more than {APART:g} points: {len(far)} of {len(compared)} comparisons"
    lines = [head, "", "| table | row | column | chosen / last [seeds] |", "|---|---|---|---|"]
    lines += [f"| `{key[0]}` | {pairs[key][0].title} | {key[2]} | {show_pair(pairs[key])} |" for key in far]
    return "\n".join(lines) + "\n"


def write_page(lines: Sequence[Line]) -> str:
    pairs = pair_lines(lines)
    tables = dict.fromkeys(key[0] for key in pairs)
    return "\n".join([HEAD, write_apart(pairs), *(write_section(table, pairs) for table in tables)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    root = parser.parse_args().data
    lines = [line for folder in TABLES for line in read_folder(folder, root)]
    with (RESULTS / "rules.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Line)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(line) for line in lines)
    (RESULTS / "rules.md").write_text(write_page(lines), encoding="utf-8")
    print(f"{len(lines)} figures in {RESULTS / 'rules.csv'} and {RESULTS / 'rules.md'}")


if __name__ == "__main__":
    main()
