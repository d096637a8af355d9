"""The loop: one seed one result, uniform weights equal ERM, target unseen; what is recorded and kept."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stablenet.data.sources import SOURCES
from stablenet.engine import run_data, state
from stablenet.engine.interrupts import Interrupted
from stablenet.engine.ranking import group_rank, pseudo_group_rank
from stablenet.engine.stepping import EngineStepper
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import evaluate_run, load_chosen, select_epoch
from tests.engine.tiny import STABLENET, StopAt, epochs, read, tiny_config, tiny_run

GOLDEN = (
    "method.parameters.preset=paper",
    "train.epochs=2",
    "data.image_size=28",
    "model.parameters.image_size=28",
)


def test_trains_and_records(tmp_path):
    run = tiny_run(tmp_path / "run", *STABLENET)
    kinds = [record["kind"] for record in run.records]
    assert kinds.count("epoch") == 3
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert [r["step"] for r in run.records if r["kind"] == "step"] == list(range(2, 22, 2))
    assert run.status["state"] == "finished"
    assert epochs(run)[-1]["train"]["loss"] < epochs(run)[0]["train"]["loss"]
    assert [round(r["learning_rate"], 6) for r in epochs(run)] == [0.02, 0.02, 0.002]
    assert not (run.path / "checkpoint.safetensors").exists()
    assert not (run.path / "oracle.jsonl").exists()
    assert run.model.taps == ()  # they were for training


def test_a_loaded_model_gives_the_figures_that_were_recorded(tmp_path):
    """Validation accuracy, counted by hand with the model from the file."""
    run = tiny_run(tmp_path / "run", *STABLENET)
    samples = run.open_part("validation")
    pixels = samples.pixels.read(samples.row)
    with torch.no_grad():
        logits = run.model(run.transform(pixels, torch.zeros(len(samples), dtype=torch.int64)))
    best = run.records[-1]["best_epoch"]
    recorded = epochs(run)[best - 1]["validation"]["accuracy"]
    assert (logits.argmax(1) == samples.y).float().mean().item() == pytest.approx(recorded)


def test_the_model_of_the_best_worst_group_is_kept(tmp_path):
    run = tiny_run(tmp_path / "run", keep_epochs=True)
    ranks = [group_rank(record) for record in epochs(run)]
    chosen = select_epoch("worst-group", run.records).epoch
    assert ranks[chosen - 1] == max(ranks)
    model, choice = load_chosen(run, "worst-group")
    kept = load_file(run.path / f"epoch-{chosen:04d}.safetensors")
    assert choice.epoch == chosen
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_the_model_of_the_worst_pseudo_group_is_kept(tmp_path):
    settings = ("method.parameters.act=always", "method.parameters.overrides.penalty=0.001")
    run = tiny_run(tmp_path / "run", "stablenet", *settings, keep_epochs=True)
    assert all(record["validation"]["pseudo_groups"]["contexts"] == 2 for record in epochs(run))
    ranks = [pseudo_group_rank(record) for record in epochs(run)]
    model, choice = load_chosen(run, "worst-pseudo-group")
    assert ranks[choice.epoch - 1] == max(ranks)
    kept = load_file(run.path / f"epoch-{choice.epoch:04d}.safetensors")
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_learns(tmp_path):
    run = tiny_run(tmp_path / "run", "erm", "train.epochs=12", "train.milestones=[]", "model.parameters.dropout=0.0")
    assert epochs(run)[-1]["train"]["accuracy"] > 0.9


def test_best_model_is_that_of_the_best_validation(tmp_path, monkeypatch):
    figures = iter([{"accuracy": 0.2, "loss": 1.0}, {"accuracy": 0.8, "loss": 1.0}, {"accuracy": 0.5, "loss": 0.1}])
    monkeypatch.setattr("stablenet.engine.train.evaluate_loader", lambda *args: next(figures))
    run = tiny_run(tmp_path / "run", keep_epochs=True)
    assert run.records[-1]["best_epoch"] == 2
    kept = load_file(run.path / "epoch-0002.safetensors")
    assert all(torch.equal(value, kept[name]) for name, value in run.model.state_dict().items())
    last = load_file(run.path / "epoch-0003.safetensors")
    assert all(torch.equal(v, last[name]) for name, v in run.load_model("last").state_dict().items())


def test_one_seed_one_result(tmp_path):
    outside = torch.get_rng_state()
    first, second = (tiny_run(tmp_path / name, *STABLENET) for name in "ab")
    other = tiny_run(tmp_path / "c", *STABLENET, "seed=1", "data.split_seed=0")
    assert torch.equal(torch.get_rng_state(), outside)  # nobody's random numbers were touched
    assert read(first.path) == read(second.path)
    assert read(first.path, "last.safetensors") == read(second.path, "last.safetensors")
    assert epochs(first) != epochs(other)


@pytest.mark.parametrize("solve", ["batch", "dataset"])
def test_uniform_weights_equal_erm_bit_for_bit(tmp_path, solve):
    # A floor of one on the effective sample size leaves nothing but uniform weights.
    uniform = (
        "method.parameters.overrides.min_ess=1.0",
        f"method.parameters.solve={solve}",
        "method.parameters.offset=0.0",
    )
    weighted = tiny_run(tmp_path / "weighted", *STABLENET, *uniform)
    plain = tiny_run(tmp_path / "plain", "erm")
    assert read(weighted.path, "last.safetensors") == read(plain.path, "last.safetensors")
    assert [r["validation"] for r in epochs(weighted)] == [r["validation"] for r in epochs(plain)]
    assert [r["train"]["loss"] for r in epochs(weighted)] == [r["train"]["loss"] for r in epochs(plain)]


def test_weights_change_the_result(tmp_path):
    weighted, plain = (tiny_run(tmp_path / method, method) for method in ("stablenet", "erm"))
    assert read(weighted.path, "last.safetensors") != read(plain.path, "last.safetensors")


def test_golden_records(tmp_path, request):
    """What a tiny run measured when this was written; another number here is another result for everybody."""
    run = tiny_run(tmp_path / "run", *STABLENET, *GOLDEN)
    golden = json.loads((request.path.parent / "golden.json").read_text())
    found = [{k: v for k, v in record.items() if k != "config_hash"} for record in run.records]
    assert [record["kind"] for record in found] == [record["kind"] for record in golden]
    for record, expected in zip(found, golden, strict=True):
        assert flatten(record) == pytest.approx(flatten(expected), rel=2e-3, abs=2e-3)


def flatten(value, prefix=""):
    if isinstance(value, dict):
        return {key: item for name in value for key, item in flatten(value[name], f"{prefix}{name}/").items()}
    return {} if isinstance(value, str) else {prefix: value}


class Opened:
    """Which parts were opened, and at which step of training."""

    def __init__(self, monkeypatch):
        self.parts, original = [], run_data.RunData.open_part

        def note(data, part):
            self.parts.append(part)
            return original(data, part)

        monkeypatch.setattr(run_data.RunData, "open_part", note)


def test_target_is_never_read_in_training(tmp_path, monkeypatch):
    """The pixels of the target raise when they are touched; training does not notice."""
    opened = Opened(monkeypatch)
    render = run_data.render_part

    def guarded(table, manifest, part):
        if part not in ("train", "validation"):
            raise AssertionError("target pixels were read in training")
        return render(table, manifest, part)

    monkeypatch.setattr(run_data, "render_part", guarded)
    run = tiny_run(tmp_path / "run", "stablenet", "method.parameters.solve=dataset")
    assert opened.parts == ["train", "validation"]
    with pytest.raises(AssertionError):
        run.open_part("test")


def test_a_source_is_read_once(tmp_path, monkeypatch):
    read_names = []

    def read_source(name, *where):
        read_names.append(name)
        return SOURCES[name].read(Path())

    monkeypatch.setattr(run_data, "read_source", read_source)
    run = tiny_run(tmp_path / "run", oracle=True)
    assert read_names == ["tiny"]
    evaluate_run(run, parts=("validation", "test"), device="cpu")
    assert read_names == ["tiny"] * 2


def test_oracle_goes_to_a_file_of_its_own(tmp_path):
    plain, asked = tiny_run(tmp_path / "plain"), tiny_run(tmp_path / "asked", oracle=True)
    assert read(plain.path) == read(asked.path)  # nothing of it reaches the records
    assert read(plain.path, "best.safetensors") == read(asked.path, "best.safetensors")
    assert [line["epoch"] for line in asked.oracle] == [1, 2, 3]
    assert asked.oracle[0]["test"]["count"] == 15


def test_max_steps_ends_inside_an_epoch(tmp_path):
    run = tiny_run(tmp_path / "run", "erm", "train.max_steps=10")
    assert [record["step"] for record in epochs(run)] == [7, 10]
    assert run.records[-1]["step"] == 10


def test_without_validation_the_last_epoch_is_best(tmp_path):
    run = tiny_run(tmp_path / "run", "erm", "data.parameters.validation=0.0")
    assert epochs(run)[0]["validation"] is None
    assert run.records[-1]["best_epoch"] == 3


def test_short_last_batch_is_taken_where_asked_for(tmp_path):
    run = tiny_run(tmp_path / "run", "stablenet", "train.drop_last=false", "method.parameters.preset=paper")
    assert run.records[0]["steps_per_epoch"] == 8  # 60 images in batches of 8
    assert run.status["state"] == "finished"


def test_domain_aware_batches(tmp_path, monkeypatch):
    seen, original = [], EngineStepper.loss

    def note(self, batch):
        seen.append(batch.domain.tolist())
        return original(self, batch)

    monkeypatch.setattr(EngineStepper, "loss", note)
    tiny_run(tmp_path / "run", "erm", "train.balance_domains=true", "train.max_steps=3")
    assert all(sorted(domains) == list(range(8)) for domains in seen)


def test_augmented_and_cosine(tmp_path):
    run = tiny_run(tmp_path / "run", "erm", "data.augment=true", "train.schedule=cosine", "train.optimizer=adamw")
    rates = [record["learning_rate"] for record in epochs(run)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.0002


def test_checkpoint_is_tensors_and_json(tmp_path):
    with pytest.raises(Interrupted):
        tiny_run(tmp_path / "run", *STABLENET, watcher=StopAt(9))
    tensors, meta = state.load_tensors(tmp_path / "run" / "checkpoint.safetensors")
    assert meta["position"]["step"] == 9
    assert meta["position"]["batch"] == 2
    assert "method/strategy.weighting.memory.features" in tensors
    assert any(name.startswith("optimizer/engine/") for name in tensors)


def test_unknown_tap_lists_neighbours(tmp_path):
    with pytest.raises(UserError, match=r"unknown tap 'stage9'.*stage1"):
        tiny_run(tmp_path / "run", *STABLENET, "method.parameters.taps=['stage9']")


def test_bf16_on_request(tmp_path):
    plain, half = (tiny_run(tmp_path / p, *STABLENET, f"train.precision='{p}'") for p in ("32", "bf16"))
    losses = [[r["train"]["loss"] for r in epochs(run)] for run in (plain, half)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.2)


def test_config_names_the_folder(tmp_path):
    from stablenet.engine.session import Runtime
    from stablenet.engine.train import train

    run = train(tiny_config("erm", "train.max_steps=1"), Runtime(runs=tmp_path, device="cpu"))
    assert run.path.name == f"tiny-erm-seed0-{run.hash[:12]}"
