"""The page from real runs: self-contained, every number leads to runs on disk; bad input is named."""

import json
import re
from dataclasses import replace

import pytest

from stablenet.engine.run import load_run
from stablenet.errors import UserError
from stablenet.report import ReportSettings, build_report
from stablenet.report.inside import choose_group
from tests.report.made import TABLE, copy_runs


def read_details(page):
    text = page.read_text()
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL).group(1))


def build(settings, runs, **changes):
    return build_report(replace(settings, runs=runs, output=runs.parent / "report", panels=0, **changes))


def test_nothing_is_loaded_from_elsewhere(report):
    text = report.page.read_text()
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', text) == []
    assert "url(" not in text
    assert "@import" not in text


def test_every_number_leads_to_its_runs(report, result):
    text, details = report.page.read_text(), read_details(report.page)
    keys = re.findall(r'data-cell="([^"]+)"', text)
    assert set(keys) <= set(details["cells"])
    shown = details["cells"]["0/erm/average"]
    assert shown["mean"] == pytest.approx(result.cell("erm", "average").mean)
    names = {name for cell in details["cells"].values() for _, _, runs in cell["seeds"] for name in runs}
    assert len(names) == 8
    for name in names:
        run = details["runs"][name]
        assert run["command"].startswith("stablenet train --recipe embedded-dr")
        assert f"seed={run['seed']}" in run["command"]
        assert run["config"]["train"]["epochs"] == 2


def test_missing_is_missing_and_never_zero(report):
    row = re.search(r"<tr><th[^>]*><i[^>]*></i>CORAL.*?</tr>", report.page.read_text(), re.DOTALL).group(0)
    assert row.count(">missing<") == 2  # the easy column and the average
    assert row.count(">under way<") == 1
    assert ">0.0<" not in row
    assert row.count('data-value=""') == 5  # no cell of it takes part in sorting


def test_networks_are_looked_into(report):
    [inside] = report.inside
    assert inside.failure == ""
    assert inside.names == ("ERM", "StableNet")
    assert inside.column.id == "hard"
    assert len(inside.gallery.panels) == 3
    [weighed] = inside.weighed
    run = load_run(next((report.gathered.runs[0].path.parent).glob("embedded-dr0.9-stablenet-seed0-*")))
    weights = run.weights()["weight"]
    assert weighed.used.table["weight"].tolist() == weights.tolist()
    assert weighed.raised[0].caption == f"×{weights.max():.2g}"
    assert weighed.lowered[0].caption == f"×{weights.min():.2g}"
    solve = next(record for record in run.records if record["kind"] == "solve")
    assert f"from {solve['dependence_before']:.3g} to {solve['dependence_after']:.3g}" in report.page.read_text()


def test_runs_from_before_weights_were_kept_are_told(made, settings, tmp_path):
    runs = copy_runs(made, tmp_path)
    for file in runs.glob("*/weights.parquet"):
        file.unlink()
    report = build_report(replace(settings, runs=runs, output=tmp_path / "report"))
    [inside] = report.inside
    assert inside.failure == ""
    assert "was trained by a version that did not save weights: train it again" in report.page.read_text()
    assert inside.gallery is not None


def test_the_hardest_column_with_most_rows_is_looked_into(result):
    _, column, refs = choose_group(result)
    assert column.id == "hard"
    assert {ref.seed for ref in refs.values()} == {0}


def test_markup_in_names_is_only_text(report):
    text = report.page.read_text()
    assert "Tiny <table>" not in text
    assert "Tiny &lt;table&gt;" in text


def test_files_beside_the_page(report):
    assert sorted(path.name for path in report.files) == ["tiny.csv", "tiny.md", "tiny.tex"]
    assert all(path.stat().st_size for path in report.files)


def test_half_written_records_are_left_out_and_named(made, settings, tmp_path):
    runs = copy_runs(made, tmp_path)
    broken = next(runs.glob("embedded-dr0.9-erm-seed1-*"))
    records = broken / "records.jsonl"
    records.write_bytes(records.read_bytes()[:-30])
    cut = next(runs.glob("embedded-dr0.5-erm-seed1-*"))
    (cut / "config.json").write_text('{"config": ')
    report = build(settings, runs)
    assert any(broken.name in note and "incomplete" in note for note in report.notes)
    assert any(cut.name in note for note in report.notes)
    text = report.page.read_text()
    assert broken.name in text
    assert '<span class="spread"> [1]</span>' in text  # seeds differ now: every number tells how many it has
    details = read_details(report.page)
    assert [seed for seed, _, _ in details["cells"]["0/erm/hard"]["seeds"]] == [0]
    assert broken.name not in details["runs"]


def test_mixed_versions_are_told(made, settings, tmp_path):
    runs = copy_runs(made, tmp_path)
    timing = next(runs.glob("embedded-dr0.9-erm-seed1-*")) / "timing.jsonl"
    timing.write_text(re.sub(r'"stablenet": "[^"]+"', '"stablenet": "0.0.1"', timing.read_text()))
    assert any("several versions" in note and "0.0.1" in note for note in build(settings, runs).notes)


def test_a_table_without_runs_shows_the_papers_numbers(settings, tmp_path):
    (tmp_path / "runs").mkdir()
    report = build(settings, tmp_path / "runs", tables=("mnist-m",))
    text = report.page.read_text()
    assert "Nothing of this table has been run yet" in text
    assert "97.35" in text
    assert 'data-value="0.0"' not in text


def test_a_table_whose_weights_are_not_there_says_so(settings, made, tmp_path):
    """Runs are found by the contents of the weights they start from."""
    lost = tmp_path / "lost.toml"
    lost.write_text(
        TABLE.replace("[settings.train]", '[settings.model]\npretrained = "no.safetensors"\n[settings.train]')
    )
    report = build(settings, settings.runs, tables=(str(lost),))
    assert any("no run belongs to the table lost: there are no weights at no.safetensors" in n for n in report.notes)


def test_runs_of_no_table_are_listed(made, settings):
    report = build_report(replace(settings, tables=(), panels=0, output=made / "other"))
    assert report.gathered.results == ()
    text = report.page.read_text()
    assert "belongs to a table" in text
    assert text.count('data-run="') == 9
    command = read_details(report.page)["runs"][report.gathered.runs[0].path.name]["command"]
    assert "data.parameters.train_size=60" in command


def test_networks_without_their_data_are_told_not_failed(settings, report, monkeypatch):
    def refuse(*args, **kwargs):
        raise UserError("where is it?")

    monkeypatch.setattr("stablenet.report.inside.choose_subjects", refuse)
    other = build_report(settings)
    assert any("where is it?" in note for note in other.notes)
    assert "where is it?" in other.page.read_text()


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match="there are no runs"):
        build_report(ReportSettings(runs=tmp_path / "nothing"))
    with pytest.raises(UserError, match="unknown table"):
        build_report(ReportSettings(runs=tmp_path, tables=("mnist-n",)))
    with pytest.raises(UserError, match="unknown selection rule"):
        ReportSettings(rule="best")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--output"):
        build_report(ReportSettings(runs=tmp_path, output=tmp_path / "file" / "report"))
