"""Two processes train as one with the joined batch: same order, memory, weights and network."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.tiny import STABLENET, child_processes, tiny_config, tiny_run

PLAIN = ("model.name=tests.engine.tiny:PlainNet", "train.log_every=1", "train.max_steps=8")
TAPS = "method.parameters.taps=['stage1', 'last']"
SETTINGS = (*STABLENET, *PLAIN, TAPS)


def spy_on(session, seen):
    """Note which samples a process saw and what they weighed."""
    algorithm, original = session.algorithm, session.algorithm.loss

    def loss(batch):
        output = original(batch)
        seen.append(torch.stack([batch.index.double(), output.weights.double()]))
        return output

    algorithm.loss = loss


def train_one_of_two(folder, out, rank, port, settings):
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
    }
    train_spied(folder, out, settings)


def train_spied(folder, out, settings):
    """Train, and write every step's indices and weights and the memory at the end."""
    from stablenet.engine import train as engine

    seen, sessions, build = [], [], engine.build_session

    def build_spied(*args):
        session = build(*args)
        spy_on(session, seen)
        sessions.append(session)
        return session

    engine.build_session = build_spied
    try:
        tiny_run(folder, *settings)
    finally:
        engine.build_session = build
    memory = sessions[0].algorithm.weighting.memory
    save_file({"seen": torch.stack(seen), "features": memory.features, "measure": memory.measure}, out)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Files of one process alone, and of two."""
    folder = tmp_path_factory.mktemp("processes")
    train_spied(folder / "one", folder / "one.safetensors", SETTINGS)
    context, port = child_processes(), free_port()
    children = [
        context.Process(
            target=train_one_of_two, args=(folder / "two", folder / f"{rank}.safetensors", rank, port, SETTINGS)
        )
        for rank in range(2)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0, 0]
    return folder


def test_same_samples_and_weights(outcomes):
    one, *two = (load_file(outcomes / f"{name}.safetensors")["seen"] for name in ("one", 0, 1))
    joined = torch.cat(two, 2)  # the slices of both, one after another
    assert torch.equal(joined[:, 0], one[:, 0])
    torch.testing.assert_close(joined[:, 1], one[:, 1], rtol=1e-3, atol=1e-4)
    assert (one[:, 1].std(1) > 0.01).all()  # there was something to compare


def test_same_memory(outcomes):
    one, *two = (load_file(outcomes / f"{name}.safetensors") for name in ("one", 0, 1))
    for other in two:
        torch.testing.assert_close(other["features"], one["features"], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(other["measure"], one["measure"], rtol=1e-3, atol=1e-4)


def test_same_records_and_network(outcomes):
    from stablenet.engine.runs import load_run

    one, two = load_run(outcomes / "one"), load_run(outcomes / "two")
    losses = [[r["loss"] for r in run.records if r["kind"] == "step"] for run in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    validation = [[r["validation"]["accuracy"] for r in run.records if r["kind"] == "epoch"] for run in (one, two)]
    assert validation[0] == validation[1]
    for name, value in two.load_model("last").state_dict().items():
        torch.testing.assert_close(value, one.load_model("last").state_dict()[name], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_started_by_torchrun(tmp_path):
    """The command itself, with the paper's network."""
    sets = [
        f"--set={setting}" for setting in ("train.epochs=1", "train.batch_size=20", "data.parameters.train_size=80")
    ]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "stablenet", "train"]
    command += ["--recipe=embedded-dr0.9", "--method=stablenet", "--device=cpu", f"--folder={tmp_path / 'run'}", *sets]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert '"kind": "end"' in Path(tmp_path / "run" / "records.jsonl").read_text()
    assert len(done.stdout.splitlines()) == 2  # one result: the second process is silent


def test_batches_that_cannot_be_shared_are_refused():
    from stablenet.data.order import BatchSettings, check_division
    from stablenet.errors import UserError

    config = tiny_config("erm", "train.batch_size=7")
    with pytest.raises(UserError, match="cannot be divided evenly among 2 processes"):
        check_division(torch.zeros(20), BatchSettings(batch_size=config.train.batch_size), 2)
