"""Reads what a report shows from run folders, formats numbers, and writes tables as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any

from stablenet.algorithms import DOMAINS, GROUPS, SELECTION, explain_marks
from stablenet.bench import (
    BenchResult,
    PaperNumber,
    PaperTable,
    ResultCell,
    Row,
    TableColumn,
    collect,
    find_table,
    list_tables,
)
from stablenet.bench.collect import FoundRun, Scan, scan_runs
from stablenet.bench.results import LeftOut
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import DEFAULT_RULE, RULES, Failure, find_failures
from stablenet.pages import write_points
from stablenet.values import Count, Whole, check_fields


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """runs: folder of run folders.   output: folder for the page and the tables' files.
    tables: names or own files; none takes every table that has runs.   tuned: of runs with values a search chose.
    panels: splits whose networks are examined, one per table; 0 loads no network.
    images: of every saliency panel.   root: where the data sources lie.
    """

    runs: Path = Path("runs")
    output: Path = Path("report")
    tables: tuple[str, ...] = ()
    rule: str = DEFAULT_RULE
    tuned: bool = False
    panels: Whole = 2
    images: Count = 8
    root: Path | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        RULES[self.rule]  # an unknown one is named here
        check_fields(self)

    @property
    def page(self) -> Path:
        return self.output / "index.html"


@dataclass(frozen=True)
class Gathered:
    """results: one per table, those that were asked for or have runs.   runs: all that could be read."""

    results: tuple[BenchResult, ...]
    runs: tuple[FoundRun, ...]
    problems: tuple[LeftOut, ...]

    @property
    def notes(self) -> list[str]:
        """Remarks about the runs as a whole, a sentence each."""
        remarks = [f"left out {problem.path.name}: {problem.reason}" for problem in self.problems]
        versions = sorted({run.version or "unknown" for run in self.runs})
        if len(versions) > 1:
            remarks.append(f"the runs come from several versions of stablenet: {', '.join(versions)}")
        for result in (result for result in self.results if not has_runs(result)):
            why = next((cell.reason for cell in result.cells.values() if cell.state == "missing"), "it has no cells")
            remarks.append(f"no run belongs to the table {result.table.name}: {why}")
        return [*remarks, *tell_failures(self.runs)]


def tell_failures(runs: Sequence[FoundRun]) -> list[str]:
    """Runs that have not learned, or fail on a whole group; a sentence for each kind of failure."""
    found: dict[tuple[str, str], list[tuple[str, Failure]]] = defaultdict(list)
    for run in runs:
        for figures, images in ((run.validation, "held-out image"), (run.figures, "target image")):
            for failure in find_failures(figures, images) if figures else ():
                found[failure.kind, images].append((run.path.name, failure))
    return [_tell(of_kind, len(runs)) for of_kind in found.values()]


def _tell(found: Sequence[tuple[str, Failure]], runs: int) -> str:
    (name, failure), count = found[0], len(found)
    others = f"; so or similarly in {count} of {runs} runs" if count > 1 else ""
    return f"the network of {name} {failure.said}{others}: {failure.remedy}"


def gather(settings: ReportSettings) -> Gathered:
    """Read the folder once and fill the tables."""
    if not settings.runs.is_dir():
        raise UserError(
            f"there are no runs in {settings.runs}: make some with `stablenet bench run` or `stablenet train`, "
            "or name their folder with --runs"
        )
    scan = scan_runs(settings.runs, settings.rule)
    asked = [find_table(name) for name in dict.fromkeys(settings.tables)]
    results = [_fill(table, settings, scan) for table in asked or list_tables().values()]
    return Gathered(tuple(r for r in results if asked or has_runs(r)), scan.runs, scan.problems)


def _fill(table: PaperTable, settings: ReportSettings, scan: Scan) -> BenchResult:
    return collect(table, settings.runs, rule=settings.rule, tuned=settings.tuned, root=settings.root, scan=scan)


def has_runs(result: BenchResult, rows: Sequence[Row] | None = None) -> bool:
    """Whether any of the rows, or any at all, has a run, finished or not."""
    chosen = {row.id for row in rows or result.rows}
    return any(cell.values or cell.unfinished for cell in result.cells.values() if cell.row in chosen)


def shown_rows(result: BenchResult) -> list[Row]:
    """Rows of the table; further rows only if they have runs."""
    return [row for row in result.rows if not row.extra or has_runs(result, [row])]


MISSING, BY_DESIGN = "missing", "–"


def write_share(value: float) -> str:
    """Percent with a digit after the point."""
    return f"{value:.1f}"


def write_spread(cell: ResultCell, counted: bool = False) -> str:
    """ "93.1 ± 0.4", without the spread where there is one seed only; counted: "93.1 ± 0.4 [3]", with the seeds."""
    assert cell.mean is not None
    spread = "" if cell.deviation is None else f" ± {write_share(cell.deviation)}"
    return write_share(cell.mean) + spread + (f" [{cell.count}]" if counted else "")


def rank_cells(result: BenchResult, rows: Sequence[Row]) -> Mapping[tuple[str, str], int]:
    """1 for the best measured mean of a column, 2 for the second, as they are written; a column of one row has none."""
    ranks: dict[tuple[str, str], int] = {}
    for column in result.columns:
        cells = [result.cell(row.id, column.id) for row in rows]
        means = {cell.row: write_share(cell.mean) for cell in cells if cell.mean is not None}
        best = sorted({float(mean) for mean in means.values()}, reverse=True)
        if len(means) < 2:
            continue
        for place, value in enumerate(best[:2], start=1):
            ranks |= {(row, column.id): place for row, mean in means.items() if float(mean) == value}
    return ranks


def name_column(column: TableColumn) -> str:
    """With its group, if it is shown alone."""
    return f"{column.group} {column.title}".strip()


def name_row(row: Row) -> str:
    """With the marks of labels it needs, and a remark if it only approximates its method."""
    name = row.title + row.marks
    return f"{name} (approximation)" if row.approximation else name


def differ_in_seeds(cells: Iterable[ResultCell]) -> bool:
    """Whether single numbers have to state their number of seeds."""
    return len({cell.count for cell in cells if cell.values}) > 1


def write_seeds(cells: Sequence[ResultCell]) -> str:
    """The number of seeds: "3 seeds", "1 to 3 seeds"."""
    counts = sorted({cell.count for cell in cells if cell.values})
    if not counts:
        return "no seeds yet"
    if len(counts) == 1:
        return "1 seed" if counts[0] == 1 else f"{counts[0]} seeds"
    return f"{counts[0]} to {counts[-1]} seeds"


QUOTED = "°"  # behind a number of the paper that it took from elsewhere
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def write_markdown(result: BenchResult) -> str:
    """Measured numbers next to the paper's."""
    rows, columns = shown_rows(result), result.columns
    ranks, counted = rank_cells(result, rows), differ_in_seeds(result.cells.values())
    lines = [f"### {result.table.title}", "", result.table.caption, ""]
    lines.append("| method | " + " | ".join(_pipe(name_column(column)) for column in columns) + " |")
    lines.append("|---|" + "---:|" * len(columns))
    for row in rows:
        cells = [_mark_cell(result.cell(row.id, c.id), ranks.get((row.id, c.id), 0), counted) for c in columns]
        lines.append(f"| {_pipe(name_row(row))} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _explain(result) + "."]) + "\n"


def _mark_cell(cell: ResultCell, rank: int, counted: bool) -> str:
    text = {1: "**{}**", 2: "<u>{}</u>"}.get(rank, "{}").format(_measured(cell, counted))
    paper = _paper(cell.paper, "**{}**", "<u>{}</u>")
    if paper and cell.difference is not None:
        return f"{text} (paper {paper}, {write_points(cell.difference)})"
    return f"{text} (paper {paper})" if paper else text


def _pipe(text: str) -> str:
    return text.replace("|", "\\|")


def write_latex(result: BenchResult) -> str:
    """A `booktabs` table; below every row of the paper its printed numbers."""
    rows, columns = shown_rows(result), result.columns
    ranks, counted = rank_cells(result, rows), differ_in_seeds(result.cells.values())
    lines = [r"\begin{table}[ht]", r"\centering", rf"\caption{{{_tex(result.table.title)}. {_tex(_explain(result))}.}}"]
    lines += [rf"\label{{{result.table.label or 'tab:' + result.table.name}-measured}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule"]
    if any(column.group for column in columns):
        groups = [(name, len(list(members))) for name, members in groupby(columns, lambda column: column.group)]
        lines.append(" & ".join(["", *(rf"\multicolumn{{{n}}}{{c}}{{{_tex(name)}}}" for name, n in groups)]) + r" \\")
    lines.append(" & ".join(["Method", *(_tex(column.title) for column in columns)]) + r" \\ \midrule")
    for row in rows:
        cells = [result.cell(row.id, column.id) for column in columns]
        texts = [_tex_cell(cell, ranks.get((row.id, cell.column), 0), counted) for cell in cells]
        lines.append(" & ".join([_tex(name_row(row)), *texts]) + r" \\")
        if any(_paper(cell.paper) for cell in cells):
            printed = [_tex(_paper(cell.paper, r"\textbf{{{}}}", r"\underline{{{}}}"), ready=True) for cell in cells]
            lines.append(" & ".join([r"\quad\small paper", *(rf"\small {text}" for text in printed)]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _tex_cell(cell: ResultCell, rank: int, counted: bool) -> str:
    text = _tex(_measured(cell, counted)).replace(MISSING, r"\textit{missing}")
    return {1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"}.get(rank, "{}").format(text)


def _tex(text: str, ready: bool = False) -> str:
    """ready: LaTeX already, but for its signs."""
    text = text if ready else text.translate(_LATEX)
    return (
        text.replace("−", "$-$")
        .replace("±", r"$\pm$")
        .replace("–", "--")
        .replace(QUOTED, r"$^\circ$")
        .replace(GROUPS, r"$^\ddagger$")
        .replace(SELECTION, r"$^\S$")
    )


def write_csv(result: BenchResult) -> str:
    """One line per cell; figures in percent, nothing rounded, nothing where there is nothing."""
    lines = [_describe(result, row, column) for row in shown_rows(result) for column in result.columns]
    buffer = StringIO()
    writer = csv.DictWriter(buffer, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _describe(result: BenchResult, row: Row, column: TableColumn) -> dict[str, Any]:
    cell = result.cell(row.id, column.id)
    versus = cell.versus
    return {
        "table": result.table.name,
        "row": row.id,
        "method": row.method,
        "domain_labels": "yes" if DOMAINS in row.marks else "no",
        "group_labels": "yes" if GROUPS in row.marks else "no",
        "paper_selects_by_groups": "yes" if SELECTION in row.marks else "no",
        "approximation": row.approximation,
        "column": column.id,
        "group": column.group,
        "state": cell.state,
        "reason": cell.reason,
        "mean": cell.mean,
        "deviation": cell.deviation,
        "seeds": cell.count,
        "paper": cell.paper.value,
        "paper_status": cell.paper.status,
        "difference": cell.difference,
        "versus": versus and versus.mean,
        "versus_low": versus and versus.low,
        "versus_high": versus and versus.high,
        "verdict": versus and versus.verdict,
        "runs": " ".join(ref.path.name for value in cell.values for ref in value.runs),
    }


FORMATS: dict[str, Callable[[BenchResult], str]] = {"md": write_markdown, "tex": write_latex, "csv": write_csv}


def _measured(cell: ResultCell, counted: bool) -> str:
    if cell.state == "by-design":
        return BY_DESIGN
    return write_spread(cell, counted) if cell.values else MISSING


def _paper(number: PaperNumber, best: str = "{}", second: str = "{}") -> str:
    """The paper's number as printed; empty if it prints none."""
    if number.status == "dash":
        return BY_DESIGN
    if number.value is None:
        return ""
    text = f"{number.value:.2f}"
    marked = best.format(text) if number.best else second.format(text) if number.second else text
    return marked + (QUOTED if number.status == "quoted" else "")


def _explain(result: BenchResult) -> str:
    cells = list(result.cells.values())
    caption = f"Accuracy in %, mean ± sample standard deviation over {write_seeds(cells)}"
    caption += " (how many in brackets)" if differ_in_seeds(cells) else ""
    caption += f"; epoch chosen by {result.rule}"
    caption += " (needs group labels)" if RULES[result.rule].needs_groups else ""
    caption += "".join(f"; {row.title}: by {row.rule}" for row in shown_rows(result) if row.rule)
    marks = explain_marks("".join(row.marks for row in shown_rows(result)))
    caption += f"; {marks}" if marks else ""
    quoted = any(cell.paper.status == "quoted" for cell in cells)
    return caption + (f"; {QUOTED} the paper quotes this number from elsewhere" if quoted else "")
