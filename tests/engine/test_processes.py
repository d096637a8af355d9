"""Two processes train as one with the joined batch: same order, memory, weights and network; and stop as one."""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from safetensors.torch import load_file, save_file

from stablenet.engine.checkpoint import load_tensors
from stablenet.engine.run import load_run
from stablenet.errors import UserError
from tests.engine.tiny import STABLENET, child_processes, tiny_config, tiny_run

PLAIN = ("model.name=tests.engine.tiny:PlainNet", "train.log_every=1", "train.max_steps=8")
TAPS = "method.parameters.taps=['stage1', 'last']"
SETTINGS = (*STABLENET, *PLAIN, TAPS)
# With BatchNorm, dropout, a memory and open averages; an epoch has six steps.
AVERAGED = (*STABLENET, "train.averaging=swad", "train.swad.every=4", "train.batch_size=10", "train.max_steps=16")
COLLECTED = (
    "stablenet",
    PLAIN[0],
    TAPS,
    "method.parameters.solve=dataset",
    "method.parameters.collect=epoch",
    "method.parameters.every=2",
    "train.max_steps=18",
)


def spy_on(session, seen):
    """Note which samples a process saw and what they weighed."""
    algorithm, original = session.algorithm, session.algorithm.loss

    def loss(batch):
        output = original(batch)
        seen.append(torch.stack([batch.index.double(), output.weights.double()]))
        return output

    algorithm.loss = loss


def join_two(rank, port):
    """Make this process one of two, as torchrun does."""
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


def start_two(target, *args):
    """Two processes that call target(rank, port, *args)."""
    context, port = child_processes(), free_port()
    children = [context.Process(target=target, args=(rank, port, *args)) for rank in range(2)]
    for child in children:
        child.start()
    return children


def await_two(children):
    """Their exit codes; no process is left behind."""
    for child in children:
        child.join(120)
        child.kill()
        child.join()
    return [child.exitcode for child in children]


def train_one_of_two(folder, out, rank, port, settings):
    join_two(rank, port)
    train_spied(folder, out, settings)


def train_two(rank, port, folder, settings):
    train_one_of_two(folder / "two", folder / f"{rank}.safetensors", rank, port, settings)


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
    memory = sessions[0].algorithm.strategy.weighting.memory
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
    assert await_two(start_two(train_two, folder, SETTINGS)) == [0, 0]
    return folder


def test_same_samples_and_weights(outcomes):
    one, *two = (load_file(outcomes / f"{name}.safetensors")["seen"] for name in ("one", 0, 1))
    joined = torch.cat(two, 2)  # the slices of both, one after another
    assert torch.equal(joined[:, 0], one[:, 0])
    torch.testing.assert_close(joined[:, 1], one[:, 1], rtol=1e-3, atol=1e-4)
    assert (one[:, 1].std(1) > 0.01).all()  # there was something to compare


def test_the_file_of_weights_is_that_of_both(outcomes):
    one, two = (load_run(outcomes / name).weights() for name in ("one", "two"))
    seen = torch.cat([load_file(outcomes / f"{rank}.safetensors")["seen"] for rank in range(2)], 2)
    latest = {int(index): weight for step in seen for index, weight in step.T.tolist()}
    assert {row: two["weight"][row] for row in latest} == pytest.approx(latest, abs=1e-6)
    assert two["weight"].to_numpy() == pytest.approx(one["weight"].to_numpy(), rel=1e-3, abs=1e-4)
    assert two["weight"].std() > 0.01


