"""The page Architecture names files and functions that exist, and every labelled equation; its picture is current."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from docs.machinery.architecture import PICTURE, STEPS, draw
from docs.machinery.excerpts import LostExcerpt, find_function

from tests.docs.blocks import ROOT
from tests.docs.test_machinery import LABELS

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src" / "stablenet"
NAMES = r"`[A-Za-z_][\w.]*`"
# A file, and after a colon the functions of it: `src/stablenet/a.py`: `one`, `Two.three`
PLACE = re.compile(rf"`src/stablenet/([\w./]+)`(?::\s+({NAMES}(?:,\s+{NAMES})*))?")
FILES = {"config.json", "manifest.tsv", "records.jsonl", "evaluation.jsonl", "weights.parquet"}
DATA = {"ComposedList", "CutoutList", "Batch", "Run"}  # what functions hand over, named in a sentence


def read_places(text: str) -> list[tuple[str, str]]:
    """Every file with every function of it that a text names; a file without any has an empty one."""
    return [(file, name) for file, names in PLACE.findall(text) for name in (re.findall(r"`([^`]+)`", names) or [""])]


PLACES = sorted(set(read_places(PAGE)))


@pytest.mark.parametrize(("file", "name"), PLACES, ids=str)
def test_a_place_exists(file, name):
    path = PACKAGE / file
    assert path.is_file(), f"there is no file src/stablenet/{file}"
    assert name, f"no function is named beside src/stablenet/{file}"
    find_function(path.read_text(encoding="utf-8"), name, file)


def test_every_name_stands_beside_its_file():
    """So that none is left out of the test above."""
    known = {name for _, name in PLACES} | FILES | DATA | set(LABELS)
    quoted = {text for text in re.findall(r"`([^`]+)`", PAGE) if re.fullmatch(r"[A-Za-z_][\w.]*", text)}
    looks_like_code = {text for text in quoted if "_" in text or re.search(r"[a-z][A-Z]|^[A-Z]|\.", text)}
    assert looks_like_code - known <= {"stablenet.weighting"}


def test_the_walk_is_complete_and_in_order():
    headings = [int(number) for number in re.findall(r"^### (\d+)\. ", PAGE, re.MULTILINE)]
    assert headings == list(range(1, len(headings) + 1))
    numbers = {int(step.title.split()[0]) for step in STEPS}
    assert numbers == set(headings)
    sections = re.split(r"^### \d+\. ", PAGE, flags=re.MULTILINE)[1:]
    for number, section in enumerate(sections, 1):
        assert read_places(section), f"step {number} names no place"
        drawn = {step.file for step in STEPS if int(step.title.split()[0]) == number}
        assert drawn <= {file for file, _ in read_places(section)}, f"the picture shows another file for step {number}"


def test_every_labelled_equation_has_a_place():
    table = PAGE.partition("## Where the equations are")[2].partition("\n## ")[0]
    rows = {label: row for row in table.splitlines() for label in LABELS if f"| `{label}` |" in row}
    assert set(rows) == set(LABELS)
    assert all(read_places(row) for row in rows.values())


def test_the_picture_is_the_one_that_is_drawn_and_shows_real_files():
    assert PICTURE.read_text(encoding="utf-8") == draw(), "draw it again: python -m docs.machinery.architecture"
    ElementTree.fromstring(draw())
    assert f"pictures/{PICTURE.name}" in PAGE
    for step in STEPS:
        assert (PACKAGE / step.file).is_file(), step.file
        if re.fullmatch(r"[\w.]+", step.note):
            find_function((PACKAGE / step.file).read_text(encoding="utf-8"), step.note, step.file)


def test_what_is_not_there_is_found():
    assert read_places("`src/stablenet/a.py`: `one`, `Two.three`; `src/stablenet/b.py`") == [
        ("a.py", "one"),
        ("a.py", "Two.three"),
        ("b.py", ""),
    ]
    text = Path(__file__).read_text(encoding="utf-8")
    with pytest.raises(LostExcerpt):
        find_function(text, "no_such_function", "a.py")
