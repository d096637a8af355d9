"""`stablenet table fit` as a user types it."""

from __future__ import annotations

import joblib
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from stablenet import UserError
from stablenet.cli.verbs import app


@pytest.fixture
def table(tmp_path):
    generator = np.random.default_rng(0)
    a = generator.normal(size=90)
    frame = pd.DataFrame({"a": a, "b": a + generator.normal(size=90), "c": generator.normal(size=90)})
    frame["y"] = frame["a"] + 0.1 * frame["c"]
    frame["site"] = np.tile(["p", "q", "r"], 30)
    path = tmp_path / "data.csv"
    frame.to_csv(path, index=False)
    return path


def test_fit_writes_a_page_the_weights_and_the_model(table, tmp_path):
    extras = ["--weights", str(tmp_path / "w.csv"), "--save", str(tmp_path / "m.joblib")]
    result = CliRunner().invoke(app, ["table", "fit", str(table), "--target", "y", "--environment", "site", *extras])
    assert result.exit_code == 0, result.output
    assert "worst" in result.output
    assert table.with_suffix(".html").is_file()
    weights = pd.read_csv(tmp_path / "w.csv")["weight"]
    assert weights.sum() == pytest.approx(90)
    model = joblib.load(tmp_path / "m.joblib")
    np.testing.assert_allclose(model.weights_, weights)


def test_a_wrong_column_is_a_user_error(table):
    result = CliRunner().invoke(app, ["table", "fit", str(table), "--target", "z"])
    assert isinstance(result.exception, UserError)
    assert not table.with_suffix(".html").exists()


def test_diagnose_takes_the_options_of_fit_and_the_former_names_with_a_notice(table, tmp_path):
    frame = pd.read_csv(table)
    frame.loc[::9, "a"] = np.nan
    frame.assign(month=frame.index % 12).to_csv(table, index=False)
    shared = ["--environment", "site", "--categorical", "month", "--leave-out", "c", "--missing", "drop"]
    fitted = CliRunner().invoke(app, ["table", "fit", str(table), "--target", "y", *shared])
    assert fitted.exit_code == 0, fitted.output
    page = ["--output", str(tmp_path / "page.html")]
    asked = CliRunner().invoke(app, ["diagnose", str(table), "--target", "y", *shared, *page])
    assert asked.exit_code == 0, asked.output
    words = f"{table} --target y --environment site --leave-out c --categorical month --missing drop"
    assert words in asked.output
    assert f"table fit {words}" in (tmp_path / "page.html").read_text()
    former = CliRunner().invoke(app, ["diagnose", str(table), "--label", "y", "--context", "site", *page])
    assert former.exit_code == 0, former.output
    assert "--target y --environment site" in former.output
    filled = CliRunner().invoke(app, ["table", "fit", str(table), "--target", "y", "--missing", "fill"])
    assert filled.exit_code == 0, filled.output
    assert "--missing fill is now --missing mark" in filled.output
