"""`stablenet diagnose` as a user types it: images, a table, mistakes."""

from __future__ import annotations

import pandas as pd
import pytest
from tests.diagnose.test_diagnoses_table import draw_table
from typer.testing import CliRunner

from stablenet import UserError
from stablenet.cli.verbs import app


def run(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)])


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "animals.csv"
    draw_table(0.9).to_csv(path, index=False)
    return path


def test_embedded_data_get_a_verdict_and_a_page(tmp_path):
    page = tmp_path / "deep" / "page.html"
    where = ("-o", page, "--csv", tmp_path / "e.csv")
    result = run("embedded", "--split", "adversarial", "--set", "ratio=0.9", "--limit", 400, *where)
    assert result.exit_code == 0, result.output
    assert "likely to help" in result.output
    assert "400 of" in result.output
    assert "Cramér" in page.read_text()  # in the figures, not in the argument
    assert "Cramér" not in result.output
    frame = pd.read_csv(tmp_path / "e.csv", dtype={"label": str})
    assert list(frame) == ["rank", "id", "path", "label", "domain", "outside", "context_score", "weight"]
    assert frame["outside"].eq("yes").mean() < 0.2
    assert frame["outside"].iloc[:20].eq("yes").mean() > 0.8  # those that break the correlation come first
    assert "next: stablenet list recipes --match 'embedded*'" in result.output


def test_a_table_gets_one_too(table, tmp_path):
    listed = tmp_path / "exceptions.csv"
    result = run(table, "--context", "ground", "-o", tmp_path / "page.html", "--csv", listed)
    assert result.exit_code == 0, result.output
    assert "of the samples lie in their class's main context" in " ".join(result.output.split())
    assert f"next: stablenet table fit {table} --target label --environment ground" in result.output
    page, frame = (tmp_path / "page.html").read_text(), pd.read_csv(listed)
    assert f"stablenet table fit {table} --target label --environment ground" in page
    assert frame["rank"].tolist() == list(range(1, len(pd.read_csv(table)) + 1))
    assert frame["context_score"].is_monotonic_increasing


def test_a_list_of_another_kind_is_refused_before_anything_is_read(table, tmp_path):
    result = run(table, "--csv", tmp_path / "exceptions.xlsx")
    assert isinstance(result.exception, UserError)
    assert ".csv or .parquet" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("nowhere",), "does not exist"),
        (("nowhere", "--split", "classic"), "does not exist"),
        (("embedded", "--context", "domain"), "leave --context out"),
    ],
)
def test_mistakes(arguments, match):
    result = run(*arguments)
    assert isinstance(result.exception, UserError)
    assert match in str(result.exception)
