"""The reference names modules, classes and functions that exist, each once."""

from __future__ import annotations

import re
from collections import Counter
from importlib import import_module

import pytest

from tests.docs.blocks import ROOT

PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
NAMES = [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)]


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_a_name_exists_and_has_a_docstring(name):
    try:
        found = import_module(name)
    except ModuleNotFoundError:
        owner, _, last = name.rpartition(".")
        found = getattr(import_module(owner), last)
    assert found.__doc__


def test_no_name_stands_twice():
    assert not [name for name, count in Counter(NAMES).items() if count > 1]
    assert len(NAMES) > 50
