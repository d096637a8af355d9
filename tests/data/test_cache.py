"""The cache is named when it is first written, measured by kind, and cleared but for what is being built."""

from __future__ import annotations

import logging

import pytest
from PIL import Image

from stablenet import UserError
from stablenet.data.cache import cache_folder, check_kinds, clear_cache, list_cache, name_cache
from stablenet.data.prepare import default_store_path, prepare
from stablenet.data.sources import read_source
from stablenet.data.store import PixelStore
from stablenet.files import lock


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STABLENET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def table(tmp_path):
    for place in ("north/cat", "south/dog"):
        (tmp_path / "images" / place).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / place / "0.png")
    return read_source("folder", tmp_path / "images")


@pytest.fixture
def filled(cache, table):
    """A store, kept features, a leftover, and files of somebody else."""
    prepare(table, default_store_path(table, None))
    for name, size in (("features-embedded-1", 500), (".lost-8-1.partial-x", 50), ("mine", 7)):
        (cache / name).mkdir()
        (cache / name / "data").write_bytes(b"x" * size)
    return cache


def test_the_cache_is_named_once(cache, table, caplog, tmp_path):
    with caplog.at_level(logging.WARNING, "stablenet"):
        prepare(table, tmp_path / "elsewhere")
        assert not caplog.records
        prepare(table, default_store_path(table, None))
        prepare(table, default_store_path(table, 16), size=16)
    assert [str(cache) in record.getMessage() for record in caplog.records] == [True]
    assert "data clear-cache" in caplog.text


def test_features_name_it_too(cache, caplog):
    cache.mkdir()
    name_cache(cache / "features-embedded-1")
    assert str(cache) in caplog.text


def test_entries_by_kind(filled):
    found = {entry.kind: entry for entry in list_cache()}
    assert {kind: entry.path.name for kind, entry in found.items()} == {
        "stores": next(filled.glob("folder-*")).name,
        "features": "features-embedded-1",
        "unfinished": ".lost-8-1.partial-x",
    }
    assert found["features"].size == 500
    assert found["stores"].size > 2 * 8 * 8 * 3


def test_clearing_leaves_what_is_not_ours_and_what_is_open_can_be_read(filled, table):
    store = PixelStore.open(default_store_path(table, None))
    freed, left = clear_cache(list_cache())
    assert (freed > 550, left) == (True, [])
    assert sorted(path.name for path in filled.glob("[!.]*")) == ["mine"]
    assert not list(filled.glob(".*partial*"))
    assert len(store) == 2
    assert prepare(table, default_store_path(table, None)).made


def test_what_a_process_is_building_stays(filled):
    with lock(filled / "features-embedded-1"), lock(filled / "lost-8-1"):
        _, left = clear_cache(list_cache())
    assert [entry.kind for entry in left] == ["features", "unfinished"]
    assert {entry.kind for entry in list_cache()} == {"features", "unfinished"}


def test_an_empty_cache_and_an_unknown_kind(cache):
    assert cache_folder() == cache
    assert list_cache() == []
    with pytest.raises(UserError, match="did you mean 'stores'"):
        check_kinds(["store"])
