"""Means over an epoch, the conditions of CUDA graphs, and replayed steps: the same run, recorded when it should be.

Recordings are played by the processor here.
"""

import json
import math
import warnings
import weakref

import pytest
import torch
from torch import Tensor, nn

from stablenet import replay
from stablenet.algorithms import ERM, Context
from stablenet.engine import session, stepping
from stablenet.engine.config import TrainConfig
from stablenet.engine.interrupts import Interrupted
from stablenet.engine.session import Runtime
from stablenet.engine.stepping import EpochMeans, choose_graphs
from stablenet.engine.train import Training, train
from stablenet.models import build_network
from stablenet.replay import HostSide
from stablenet.weighting.kernels import triton_works
from tests.algorithms.cases import METHODS, method_config
from tests.engine.tiny import StopAt, tiny_run

pytestmark = pytest.mark.usefixtures("one_thread")
BY_BATCH = ("stablenet-paper", "stablenet-published", *(["stablenet-batch"] if triton_works() else []))
REPLAYABLE = (
    "erm",
    "focal",
    "jigen",
    "rsc",
    "dg-mmld",
    "m-ada",
    "afr",
    "dfr",
    "ula",
    "stablenet",
    "stablenet-dataset",
    *BY_BATCH,
)
CPU = torch.device("cpu")
FILES = ("records.jsonl", "best.safetensors", "last.safetensors")


def test_totals_average_what_there_is():
    totals = EpochMeans(CPU)
    for step, (loss, other) in enumerate([(1.0, math.nan), (2.0, 4.0), (6.0, 8.0)], 1):
        totals.add(step, torch.tensor(loss), {"other": torch.tensor(other)})
    assert totals.means() == {"loss": 3.0, "other": 6.0}
    assert totals.latest() == {"loss": 6.0, "other": 8.0}
    assert totals.bad_step() is None


def test_totals_name_the_first_bad_step():
    totals = EpochMeans(CPU)
    for step, loss in enumerate([1.0, math.inf, 2.0, math.nan], 1):
        totals.add(step, torch.tensor(loss), {})
    assert totals.bad_step() == 2


def test_totals_come_back():
    totals, other = EpochMeans(CPU), EpochMeans(CPU)
    totals.add(1, torch.tensor(1.0), {"a": torch.tensor(3.0)})
    tensors, names = totals.state()
    other.restore(tensors, names)
    for each in (totals, other):
        each.add(2, torch.tensor(2.0), {"a": torch.tensor(5.0)})
    assert other.means() == totals.means() == {"loss": 1.5, "a": 4.0}


def method_with(name, **parameters):
    context = Context(num_classes=7, num_domains=3, num_samples=100, epochs=1, seed=0)
    return ERM(build_network(name, 7, parameters=parameters), ERM.settings_type(), context)


@pytest.mark.parametrize(
    ("change", "graphs"),
    [
        ({}, "step"),
        ({"device": CPU}, "none"),
        ({"world": 2}, "none"),
        ({"image_size": 224}, "none"),
        ({"same_shapes": False}, "step"),
        ({"steps": 5}, "passes"),
        ({"config": TrainConfig(schedule="cosine")}, "passes"),
        ({"config": TrainConfig(schedule="cosine"), "same_shapes": False}, "none"),
    ],
    ids=str,
)
def test_graphs_only_where_they_may_and_help(change, graphs):
    usual = {
        "config": TrainConfig(),
        "device": torch.device("cuda"),
        "image_size": 28,
        "steps": 42,
        "same_shapes": True,
    }
    assert choose_graphs(method_with("paper-cnn", image_size=28), **{"world": 1, **usual, **change}) == graphs


@pytest.mark.parametrize(
    ("name", "graphs"), [("resnet18", "passes"), ("resnet34", "none"), ("mobilenet_v3_small", "none")]
)
def test_small_resnets_alone_are_graphed_at_large_images(name, graphs):
    assert choose_graphs(method_with(name), TrainConfig(), torch.device("cuda"), 224, 42, True, 1) == graphs


class Played:
    """In the place of a CUDA graph: nothing is computed when it is made, everything when it is replayed."""

    made = 0

    def __init__(self, what, work, inputs, *, optimizers, generators):
        assert what == "training steps"
        Played.made += 1
        self._work, self._shapes = work, [tensor.shape for tensor in inputs]

    def replay(self, *inputs):
        assert [tensor.shape for tensor in inputs] == self._shapes
        return self._work(*inputs)


@pytest.fixture
def played(monkeypatch):
    monkeypatch.setattr(session, "choose_graphs", lambda algorithm, *rest: "step" if algorithm.replayable else "none")
    monkeypatch.setattr(stepping, "record", Played)
    monkeypatch.setattr(Played, "made", 0)
    return Played


def contents(run):
    return [(run.path / name).read_bytes() for name in FILES]


def replayed_steps(run):
    lines = [json.loads(line) for line in (run.path / "timing.jsonl").read_text().splitlines()]
    return [line.get("replayed_steps", 0) for line in lines if line["kind"] == "epoch"]


def test_a_recording_an_epoch_and_the_same_run(tmp_path, played):
    plain = tiny_run(tmp_path / "plain", graphs=False)
    assert played.made == 0
    replayed = tiny_run(tmp_path / "replayed")
    assert played.made == 3  # epochs of seven steps
    assert contents(replayed) == contents(plain)
    assert replayed_steps(replayed) == [6, 6, 6]
    assert replayed_steps(plain) == [0, 0, 0]


def test_a_rate_that_never_rests_is_never_recorded(tmp_path, played):
    """`choose_graphs` does not ask for it then, and nothing would go wrong if it did."""
    tiny_run(tmp_path / "run", "erm", "train.schedule=cosine")
    assert played.made == 0


