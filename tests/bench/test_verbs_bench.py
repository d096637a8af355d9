"""`stablenet bench` as a user types it."""

import shutil

import pytest
from typer.testing import CliRunner

from stablenet.bench.executors import Event, tell_outcome
from stablenet.bench.worker import RunOutcome, perform
from stablenet.cli import verbs_bench as verb
from stablenet.cli.bench_output import EventPrinter
from stablenet.cli.verbs import app
from stablenet.errors import UserError
from stablenet.long_work import format_time


class HereExecutor:
    """In this process; refuses what it is told to refuse."""

    def __init__(self, refused=""):
        self._refused = refused

    def run(self, orders, tell):
        outcomes = []
        for order in orders:
            tell(Event("start", order, "cpu"))
            refused = self._refused and self._refused in order.name
            outcomes.append(RunOutcome(order.name, "failed", "no reason") if refused else perform(order))
            tell_outcome(tell, order, outcomes[-1])
        return outcomes


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(verb, "_make_executor", lambda *words: HereExecutor())


def call(*words, code=0):
    result = CliRunner().invoke(app, ["--trust", "bench", *map(str, words)], env={"COLUMNS": "200"})
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def test_list_names_all_tables_and_shows_one():
    assert "unbalanced-5" in call("list")
    shown = call("list", "classic")
    assert "84.69" in shown
    assert "quoted from the methods' own papers" in shown


def test_plan_counts_and_gives_commands(made):
    told = call("plan", made.file, "--runs", made.runs, "--seeds", 3, "--device", "cpu", "--each", "--jobs", 2)
    assert "12 runs, 4 left: about" in told
    assert "with 2 at once here" in told
    assert told.count("stablenet train --config") == 12


def test_plan_says_what_nobody_measured(made, tmp_path):
    told = call("plan", made.file, "--runs", tmp_path, "--seeds", 1, "--device", "cpu", "--methods", "erm")
    assert "2 runs, 2 left; 2 of them have no measured time on this machine" in told
    assert "not measured" in told


def test_run_makes_what_is_missing_and_shows_it(bench, here):
    erm = next(bench.runs.glob("bars-most-erm-seed0-*"))
    shutil.rmtree(erm)
    told = call("run", bench.file, "--runs", bench.runs, "--seeds", "0,1", "--device", "cpu")
    assert "7 of 8 runs are finished, 1 to do" in told
    assert f"finished  {erm.name} (1/1)" in told
    assert "±" in told
    assert erm.exists()
    again = call("run", bench.file, "--runs", bench.runs, "--seeds", 2, "--device", "cpu")
    assert "8 of 8 runs are finished, 0 to do" in again
    shutil.rmtree(erm)
    call("run", bench.file, "--runs", bench.runs, "--seeds", 2, "--device", "cpu", "--figures-only")
    assert (erm / "evaluation.jsonl").exists()
    assert not list(erm.glob("*.safetensors"))


def test_a_failure_is_told_and_sets_the_status(bench, monkeypatch):
    monkeypatch.setattr(verb, "_make_executor", lambda *words: HereExecutor("half-focal"))
    options = ("--runs", bench.runs, "--seeds", 1, "--methods", "focal,erm", "--device", "cpu")
    told = call("run", bench.file, *options, code=1)
    assert "failed    bars-half-focal" in told
    assert "no reason" in told
    assert "finished  bars-most-focal" in told


def test_status_tells_missing_from_empty_and_names_damage(bench):
    records = next(bench.runs.glob("bars-most-erm-seed1-*")) / "records.jsonl"
    records.write_text("")
    told = call("status", bench.file, "--runs", bench.runs)
    assert "2/3" in told
    assert "1/3" in told
    assert "–" in told
    assert "·" in told
    assert f"left out {records.parent}" in told.replace("\n", "")
    assert "embedded" in call("status", "--runs", bench.runs)
    planned = call("plan", bench.file, "--runs", bench.runs, "--seeds", 2, "--device", "cpu")
    assert f"damaged: {records.parent}" in planned.replace("\n", "")
    call("run", bench.file, "--runs", bench.runs, "--seeds", 2, "--device", "cpu", code=1)


def test_status_shows_the_part_that_is_named(made):
    where = ("--runs", made.runs, "--seeds", 2)
    told = call("status", made.file, *where, "--methods", "erm", "--columns", "average")
    assert "ERM" in told
    assert "average" in told
    assert "StableNet" not in told
    assert "DR0.9" not in told
    with pytest.raises(UserError, match="unknown row or method 'emr'"):
        call("status", made.file, *where, "--methods", "emr")
    with pytest.raises(UserError, match="unknown column 'mist'"):
        call("status", made.file, *where, "--columns", "mist")


def test_search_writes_the_record_and_run_uses_it(bench, here, tmp_path):
    (tmp_path / "space.toml").write_text('[common]\n"train.learning_rate" = { choices = [0.05] }\n')
    where = ("--runs", bench.runs, "--methods", "erm", "--columns", "most", "--device", "cpu")
    told = call("search", bench.file, *where, "--budget", 2, "--space", tmp_path / "space.toml")
    assert "1 runs to do" in told
    assert "--tuned" in told
    assert (bench.runs / ".bench" / "bars.json").exists()
    assert "±" not in call("run", bench.file, *where, "--tuned", "--seeds", 1)


@pytest.mark.parametrize("seeds", ["0", "a", "1,b", "", "²", "١", "1,²", "9" * 40, "123456789"])
def test_bad_seeds_are_refused(made, seeds):
    with pytest.raises(UserError, match="--seeds"):
        call("plan", made.file, "--seeds", seeds)


def test_unknown_names_are_told():
    with pytest.raises(UserError, match="did you mean 'mnist-m'"):
        call("plan", "mnist")
    with pytest.raises(UserError, match="unknown row or method 'resnet'"):
        call("plan", "mnist-m", "--methods", "resnet")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(45, "45 s"), (720, "12 min"), (12_000, "3 h 20 min"), (3600 * 52, "2 d 4 h"), (3600 * 47.8, "2 d 0 h")],
)
def test_times_are_short(seconds, text):
    assert format_time(seconds) == text


def test_epochs_are_not_outcomes(capsys):
    from tests.bench.test_executors import make_order

    printer = EventPrinter(2)
    printer(Event("epoch", make_order(0), "cpu", epoch=1))
    printer(Event("finished", make_order(0)))
    assert capsys.readouterr().err == "finished  run0 (1/2)\n"
