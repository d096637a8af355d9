"""Docstrings as Markdown, and the examples in them."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest
from docs.machinery.docstrings import escape, render

import stablenet

SOURCE = Path(stablenet.__file__).parent

TEXT = """Weights of the batch, (B,) float32.

D = Σ_{i<j} ‖Σ_ij‖²_F *(Eq. learning_weight)*, see `pairwise_dependence`.

u: (n, m, q).   w: (n,) non-negative,
    sums to n.
Returns a scalar.

>>> pairwise_dependence(u)
0.1
"""


def test_a_docstring_becomes_markdown():
    assert render(TEXT).split("\n\n") == [
        "Weights of the batch, (B,) float32.",
        r"D = Σ\_{i&lt;j} ‖Σ\_ij‖²\_F \*(Eq. learning\_weight)\*, see `pairwise_dependence`.",
        "- `u`: (n, m, q).\n- `w`: (n,) non-negative, sums to n.",
        "Returns a scalar.",
        "```pycon\n>>> pairwise_dependence(u)\n0.1\n```",
    ]


def test_formulas_and_tables_stay_as_they_are():
    table = "| a | b |\n|---|---|\n| 1 | 2 |"
    formula = "    2 D / s² = dᵀ M d − 2c · dᵀ G(v)"
    assert render(f"{table}\n\n{formula}") == f"{table}\n\n{formula}"
    assert escape("`a_b` c_d") == r"`a_b` c\_d"


def test_a_list_stands_apart_from_prose():
    text = "What it did.\nbefore / after: numbers.\nsteps: how many."
    assert render(text) == "What it did.\n\n- `before` / `after`: numbers.\n- `steps`: how many."


def test_prose_with_a_colon_is_no_list():
    assert render("Three guards: one, two, three.\nAnd more.") == "Three guards: one, two, three. And more."


WITH_EXAMPLES = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_examples_in_docstrings_print_what_they_say(path):
    name = path.relative_to(SOURCE.parent).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    found = doctest.testmod(import_module(name))
    assert found.failed == 0
    assert found.attempted > 0
