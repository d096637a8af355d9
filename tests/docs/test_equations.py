"""Equations are cited by their number in the paper and their label in its source, and the two belong together."""

import re

import pytest

from tests.docs.blocks import ROOT

NUMBERS = {  # restated in the appendix: the later ones
    "cross-covariance": (3,),
    "rff_transform": (4, 5),
    "sigmaabw": (6,),
    "learning_weight": (7, 12),
    "overall": (8,),
    "concat_w": (9,),
    "save_w": (10, 14),
    "concat_z": (11,),
    "weighted_loss": (13,),
}
UNLABELLED = (15,)  # CNBB's quantisation loss
NUMBER, LABEL = r"\d+", r"`?[a-z_-]+`?"
LIST = r"{0}(?:(?:,\s+|\s+and\s+){0})*"
CITATION = re.compile(rf"\bEqs?\.\s+({LIST.format(NUMBER)})(?:,\s+({LIST.format(LABEL)}))?")
BARE = re.compile(rf"\bEqs?\.\s+({'|'.join(NUMBERS)})\b")
CODE = [path for folder in ("src", "tests/reference") for path in sorted((ROOT / folder).rglob("*.py"))]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def read_citations(path):
    """Numbers and labels of every citation of an equation."""
    for numbers, labels in CITATION.findall(path.read_text(encoding="utf-8")):
        known = [label for label in re.findall(r"[a-z_-]+", labels) if label in NUMBERS]
        yield tuple(map(int, re.findall(NUMBER, numbers))), tuple(known)


def name_file(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [path for path in (*CODE, *PAGES) if "Eq" in path.read_text("utf-8")], ids=name_file)
def test_numbers_and_labels_belong_together(path):
    assert not BARE.findall(path.read_text(encoding="utf-8")), "cited by its label alone"
    for numbers, labels in read_citations(path):
        allowed = {number for label in labels for number in NUMBERS[label]}
        assert set(numbers) <= (allowed or {*sum(NUMBERS.values(), ()), *UNLABELLED}), (numbers, labels)
        assert all(set(NUMBERS[label]) & set(numbers) for label in labels), (numbers, labels)


@pytest.mark.parametrize("path", [path for path in CODE if "Eq" in path.read_text("utf-8")], ids=name_file)
def test_code_names_the_label_of_every_equation(path):
    for numbers, labels in read_citations(path):
        assert labels or set(numbers) <= set(UNLABELLED), numbers


def test_every_label_is_cited_beside_the_code_and_in_the_pages():
    cited = {name for path in CODE for _, labels in read_citations(path) for name in labels}
    assert cited >= set(NUMBERS) - {"concat_z", "weighted_loss"}
    pages = {name for path in PAGES for _, labels in read_citations(path) for name in labels}
    assert pages == set(NUMBERS)
    table = (ROOT / "docs" / "architecture.md").read_text("utf-8").partition("## Where the equations are")[2]
    for label, numbers in NUMBERS.items():
        assert f"| {' and '.join(map(str, numbers))}, " in next(
            row for row in table.splitlines() if f"`{label}`" in row
        )
