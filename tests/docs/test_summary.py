"""Headline figures: the summary is what the tables say, and the README says nothing else."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from benchmarks import summary

ROOT = Path(__file__).parents[2]
SPREAD = re.compile(r"\d+\.\d ± \d+\.\d")


@pytest.fixture(scope="module")
def figures():
    return [summary.compute(source) for source in summary.SOURCES]


def test_the_summary_is_what_the_tables_say(figures):
    kept = json.loads((ROOT / "results" / "summary.json").read_text(encoding="utf-8"))
    assert kept == [asdict(figure) for figure in figures]
    page = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    assert page == summary.put(page, summary.write_table(figures))


def test_figures_with_a_spread_in_the_readme_are_in_the_summary(figures):
    known = {f"{value:.1f} ± {spread:.1f}" for f in figures for value, spread in pairs(f)}
    found = SPREAD.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(found) >= 6
    assert set(found) <= known


def test_differences_and_intervals_belong_together(figures):
    for figure in figures:
        assert figure.low < figure.difference < figure.high
        assert figure.last_low < figure.last < figure.last_high
        assert figure.difference == pytest.approx(figure.ours - figure.plain, abs=0.11), figure


def test_tables_and_the_page_of_both_rules_agree(figures):
    for figure in figures:
        found = summary.find_difference(figure.table, figure.row, figure.column, "source-validation")
        assert found == pytest.approx([figure.difference, figure.low, figure.high], abs=0.051), figure


def pairs(figure):
    return [(figure.plain, figure.plain_deviation), (figure.ours, figure.ours_deviation)]
