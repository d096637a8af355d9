"""The local executor: what runs beside what, and what becomes of runs whose workers die."""

import json
import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch

from stablenet.bench import executors
from stablenet.bench.executors import LocalExecutor, Place, find_places
from stablenet.bench.plan import TablePart, make_orders, make_plan
from stablenet.bench.worker import RunOrder, perform, read_order
from stablenet.engine.interrupts import Interrupted
from stablenet.errors import UserError
from stablenet.files import read_lines

CPU = Place("cpu", None, 2)
LONG = 24  # epochs


def make_order(number, gigabytes=0.0):
    return RunOrder(
        name=f"run{number}", config={}, series="", folder="", rules=(), speeds="", gigabytes=gigabytes, threads=1
    )


class FakeWorker:
    """Answers at once through a pipe; `answer` says what, from the order and the orders under way on its device."""

    peak: list
    busy: dict
    answer: staticmethod

    has_news = True

    def __init__(self, module, *, threads, log):
        assert (module, threads) == ("stablenet.bench.worker", 1)
        self.log = log
        reading, writing = os.pipe()
        self._output, self._input = os.fdopen(reading), os.fdopen(writing, "w")

    def send(self, values):
        order = read_order(json.loads(json.dumps(values)))
        there = self.busy.setdefault(order.device, [])
        there.append(order)
        self.peak.append((order.device, [each.name for each in there]))
        self._order, told = order, self.answer(order, there)
        if told is None:
            self._input.close()
        else:
            self._input.write(json.dumps({"name": order.name, "state": "finished", "reason": "", **told}) + "\n")
            self._input.flush()

    def receive(self):
        self.busy[self._order.device].remove(self._order)
        line = self._output.readline()
        return json.loads(line) if line else None

    def close(self):
        self._input.close()

    def end(self, grace):
        self.close()
        self._output.close()
        return -9


@pytest.fixture
def fake(monkeypatch):
    """A class of fake workers that finish all they are given."""
    kind = type("Fake", (FakeWorker,), {"peak": [], "busy": {}, "answer": staticmethod(lambda order, there: {})})
    monkeypatch.setattr(executors, "ChildProcess", kind)
    return kind


def test_as_many_as_fit_on_a_gpu(fake, tmp_path):
    sizes = [4.0, 4.0, 3.0, 2.0, 9.0, 20.0, 1.0]
    orders = [make_order(number, size) for number, size in enumerate(sizes)]
    outcomes = LocalExecutor([Place("cuda:0", 10.0, 3)], tmp_path).run(orders, lambda event: None)
    assert [outcome.name for outcome in outcomes] == [order.name for order in orders]
    together = [names for _, names in fake.peak]
    held = [sum(sizes[int(name[3:])] for name in names) for names in together]
    assert all(size <= 10 or len(names) == 1 for size, names in zip(held, together, strict=True))
    assert max(len(names) for names in together) == 3
    assert ["run0", "run1", "run3"] in together  # the third does not fit beside the first two, the fourth does


def test_all_devices_are_used_and_jobs_are_counted(fake, tmp_path):
    places = [Place("cuda:0", 10.0, 8), Place("cuda:1", 10.0, 8)]
    LocalExecutor(places, tmp_path).run([make_order(k, 5.0) for k in range(6)], lambda event: None)
    assert {device for device, names in fake.peak if len(names) == 2} == {"cuda:0", "cuda:1"}
    fake.peak.clear()
    LocalExecutor(places, tmp_path, jobs=1).run([make_order(k, 5.0) for k in range(4)], lambda event: None)
    assert all(len(names) == 1 for _, names in fake.peak)


def test_out_of_memory_beside_others_is_tried_alone(fake, tmp_path):
    def answer(order, there):
        crowded = order.name == "run1" and len(there) > 1
        return {"state": "failed", "reason": "out of memory with batches of 8"} if crowded else {}

    fake.answer = staticmethod(answer)
    outcomes = LocalExecutor([Place("cuda:0", 10.0, 4)], tmp_path).run(
        [make_order(k, 2.0) for k in range(4)], lambda event: None
    )
    assert [outcome.state for outcome in outcomes] == ["finished"] * 4
    assert fake.peak[-1][1] == ["run1"]


def test_out_of_memory_alone_is_a_failure(fake, tmp_path):
    fake.answer = staticmethod(lambda order, there: {"state": "failed", "reason": "out of memory with batches of 8"})
    (outcome,) = LocalExecutor([Place("cuda:0", 10.0, 4)], tmp_path).run([make_order(0)], lambda event: None)
    assert (outcome.state, outcome.reason) == ("failed", "out of memory with batches of 8")


def test_a_run_that_keeps_killing_its_workers_is_given_up(fake, tmp_path):
    fake.answer = staticmethod(lambda order, there: None if order.name == "run0" else {})
    events = []
    outcomes = LocalExecutor([CPU], tmp_path, retries=2).run([make_order(0), make_order(1)], events.append)
    assert [outcome.state for outcome in outcomes] == ["lost", "finished"]
    assert "died 3 times (killed by SIGKILL" in outcomes[0].reason
    assert [event.kind for event in events if event.order.name == "run0"] == [
        "start",
        "retry",
        "start",
        "retry",
        "start",
        "lost",
    ]


