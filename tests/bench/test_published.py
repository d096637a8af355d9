"""Published runs: the tables beside the results find the records that were packed, however fields are called now."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from stablenet.bench import cells
from stablenet.bench.cells import add_rows, make_run
from stablenet.bench.paper_tables import find_table
from stablenet.engine.config import hash_values, read_config
from stablenet.engine.identity import Contents, recall_identity

RESULTS = Path(__file__).parents[2] / "results"
WITH_FIGURES = {"mnist-m": 800, "pacs": 400, "natural": 100}  # runs in the figures, at least


def read_packed(path):
    """Folder → contents of config.json."""
    with gzip.open(path, "rt") as file:
        runs = [json.loads(line) for line in file]
    return {run["folder"]: json.loads(run["files"]["config.json"]) for run in runs}


def find_series(described):
    return recall_identity(read_config(described["config"]), described["hashed"]).series


def list_cells(name, beside):
    """Row, column and run folders of every published cell that is no mean."""
    table = find_table(name)
    rows = {row.id: row for row in (*add_rows(table), *table.rows)}
    with beside.open() as file:
        for line in csv.DictReader(file):
            column = table.find_column(line["column"])
            if line["runs"] and not column.mean_of:
                yield table, rows[line["row"]], column, line["runs"].split()


@pytest.mark.parametrize("bed", WITH_FIGURES)
def test_every_figure_finds_its_published_runs(bed, own_methods, monkeypatch):
    published = read_packed(RESULTS / bed / "records.jsonl.gz")
    assert all(hash_values(described["hashed"]) == described["hash"] for described in published.values())
    (weights,) = {described["hashed"]["model"]["pretrained"] for described in published.values()}
    monkeypatch.setattr(cells, "read_contents", lambda *config: Contents(weights=weights))  # the file is not at hand
    used = set()
    for beside in sorted((RESULTS / bed).glob("*.csv")):
        own = beside.with_suffix(".toml")
        for table, row, column, folders in list_cells(str(own) if own.exists() else beside.stem, beside):
            wanted = make_run(table, row, column, 0).series
            assert {find_series(published[folder]) for folder in folders} == {wanted}, (beside.stem, row.id, column.id)
            used |= set(folders)
    assert len(used) >= WITH_FIGURES[bed]


def test_a_table_without_figures_beside_it_finds_all_its_runs():
    folder = RESULTS / "coloured"
    table = find_table(str(folder / "table.toml"))
    wanted = {make_run(table, row, column, 0).series for row in table.rows for column in table.columns}
    assert {find_series(described) for described in read_packed(folder / "records.jsonl.gz").values()} == wanted