def test_same_memory(outcomes):
    one, *two = (load_file(outcomes / f"{name}.safetensors") for name in ("one", 0, 1))
    for other in two:
        torch.testing.assert_close(other["features"], one["features"], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(other["measure"], one["measure"], rtol=1e-3, atol=1e-4)


def test_same_records_and_network(outcomes):
    one, two = load_run(outcomes / "one"), load_run(outcomes / "two")
    losses = [[r["loss"] for r in run.records if r["kind"] == "step"] for run in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    validation = [[r["validation"]["accuracy"] for r in run.records if r["kind"] == "epoch"] for run in (one, two)]
    assert validation[0] == validation[1]
    for name, value in two.load_model("last").state_dict().items():
        torch.testing.assert_close(value, one.load_model("last").state_dict()[name], rtol=1e-3, atol=1e-5)


class Disturbance:
    """Something that happens before a step (from 1) of a process; `happen` has its session and its batch."""

    def __init__(self, step):
        self._left = step

    def before_step(self, session, batch):
        self._left -= 1
        if self._left == 0:
            self.happen(session, batch)

    def happen(self, session, batch):
        raise NotImplementedError


class StopSecond(Disturbance):
    def happen(self, session, batch):
        if not session.first:
            os.kill(os.getpid(), signal.SIGTERM)


class SpoilSecond(Disturbance):
    def happen(self, session, batch):
        if not session.first:
            batch.x.fill_(float("nan"))


class LeaveSecond(Disturbance):
    """The second process is gone when it comes to call a function, which the first one does not call alone."""

    def __init__(self, step, owner, name):
        super().__init__(step)
        self._owner, self._name = owner, name

    def happen(self, session, batch):
        if not session.first:
            session.writer.wait()
            setattr(resolve_name(self._owner), self._name, lambda *given, **named: os._exit(7))


class StandStill(Disturbance):
    """With all files written, until somebody kills the process."""

    def __init__(self, step, sign):
        super().__init__(step)
        self._sign = sign

    def happen(self, session, batch):
        session.writer.wait()
        self._sign.with_suffix(f".{session.fabric.global_rank}").touch()
        time.sleep(120)


@dataclass
class Act:
    """A run in `folder` that is begun or gone on with."""

    folder: Path
    settings: tuple[str, ...]
    disturbance: Disturbance | None = None
    minutes: float = 10


def perform(rank, port, folder, acts):
    """One act after the other, because processes are slow to start; how each ended is in a file of its own."""
    join_two(rank, port)
    for number, act in enumerate(acts):
        (folder / f"act{number}-{rank}").write_text(train_disturbed(act))


def train_disturbed(act):
    """How the run ended in this process."""
    from stablenet.engine import train as engine
    from stablenet.engine.interrupts import Interrupted, NonFiniteLoss

    build = engine.build_session

    def build_disturbed(*args):
        session = build(*args)
        algorithm, step = session.algorithm, session.algorithm.step

        def step_disturbed(batch, stepper):
            if act.disturbance is not None:
                act.disturbance.before_step(session, batch)
            return step(batch, stepper)

        algorithm.step = step_disturbed
        return session

    engine.build_session = build_disturbed
    try:
        tiny_run(act.folder, *act.settings, resume=True, checkpoint_minutes=act.minutes)
    except Interrupted:
        return f"stopped at {read_position(act.folder)}"  # the file is there before any process leaves
    except NonFiniteLoss as error:
        return f"failed at {error}"
    except UserError as error:
        return f"refused: {error}"
    finally:
        engine.build_session = build
    return "finished"


def read_position(folder):
    """Step, and batch of its epoch, of the checkpoint."""
    _, meta = load_tensors(folder / "checkpoint.safetensors")
    return meta["position"]["step"], meta["position"]["batch"]


def read_results(folder):
    files = [folder / "records.jsonl", folder / "weights.parquet", *folder.glob("*.safetensors")]
    return {path.name: path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    """Runs that were stopped, spoiled and killed, the last one not gone on with, and runs that nobody disturbed."""
    folder = tmp_path_factory.mktemp("disturbed")
    acts = [
        Act(folder / "averaged", AVERAGED),
        Act(folder / "stopped", AVERAGED, StopSecond(2)),
        Act(folder / "stopped", AVERAGED, StopSecond(1)),
        Act(folder / "stopped", AVERAGED),
        Act(folder / "spoiled", ("erm", PLAIN[0], "train.log_every=100"), SpoilSecond(9), minutes=0),
        Act(folder / "collected", COLLECTED),
        Act(folder / "killed", COLLECTED, StandStill(13, folder / "still"), minutes=0),
    ]
    children = start_two(perform, folder, acts)
    end = time.monotonic() + 120  # should they wait for each other, what they have not told makes the tests fail
    while len(list(folder.glob("still.*"))) < 2 and all(c.is_alive() for c in children) and time.monotonic() < end:
        time.sleep(0.05)
    for child in children:
        child.kill()
    assert await_two(children) == [-signal.SIGKILL] * 2
    return folder


def told(folder, act):
    """How an act ended, in both processes."""
    one, two = ((folder / f"act{act}-{rank}").read_text() for rank in range(2))
    assert one == two
    return one


def test_a_stop_asked_of_one_process_stops_both_and_loses_nothing(disturbed):
    assert told(disturbed, 1) == "stopped at (6, 6)"  # after an epoch's last step, before it is evaluated
    assert told(disturbed, 2) == "stopped at (11, 5)"
    assert told(disturbed, 3) == "finished"
    assert read_results(disturbed / "stopped") == read_results(disturbed / "averaged")


def test_no_checkpoint_follows_a_bad_loss_of_one_process(disturbed):
    assert "step 9" in told(disturbed, 4)
    assert read_position(disturbed / "spoiled") == (7, 0)


def test_a_checkpoint_inside_an_epoch_is_enough_when_both_are_killed(disturbed, tmp_path):
    assert read_position(disturbed / "killed") == (11, 4)
    children = start_two(perform, tmp_path, [Act(disturbed / "killed", COLLECTED)])
    assert await_two(children) == [0, 0]
    assert read_results(disturbed / "killed") == read_results(disturbed / "collected")


def test_features_collected_over_epochs_are_those_of_both(disturbed, tmp_path):
    one, two = tiny_run(tmp_path / "one", *COLLECTED), load_run(disturbed / "collected")
    solves = [[r for r in run.records if r.pop("kind") == "solve"] for run in (one, two)]
    (solved,), (together,) = solves
    assert together == pytest.approx(solved, rel=1e-3)


WEIGHTING, ENGINE = "stablenet.weighting.distributed", "stablenet.engine"


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (WEIGHTING, "gather_sizes"),
        (WEIGHTING, "gather_rows"),
        (f"{ENGINE}.stepping:EngineStepper", "descend"),
        (f"{ENGINE}.interrupts:Agreement", "_ask"),
    ],
)
def test_who_is_left_alone_ends_with_a_sentence(tmp_path, owner, name):
    """In the weights' problem, in the backward pass, and while the processes agree."""
    settings = (*SETTINGS, "train.max_steps=14")
    acts = [Act(tmp_path / "run", settings, LeaveSecond(9, owner, name), minutes=0)]
    assert await_two(start_two(perform, tmp_path, acts)) == [0, 7]
    told = (tmp_path / "act0-0").read_text()
    assert told.startswith("refused: another process of this run ended")
    assert "--resume" in told
    status = load_run(tmp_path / "run").status
    assert status["state"] == "failed"
    assert "another process of this run ended" in status["reason"]
    assert read_position(tmp_path / "run")[0] >= 6


AGAINST = ("stablenet", PLAIN[0], TAPS, "train.log_every=1", "train.batch_size=10", "train.epochs=2")


def train_against(folder):
    """As if the network answered against the context after every epoch."""
    from stablenet.weighting import recommended

    found, recommended.context_use = recommended.context_use, lambda *figures: -9.0
    try:
        return tiny_run(folder, *AGAINST)
    finally:
        recommended.context_use = found


def train_two_against(rank, port, folder):
    join_two(rank, port)
    train_against(folder / "two")


def test_both_halve_their_offsets(tmp_path):
    one = train_against(tmp_path / "one")
    assert await_two(start_two(train_two_against, tmp_path)) == [0, 0]
    two = load_run(tmp_path / "two")
    left = [[r["judged"]["offsets_left"] for r in run.records if r["kind"] == "epoch"] for run in (one, two)]
    assert left[0] == left[1] == [0.5, 0.25]
    losses = [[r["loss"] for r in run.records if r["kind"] == "step"] for run in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


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


RESTARTED = """
import os, sys
from pathlib import Path
import torch
from tests.engine.test_processes import SETTINGS, LeaveSecond, Act, train_disturbed

torch.set_num_threads(1)
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
dies = first and sys.argv[2] == "dies"
leave = LeaveSecond(8, "stablenet.weighting.distributed", "gather_rows") if dies else None
act = Act(Path(sys.argv[1]), SETTINGS, leave, minutes=0)
ended = train_disturbed(act)
print(ended, flush=True)
sys.exit(ended != "finished")
"""


@pytest.mark.slow
def test_torchrun_starts_again_what_lost_a_process(tmp_path):
    (tmp_path / "script.py").write_text(RESTARTED)
    paths = os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    for name in ("whole", "dies"):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
        command += [str(tmp_path / "script.py"), str(tmp_path / name), name]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("finished") == 2
        assert ("another process of this run ended" in done.stdout) == (name == "dies")
    assert read_results(tmp_path / "dies") == read_results(tmp_path / "whole")


def test_batches_that_cannot_be_shared_are_refused():
    from stablenet.data.loader import BatchSettings, check_division

    config = tiny_config("erm", "train.batch_size=7")
    with pytest.raises(UserError, match="cannot be divided evenly among 2 processes"):
        check_division(torch.zeros(20), BatchSettings(batch_size=config.train.batch_size), 2)
