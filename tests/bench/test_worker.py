"""One order, as a worker carries it out."""

import json
import threading
import time
from dataclasses import asdict, replace

import pytest

from stablenet.bench.cells import make_run
from stablenet.bench.plan import TablePart, make_orders, make_plan
from stablenet.bench.worker import perform, read_order, read_speeds, speeds_path
from stablenet.engine.monitor import Watcher
from stablenet.engine.train import train
from stablenet.files import hold_lock, read_lines


@pytest.fixture
def order(bench):
    """One run that is not there yet."""
    plan = make_plan(bench.table, bench.runs, TablePart(methods=("erm",), columns=("most",), seeds=(7,)))
    (order,) = make_orders(plan.left, bench.table, bench.runs, device="cpu")
    return order


def read_rules(bench, order):
    return [line["rule"] for line in read_lines(bench.runs / order.name / "evaluation.jsonl")]


def test_an_order_travels_as_json(order):
    assert read_order(json.loads(json.dumps(asdict(order)))) == order


def test_a_run_is_trained_evaluated_and_timed_once(bench, order):
    before = len(read_speeds(speeds_path(bench.runs)))
    assert perform(order).state == "finished"
    assert read_rules(bench, order) == ["source-validation", "last"]
    assert perform(order).state == "finished"
    assert read_rules(bench, order) == ["source-validation", "last"]
    assert len(read_speeds(speeds_path(bench.runs))) == before + 1


def test_a_missing_evaluation_is_made_up_for(bench, order):
    perform(order)
    (bench.runs / order.name / "evaluation.jsonl").unlink()
    perform(order)
    assert read_rules(bench, order) == ["source-validation", "last"]


def test_a_run_killed_before_it_began_is_begun(bench, order):
    folder = bench.runs / order.name
    folder.mkdir()
    (folder / "manifest.tsv").write_text("half a mani")
    assert perform(order).state == "finished"


def test_a_run_that_is_held_is_waited_for(bench, order):
    folder = bench.runs / order.name
    folder.mkdir()
    held = threading.Event()

    def hold():
        with hold_lock(folder / ".lock"):
            held.set()
            time.sleep(0.5)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert perform(order).state == "finished"
    thread.join()


def test_what_goes_wrong_is_told(bench, order, capsys, monkeypatch):
    outcome = perform(replace(order, config={**order.config, "method": {"name": "emr"}}))
    assert outcome.state == "failed"
    assert "unknown method 'emr'" in outcome.reason
    monkeypatch.setattr("stablenet.engine.train.train", lambda *words: 1 / 0)
    assert perform(order).reason == "ZeroDivisionError: division by zero"
    assert "Traceback" in capsys.readouterr().err


def test_the_folder_is_the_one_the_engine_would_choose(bench, order, tmp_path):
    from stablenet.engine.config import read_config
    from stablenet.engine.session import Runtime

    run = train(read_config(order.config), Runtime(runs=tmp_path / "plain", device="cpu"))
    assert run.path.name == order.name
    made = make_run(bench.table, bench.table.rows[0], bench.table.columns[1], 7)
    assert (run.hash, run.config) == (made.hash, made.config)


def test_figures_alone_are_those_of_a_whole_run(bench, order, tmp_path):
    """Without checkpoints and with no network left, and after a stop it begins anew."""
    lean = replace(order, figures_only=True, folder=str(tmp_path / "lean"))
    assert perform(order).state == "finished"
    with pytest.raises(Stopped):
        perform(lean, Stop())
    assert not (tmp_path / "lean" / "checkpoint.safetensors").exists()
    assert perform(lean).state == "finished"
    for name in ("records.jsonl", "evaluation.jsonl"):
        assert (tmp_path / "lean" / name).read_bytes() == (bench.runs / order.name / name).read_bytes()
    assert not list((tmp_path / "lean").glob("*.safetensors"))
    assert list((bench.runs / order.name).glob("*.safetensors"))


class Stopped(BaseException):
    pass


class Stop(Watcher):
    """Ends a run after its first epoch, as a lost machine would."""

    def epoch(self, record, note=""):
        raise Stopped
