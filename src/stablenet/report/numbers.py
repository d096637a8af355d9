"""How numbers are written, and which of a column are best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stablenet.bench import BenchResult, Cell, Column, Row

MINUS = "−"
MISSING, BY_DESIGN = "missing", "–"


def write_share(value: float) -> str:
    """Percent with a digit after the point."""
    return f"{value:.1f}"


def write_points(value: float) -> str:
    """A difference with its sign: +1.3 or −0.4."""
    return f"{value:+.1f}".replace("-", MINUS)


def write_spread(cell: Cell, counted: bool = False) -> str:
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


def name_column(column: Column) -> str:
    """With its group, where it stands alone."""
    return f"{column.group} {column.title}".strip()


def name_row(row: Row) -> str:
    """* for domain labels; what only approximates its method says so."""
    name = f"{row.title}*" if row.needs_domains else row.title
    return f"{name} (approximation)" if row.approximation else name


def differ_in_seeds(cells: Iterable[Cell]) -> bool:
    """Whether single numbers have to say how many seeds are behind them."""
    return len({cell.count for cell in cells if cell.values}) > 1


def write_seeds(cells: Sequence[Cell]) -> str:
    """How many seeds are behind the numbers: "3 seeds", "1 to 3 seeds"."""
    counts = sorted({cell.count for cell in cells if cell.values})
    if not counts:
        return "no seeds yet"
    if len(counts) == 1:
        return "1 seed" if counts[0] == 1 else f"{counts[0]} seeds"
    return f"{counts[0]} to {counts[-1]} seeds"
