"""A release: one number and one date everywhere, and at most ten lines on what changed for users."""

import itertools
import re
from pathlib import Path

from stablenet import __version__

ROOT = Path(__file__).parents[1]
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
HEADING = re.compile(r"^## (\d+\.\d+\.\d+) – (\d{4}-\d{2}-\d{2})$", re.MULTILINE)


def test_version_and_date_are_those_of_the_newest_release():
    number, date = HEADING.findall(CHANGES)[0]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert number == __version__
    assert f"\nversion: {number}\n" in citation
    assert f"\ndate-released: {date}\n" in citation


def test_a_release_is_told_in_ten_lines_and_its_upgrade_elsewhere():
    parts = HEADING.split(CHANGES)[1:]
    for number, told in zip(parts[::3], parts[2::3], strict=True):
        assert 1 <= len(re.findall(r"^- ", told, re.MULTILINE)) <= 10, number
    upgrading = (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")
    minors = [number.rpartition(".")[0] for number in parts[::3]]
    for newer, older in itertools.pairwise(minors):
        assert f"## From {older} to {newer}\n" in upgrading
