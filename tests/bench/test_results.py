"""Tables filled from real runs, and from runs that somebody broke. Wins, ties and losses by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.evidence import unpack

from stablenet.bench import collect, find_table
from stablenet.bench.cells import make_run, record_search
from stablenet.bench.collect import scan_runs
from stablenet.bench.plan import TablePart, make_plan
from stablenet.bench.results import compare_seeds, tally
from stablenet.engine.config import assemble_config, hash_values
from stablenet.errors import UserError
from stablenet.files import read_lines
from stablenet.report.gather import write_markdown
from tests.bench.small import make_runs


def folders(bench, method, column, seed):
    """Run folders found by their names alone."""
    return bench.runs.glob(f"bars-{column}-{method}-seed{seed}-*")


def folder(bench, method="erm", column="most", seed=0):
    (found,) = folders(bench, method, column, seed)
    return found


def target_accuracy(path, rule="source-validation"):
    lines = [json.loads(line) for line in (path / "evaluation.jsonl").read_text().splitlines()]
    return [line["figures"] for line in lines if line["rule"] == rule][-1]


def test_every_number_is_that_of_its_runs(made):
    result = collect(made.table, made.runs)
    for method in ("erm", "stablenet"):
        for column in ("half", "most"):
            shares = [target_accuracy(folder(made, method, column, seed))["accuracy"] for seed in (0, 1)]
            cell = result.cell(method, column)
            assert [value.value for value in cell.values] == pytest.approx([100 * share for share in shares])
            assert cell.mean == pytest.approx(50 * sum(shares))
            assert cell.deviation == pytest.approx(100 * abs(shares[0] - shares[1]) / math.sqrt(2))
            assert (cell.count, cell.state) == (2, "measured")
            assert [ref.path for value in cell.values for ref in value.runs] == [
                folder(made, method, column, seed) for seed in (0, 1)
            ]
    assert result.runs_found == 8
    assert result.warnings == []


def test_a_domain_column_shows_that_domain(made):
    cell = collect(made.table, made.runs).cell("erm", "colour")
    shares = [target_accuracy(folder(made, column="half", seed=seed))["per_domain"]["colour4"] for seed in (0, 1)]
    assert [value.value / 100 for value in cell.values] == shares
    assert cell.by_seed != collect(made.table, made.runs).cell("erm", "half").by_seed


@pytest.mark.parametrize("metric", ["worst-group", "mean-group", "group-gap"])
def test_a_column_may_show_the_groups(made, metric):
    column = replace(made.table.columns[0], metric=metric)
    table = replace(made.table, columns=(column, *made.table.columns[1:]))
    found = collect(table, made.runs).cell("erm", "half").by_seed
    for seed in (0, 1):
        groups = target_accuracy(folder(made, column="half", seed=seed))["groups"]
        shares = {"worst-group": groups["worst"]["accuracy"], "mean-group": groups["mean"], "group-gap": groups["gap"]}
        assert found[seed] == pytest.approx(100 * shares[metric])
    with pytest.raises(UserError, match="leave metric out"):
        replace(column, domain="colour4")


def test_a_rule_that_needs_group_labels_says_so(made):
    result = collect(made.table, made.runs, rule="worst-group")
    assert any("group labels" in warning for warning in result.warnings)
    assert "chosen by worst-group (needs group labels)" in write_markdown(result)


def test_a_row_may_have_a_rule_of_its_own(bench):
    """ERM by the last epoch, StableNet by the table's rule; a rule without an evaluation leaves its runs out."""
    run = folder(bench, column="half", seed=0)
    lines = [json.loads(line) for line in (run / "evaluation.jsonl").read_text().splitlines()]
    for line in lines:
        line["figures"]["accuracy"] = 0.25 if line["rule"] == "last" else line["figures"]["accuracy"]
    (run / "evaluation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = (replace(bench.table.rows[0], rule="last"), replace(bench.table.rows[1], rule="averaged"))
    result = collect(replace(bench.table, rows=rows), bench.runs)
    assert result.cell("erm", "half").by_seed[0] == 25
    assert result.cell("stablenet", "half").reason == "2 unfinished"
    assert "ERM: by last" in write_markdown(result)
    with pytest.raises(UserError, match="selection rule 'lest'"):
        replace(rows[0], rule="lest")
    grouped = collect(replace(bench.table, rows=(replace(rows[0], rule="worst-group"),)), bench.runs)
    assert any("group labels" in warning for warning in grouped.warnings)


def test_runs_of_an_earlier_preset_are_found_where_it_is_stated_and_only_there(tmp_path):
    """The published runs of the coloured digits, of release 0.1."""
    results = Path(__file__).parents[2] / "results" / "coloured"
    unpack(results / "records.jsonl.gz", tmp_path / "runs")
    table = find_table(str(results / "table.toml"))
    stated = collect(table, tmp_path / "runs")
    assert stated.cell("stablenet", "abroad").mean == pytest.approx(57.7, abs=0.05)
    assert any("version 1 of their preset" in warning for warning in stated.warnings)
    assert {ref.preset for value in stated.cell("erm", "abroad").values for ref in value.runs} == {""}
    today = replace(table, rows=(table.rows[0], replace(table.rows[1], parameters={})))
    result = collect(today, tmp_path / "runs")
    assert result.cell("stablenet", "abroad").reason == "8 runs of version 1 of its preset, which does something else"
    assert result.runs_found == 8
    plans = [
        make_plan(each, tmp_path / "runs", TablePart(methods=("stablenet",), seeds=(0,))).left
        for each in (table, today)
    ]
    assert [len(left) for left in plans] == [0, 1]


def test_a_domain_without_target_images_is_missing(made):
    column = replace(made.table.columns[2], domain="colour99")
    table = replace(made.table, columns=(made.table.columns[0], column))
    cell = collect(table, made.runs).cell("erm", "colour")
    assert (cell.state, cell.mean) == ("missing", None)
    assert "no target images of the domain 'colour99'" in cell.reason


def test_an_average_is_taken_seed_by_seed(made):
    result = collect(made.table, made.runs)
    half, most = (result.cell("stablenet", name).by_seed for name in ("half", "most"))
    average = result.cell("stablenet", "average")
    assert average.by_seed == pytest.approx({seed: (half[seed] + most[seed]) / 2 for seed in (0, 1)})
    assert all(len(value.runs) == 2 for value in average.values)


def test_beside_the_paper_and_beside_erm(made):
    result = collect(made.table, made.runs)
    cell, reference = result.cell("stablenet", "most"), result.cell("erm", "most")
    assert cell.difference == pytest.approx(cell.mean - 41.0)
    assert cell.paper.best
    assert not cell.paper.second
    assert cell.versus.differences == pytest.approx([cell.by_seed[seed] - reference.by_seed[seed] for seed in (0, 1)])
    assert reference.versus is None
    tally = result.tallies["stablenet"]
    assert tally.win + tally.tie + tally.loss + tally.unknown == 3  # half, most, colour; not the average
    assert "erm" not in result.tallies


def test_empty_by_design_is_told_from_missing(made):
    result = collect(made.table, made.runs)
    empty, missing = result.cell("erm", "nowhere"), result.cell("recommended", "most")
    assert (empty.state, empty.reason, empty.mean, empty.paper.status) == ("by-design", "no such domain", None, "dash")
    assert (missing.state, missing.reason, missing.mean, missing.count) == ("missing", "no runs", None, 0)


def test_a_table_without_runs_is_missing_everywhere(made, tmp_path):
    result = collect(made.table, tmp_path / "none")
    assert {cell.state for cell in result.cells.values()} == {"missing", "by-design"}
    assert all(cell.mean is None and cell.difference is None for cell in result.cells.values())
    assert (result.runs_found, result.warnings) == (0, [])


def test_the_command_makes_the_same_run(made):
    ref = collect(made.table, made.runs).cell("stablenet", "most").values[1].runs[0]
    words = ref.command.split()
    assert words[:3] == ["stablenet", "train", "--config"]
    settings = [word.strip("'") for word in words[5::2]]
    assert assemble_config(None, made.table.path.parent / "most.toml", settings).plain() == ref.config


def test_other_methods_with_runs_get_a_row(bench):
    make_runs(bench.file, bench.runs, methods=["focal"], seeds=[0], columns=["most"])
    result = collect(bench.table, bench.runs)
    assert [row.id for row in result.rows] == ["erm", "stablenet", "recommended", "focal"]
    assert result.rows[-1].extra
    assert result.cell("focal", "most").count == 1
    assert result.cell("focal", "most").deviation is None
    assert result.cell("focal", "most").versus.verdict is None
    assert result.cell("focal", "average").reason == "no results in DR0.5"


@pytest.mark.parametrize(
    ("file", "damage", "reason"),
    [
        ("config.json", lambda text: text[:50], "config.json is damaged"),
        ("records.jsonl", lambda text: text[:-20], "incomplete"),
        ("records.jsonl", lambda text: "".join(text.splitlines(True)[:-1]), "incomplete"),
        ("records.jsonl", lambda text: text.replace("\n", "\n{half\n", 1), "line 2 is not JSON"),
        ("status.json", lambda text: "", "status.json is damaged"),
        ("evaluation.jsonl", lambda text: "{\n" + text, "damaged"),
        ("evaluation.jsonl", lambda text: '{"kind": "evaluation"}\n', "lacks the field 'rule'"),
        ("config.json", lambda text: text.replace('"epochs"', '"rounds"'), "train.rounds"),
        ("config.json", None, "it has no config.json"),
    ],
)
def test_a_damaged_run_is_left_out_and_named(bench, file, damage, reason):
    path = folder(bench) / file
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage(path.read_text()))
    result = collect(bench.table, bench.runs)
    assert [value.seed for value in result.cell("erm", "most").values] == [1]
    assert [problem.path for problem in result.problems] == [folder(bench)]
    assert reason in result.problems[0].reason
    assert any(folder(bench).name in warning for warning in result.warnings)


