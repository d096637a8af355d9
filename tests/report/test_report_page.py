"""The headline and the first screen say what the runs say, over paired seeds alone; losses count as wins do."""

from types import SimpleNamespace

import pytest

from stablenet.bench import Row, TableColumn
from stablenet.bench.results import compare_seeds, tally
from stablenet.report.comparisons import choose_row, find_gain, write_counts, write_gain, write_headline

ERM = Row(id="erm", title="Plain", method="erm")
OURS = Row(id="ours", title="StableNet", method="stablenet")
OTHER = Row(id="other", title="StableNet, other", method="stablenet")


def make(cells, rows=(ERM, OURS), columns=None, title="A table"):
    """A result from {(row, column): {seed: percent}}; columns of the name `mean` are means of all others."""
    names = list(dict.fromkeys(column for _, column in cells))
    plain = [name for name in names if name != "mean"]
    columns = columns or [
        TableColumn(id=name, title=name, mean_of=tuple(plain)) if name == "mean" else TableColumn(id=name, recipe="x")
        for name in names
    ]

    def read(row, column):
        found = cells.get((row, column), {})
        versus = compare_seeds(found, cells.get(("erm", column), {})) if row != "erm" else None
        values = tuple(SimpleNamespace(seed=seed, value=value, runs=()) for seed, value in found.items())
        return SimpleNamespace(by_seed=found, versus=versus, values=values)

    tallies = {row.id: tally(read(row.id, c.id).versus for c in columns if not c.mean_of) for row in rows}
    return SimpleNamespace(
        rows=rows, columns=columns, cell=read, tallies=tallies, reference="erm", table=SimpleNamespace(title=title)
    )


def gathered(*results):
    return SimpleNamespace(results=results, runs=[1, 2, 3])


def headline(*results):
    return write_headline(gathered(*results), [gain for result in results if (gain := find_gain(result))])


WON = {("erm", "a"): {0: 50.0, 1: 52.0, 2: 54.0}, ("ours", "a"): {0: 60.0, 1: 61.0, 2: 65.0}}
LOST = {("erm", "a"): {0: 60.0, 1: 61.0, 2: 65.0}, ("ours", "a"): {0: 50.0, 1: 52.0, 2: 54.0}}
TIED = {("erm", "a"): {0: 50.0, 1: 60.0}, ("ours", "a"): {0: 60.0, 1: 51.0}}


def test_one_table_states_its_gain_in_points_with_its_interval():
    head, rest = headline(make(WON))
    assert head == "StableNet gains 10.0 points over Plain (95 % interval +7.5 to +12.5, 3 seeds)"
    assert rest.startswith("Of 1 single split: ahead in 1, behind in 0, no clear difference in 0.")


def test_a_loss_is_stated_like_a_gain():
    head, rest = headline(make(LOST))
    assert head == "StableNet loses 10.0 points against Plain (95 % interval −12.5 to −7.5, 3 seeds)"
    assert "ahead in 0, behind in 1, no clear difference in 0" in rest


def test_what_cannot_be_told_apart_is_no_gain():
    head, _ = headline(make(TIED))
    assert head.startswith("No clear difference: StableNet is +0.5 points from Plain (95 % interval −120")
    assert write_gain(find_gain(make({("erm", "a"): {0: 50.0}, ("ours", "a"): {0: 60.0}}))).endswith(
        "with 1 seed: too little for a verdict"
    )


def test_only_paired_seeds_stand_beside_a_paired_gain():
    cells = {("erm", "a"): {0: 50.0, 1: 52.0, 9: 90.0}, ("ours", "a"): {0: 60.0, 1: 61.0, 7: 0.0}}
    gain = find_gain(make(cells))
    assert (gain.theirs, gain.ours) == ({0: 50.0, 1: 52.0}, {0: 60.0, 1: 61.0})
    assert gain.versus.mean == pytest.approx(9.5)


def test_means_over_settings_are_counted_like_settings():
    """A mean may be behind where no single split is, and must not go unsaid."""
    behind = {("erm", "mean"): {0: 60.0, 1: 61.0, 2: 65.0}, ("ours", "mean"): {0: 50.0, 1: 52.0, 2: 54.0}}
    _, rest = headline(make(WON | behind))
    assert "Of 1 single split: ahead in 1, behind in 0, no clear difference in 0." in rest
    assert "Of 1 mean over splits: ahead in 0, behind in 1, no clear difference in 0." in rest


def test_several_tables_are_counted_and_losses_named():
    results = [make(WON), make(LOST), make(TIED)]
    head, _ = headline(*results)
    assert head == ("StableNet against plain training in 3 tables: ahead in 1, behind in 1, no clear difference in 1")
    assert "ahead in 0, behind in 1" in write_counts([find_gain(results[1])])


def test_the_mean_is_the_tables_own_or_else_of_the_whole_settings():
    both = {(row, column): seeds for (row, _), seeds in WON.items() for column in ("a", "b")}
    own = find_gain(make(both | {(row, "mean"): seeds for (row, _), seeds in WON.items()}))
    assert (own.split, [column.id for column in own.columns]) == ("mean of 2 splits", ["a", "b"])
    assert find_gain(make(both)).split == "mean of 2 splits"
    parts = [TableColumn(id="a", title="All", recipe="x"), TableColumn(id="b", recipe="x", domain="sea")]
    assert find_gain(make(both, columns=parts)).split == "All"


def test_the_row_with_most_to_compare_counts_whatever_came_out():
    rows = (ERM, OURS, OTHER)
    more = {("other", "a"): {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}, ("erm", "a"): {0: 50.0, 1: 52.0, 2: 54.0, 3: 50.0}}
    assert choose_row(make(WON | more, rows=rows)).id == "other"
    assert choose_row(make(WON, rows=rows)).id == "ours"  # rows without runs do not hide the next one


@pytest.mark.parametrize("cells", [{}, {("erm", "a"): {0: 1.0}}, {("erm", "a"): {0: 1.0}, ("ours", "a"): {1: 1.0}}])
def test_nothing_to_compare_is_said(cells):
    head, rest = headline(make(cells))
    assert head == "Results of 3 runs"
    assert "nothing can be compared" in rest


def test_a_gain_rests_on_enough_test_images():
    gain = find_gain(make(WON))
    assert write_gain(gain, 400).endswith("(95 % interval +7.5 to +12.5, 3 seeds, 400 test images)")
    assert write_gain(gain, 12) == (
        "StableNet +10.0 points from Plain with 3 seeds, 12 test images: too little for a verdict"
    )