def test_whoever_is_told_can_stop_all(fake, tmp_path):
    """The others are asked to end."""

    def refuse(event):
        if event.kind == "finished":
            raise UserError("enough")

    executor = LocalExecutor([CPU], tmp_path)
    with pytest.raises(UserError, match="enough"):
        executor.run([make_order(0), make_order(1), make_order(2)], refuse)
    assert len(fake.peak) == 2
    assert executor._working == executor._idle == []


def test_nothing_to_do_starts_nothing(fake, tmp_path):
    assert LocalExecutor([CPU], tmp_path).run([], lambda event: None) == []
    assert fake.peak == []


def test_places_of_a_machine_without_a_gpu():
    assert find_places("cpu", jobs=3) == [Place("cpu", None, 3)]
    assert find_places("cpu", threads=10_000) == [Place("cpu", None, 1)]
    with pytest.raises(UserError, match="--threads must be at least 1"):
        find_places("cpu", threads=0)


class Disturber:
    """Does something to the first worker once its run has come to its first checkpoint."""

    def __init__(self, executor, victim, disturb):
        self._executor, self._victim, self._disturb = executor, victim, disturb
        self.done = threading.Event()
        self._started = False

    def __call__(self, event):
        if event.kind == "start" and not self._started:
            self._started = True
            threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self):
        deadline = time.monotonic() + 200
        while not (self._victim / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        self._disturb(self._executor._working[0].worker)
        self.done.set()


def plan_long(made, runs, seeds=(0,)):
    """Runs long enough to be stopped in the middle."""
    table = replace(made.table, settings={"train": {"epochs": LONG}})
    return table, make_plan(table, runs, TablePart(methods=("erm",), columns=("most",), seeds=seeds))


def test_a_killed_worker_loses_nothing(made, tmp_path):
    """kill -9 in the middle: another worker goes on from the checkpoint, then serves the next run; all records are
    those of runs that were left in peace.
    """
    table, plan = plan_long(made, tmp_path / "runs", seeds=(0, 1))
    executor = LocalExecutor([Place("cpu", None, 1)], tmp_path / "logs")
    orders = make_orders(plan.left, table, tmp_path / "runs")
    killer = Disturber(executor, plan.runs[0].folder, lambda worker: os.kill(worker.pid, signal.SIGKILL))
    outcomes = executor.run(orders, killer)
    assert [outcome.state for outcome in outcomes] == ["finished", "finished"]
    assert killer.done.is_set()
    sessions = [
        [line for line in read_lines(run.folder / "timing.jsonl") if line["kind"] == "session"] for run in plan.runs
    ]
    assert [len(found) for found in sessions] == [2, 1]
    assert plan_long(made, tmp_path / "runs", seeds=(0, 1))[1].left == ()
    calm = run_calmly(made, tmp_path / "calm")
    for name in ("records.jsonl", "evaluation.jsonl", "manifest.tsv", "config.json"):
        assert (plan.runs[0].folder / name).read_bytes() == (calm / name).read_bytes()


def run_calmly(made, runs):
    """The first of these runs in this process."""
    table, plan = plan_long(made, runs)
    threads = torch.get_num_threads()
    (order,) = make_orders(plan.left, table, runs, device="cpu")
    assert perform(order).state == "finished"
    torch.set_num_threads(threads)
    return plan.runs[0].folder


def test_every_epoch_is_told(made, tmp_path):
    table, plan = plan_long(made, tmp_path / "runs")
    events = []
    LocalExecutor([CPU], tmp_path / "logs").run(make_orders(plan.left, table, tmp_path / "runs"), events.append)
    assert [event.kind for event in events] == ["start", *["epoch"] * LONG, "finished"]
    assert [event.epoch for event in events[1:-1]] == list(range(1, LONG + 1))


def test_a_worker_stopped_by_hand_stops_the_sweep(made, tmp_path):
    table, plan = plan_long(made, tmp_path / "runs")
    executor = LocalExecutor([CPU], tmp_path / "logs")
    stop = Disturber(executor, plan.runs[0].folder, lambda worker: os.kill(worker.pid, signal.SIGTERM))
    with pytest.raises(Interrupted):
        executor.run(make_orders(plan.left, table, tmp_path / "runs"), stop)
    assert json.loads((plan.runs[0].folder / "status.json").read_text())["state"] == "interrupted"


def test_a_worker_nobody_waits_for_stops_at_a_checkpoint(made, tmp_path):
    """Its input closes, as when whoever ordered is killed: it writes a checkpoint and ends, and the sweep with it."""
    table, plan = plan_long(made, tmp_path / "runs")
    executor = LocalExecutor([CPU], tmp_path / "logs")
    (order,) = make_orders(plan.left, table, tmp_path / "runs")
    with pytest.raises(Interrupted):
        executor.run([order], Disturber(executor, plan.runs[0].folder, lambda worker: worker.close()))
    status = json.loads((plan.runs[0].folder / "status.json").read_text())
    assert status["state"] == "interrupted"
    assert 0 < status["epoch"] < LONG
    assert list((tmp_path / "logs").iterdir()) == []  # nothing went wrong in the worker
    (left,) = plan_long(made, tmp_path / "runs")[1].left
    assert (left.state, left.done) == ("interrupted", status["epoch"] / LONG)
