"""On a GPU: bf16 and channels-last by default, CUDA graphs that change nothing, failures found without waiting."""

import json

import pytest
import torch

from stablenet.algorithms import ALGORITHMS
from stablenet.data.loader import Loader
from stablenet.engine import stepping
from stablenet.engine.interrupts import Interrupted
from stablenet.engine.run import load_run
from stablenet.engine.session import Runtime
from stablenet.engine.train import train
from stablenet.errors import UserError
from tests.engine.test_stepping import replayed_steps
from tests.engine.tiny import STABLENET, StopAt, tiny_config

pytestmark = pytest.mark.gpu

EXACT = ("train.precision='32'", "model.parameters.dropout=0.0", "data.image_size=28", "model.parameters.image_size=28")


@pytest.fixture(autouse=True)
def _gpu(monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    torch.backends.cudnn.deterministic = True
    monkeypatch.setattr(stepping, "LEAST_STEPS", 1)  # these runs are tiny
    yield
    torch.backends.cudnn.deterministic = False


def gpu_run(folder, method="erm", *settings, **runtime):
    return train(tiny_config(method, *settings), Runtime(folder=folder, device="cuda", **runtime))


def losses(run):
    return [record["loss"] for record in run.records if record["kind"] == "step"]


def session_of(run):
    return json.loads((run.path / "timing.jsonl").read_text().splitlines()[0])


GRAPHED = [name for name in ALGORITHMS if ALGORITHMS[name].one_plain_pass or ALGORITHMS[name].replayable]
WHOLE = ["stablenet", *(name for name in GRAPHED if ALGORITHMS[name].replayable)]


@pytest.mark.parametrize("method", GRAPHED)
def test_graphs_change_nothing(tmp_path, method):
    # A small rate: without dropout, some methods leave the numbers' range at the usual one, graphed or not.
    settings = (*EXACT, "train.learning_rate=0.002")
    if method == "m-ada":  # with domains made, by an autoencoder whose steps are replayed, too
        settings += ("train.optimizer=adam", "method.parameters.interval=0", "method.parameters.autoencoder_epochs=1")
    eager, graphed = (gpu_run(tmp_path / str(g), method, *settings, graphs=g) for g in (False, True))
    assert session_of(graphed)["cuda_graphs"] == ("step" if method in WHOLE else "passes")
    assert session_of(eager)["cuda_graphs"] == "none"
    first = 4 if method == "m-ada" else 6  # three domains are made before the first three steps
    assert replayed_steps(graphed) == ([first, 6, 6] if method in WHOLE else [0, 0, 0])
    assert losses(graphed) == pytest.approx(losses(eager), rel=2e-2)
    assert losses(graphed)[0] == pytest.approx(losses(eager)[0], rel=1e-4)
    mine, theirs = graphed.load_model("last").state_dict(), eager.load_model("last").state_dict()
    batches = 42 if method == "m-ada" else 21  # its steps have a second pass, over the made domain
    assert int(mine["body.stage1.1.num_batches_tracked"]) == batches
    assert int(theirs["body.stage1.1.num_batches_tracked"]) == batches


@pytest.mark.parametrize("parameters", ["preset=paper", "preset=published", "solve=batch"])
def test_steps_that_solve_for_each_batch_are_replayed(tmp_path, parameters):
    """Their memory, Fourier functions and weights are those of the same run without graphs, also when resumed."""
    settings = (*EXACT, f"method.parameters.{parameters}", "train.learning_rate=0.002")
    eager, graphed = (gpu_run(tmp_path / str(g), "stablenet", *settings, graphs=g) for g in (False, True))
    with pytest.raises(Interrupted):
        train(
            tiny_config("stablenet", *settings), Runtime(folder=tmp_path / "resumed", device="cuda"), watcher=StopAt(11)
        )
    resumed = gpu_run(tmp_path / "resumed", "stablenet", *settings, resume=True)
    assert session_of(graphed)["cuda_graphs"] == "step"
    assert replayed_steps(graphed) == ([0, 3, 6] if "published" in parameters else [5, 6, 6])
    for run in (graphed, resumed):
        assert losses(run) == pytest.approx(losses(eager), rel=2e-2)
        mine, theirs = run.weights()["weight"], eager.weights()["weight"]
        assert (mine - theirs).abs().max() < 0.05 * theirs.max()
        assert not (mine == 1).all()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("parameters", ["preset=paper", "solve=batch"])
def test_a_replayed_step_does_not_wait_for_the_device(tmp_path, monkeypatch, parameters):
    original = stepping.Recording.replay

    def replay(self, *inputs):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return original(self, *inputs)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(stepping.Recording, "replay", replay)
    run = gpu_run(tmp_path / "run", "stablenet", f"method.parameters.{parameters}")
    assert replayed_steps(run) == [5, 6, 6]


def test_graphed_dropout_differs_between_steps_and_not_between_runs(tmp_path):
    first, second = (gpu_run(tmp_path / name, "erm", "train.precision='32'") for name in "ab")
    assert losses(first) == pytest.approx(losses(second), rel=1e-3)
    other = gpu_run(tmp_path / "c", "erm", "train.precision='32'", "seed=1", "data.split_seed=0")
    assert losses(first) != pytest.approx(losses(other), rel=1e-3)


@pytest.mark.parametrize("graphs", [False, True])
def test_uniform_weights_equal_erm(tmp_path, graphs):
    uniform = ("method.parameters.overrides.min_ess=1.0", "method.parameters.preset=recommended")
    weighted = gpu_run(tmp_path / "w", *STABLENET, *EXACT, *uniform, graphs=graphs)
    plain = gpu_run(tmp_path / "p", "erm", *EXACT, graphs=graphs)
    assert losses(weighted) == pytest.approx(losses(plain), rel=1e-3)


def test_gpu_agrees_with_the_processor(tmp_path):
    # Linear features, since each device draws its own Fourier functions.
    settings = (*EXACT, "method.parameters.overrides.num_functions=0")
    gpu = gpu_run(tmp_path / "gpu", *STABLENET, *settings)
    cpu = train(tiny_config(*STABLENET, *settings), Runtime(folder=tmp_path / "cpu", device="cpu"))
    assert losses(gpu)[0] == pytest.approx(losses(cpu)[0], rel=1e-2)


def test_bf16_is_the_default_and_learns(tmp_path):
    run = gpu_run(tmp_path / "run", *STABLENET, "train.epochs=12", "train.milestones=[]")
    assert session_of(run)["precision"] == "bf16"
    assert losses(run)[-1] < losses(run)[0]
    assert run.model.state_dict()["head.weight"].dtype == torch.float32


def test_dataset_solve(tmp_path):
    run = gpu_run(tmp_path / "run", "stablenet", "method.parameters.every=1")
    solves = [record for record in run.records if record["kind"] == "solve"]
    assert len(solves) == 3
    assert all(record["dependence_after"] < record["dependence_before"] for record in solves)


@pytest.mark.parametrize("method", [STABLENET, ("erm",)], ids=["batch", "whole steps"])
def test_resume_goes_on(tmp_path, method):
    from stablenet.engine.interrupts import Interrupted
    from tests.engine.tiny import StopAt

    whole = gpu_run(tmp_path / "whole", *method, *EXACT)
    config = tiny_config(*method, *EXACT)
    with pytest.raises(Interrupted):
        train(config, Runtime(folder=tmp_path / "run", device="cuda"), StopAt(9))
    resumed = gpu_run(tmp_path / "run", *method, *EXACT, resume=True)
    assert losses(resumed) == pytest.approx(losses(whole), rel=2e-2)


def test_nonfinite_loss_is_found_and_named(tmp_path, monkeypatch):
    original = Loader.epoch

    def spoil(self, number, start=0, *further):
        for count, batch in enumerate(original(self, number, start, *further)):
            if self.settings.shuffle and number == 1 and count == 2:
                batch.x[:] = float("nan")
            yield batch

    monkeypatch.setattr(Loader, "epoch", spoil)
    with pytest.raises(UserError, match=r"step 10 \(epoch 2, batch 3"):
        gpu_run(tmp_path / "run", "erm", "train.log_every=100")
    assert load_run(tmp_path / "run").status["state"] == "failed"
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_real_out_of_memory_says_what_to_try(tmp_path):
    torch.cuda.set_per_process_memory_fraction(1e-4)
    try:
        with pytest.raises(UserError, match=r"out of memory with batches of 8: try"):
            gpu_run(tmp_path / "run", "erm", *EXACT)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize(("name", "graphed"), [("resnet18", "passes"), ("resnet50", "none")])
def test_at_224_pixels_small_resnets_alone_are_graphed(tmp_path, name, graphed):
    settings = (f"model.name={name}", "data.image_size=224", "train.max_steps=2", "data.augment=true")
    config = tiny_config(*STABLENET, *settings).plain()
    config["model"]["parameters"] = {}
    from stablenet.engine.config import read_config

    run = train(read_config(config), Runtime(folder=tmp_path / "run", device="cuda"))
    assert session_of(run)["cuda_graphs"] == graphed
    assert run.status["state"] == "finished"
