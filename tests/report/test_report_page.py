"""The headline says what the tallies say."""

from types import SimpleNamespace

import pytest

from stablenet.bench.results import compare_seeds
from stablenet.report.report_page import write_headline


def gathered(*tallies, method="stablenet"):
    """One table with a row for each (win, tie, loss)."""
    rows = [SimpleNamespace(id=f"row{k}", title=f"Row {k}", method=method) for k in range(len(tallies))]
    counts = [SimpleNamespace(win=win, tie=tie, loss=loss) for win, tie, loss in tallies]
    result = SimpleNamespace(
        rows=rows, columns=[], tallies={row.id: count for row, count in zip(rows, counts, strict=True)}
    )
    return SimpleNamespace(results=[result], runs=[1, 2, 3])


def test_means_are_told_apart_from_settings():
    """A mean may be behind where no single setting is, and must not go unsaid."""
    found = gathered((1, 3, 0))
    result = found.results[0]
    result.columns = [
        SimpleNamespace(id=name, mean_of=parts) for name, parts in (("a", ()), ("b", ("a",)), ("c", ("a",)))
    ]
    better, worse = compare_seeds({0: 3.0, 1: 4.0}, {0: 1.0, 1: 2.0}), compare_seeds({0: 1.0, 1: 2.0}, {0: 3.0, 1: 4.0})
    cells = {"a": better, "b": worse, "c": None}
    result.cell = lambda row, column: SimpleNamespace(versus=cells[column])
    head, rest = write_headline(found)
    assert "ahead of ERM in 1 of 4 settings, behind in none" in head
    assert "Of 1 mean over settings it is ahead in none, behind in 1." in rest


@pytest.mark.parametrize(
    ("tally", "words"),
    [
        ((6, 1, 0), "ahead of ERM in 6 of 7 settings, behind in none"),
        ((1, 0, 2), "behind ERM in 2 of 3 settings, ahead in 1"),
        ((0, 1, 0), "cannot be told apart in 1 setting."),
    ],
)
def test_wins_and_losses_are_told(tally, words):
    assert words in write_headline(gathered(tally))[0]


def test_a_row_without_runs_does_not_hide_the_next_one():
    assert "ahead of ERM in 2 of 2" in write_headline(gathered((0, 0, 0), (2, 0, 0)))[0]


def test_the_row_with_most_to_compare_counts_and_is_named():
    head, rest = write_headline(gathered((0, 2, 0), (3, 1, 3), (7, 0, 0)))
    assert "in 3 of 7" in head
    assert "the row Row 1 here" in rest


def test_every_row_that_counts_is_named_unless_all_bear_the_plain_name():
    plain, other = gathered((1, 0, 0)).results[0], gathered((2, 0, 0)).results[0]
    plain.rows[0].title = "StableNet"
    assert "the row" not in write_headline(SimpleNamespace(results=[plain, plain], runs=[]))[1]
    assert "the row StableNet or Row 0 here" in write_headline(SimpleNamespace(results=[plain, other], runs=[]))[1]


@pytest.mark.parametrize("found", [gathered((0, 0, 0)), gathered((3, 0, 0), method="rsc"), gathered()])
def test_nothing_to_compare_is_said(found):
    head, rest = write_headline(found)
    assert head == "Results of 3 runs"
    assert "nothing can be compared" in rest
