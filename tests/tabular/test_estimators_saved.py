"""A model as plain numbers predicts as the one that was saved, gaps and categories of numbers included."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stablenet.tabular import StableRegressor
from stablenet.tabular.estimators import load_model, save_model


@pytest.fixture
def saved(mixed, tmp_path):
    frame, y = mixed
    gaps = frame.assign(b=frame["b"].mask(frame["a"] > 1), town=frame["town"].mask(frame["a"] < -1))
    model = StableRegressor().fit(gaps, y)
    save_model(model, tmp_path / "model.json")
    return model, gaps, tmp_path / "model.json"


def test_gaps_are_carried(saved):
    model, gaps, path = saved
    np.testing.assert_array_equal(load_model(path).predict(gaps), model.predict(gaps))
    assert load_model(path).encoding_.column_names == model.encoding_.column_names


def test_named_categories_are_carried(mixed, tmp_path):
    frame, y = mixed
    table = frame.assign(town=frame["town"].cat.codes)
    model = StableRegressor(categorical=["town"]).fit(table, y)
    save_model(model, tmp_path / "model.json")
    np.testing.assert_array_equal(load_model(tmp_path / "model.json").predict(table), model.predict(table))


def test_the_first_format_had_no_gaps(mixed, tmp_path):
    frame, y = mixed
    path = tmp_path / "model.json"
    model = StableRegressor().fit(frame, y)
    save_model(model, path)
    values = json.loads(path.read_text())
    for column in values["columns"]:
        del column["gaps"]
    path.write_text(json.dumps(values | {"format": 1}))
    np.testing.assert_array_equal(load_model(path).predict(frame), model.predict(frame))
