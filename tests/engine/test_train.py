"""The loop: one seed one result, uniform weights equal ERM, target unseen, failures."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

from stablenet.algorithms.stablenet import read_settings
from stablenet.algorithms.strategy import BatchByBatchSettings
from stablenet.data.loader import Batch, Loader
from stablenet.data.sources import SOURCES
from stablenet.engine import run_data, state
from stablenet.engine.interrupts import Interrupted
from stablenet.engine.monitor import Watcher
from stablenet.engine.run import find_best, group_rank, load_run, pseudo_group_rank, validation_rank
from stablenet.engine.stepping import EngineStepper
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import evaluate_run, load_chosen
from stablenet.evaluation.selection import select_epoch
from stablenet.metrics import GroupCounts
from stablenet.models import build_network
from stablenet.weighting import shelf, solve_dataset, solve_offsets
from stablenet.weighting.logistic import cross_fit
from stablenet.weighting.recommended import PRETRAINED_PENALTY
from tests.engine.tiny import STABLENET, begin_again, tiny_config, tiny_run

GOLDEN = (
    "method.parameters.preset=paper",
    "train.epochs=2",
    "data.image_size=28",
    "model.parameters.image_size=28",
)


def read(folder, name="records.jsonl"):
    return (folder / name).read_bytes()


def epochs(run):
    return [record for record in run.records if record["kind"] == "epoch"]


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


def test_finished_run_is_left_alone(tmp_path, monkeypatch):
    run = tiny_run(tmp_path / "run", "erm", "train.epochs=1")
    before = read(run.path)
    monkeypatch.setattr("stablenet.engine.train.build_session", None)  # nothing may be built
    again = tiny_run(tmp_path / "run", "erm", "train.epochs=1")
    assert again.hash == run.hash
    assert read(run.path) == before


def test_changed_config_is_refused_with_the_difference(tmp_path):
    tiny_run(tmp_path / "run", "erm", "train.epochs=1")
    with pytest.raises(UserError, match=r"another config(.|\n)*train\.epochs: 1 → 2"):
        tiny_run(tmp_path / "run", "erm", "train.epochs=2", resume=True)


class StopAt(Watcher):
    """Asks for a stop, as Ctrl-C does, at a step."""

    def __init__(self, step):
        self._step = step

    def step(self, step, epoch, totals):
        if step == self._step:
            import signal

            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_is_clean_and_resumable(tmp_path):
    whole = tiny_run(tmp_path / "whole", *STABLENET)
    with pytest.raises(Interrupted):
        tiny_run(tmp_path / "run", *STABLENET, watcher=StopAt(9))
    assert load_run(tmp_path / "run").status == {
        "state": "interrupted",
        "reason": "stopped by the user",
        "epoch": 1,
        "step": 9,
    }
    with pytest.raises(UserError, match=r"interrupted at step 9: continue it with --resume"):
        tiny_run(tmp_path / "run", *STABLENET)
    resumed = tiny_run(tmp_path / "run", *STABLENET, resume=True)
    assert read(resumed.path) == read(whole.path)
    assert read(resumed.path, "last.safetensors") == read(whole.path, "last.safetensors")


@pytest.mark.parametrize("method", ["erm", "stablenet"])
def test_nonfinite_loss_stops_names_the_batch_and_keeps_the_checkpoint(tmp_path, method):
    def spoil(self, number, start=0, *drawn):
        for count, batch in enumerate(original(self, number, start, *drawn)):
            if number == 1 and start + count == 2:
                batch.x[:] = float("nan")
                spoiled.extend(batch.index.tolist())
            yield batch

    original, spoiled = Loader.epoch, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Loader, "epoch", lambda self, *where: (spoil if self.settings.shuffle else original)(self, *where)
        )
        with pytest.raises(UserError, match=r"step 10.*epoch 2, batch 3") as caught:
            tiny_run(tmp_path / "run", method)
    run = load_run(tmp_path / "run")
    assert "last good checkpoint is kept" in str(caught.value)
    assert run.status["state"] == "failed"
    assert (run.path / "checkpoint.safetensors").exists()
    if method == "erm":
        assert run.manifest.part("train")["id"][spoiled[0]] in str(caught.value)
    assert len(epochs(run)) == 1
    resumed = tiny_run(tmp_path / "run", method, resume=True)  # the images are whole again
    assert resumed.status["state"] == "finished"


def test_a_loss_that_is_not_finite_at_once_keeps_nothing_and_says_so(tmp_path):
    with pytest.raises(UserError, match="training stopped, before its first checkpoint"):
        tiny_run(tmp_path / "run", "erm", "train.learning_rate=1e30")


def test_out_of_memory_says_what_to_try(tmp_path, monkeypatch):
    def fail(self, batch):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(EngineStepper, "loss", fail)
    with pytest.raises(UserError, match=r"batches of 8: try --set train\.batch_size=4"):
        tiny_run(tmp_path / "run")
    assert load_run(tmp_path / "run").status["state"] == "failed"


def test_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match="the disk is full"):
        tiny_run(tmp_path / "run")
    assert not list((tmp_path / "run").glob(".*.partial"))


def test_missing_gpu_is_named(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    from stablenet.engine.devices import choose_device

    with pytest.raises(UserError, match="torch finds no GPU"):
        choose_device("cuda:1")
    with pytest.raises(UserError, match="choose auto, cpu, cuda"):
        choose_device("gpu")


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

    def read_source(name, root):
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


def test_dataset_solve_once_per_epoch(tmp_path):
    run = tiny_run(tmp_path / "run", "stablenet", "method.parameters.solve=dataset", "method.parameters.every=2")
    solves = [record for record in run.records if record["kind"] == "solve"]
    assert [record["epoch"] for record in solves] == [1, 3]
    assert all(record["dependence_after"] < record["dependence_before"] for record in solves)


def test_the_recommended_weights_are_solved_once_and_grow(tmp_path):
    run = tiny_run(tmp_path / "run", "stablenet", "method.parameters.ramp=0.67", "train.log_every=1")
    assert [record["epoch"] for record in run.records if record["kind"] == "solve"] == [1]
    shares = [[r["ess_ratio"] for r in run.records if r["kind"] == "step" and r["epoch"] == e] for e in (1, 2, 3)]
    assert shares[0] == [1.0] * len(shares[0])  # ones at first
    steps = [record for record in run.records if record["kind"] == "step"]
    assert all(step["dependence_after"] == step["dependence_before"] for step in steps if step["epoch"] == 1)
    after = [[step["dependence_after"] for step in steps if step["epoch"] == epoch][-1] for epoch in (1, 2, 3)]
    assert after[0] > after[1] > after[2]  # of the weights as they were used
    means = [sum(share) / len(share) for share in shares]
    assert 1.0 > means[1] > means[2]


@pytest.fixture
def pretrained(tmp_path):
    """StableNet on a body that starts from a file."""
    file = tmp_path / "w.safetensors"
    save_file(build_network("paper-cnn", 3, parameters={"image_size": 12}).body.state_dict(), file)
    return "stablenet", f"model.pretrained={file}"


def test_a_pretrained_body_is_weighed_with_more_care(tmp_path, pretrained):
    start = (*pretrained, "method.parameters.strength=1.0")
    careful = tiny_run(tmp_path / "careful", *start)
    named = tiny_run(tmp_path / "named", *start, f"method.parameters.overrides.penalty={PRETRAINED_PENALTY}")
    bold = tiny_run(tmp_path / "bold", *start, "method.parameters.overrides.penalty=0.0006")
    solves = [[r for r in run.records if r["kind"] == "solve"] for run in (careful, named, bold)]
    assert solves[0] == solves[1]
    assert read(careful.path, "last.safetensors") == read(named.path, "last.safetensors")
    assert solves[0][0]["ess_ratio"] > solves[2][0]["ess_ratio"]


def test_a_pretrained_body_has_offsets_in_the_place_of_weights(tmp_path, pretrained):
    default, named, weights, whole_stage = (
        tiny_run(tmp_path / f"{place}", *pretrained, *(f"method.parameters.{setting}" for setting in settings))
        for place, settings in enumerate(
            ((), ("strength=0.0", "offset=1.5", "components=4"), ("strength=1.0", "offset=0.0"), ("components=0",))
        )
    )
    assert read(default.path, "last.safetensors") == read(named.path, "last.safetensors")
    assert read(default.path, "last.safetensors") != read(weights.path, "last.safetensors")
    assert read(default.path, "last.safetensors") != read(whole_stage.path, "last.safetensors")
    assert epochs(default)[-1]["train"]["ess_ratio"] == 1.0
    (solve,) = (record for record in default.records if record["kind"] == "solve")
    assert {"ess_ratio": 1.0, "largest_weight": 1.0}.items() <= solve.items()  # even weights, and nothing else is said
    assert "dependence_after" not in solve
    assert not any("dependence_after" in record for record in default.records if record["kind"] == "step")
    assert epochs(weights)[-1]["train"]["ess_ratio"] < 1.0


@pytest.mark.parametrize(
    ("given", "pretrained", "strength", "offset", "components"),
    [
        ({}, False, 1.0, 0.5, 0),
        ({}, True, 0.0, 1.5, 4),
        ({"strength": 1.0}, True, 1.0, 0.5, 4),
        ({"components": 0}, True, 0.0, 1.0, 0),
        ({"components": 3}, False, 1.0, 0.5, 3),
        ({"offset": 0.0}, True, 1.0, 0.0, 4),
        ({"taps": ("last",)}, True, 1.0, 0.0, 4),
        ({"preset": "paper", "solve": "dataset"}, False, 1.0, 0.0, 0),
    ],
)
def test_weights_and_offsets_by_preset(given, pretrained, strength, offset, components):
    plan = read_settings(given).plan(pretrained)
    assert (plan.strength, plan.offset, plan.components) == (strength, offset, components)


@pytest.mark.parametrize("given", [{"solve": "batch"}, {"preset": "paper"}, {"preset": "published", "offset": 0.0}])
def test_batch_by_batch_is_a_strategy_of_its_own(given):
    assert type(read_settings(given)) is BatchByBatchSettings
    with pytest.raises(UserError, match=r"method\.parameters\.every needs the whole training set.*solve=dataset"):
        read_settings({**given, "every": 2})


def read_taps(run, part, *taps):
    """The samples of a part, and what the taps of the network gave for them before training, as they are stored."""
    network, samples = begin_again(run).network, run.open_part(part)
    network.eval()
    network.tap(taps)
    with torch.no_grad():
        _, *features = network.forward_taps(run.transform(samples.pixels.read(samples.row), torch.zeros(len(samples))))
    return samples, torch.cat(features, 1).half()


def test_offsets_are_those_of_the_first_stage_and_stay_out_of_validation(tmp_path):
    run = tiny_run(tmp_path / "run", "stablenet", "train.log_every=1", "train.epochs=1", "train.milestones=[]")
    samples, first = read_taps(run, "train", "stage1")
    found = solve_offsets(first, samples.y, 3, seed=run.config.seed)
    (solve,) = (record for record in run.records if record["kind"] == "solve")
    assert solve["context_explains"] == pytest.approx(found.explained, abs=1e-3)
    assert found.explained > 0.1
    held, model = run.open_part("validation"), run.load_model("last")
    with torch.no_grad():
        logits = model(run.transform(held.pixels.read(held.row), torch.zeros(len(held))))
    assert epochs(run)[-1]["validation"]["loss"] == pytest.approx(float(cross_entropy(logits, held.y)), rel=1e-4)


@pytest.fixture
def found_uses(monkeypatch):
    """What is found of the use of the context, epoch by epoch; and what it was asked with."""
    seen = []

    def set_uses(*uses):
        def context_use(plain, weighted, effective):
            seen.append((plain, weighted, effective))
            return uses[(len(seen) - 1) % len(uses)]

        monkeypatch.setattr("stablenet.algorithms.stablenet.context_use", context_use)
        return seen

    return set_uses


class Listener(Watcher):
    """Keeps what methods say of epochs."""

    def __init__(self):
        self.notes = []

    def epoch(self, record, note=""):
        self.notes.append(note)


def test_offsets_are_halved_where_the_network_answers_against_the_context(tmp_path, found_uses):
    plain = tiny_run(tmp_path / "plain", "stablenet")
    seen, listener = found_uses(-4.0, 5.0, -6.0), Listener()
    run = tiny_run(tmp_path / "run", "stablenet", watcher=listener)
    assert listener.notes == [
        "the network answers against the context, 0.5 of the offsets left",
        "the network answers with the context",
        "the network answers against the context, 0.25 of the offsets left",
    ]
    for record in epochs(run):
        figures = record["validation"]
        assert record.get("rank_penalty", 0.0) == abs(figures["accuracy"] - figures["weighted_accuracy"])
    names = ("accuracy", "weighted_accuracy", "weighted_count")
    assert seen == [tuple(record["validation"][name] for name in names) for record in epochs(run)]
    assert [record.get("judged") for record in epochs(run)] == [
        {"context_use": -4.0, "offsets_left": 0.5},
        {"context_use": 5.0},
        {"context_use": -6.0, "offsets_left": 0.25},
    ]
    assert epochs(run)[0]["train"] == epochs(plain)[0]["train"]  # the epoch before is as it was
    assert epochs(run)[1]["train"] != epochs(plain)[1]["train"]


@pytest.mark.parametrize("setting", ["validation=plain", "preset=paper", "overrides.pairs=features"])
def test_only_weights_against_the_label_can_judge(tmp_path, found_uses, setting):
    seen = found_uses(-4.0)
    run = tiny_run(tmp_path / "run", "stablenet", f"method.parameters.{setting}")
    assert not seen
    assert all("judged" not in record for record in epochs(run))


def test_without_offsets_nothing_is_halved_and_epochs_are_judged(tmp_path, found_uses):
    found_uses(-4.0, 3.4, 3.6)
    run = tiny_run(tmp_path / "run", "stablenet", "method.parameters.offset=0.0")
    assert [record.get("judged") for record in epochs(run)] == [{"context_use": -4.0}, None, {"context_use": 3.6}]
    assert "rank_penalty" not in epochs(run)[1]


def test_the_chosen_epoch_is_one_that_does_without_the_context(tmp_path, monkeypatch):
    told = iter([(0.90, 0.56), (0.55, 0.53), (0.10, 0.56)])  # with the context, without it, against it

    def evaluate(*arguments):
        plain, weighted = next(told)
        weighted_figures = {"weighted_accuracy": weighted, "weighted_loss": 0.7, "weighted_count": 88.0}
        return {"accuracy": plain, "loss": 0.7, **weighted_figures}

    monkeypatch.setattr("stablenet.engine.train.evaluate_loader", evaluate)
    run = tiny_run(tmp_path / "run", "stablenet", keep_epochs=True)
    assert run.records[-1]["best_epoch"] == find_best(run.records)["epoch"] == 2
    assert read(run.path, "best.safetensors") == read(run.path, "epoch-0002.safetensors")
    assert [set(record.get("judged", {})) for record in epochs(run)] == [
        {"context_use"},
        set(),
        {"context_use", "offsets_left"},
    ]


def test_offsets_that_are_none_are_not_halved(tmp_path, found_uses, monkeypatch):
    def learn_nothing(context, y, classes, fold):
        return replace(cross_fit(context, y, classes, fold), loss=9.0)  # worse than the classes' shares

    monkeypatch.setattr("stablenet.weighting.offsets.cross_fit", learn_nothing)
    found_uses(-4.0)
    run = tiny_run(tmp_path / "run", "stablenet")
    assert [record["judged"] for record in epochs(run)] == [{"context_use": -4.0}] * 3


def test_halved_offsets_survive_an_interruption(tmp_path, found_uses):
    found_uses(-4.0)
    whole = tiny_run(tmp_path / "whole", "stablenet")
    with pytest.raises(Interrupted):
        tiny_run(tmp_path / "run", "stablenet", watcher=StopAt(9))  # in the second epoch, with half the offsets
    resumed = tiny_run(tmp_path / "run", "stablenet", resume=True)
    assert read(resumed.path) == read(whole.path)


def test_components_are_those_of_all_taps(tmp_path):
    run = tiny_run(
        tmp_path / "run", "stablenet", "method.parameters.components=3", "train.epochs=1", "train.milestones=[]"
    )
    samples, features = read_taps(run, "train", "stage1", "stage2")
    found = solve_offsets(features, samples.y, 3, components=3, seed=run.config.seed)
    (solve,) = (record for record in run.records if record["kind"] == "solve")
    assert solve["context_explains"] == pytest.approx(found.explained, abs=1e-3)


def test_the_loss_is_that_of_the_logits_with_offsets_and_the_accuracy_that_of_the_logits(tmp_path):
    run = tiny_run(tmp_path / "run", "stablenet")
    algorithm, samples = begin_again(run), run.open_part("train")
    images = run.transform(samples.pixels.read(samples.row), torch.zeros(len(samples)))
    generator = torch.Generator().manual_seed(0)
    offsets = 3 * torch.randn(len(samples), 3, generator=generator)
    offsets[torch.arange(len(samples)), samples.y] += 4  # with them the label would mostly be named
    algorithm.strategy.whole_set.offsets.offsets.copy_(offsets)
    algorithm.train()
    algorithm.network.eval()  # no dropout, the same logits twice
    with torch.no_grad():
        output = algorithm.loss(Batch(images, samples.y, samples.domain, samples.index))
        logits = algorithm.network(images)
    expected = cross_entropy(logits + offsets, samples.y, reduction="none")
    torch.testing.assert_close(output.per_sample_loss, expected)
    assert output.diagnostics["accuracy"] == (logits.argmax(1) == samples.y).float().mean()


def test_offsets_alone_change_the_result(tmp_path):
    alone = ("method.parameters.strength=0.0", "method.parameters.offset=1.0")
    told, plain = tiny_run(tmp_path / "told", "stablenet", *alone), tiny_run(tmp_path / "plain", "erm")
    assert read(told.path, "last.safetensors") != read(plain.path, "last.safetensors")


def test_validation_may_hold_more_samples_than_training(tmp_path):
    run = tiny_run(tmp_path / "run", "stablenet", "data.parameters.validation=0.7")
    assert len(run.open_part("validation")) > len(run.open_part("train"))


def test_epochs_are_ranked_under_weights_of_the_validation_samples(tmp_path):
    weighted, plain = (
        tiny_run(tmp_path / kind, "stablenet", f"method.parameters.validation={kind}") for kind in ("weighted", "plain")
    )
    assert read(weighted.path, "last.safetensors") == read(plain.path, "last.safetensors")  # few samples: as before
    for found, other in zip(epochs(weighted), epochs(plain), strict=True):
        assert found["validation"]["accuracy"] == other["validation"]["accuracy"]
        assert found["validation"]["weighted_loss"] != found["validation"]["loss"]
        assert "weighted_accuracy" not in other["validation"]
    ranks = [validation_rank(record) for record in epochs(weighted)]
    assert weighted.records[-1]["best_epoch"] == 1 + ranks.index(max(ranks))


def test_weights_of_the_validation_samples_are_those_of_a_solve_for_them_alone(tmp_path):
    run = tiny_run(tmp_path / "run", "stablenet")
    samples, features = read_taps(run, "validation", "stage1", "stage2")
    images = run.transform(samples.pixels.read(samples.row), torch.zeros(len(samples)))
    weights = solve_dataset(features.float(), samples.y, seed=run.config.seed).weights
    figures = GroupCounts(len(run.manifest.domains), len(run.classes), images.device)
    with torch.no_grad():
        figures.add(run.load_model("last")(images), samples.y, samples.domain, weights)
    expected = figures.figures(run.manifest.domains, run.classes)
    assert epochs(run)[-1]["validation"]["weighted_loss"] == pytest.approx(expected["weighted_loss"], rel=1e-4)
    assert weights.std() > 0.05


def test_a_split_without_validation_is_not_weighed(tmp_path):
    run = tiny_run(tmp_path / "run", "stablenet", "data.parameters.validation=0.0")
    assert [record["validation"] for record in epochs(run)] == [None] * 3


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("every=-1", "every must be 0"),
        ("ramp=1.5", "ramp must be between 0 and 1"),
        ("strength=1.5", "strength must be between 0 and 1"),
        ("offset=-0.5", "offset must be 0 or more"),
        ("components=-1", "components must be 0 or more"),
        ("features=hots", "features must be 'device', 'host' or a folder with its path"),
    ],
)
def test_bad_plans_for_solves_are_refused(tmp_path, setting, message):
    with pytest.raises(UserError, match=message):
        tiny_run(tmp_path / "run", "stablenet", "method.parameters.solve=dataset", f"method.parameters.{setting}")


@pytest.mark.parametrize("place", ["host", "folder/features"])
def test_features_kept_elsewhere_give_the_same_run(tmp_path, monkeypatch, place):
    place = str(tmp_path / place) if "/" in place else place
    one = tiny_run(tmp_path / "one", "stablenet", "train.epochs=1")
    made, reserve = [], shelf.reserve
    monkeypatch.setattr(shelf, "reserve", lambda *given: made.append(given[3]) or reserve(*given))
    two = tiny_run(tmp_path / "two", "stablenet", "train.epochs=1", f"method.parameters.features={place}")
    assert [str(each) for each in made] == [place] * 2  # of the training and the validation samples
    assert one.records[1:] == two.records[1:]


def test_components_of_offsets_that_are_off_are_refused(tmp_path):
    off = ("method.parameters.components=4", "method.parameters.offset=0.0")
    with pytest.raises(UserError, match="components must be left out with offset=0"):
        tiny_run(tmp_path / "run", "stablenet", *off)


@pytest.mark.parametrize("name", ["strength", "offset", "components"])
def test_strength_and_offsets_need_the_whole_set(tmp_path, name):
    with pytest.raises(UserError, match=f"{name} needs the whole training set"):
        tiny_run(tmp_path / "run", "stablenet", "method.parameters.solve=batch", f"method.parameters.{name}=1")


def test_a_run_that_cannot_begin_leaves_nothing_behind(tmp_path):
    with pytest.raises(UserError, match="stage9"):
        tiny_run(tmp_path / "run", "stablenet", "method.parameters.taps=['stage9']")
    assert not (tmp_path / "run").exists()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / ".note").write_text("mine")
    with pytest.raises(UserError, match="stage9"):
        tiny_run(tmp_path / "kept", "stablenet", "method.parameters.taps=['stage9']")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [".note"]


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


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be created"):
        tiny_run(tmp_path / "file" / "run")


def test_augmented_and_cosine(tmp_path):
    run = tiny_run(tmp_path / "run", "erm", "data.augment=true", "train.schedule=cosine", "train.optimizer=adamw")
    rates = [record["learning_rate"] for record in epochs(run)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.0002


def test_another_process_in_the_folder_is_refused(tmp_path):
    from stablenet.files import hold_lock

    with pytest.raises(Interrupted):
        tiny_run(tmp_path / "run", watcher=StopAt(3))
    with hold_lock(tmp_path / "run" / ".lock"), pytest.raises(UserError, match="another process is training"):
        tiny_run(tmp_path / "run", resume=True)


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


def test_a_run_that_never_began_is_begun_again(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("stablenet.engine.train.build_session", None)
        with pytest.raises(TypeError):
            tiny_run(tmp_path / "run", "erm", "train.max_steps=1")
    assert tiny_run(tmp_path / "run", "erm", "train.max_steps=1").status["state"] == "finished"


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
