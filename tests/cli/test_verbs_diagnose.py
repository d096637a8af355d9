"""`stablenet diagnose` as a user types it: images, a table, mistakes."""

from __future__ import annotations

import pytest
from tests.diagnose.test_tables import draw_table
from typer.testing import CliRunner

from stablenet import UserError
from stablenet.cli.main import app


def run(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)])


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "animals.csv"
    draw_table(0.9).to_csv(path, index=False)
    return path


def test_embedded_data_get_a_verdict_and_a_page(tmp_path):
    page = tmp_path / "deep" / "page.html"
    result = run("embedded", "--setting", "adversarial", "--set", "ratio=0.9", "--limit", 400, "-o", page)
    assert result.exit_code == 0, result.output
    assert "likely to help" in result.output
    assert "400 of" in result.output
    assert "Cramér" in page.read_text()


def test_a_table_gets_one_too(table, tmp_path):
    result = run(table, "--context", "ground", "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert "Cramér" in result.output
    assert (tmp_path / "page.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("nowhere",), "does not exist"),
        (("nowhere", "--setting", "classic"), "not a named source"),
        (("embedded", "--context", "domain"), "leave --context out"),
    ],
)
def test_mistakes(arguments, match):
    result = run(*arguments)
    assert isinstance(result.exception, UserError)
    assert match in str(result.exception)