def test_half_a_last_line_is_passed_over(bench):
    path = folder(bench) / "evaluation.jsonl"
    before = collect(bench.table, bench.runs).cell("erm", "most").by_seed
    with path.open("a") as file:
        file.write('{"kind": "evaluation", "rule": "source-valid')
    assert collect(bench.table, bench.runs).cell("erm", "most").by_seed == before


def test_unfinished_runs_are_no_numbers(bench):
    (folder(bench) / "evaluation.jsonl").unlink()
    status = folder(bench, seed=1) / "status.json"
    status.write_text(json.dumps({"state": "failed", "reason": "no memory", "epoch": 1, "step": 3}))
    result = collect(bench.table, bench.runs)
    cell = result.cell("erm", "most")
    assert (cell.state, cell.reason, cell.mean) == ("missing", "2 unfinished", None)
    assert [(ref.seed, ref.state) for ref in cell.unfinished] == [(0, "not evaluated"), (1, "failed")]
    assert any("failed: no memory" in warning for warning in result.warnings)
    assert result.cell("stablenet", "most").versus is None


def test_mixed_versions_are_told(bench):
    path = folder(bench) / "timing.jsonl"
    lines = read_lines(path)
    path.write_text("".join(json.dumps({**line, "stablenet": "0.0.1"}) + "\n" for line in lines))
    result = collect(bench.table, bench.runs)
    assert result.versions["0.0.1"] == 1
    assert sum(result.versions.values()) == 8
    assert any("several versions" in warning for warning in result.warnings)


