"""The paper's tables, and your own, as one command: which runs, where, how long, and the results.

In reading order: `paper_tables` (tables as data), `cells` (from a cell to its runs), `plan` (which runs are missing,
and their time), `executors` (where runs are carried out), `worker` (one run in a process of its own), `collect` (from
run folders to a filled table), `results` (a filled table, and all that the paper shows) and `search`
(hyper-parameters).
"""

from stablenet.bench.collect import collect
from stablenet.bench.paper_tables import PaperNumber, PaperTable, Row, TableColumn, find_table, list_tables
from stablenet.bench.results import BenchResult, ResultCell, RunRef, SeedValue

__all__ = [
    "BenchResult",
    "PaperNumber",
    "PaperTable",
    "ResultCell",
    "Row",
    "RunRef",
    "SeedValue",
    "TableColumn",
    "collect",
    "find_table",
    "list_tables",
]
