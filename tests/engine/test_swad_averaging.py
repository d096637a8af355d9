"""Averaged weights beside a run: off changes nothing, on changes no step, and what comes out is the mean."""

import pytest
import torch
from safetensors.torch import load_file

from stablenet.engine.config import assemble_config
from stablenet.engine.identity import Contents, identify
from stablenet.engine.interrupts import Interrupted
from stablenet.engine.run import load_run
from stablenet.engine.stepping import EngineStepper
from stablenet.engine.swad import estimate_statistics
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import evaluate_run, load_chosen, select_epoch
from tests.engine.test_swad_window import find_window
from tests.engine.tiny import StopAt, child_processes, read, tiny_config, tiny_run

SWAD = ("train.averaging=swad", "train.swad.every=2", "train.swad.n_converge=2", "train.swad.n_tolerance=3")
STEPS = 21


def looks(run):
    return [record for record in run.records if record["kind"] == "averaging"]


def averaged(run):
    return next(record for record in run.records if record["kind"] == "averaged")


@pytest.fixture
def snapshots(monkeypatch):
    """The network's parameters after every step."""
    taken, original = [], EngineStepper.descend

    def descend(stepper, output):
        original(stepper, output)
        parameters = stepper._module.network.named_parameters()
        taken.append({name: parameter.detach().clone() for name, parameter in parameters})

    monkeypatch.setattr(EngineStepper, "descend", descend)
    return taken


@pytest.mark.parametrize(("method", "n_converge"), [("erm", 1), ("stablenet", 2)])
def test_averages_the_steps_of_the_window(tmp_path, snapshots, method, n_converge):
    wide = (f"train.swad.n_converge={n_converge}", "train.swad.tolerance_ratio=9.0", "train.learning_rate=0.1")
    run = tiny_run(tmp_path / "run", method, *SWAD, *wide)
    losses = [look["validation_loss"] for look in looks(run)]
    assert [look["step"] for look in looks(run)] == [*range(2, 21, 2), STEPS]
    first, last = find_window(losses, n_converge, 3, 9.0)
    assert last > first
    told = averaged(run)
    assert (told["first_step"], told["last_step"]) == (2 * first + 1, min(2 * last + 2, STEPS))
    kept = snapshots[told["first_step"] - 1 : told["last_step"]]
    model = run.load_model("averaged")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.data, torch.stack([shot[name] for shot in kept]).mean(0))


def test_a_loss_that_rises_ends_the_window(tmp_path, monkeypatch):
    from stablenet.engine.swad import Averaging

    original, made = Averaging.judge, iter([3.0, 1.0, 1.1, 9.0, 9.0, 9.0])
    monkeypatch.setattr(Averaging, "judge", lambda self, epoch, loss: original(self, epoch, next(made)))
    run = tiny_run(tmp_path / "run", "erm", *SWAD)
    assert len(looks(run)) == 6  # nobody looks any further
    assert looks(run)[-1]["ended"]
    assert looks(run)[-1]["threshold"] == pytest.approx(1.3 * 1.05)
    assert (averaged(run)["first_step"], averaged(run)["last_step"]) == (3, 6)


def test_steps_are_those_without_it(tmp_path):
    plain, beside = tiny_run(tmp_path / "plain", "stablenet"), tiny_run(tmp_path / "beside", "stablenet", *SWAD)
    for name in ("best.safetensors", "last.safetensors"):
        assert read(plain.path, name) == read(beside.path, name)
    own = [record for record in beside.records if record["kind"] not in ("averaging", "averaged", "start")]
    assert own == plain.records[1:]
    assert not (plain.path / "averaged.safetensors").exists()


def test_switched_off_it_is_no_part_of_the_hash():
    plain, tuned = tiny_config(), tiny_config("erm", "train.swad.every=7")
    on, otherwise = tiny_config("erm", *SWAD), tiny_config("erm", *SWAD, "train.swad.tolerance_ratio=0.2")
    hashes = [identify(config, Contents()).hash for config in (plain, tuned, on, otherwise)]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3
    assert "averaging" not in identify(plain, Contents()).hashed["train"]


@pytest.mark.parametrize("step", [5, 9, 14])
def test_resumes_exactly(tmp_path, step):
    whole = tiny_run(tmp_path / "whole", "stablenet", *SWAD)
    with pytest.raises(Interrupted):
        tiny_run(tmp_path / "run", "stablenet", *SWAD, watcher=StopAt(step))
    resumed = tiny_run(tmp_path / "run", "stablenet", *SWAD, resume=True)
    for name in ("records.jsonl", "best.safetensors", "last.safetensors", "averaged.safetensors"):
        assert read(whole.path, name) == read(resumed.path, name)


def test_stopped_before_its_last_files_it_is_finished_alike(tmp_path, monkeypatch):
    whole = tiny_run(tmp_path / "whole", "erm", *SWAD)
    with monkeypatch.context() as patch:
        patch.setattr("stablenet.engine.train.Training._keep_average", None)
        with pytest.raises(TypeError):
            tiny_run(tmp_path / "run", "erm", *SWAD)
    resumed = tiny_run(tmp_path / "run", "erm", *SWAD, resume=True)
    for name in ("records.jsonl", "averaged.safetensors"):
        assert read(whole.path, name) == read(resumed.path, name)