def test_a_run_of_an_older_version_is_found_and_not_made_again(bench):
    """It did not know a setting yet, so that its hash is another one."""
    path = folder(bench) / "config.json"
    described = json.loads(path.read_text())
    for part in ("config", "hashed"):
        del described[part]["train"]["sync_batchnorm"]
    path.write_text(json.dumps({**described, "hash": hash_values(described["hashed"])}))
    assert collect(bench.table, bench.runs).cell("erm", "most").count == 2
    assert make_plan(bench.table, bench.runs, TablePart(seeds=(0, 1))).left == ()
    (folder(bench) / "status.json").write_text('{"state": "failed", "reason": "", "epoch": 1, "step": 3}')
    (left,) = make_plan(bench.table, bench.runs, TablePart(seeds=(0, 1))).left
    assert left.folder.name.endswith(left.run.hash[:12])
    assert left.state == "to do"


def test_of_twins_the_one_with_figures_counts(bench):
    twin = bench.runs / "another-name"
    folder(bench).rename(twin)
    assert collect(bench.table, bench.runs).cell("erm", "most").values[0].runs[0].path == twin


def test_seeds_can_be_chosen(made):
    cell = collect(made.table, made.runs, seeds=[1]).cell("erm", "half")
    assert list(cell.by_seed) == [1]


