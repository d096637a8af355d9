"""The paper's tables, and a user's own ones, as one command: which runs, where, how long, and what came out."""

from stablenet.bench.fill import collect
from stablenet.bench.results import BenchResult, Cell, RunRef, SeedValue
from stablenet.bench.tables import Column, PaperNumber, Row, Table, find_table, list_tables

__all__ = [
    "BenchResult",
    "Cell",
    "Column",
    "PaperNumber",
    "Row",
    "RunRef",
    "SeedValue",
    "Table",
    "collect",
    "find_table",
    "list_tables",
]
