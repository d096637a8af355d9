"""The list of what is prepared and not run: every step expands to the runs it names and could be started."""

import shlex
from pathlib import Path

import pytest
from benchmarks import paper_cost, program

from stablenet.bench import cells
from stablenet.bench.plan import TablePart, make_plan
from stablenet.bench.search import SearchSettings, draw_searches
from stablenet.engine.identity import Contents
from tests.docs.commands import check_command

ROOT = Path(__file__).parents[2]
REPORTED, DEVELOPED = set(range(50, 60)), set(range(10))  # results/natural/division.md


@pytest.fixture(autouse=True)
def weights(monkeypatch):
    monkeypatch.setattr(cells, "read_contents", lambda *config: Contents(weights="0" * 64))  # the file is not at hand


def test_the_page_lists_every_step():
    page = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    assert page == program.put(page, program.write_list())
    assert len({step.name for step in program.STEPS}) == len(program.STEPS)


@pytest.mark.parametrize("step", program.STEPS, ids=lambda step: step.name)
def test_a_step_is_as_many_valid_runs_as_are_counted(step, tmp_path):
    """The configs of all runs are made and checked, as before a training."""
    table = program.open_table(step)
    part = TablePart(methods=step.methods, columns=step.columns, seeds=step.seeds)
    if step.budget:
        drawn = draw_searches(table, part, SearchSettings(budget=step.budget, seeds=step.seeds))
        hashes = {run.hash for each in drawn for trial in each.trials for run in trial.runs}
    else:
        hashes = {planned.run.hash for planned in make_plan(table, tmp_path, part).runs}
    assert len(hashes) == program.count_runs(step)
    assert program.guess_minutes(step) > 0


@pytest.mark.parametrize("step", program.STEPS, ids=lambda step: step.name)
def test_a_step_is_a_command_and_its_seeds_were_fixed_before(step):
    check_command(shlex.join(program.write_command(step, "data")))
    known = REPORTED if step.table != "natural/develop.toml" else DEVELOPED
    repeats = step.name in ("m-ada", "fourier-mnistm", "memory-mnistm")  # beside published rows, on their seeds
    assert set(step.seeds) <= (set(program.PUBLISHED) if repeats else known)


def test_every_row_of_the_papers_tables_is_run_and_its_minutes_are_those_that_are_computed(capsys):
    (step,) = (step for step in program.STEPS if step.name == "paper")
    table = program.open_table(step)
    assert step.methods[0] == "erm"  # without plain training, no seed says anything
    assert sorted(step.methods) == sorted(row.id for row in table.rows)
    paper_cost.main()
    minutes = float(capsys.readouterr().out.strip().splitlines()[-1].split("|")[-2])
    assert minutes < 14
    assert minutes / 60 == pytest.approx(table.hours, abs=0.005)


def test_what_was_chosen_is_searched_before():
    for place, step in enumerate(program.STEPS):
        if step.tuned:
            assert any(each.budget and each.table == step.table for each in program.STEPS[:place])
            columns = {each.columns for each in program.STEPS if each.table == step.table}
            assert columns == {step.columns}


def test_steps_are_run_in_order_and_one_that_fails_stops_no_other(monkeypatch, capsys):
    done = []

    class Ended:
        def __init__(self, command, **options):
            done.append(command)
            self.returncode = int("search" in command)

    monkeypatch.setattr(program.subprocess, "run", Ended)
    monkeypatch.setattr("sys.argv", ["program", "DATA", "--only", "natural-search,natural-tuned"])
    with pytest.raises(SystemExit, match="not finished: natural-search"):
        program.main()
    assert [("search" in command, "--tuned" in command) for command in done] == [(True, False), (False, True)]
    assert all(command[-2:] == ["--root", "DATA"] for command in done)
    monkeypatch.setattr("sys.argv", ["program", "DATA", "--only", "nonsense"])
    with pytest.raises(SystemExit):
        program.main()
    assert "no step is called nonsense" in capsys.readouterr().err