def test_tuned_numbers_are_those_of_the_chosen_values(bench):
    chosen = {"train": {"learning_rate": 0.01}}
    record_search(bench.runs, bench.table, "erm", "", {"values": chosen, "budget": 3})
    result = collect(bench.table, bench.runs, tuned=True)
    assert result.cell("erm", "most").reason == "no runs"
    assert result.cell("stablenet", "most").reason == "no search has chosen its values"
    row, column = bench.table.rows[0], bench.table.columns[1]
    wanted = make_run(bench.table, row, column, 0, chosen)
    assert wanted.config.train.learning_rate == 0.01
    assert wanted.series != make_run(bench.table, row, column, 0).series


def test_unequal_budgets_are_told(bench):
    for row, budget in (("erm", 3), ("stablenet", 8)):
        record_search(bench.runs, bench.table, row, "", {"values": {}, "budget": budget})
    assert any("unequal budgets: 3, 8" in text for text in collect(bench.table, bench.runs, tuned=True).warnings)
    assert not collect(bench.table, bench.runs).warnings


def test_the_oracle_is_named_as_such(made):
    result = collect(made.table, made.runs, rule="oracle")
    assert result.runs_found == 0
    assert any("target itself" in warning for warning in result.warnings)


def test_one_scan_serves_several_tables(made):
    scan = scan_runs(made.runs)
    other = replace(made.table, rows=made.table.rows[:1])
    assert collect(other, made.runs, scan=scan).cell("erm", "most") == replace(
        collect(made.table, made.runs).cell("erm", "most"), versus=None
    )


def test_only_common_seeds_are_compared():
    versus = compare_seeds({0: 5.0, 1: 7.0, 2: 9.0, 8: 1.0}, {2: 6.0, 1: 5.0, 0: 4.0, 9: 99.0})
    assert versus.seeds == (0, 1, 2)
    assert versus.differences == (1.0, 2.0, 3.0)
    assert (versus.mean, versus.deviation) == (2.0, 1.0)
    # Student's t for two degrees of freedom at 97.5 % is 4.302653; 4.302653 / √3 = 2.484138.
    assert (versus.low, versus.high) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-5)
    assert versus.verdict == "tie"
    assert (versus.seeds_won, versus.seeds_tied, versus.seeds_lost) == (3, 0, 0)


def test_a_clear_difference_is_a_win_or_a_loss():
    ours, theirs = {0: 5.0, 1: 5.1, 2: 5.2}, {0: 1.0, 1: 1.1, 2: 1.1}
    assert compare_seeds(ours, theirs).verdict == "win"
    assert compare_seeds(theirs, ours).verdict == "loss"


def test_one_seed_gives_no_interval_and_none_no_comparison():
    versus = compare_seeds({3: 5.0}, {3: 6.0})
    assert (versus.mean, versus.deviation, versus.low, versus.high, versus.verdict) == (-1.0, None, None, None, None)
    assert compare_seeds({0: 1.0}, {1: 1.0}) is None


def test_a_tally_counts_columns_and_seeds():
    win = compare_seeds({0: 5.0, 1: 5.1, 2: 5.2}, {0: 1.0, 1: 1.1, 2: 1.1})
    tie = compare_seeds({0: 1.0, 1: 3.0, 2: 2.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    one = compare_seeds({0: 1.0}, {0: 2.0})
    counted = tally([win, tie, one, None])
    assert (counted.win, counted.tie, counted.loss, counted.unknown) == (1, 1, 0, 2)
    assert (counted.seeds_won, counted.seeds_tied, counted.seeds_lost) == (4, 1, 2)


def test_differences_that_are_all_the_same_give_no_interval():
    versus = compare_seeds({0: 80.0, 1: 81.0, 2: 82.0}, {0: 70.0, 1: 71.0, 2: 72.0})
    assert (versus.interval, versus.verdict) == (None, None)
    same = compare_seeds({0: 80.0, 1: 81.0}, {0: 80.0, 1: 81.0})
    assert (same.interval, same.verdict) == (None, "tie")
    assert compare_seeds({0: 80.0}, {0: 81.0}).interval is None
    assert compare_seeds({0: 80.0, 1: 81.1}, {0: 70.0, 1: 71.0}).interval is not None
    assert not same.is_enough(1000)
    assert versus.is_enough(50)
    assert not versus.is_enough(49)
