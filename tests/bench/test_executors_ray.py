"""Runs on a real Ray cluster of two nodes on this machine; one of them dies in the middle."""

import sys
import threading
import time
from dataclasses import replace

import pytest

from stablenet.bench.executors import RayExecutor, import_ray
from stablenet.bench.plan import TablePart, make_orders, make_plan
from stablenet.bench.worker import perform
from stablenet.errors import UserError
from stablenet.files import read_lines

# Ray's own warnings are Ray's business; so are the sockets and files it leaves to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def cluster():
    """Two nodes with a core each; the driver's is the head."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    yield cluster
    cluster.shutdown()


def plan_long(made, runs):
    table = replace(made.table, settings={"train": {"epochs": 100}})
    return table, make_plan(table, runs, TablePart(methods=("erm",), columns=("most",), seeds=(0, 1, 2)))


@pytest.mark.slow
def test_a_node_dies_and_nothing_is_lost(made, tmp_path, cluster):
    doomed = cluster.add_node(num_cpus=1)
    table, plan = plan_long(made, tmp_path / "runs")
    events, killed = [], threading.Event()

    def kill():
        """Once both nodes are at work and have checkpoints to go on from."""
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            if len(list((tmp_path / "runs").glob("*/checkpoint.safetensors"))) == 2:
                cluster.remove_node(doomed, allow_graceful=False)
                killed.set()
                return
            time.sleep(0.02)

    thread = threading.Thread(target=kill)
    thread.start()
    orders = make_orders(plan.left, table, tmp_path / "runs")
    outcomes = RayExecutor(cluster.address).run(orders, events.append)
    thread.join()
    assert killed.is_set()
    assert [outcome.state for outcome in outcomes] == ["finished"] * 3
    assert [outcome.name for outcome in outcomes] == [order.name for order in orders]
    sessions = [sum(line["kind"] == "session" for line in read_lines(run.folder / "timing.jsonl")) for run in plan.runs]
    assert sorted(sessions) == [1, 1, 2]  # the lost one was taken up again
    assert plan_long(made, tmp_path / "runs")[1].left == ()
    taken_up = plan.runs[sessions.index(2)]
    table, calm = plan_long(made, tmp_path / "calm")
    (order,) = (
        o for o in make_orders(calm.left, table, tmp_path / "calm", device="cpu") if o.name == taken_up.folder.name
    )
    assert perform(order).state == "finished"
    for name in ("records.jsonl", "evaluation.jsonl", "manifest.tsv", "config.json"):
        assert (taken_up.folder / name).read_bytes() == (tmp_path / "calm" / order.name / name).read_bytes()


@pytest.mark.slow
def test_a_failing_run_does_not_stop_the_others(made, tmp_path, cluster):
    plan = make_plan(made.table, tmp_path / "runs", TablePart(methods=("erm",), columns=("most",), seeds=(0, 1)))
    good, bad = make_orders(plan.left, made.table, tmp_path / "runs")
    bad = replace(bad, config={**bad.config, "method": {"name": "emr"}})
    outcomes = RayExecutor(cluster.address, jobs=1).run([bad, good], lambda event: None)
    assert [outcome.state for outcome in outcomes] == ["failed", "finished"]
    assert "unknown method 'emr'" in outcomes[0].reason


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"stablenet\[cluster\]"):
        import_ray()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_no_cluster_at_an_address(address):
    with pytest.raises(UserError, match=f"no Ray cluster at '{address}'"):
        RayExecutor(address).run([], lambda event: None)
