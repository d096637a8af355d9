"""A table as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable
from io import StringIO
from itertools import groupby
from typing import Any

from stablenet.bench import BenchResult, Cell, Column, PaperNumber, Row
from stablenet.report.gather import shown_rows
from stablenet.report.numbers import (
    BY_DESIGN,
    MISSING,
    differ_in_seeds,
    name_column,
    name_row,
    rank_cells,
    write_points,
    write_seeds,
    write_spread,
)

QUOTED = "°"  # behind a number of the paper that it took from elsewhere
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def write_markdown(result: BenchResult) -> str:
    """Measured numbers with the paper's beside them."""
    rows, columns = shown_rows(result), result.columns
    ranks, counted = rank_cells(result, rows), differ_in_seeds(result.cells.values())
    lines = [f"### {result.table.title}", "", result.table.caption, ""]
    lines.append("| method | " + " | ".join(_pipe(name_column(column)) for column in columns) + " |")
    lines.append("|---|" + "---:|" * len(columns))
    for row in rows:
        cells = [_mark_cell(result.cell(row.id, c.id), ranks.get((row.id, c.id), 0), counted) for c in columns]
        lines.append(f"| {_pipe(name_row(row))} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _explain(result) + "."]) + "\n"


def _mark_cell(cell: Cell, rank: int, counted: bool) -> str:
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


def _tex_cell(cell: Cell, rank: int, counted: bool) -> str:
    text = _tex(_measured(cell, counted)).replace(MISSING, r"\textit{missing}")
    return {1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"}.get(rank, "{}").format(text)


def _tex(text: str, ready: bool = False) -> str:
    """ready: LaTeX already, but for its signs."""
    text = text if ready else text.translate(_LATEX)
    return text.replace("−", "$-$").replace("±", r"$\pm$").replace("–", "--").replace(QUOTED, r"$^\circ$")


def write_csv(result: BenchResult) -> str:
    """One line per cell; figures in percent, nothing rounded, nothing where there is nothing."""
    lines = [_describe(result, row, column) for row in shown_rows(result) for column in result.columns]
    buffer = StringIO()
    writer = csv.DictWriter(buffer, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _describe(result: BenchResult, row: Row, column: Column) -> dict[str, Any]:
    cell = result.cell(row.id, column.id)
    versus = cell.versus
    return {
        "table": result.table.name,
        "row": row.id,
        "method": row.method,
        "domain_labels": "yes" if row.needs_domains else "no",
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


def _measured(cell: Cell, counted: bool) -> str:
    if cell.state == "by-design":
        return BY_DESIGN
    return write_spread(cell, counted) if cell.values else MISSING


def _paper(number: PaperNumber, best: str = "{}", second: str = "{}") -> str:
    """The paper's number as it prints it; nothing where it prints nothing."""
    if number.status == "dash":
        return BY_DESIGN
    if number.value is None:
        return ""
    text = f"{number.value:.2f}"
    marked = best.format(text) if number.best else second.format(text) if number.second else text
    return marked + (QUOTED if number.status == "quoted" else "")


def _explain(result: BenchResult) -> str:
    cells = list(result.cells.values())
    told = f"Accuracy in %, mean ± sample standard deviation over {write_seeds(cells)}"
    told += " (how many in brackets)" if differ_in_seeds(cells) else ""
    told += f"; epoch chosen by {result.rule}"
    told += "; * learns from domain labels" if any(row.needs_domains for row in shown_rows(result)) else ""
    quoted = any(cell.paper.status == "quoted" for cell in cells)
    return told + (f"; {QUOTED} the paper quotes this number from elsewhere" if quoted else "")
