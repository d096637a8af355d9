"""The list of images: reading in place, safe in processes and threads; bad rows and unsafe names."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from stablenet.data.image_list import ComposedList, ImageList, check_member_name, make_image_list
from stablenet.errors import UserError


def record(image: str, label: int = 0, domain: int = 0) -> dict[str, object]:
    return {"id": image, "path": image, "label": label, "domain": domain}


def read_all(table: ImageList, _: int) -> list[bytes]:
    return [table.open_bytes(path) for path in table.rows["path"]]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_archive_reads_as_the_folder_does_in_threads_and_forked_processes(
    write_files: Callable[..., Path], zip_folder: Callable[..., Path]
) -> None:
    names = [f"{k:03d}.png" for k in range(150)]
    root = write_files(names)
    archive = zip_folder(root)
    table = make_image_list("x", archive, ["a"], ["b"], [record(name) for name in names])
    expected = [(root / name).read_bytes() for name in names]
    assert read_all(table, 0) == expected  # the archive is now open in this process
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(partial(read_all, table), range(4))) == [expected] * 4
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("fork")) as pool:
        assert list(pool.map(partial(read_all, table), range(3))) == [expected] * 3


def test_rows_are_sorted_by_id() -> None:
    table = make_image_list("x", Path(), ["a", "b"], ["d"], [record("2", 1), record("10"), record("B"), record("a")])
    assert list(table.rows["id"]) == ["10", "2", "B", "a"]
    assert list(table.rows["label"]) == [0, 1, 0, 0]


def test_missing_file_is_a_user_error(tmp_path: Path) -> None:
    table = make_image_list("x", tmp_path, ["a"], ["b"], [record("gone.png")])
    with pytest.raises(UserError, match=r"cannot read gone\.png"):
        table.open_bytes("gone.png")


def test_bad_rows_are_refused() -> None:
    with pytest.raises(UserError, match="occur more than once, for example 'a'"):
        make_image_list("x", Path(), ["c"], ["d"], [record("a"), record("a")])
    with pytest.raises(ValueError, match=r"label outside 0..0"):
        make_image_list("x", Path(), ["c"], ["d"], [record("a", label=1)])
    with pytest.raises(ValueError, match=r"domain outside 0..0"):
        make_image_list("x", Path(), ["c"], ["d"], [record("a", domain=-1)])
    with pytest.raises(UserError, match="no images found for x"):
        make_image_list("x", Path(), ["c"], ["d"], [])
    with pytest.raises(ValueError, match=r"lacks the columns \['domain'\]"):
        ImageList("x", Path(), ("c",), ("d",), pd.DataFrame({"id": ["a"], "path": ["a"], "label": [0]}))


def test_composed_table_needs_its_columns() -> None:
    rows = pd.DataFrame({"id": ["a"], "label": [0]})
    with pytest.raises(ValueError, match=r"lacks the columns \['subset'\]"):
        ComposedList("x", ("c",), ("d",), rows, lambda: np.zeros((1, 28, 28), np.uint8), list)


@pytest.mark.parametrize("name", ["../a.png", "a/../../b", "/etc/passwd", "\\windows", "C:/a", "a\\..\\b"])
def test_member_names_that_leave_the_archive_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="unsafe path"):
        check_member_name(name, Path("x.zip"))


@pytest.mark.parametrize("name", ["a/b.png", "a..b/c.png", "a/b c.png", "a/..b"])
def test_ordinary_member_names_pass(name: str) -> None:
    check_member_name(name, Path("x.zip"))