def test_statistics_are_those_of_the_averaged_weights(tmp_path):
    """BatchNorm's first layer by hand: mean and variance of its input over the training images."""
    run = tiny_run(tmp_path / "run", "erm", *SWAD, "train.drop_last=false", "train.batch_size=20", "train.epochs=6")
    model, samples = run.load_model("averaged"), run.open_part("train")
    pixels = samples.pixels.read(samples.row)
    with torch.no_grad():
        maps = model.body.stage1[0](run.transform(pixels, torch.zeros(len(samples), dtype=torch.int64)))
    norm = model.body.stage1[1]
    torch.testing.assert_close(norm.running_mean, maps.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    # A mean of three batches' variances lies below the variance of all images by that between the batches.
    torch.testing.assert_close(norm.running_var, maps.var((0, 2, 3)), rtol=0.1, atol=1e-4)
    assert norm.momentum == 0.1
    last = load_file(run.path / "last.safetensors")
    assert not torch.equal(norm.running_mean, last["body.stage1.1.running_mean"])


class Fabric:
    """As much of one as the statistics need."""

    def __init__(self, world_size=1):
        self.world_size = world_size

    def autocast(self):
        return torch.autocast("cpu", enabled=False)


def test_frozen_statistics_stay():
    from stablenet.data.loader import Batch

    nothing = torch.zeros(4, dtype=torch.int64)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)).train()
    model[0].eval()
    estimate_statistics(model, iter([Batch(torch.full((4, 3), 5.0), nothing, nothing, nothing)]), Fabric())
    assert model[0].running_mean.tolist() == [0, 0, 0]
    assert model[1].running_mean.tolist() == pytest.approx([5, 5, 5], rel=1e-4)


def test_statistics_are_averaged_over_processes(monkeypatch):
    """The other process saw ones in place of fives."""
    from stablenet.data.loader import Batch

    monkeypatch.setattr("torch.distributed.all_reduce", lambda statistic: statistic.add_(1.0))
    nothing, model = torch.zeros(4, dtype=torch.int64), torch.nn.BatchNorm1d(3).train()
    estimate_statistics(model, iter([Batch(torch.full((4, 3), 5.0), nothing, nothing, nothing)]), Fabric(2))
    assert model.running_mean.tolist() == pytest.approx([3, 3, 3])


def test_two_processes_average_as_one(tmp_path):
    from tests.engine.test_processes import SETTINGS, free_port, train_one_of_two

    wide = ("train.averaging=swad", "train.swad.every=3", "train.swad.n_converge=1", "train.swad.tolerance_ratio=9.0")
    settings, context, port = (*SETTINGS, *wide), child_processes(), free_port()
    children = [
        context.Process(target=train_one_of_two, args=(tmp_path / "two", tmp_path / str(rank), rank, port, settings))
        for rank in range(2)
    ]
    for child in children:
        child.start()
    one = tiny_run(tmp_path / "one", *settings)
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0, 0]
    two = load_run(tmp_path / "two")
    assert [look["kept"] for look in looks(two)] == [look["kept"] for look in looks(one)]
    assert averaged(two)["first_step"] == 1
    expected = one.load_model("averaged").state_dict()
    for name, value in two.load_model("averaged").state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-5)


def test_evaluated_by_the_rule_averaged(tmp_path):
    run = tiny_run(tmp_path / "run", "stablenet", *SWAD)
    [evaluation] = evaluate_run(run, rule="averaged", parts=("validation",), device="cpu")
    assert evaluation.figures["accuracy"] == pytest.approx(averaged(run)["validation"]["accuracy"])
    assert evaluation.predictions.name == "predictions-averaged-validation.parquet"
    model, choice = load_chosen(run, "averaged")
    assert choice.epoch == 3
    stored = load_file(run.path / "averaged.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in model.state_dict().items())
    assert select_epoch("last", run.records).epoch == 3  # other rules do not see it


def test_a_run_without_it_says_so(tmp_path):
    run = tiny_run(tmp_path / "run", "erm", "train.epochs=1")
    with pytest.raises(UserError, match=r"no averaged weights: train it with train\.averaging=swad"):
        evaluate_run(run, rule="averaged")


def test_a_split_without_validation_is_refused(tmp_path):
    with pytest.raises(UserError, match="the split has no validation part"):
        tiny_run(tmp_path / "run", "erm", *SWAD, "data.parameters.validation=0.0")


def test_a_short_run_gives_its_last_segment(tmp_path, snapshots):
    run = tiny_run(tmp_path / "run", "erm", "train.averaging=swad", "train.swad.every=4", "train.max_steps=6")
    told = averaged(run)
    assert (told["first_step"], told["last_step"], told["converged"]) == (5, 6, False)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.averaging=swa", "did you mean 'swad'"),
        ("train.swad.every=0", "train.swad.every must be at least 1"),
        ("train.swad.n_converge=0", "train.swad.n_converge must be at least 1"),
        ("train.swad.n_tolerance=2", "train.swad.n_tolerance must be at least n_converge, 3, got 2"),
        ("train.swad.tolerance_ratio=-0.1", "train.swad.tolerance_ratio must be 0 or more"),
    ],
)
def test_wrong_settings_are_named(setting, message):
    with pytest.raises(UserError, match=message):
        tiny_config("erm", setting)


def test_recipes_carry_what_its_paper_has():
    assert assemble_config("pacs-classic-sketch").train.swad.every == 100
    vlcs = assemble_config("vlcs-classic-sun").train.swad
    assert (vlcs.every, vlcs.tolerance_ratio) == (50, 0.2)