@pytest.mark.parametrize("method", REPLAYABLE)
def test_every_replayable_method_trains_as_without(tmp_path, played, method):
    """With a last batch of one sample, which is not recorded."""
    config = method_config(method)
    runs = [train(config, Runtime(folder=tmp_path / str(g), device="cpu", graphs=g)) for g in (False, True)]
    # In its first epoch of eight steps the memory of `published` changes its place in each; M-ADA changes what it
    # trains on before the second, fourth and sixth step.
    assert played.made == {"stablenet-published": 1, "m-ada": 4}.get(method, 2)
    assert contents(runs[0]) == contents(runs[1])
    if runs[0].keeps_weights:
        assert runs[0].weights().equals(runs[1].weights())


@pytest.mark.parametrize("preset", ["recommended", "paper"])
def test_a_run_goes_on_inside_an_epoch(tmp_path, played, preset):
    method = "stablenet", f"method.parameters.preset={preset}"
    whole = tiny_run(tmp_path / "whole", *method)
    with pytest.raises(Interrupted):
        tiny_run(tmp_path / "run", *method, watcher=StopAt(11))
    assert contents(tiny_run(tmp_path / "run", *method, resume=True)) == contents(whole)
    assert played.made > 3


def test_every_place_of_a_queue_has_a_recording(tmp_path, played):
    settings = "method.parameters.solve=batch", "method.parameters.overrides.groups=3", "train.batch_size=4"
    plain, replayed = (tiny_run(tmp_path / str(g), "stablenet", *settings, graphs=g) for g in (False, True))
    assert contents(replayed) == contents(plain)
    assert played.made == 9  # fourteen batches an epoch


def test_steps_of_a_warm_up_are_not_recorded(tmp_path, played):
    settings = "method.parameters.preset=paper", "method.parameters.overrides.warmup=16"
    plain, replayed = (tiny_run(tmp_path / str(g), "stablenet", *settings, graphs=g) for g in (False, True))
    assert contents(replayed) == contents(plain)
    assert replayed_steps(replayed) == [0, 0, 3]  # of seven; at the seventeenth the memory is empty


def test_what_cannot_be_recorded_runs_as_it_comes_and_is_told_once(tmp_path, played, monkeypatch):
    def refuse(*inputs, **options):
        raise RuntimeError("operation not permitted when stream is capturing")

    plain = tiny_run(tmp_path / "plain", graphs=False)
    monkeypatch.setattr(stepping, "record", replay.record)
    monkeypatch.setattr(replay, "Recording", refuse)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = tiny_run(tmp_path / "run")
    assert sum("training steps could not be captured" in str(warning.message) for warning in told) == 1
    assert contents(run) == contents(plain)
    assert replayed_steps(run) == [0, 0, 0]


def test_a_failed_recording_is_let_go_before_the_step_is_taken(monkeypatch):
    """It holds the memory of a whole step; the step in its place may need that."""
    half_made = []

    class Half:
        def __init__(self, work, inputs):
            half_made.append(weakref.ref(self))
            try:
                raise ValueError("the cause")
            except ValueError:
                raise RuntimeError("the capture was spoilt")  # noqa: B904, as torch does it

    monkeypatch.setattr(replay, "Recording", Half)
    with pytest.warns(RuntimeWarning, match="a walk could not be captured .*: the cause"):
        assert replay.record("a walk", print, []) is None
    assert half_made[0]() is None


@pytest.mark.parametrize("before", [False, True])
def test_adam_is_capturable_while_its_step_is_recorded(before):
    adam, sgd = (kind([torch.zeros(1)]) for kind in (torch.optim.Adam, torch.optim.SGD))
    adam.param_groups[0]["capturable"] = before
    with replay._capturable([adam, sgd]):
        assert adam.param_groups[0]["capturable"]
    assert adam.param_groups[0]["capturable"] is before
    assert "capturable" not in sgd.param_groups[0]


def host_state(module: nn.Module) -> dict[str, object]:
    """All plain values that modules hold, and where their tensors lie; not of those whose host's part is replayed."""
    state: dict[str, object] = {}
    replayed = {id(part) for side in module.modules() if isinstance(side, HostSide) for part in side.modules()}
    for name, part in module.named_modules():
        if id(part) in replayed:
            continue
        plain = {key: value for key, value in vars(part).items() if isinstance(value, int | float | str | tuple)}
        state |= {f"{name}.{key}": value for key, value in plain.items()}
        tensors: dict[str, Tensor] = dict(part.named_buffers(recurse=False)) | dict(
            part.named_parameters(recurse=False)
        )
        state |= {f"{name}.{key}": tensor.data_ptr() for key, tensor in tensors.items()}
    return state


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_replayable_step_leaves_nothing_on_the_host(tmp_path, monkeypatch, method):
    """A replay would not count there, and would go on with tensors that were put aside."""
    changed: list[set[str]] = []
    original = Training._run_step

    def look(self: Training, batch: object) -> None:
        assert self._session.algorithm.replayable == (method in REPLAYABLE)
        before = host_state(self._session.algorithm)
        original(self, batch)
        after = host_state(self._session.algorithm)
        changed.append({name for name in after if after[name] != before.get(name)})

    monkeypatch.setattr(Training, "_run_step", look)
    train(method_config(method), Runtime(folder=tmp_path / "run", device="cpu"))
    found = set().union(*changed)
    if method in REPLAYABLE:
        assert not found
    elif method in ("mixup", "stablenet-dataset-epoch"):
        assert found  # the test can see it
