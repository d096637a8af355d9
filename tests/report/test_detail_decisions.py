"""Whether a run acts, and why, is told in the report, for every cell once, and in the run's own facts."""

import json
from dataclasses import replace

from stablenet.bench import collect, find_table
from stablenet.bench.collect import scan_runs
from stablenet.engine.run import Decided, find_decision
from stablenet.files import Lines
from stablenet.report import ReportSettings, build_report
from stablenet.report.detail import list_decisions
from tests.report.made import copy_runs

TIED = Decided(True, "the surroundings predict 60% of the label")
LOOSE = Decided(False, "the border predicts too little")


def test_the_first_decision_of_the_records_is_read():
    solve = {"kind": "solve", "epoch": 1, "acts": 1.0, "decision": TIED.reason}
    assert find_decision([{"kind": "start"}, solve, {"kind": "solve", "epoch": 2}]) == TIED
    assert find_decision([{"kind": "start"}, {"kind": "solve", "dependence_before": 0.2}]) is None
    assert str(LOOSE) == "it trains plainly: the border predicts too little"


def test_a_run_that_recorded_its_decision_tells_it(made, tmp_path):
    """Every run of one cell; of another nothing is told."""
    scan = scan_runs(made / "runs")
    table = find_table(str(made / "tiny.toml"))
    plain = collect(table, made / "runs", scan=scan)
    assert all(each.row != "ERM" for each in list_decisions(plain))
    told = [replace(run, decided=TIED if run.seed else LOOSE) for run in scan.runs if run.config.method.name == "erm"]
    found = {run.series: {} for run in told}
    for run in told:
        found[run.series][run.seed] = run
    result = collect(table, made / "runs", scan=replace(scan, by_series={**scan.by_series, **found}))
    decisions = [each for each in list_decisions(result) if each.row == "ERM"]
    assert [each.column for each in decisions] == ["Digits: DR0.5", "Digits: DR0.9"]
    assert {(each.runs, each.acted) for each in decisions} == {(2, 1)}
    assert dict(decisions[0].reasons) == {TIED.reason: 1, LOOSE.reason: 1}


def test_the_page_shows_it(made, tmp_path):
    copy_runs(made, tmp_path)
    for run in scan_runs(tmp_path / "runs").runs:
        if run.config.method.name == "erm":
            file = run.path / "records.jsonl"
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            lines.insert(1, {"kind": "solve", "epoch": 1, "acts": 0.0, "decision": LOOSE.reason})
            file.unlink()
            records = Lines(file)
            for line in lines:
                records.append(line)
            records.close()
    settings = ReportSettings(
        runs=tmp_path / "runs", output=tmp_path / "out", tables=(str(tmp_path / "tiny.toml"),), panels=0, device="cpu"
    )
    page = build_report(settings).page.read_text()
    assert "<td>Digits: DR0.5</td><td>0 of 2</td><td>the border predicts too little</td>" in page
    assert "it trains plainly: the border predicts too little" in page
