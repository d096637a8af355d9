"""kill -9 at any moment, then resume: the records are those of a run nobody disturbed."""

import random

import pytest

from tests.engine.tiny import STABLENET, child_processes, tiny_run, train_and_die

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 21  # of a tiny run
METHODS = {
    "batch": (*STABLENET, "data.augment=true"),
    "dataset": (
        "stablenet",
        "method.parameters.solve=dataset",
        "method.parameters.collect=epoch",
        "method.parameters.every=1",
    ),
    "first epoch": ("stablenet", "method.parameters.solve=dataset", "method.parameters.collect=epoch"),
}


def kill_often(folder, settings, times, seed):
    """Train in children that are killed at random moments; each goes on where the one before was."""
    chance, context = random.Random(seed), child_processes()
    for kill in range(times):
        step = 1 + kill * (STEPS - 2) // times
        child = context.Process(target=train_and_die, args=(folder, settings, step, chance.uniform(0, 0.015)))
        child.start()
        child.join(120)
        assert child.exitcode == -9


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("times", [5, pytest.param(25, marks=pytest.mark.slow)])
def test_killed_runs_end_as_if_nothing_had_happened(tmp_path, method, times):
    if method != "batch" and times == 5:
        times = 2  # the quick test's share
    whole = tiny_run(tmp_path / "whole", *METHODS[method])
    kill_often(tmp_path / "killed", METHODS[method], times, seed=times)
    resumed = tiny_run(tmp_path / "killed", *METHODS[method], resume=True)
    for name in ("records.jsonl", "best.safetensors", "last.safetensors", "weights.parquet"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_features_of_the_first_epoch_that_are_lost_are_read_in_a_pass(tmp_path):
    """They were on the host, in no checkpoint."""
    from stablenet.engine.interrupts import Interrupted
    from tests.engine.test_train import StopAt

    settings = (*METHODS["first epoch"], "method.parameters.features=host")
    with pytest.raises(Interrupted):
        tiny_run(tmp_path / "run", *settings, watcher=StopAt(3))
    resumed = tiny_run(tmp_path / "run", *settings, resume=True)
    solves = [record for record in resumed.records if "context_explains" in record]
    assert [record["epoch"] for record in solves] == [2]  # before it, instead of after the first
    assert resumed.weights()["weight"].std() > 0.01


def test_killed_is_seen_as_killed(tmp_path):
    from stablenet.engine.run import load_run

    kill_often(tmp_path / "run", METHODS["batch"], 1, seed=0)
    assert load_run(tmp_path / "run").status["state"] == "killed"


def test_half_written_files_do_no_harm(tmp_path):
    """A line and a file that a killed process left half written."""
    from stablenet.engine.interrupts import Interrupted
    from tests.engine.test_train import StopAt

    whole = tiny_run(tmp_path / "whole")
    with pytest.raises(Interrupted):
        tiny_run(tmp_path / "run", watcher=StopAt(9))
    with (tmp_path / "run" / "records.jsonl").open("ab") as file:
        file.write(b'{"kind": "step", "st')
    (tmp_path / "run" / ".checkpoint.safetensors.partial").write_bytes(b"half")
    resumed = tiny_run(tmp_path / "run", resume=True)
    assert (resumed.path / "records.jsonl").read_bytes() == (whole.path / "records.jsonl").read_bytes()
