"""Markdown, LaTeX and CSV say what the runs' own files say; what is missing is missing."""

import csv
import json
import re
from dataclasses import replace
from io import StringIO
from statistics import fmean, stdev

import pytest

from stablenet.bench.collect import scan_runs
from stablenet.report.gather import tell_failures, write_csv, write_latex, write_markdown
from tests.report.made import SEEDS


def read_accuracies(made, recipe, method):
    """Straight from the evaluation files."""
    folders = [next((made / "runs").glob(f"{recipe}-{method}-seed{seed}-*")) for seed in SEEDS]
    lines = [json.loads((folder / "evaluation.jsonl").read_text().splitlines()[-1]) for folder in folders]
    return [100 * line["figures"]["accuracy"] for line in lines]


@pytest.fixture(scope="module")
def lines(result):
    rows = csv.DictReader(StringIO(write_csv(result)))
    return {(row["row"], row["column"]): row for row in rows}


def test_csv_holds_means_and_sample_deviations(made, lines):
    easy, hard = (read_accuracies(made, f"embedded-dr{ratio}", "erm") for ratio in ("0.5", "0.9"))
    assert float(lines["erm", "easy"]["mean"]) == pytest.approx(fmean(easy))
    assert float(lines["erm", "easy"]["deviation"]) == pytest.approx(stdev(easy))
    assert float(lines["erm", "average"]["mean"]) == pytest.approx(fmean(easy + hard))
    assert float(lines["erm", "hard"]["difference"]) == pytest.approx(fmean(hard) - 45)


def test_csv_holds_paired_differences(made, lines):
    ours, theirs = (read_accuracies(made, "embedded-dr0.9", name) for name in ("stablenet", "erm"))
    expected = fmean(a - b for a, b in zip(ours, theirs, strict=True))
    assert float(lines["stablenet", "hard"]["versus"]) == pytest.approx(expected)
    assert lines["erm", "hard"]["versus"] == ""


def test_csv_leaves_missing_cells_empty_and_names_runs(made, lines):
    cell = lines["coral", "hard"]
    assert (cell["state"], cell["mean"], cell["difference"], cell["seeds"]) == ("missing", "", "", "0")
    assert lines["erm", "none"]["state"] == "by-design"
    for row in lines.values():
        assert all((made / "runs" / name / "config.json").exists() for name in row["runs"].split())
    assert len(lines["erm", "average"]["runs"].split()) == 4


def test_markdown_tells_missing_from_nothing_by_design(result):
    text = write_markdown(result)
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [len(row) for row in rows] == [5] * 4
    assert rows[2][1] == "missing"
    assert rows[2][2] == "missing (paper 10.25)"
    assert rows[2][4].startswith("–")
    assert "paper **62.33**" in rows[3][1]
    assert "paper <u>45.00</u>" in rows[1][2]
    assert "2 seeds" in text


def test_numbers_tell_their_seeds_where_these_differ(result):
    assert not re.search(r"\[\d\]", write_markdown(result))
    whole = result.cell("erm", "easy")
    cells = {**result.cells, ("erm", "easy"): replace(whole, values=whole.values[:1])}
    text = write_markdown(replace(result, cells=cells))
    assert f"{whole.values[0].value:.1f} [1]" in text
    assert text.count(" [2]") == 5
    assert "over 1 to 2 seeds (how many in brackets)" in text
    assert write_latex(replace(result, cells=cells)).count(" [2]") == 5


def test_numbers_the_paper_quotes_are_marked(result):
    assert "°" not in write_markdown(result)
    whole = result.cell("stablenet", "easy")
    quoted = replace(whole, paper=replace(whole.paper, status="quoted"))
    quoting = replace(result, cells={**result.cells, ("stablenet", "easy"): quoted})
    assert "(paper **62.33**°, " in write_markdown(quoting)
    assert "° the paper quotes this number from elsewhere" in write_markdown(quoting)
    assert r"\textbf{62.33}$^\circ$" in write_latex(quoting)


def test_csv_tells_what_a_row_is(result):
    far = replace(result.rows[0], method="far")
    rows = list(csv.DictReader(StringIO(write_csv(replace(result, rows=(far, *result.rows[1:]))))))
    assert "not public" in rows[0]["approximation"]
    assert rows[0]["domain_labels"] == "yes"
    assert (rows[-1]["approximation"], rows[-1]["domain_labels"]) == ("", "no")


def test_tables_say_who_needs_which_labels(result):
    oracle = replace(result.rows[0], method="dfr")
    shown = replace(result, rows=(oracle, *result.rows[1:]))
    rows = list(csv.DictReader(StringIO(write_csv(shown))))
    assert [(row["group_labels"], row["paper_selects_by_groups"]) for row in (rows[0], rows[-1])] == [
        ("yes", "yes"),
        ("no", "no"),
    ]
    assert f"{oracle.title}‡§ |" in write_markdown(shown)
    assert "‡ an oracle" in write_markdown(shown)
    assert "oracle" not in write_markdown(result)
    assert r"$^\ddagger$$^\S$" in write_latex(shown)


def test_latex_is_balanced_and_escaped(result):
    table = replace(result.table, title="50 % of a_b & c")
    text = write_latex(replace(result, table=table))
    assert r"50 \% of a\_b \& c" in text
    assert text.count(r"\begin") == text.count(r"\end") == 2
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
    assert all(line.count("&") == 4 for line in body.splitlines()[1:] if line)
    assert r"\textit{missing}" in text
    assert not set("−–±") & set(text)


def test_best_and_second_of_a_column_are_marked(result):
    text = write_markdown(result)
    means = {row: result.cell(row, "hard").mean for row in ("erm", "stablenet")}
    best = max(means, key=means.get)
    row = next(line for line in text.splitlines() if line.startswith("| ERM" if best == "erm" else "| StableNet"))
    assert row.split(" | ")[2].startswith("**")


def test_runs_that_have_not_learned_are_named(made):
    runs = scan_runs(made / "runs").runs
    stuck = {"count": 40, "per_class": {"0": 1.0, "1": 0.0}}
    fine = [replace(run, figures={"count": 40}, validation=None) for run in runs]
    told = tell_failures([replace(fine[0], figures=stuck), replace(fine[1], figures=stuck), *fine[2:]])
    assert len(told) == 1
    assert told[0].startswith(f"the network of {fine[0].path.name} predicts '0' for every target image; so or similar")
    assert f"in 2 of {len(runs)} runs" in told[0]
    assert tell_failures(fine) == []
