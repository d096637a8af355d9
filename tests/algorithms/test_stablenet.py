"""StableNet for the whole set in a run: when it solves, what enters the loss, how epochs are judged."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from stablenet.algorithms.stablenet import read_settings
from stablenet.algorithms.strategy import BatchByBatchSettings
from stablenet.data.loader import Batch
from stablenet.engine.interrupts import Interrupted
from stablenet.engine.monitor import Watcher
from stablenet.engine.ranking import find_best, validation_rank
from stablenet.errors import UserError
from stablenet.metrics import GroupCounts
from stablenet.models import build_network
from stablenet.weighting import samples as samples_module
from stablenet.weighting import solve_dataset, solve_offsets
from stablenet.weighting.logistic import cross_fit
from stablenet.weighting.recommended import PRETRAINED_PENALTY
from tests.engine.tiny import StopAt, begin_again, epochs, read, tiny_run


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

        monkeypatch.setattr("stablenet.weighting.recommended.context_use", context_use)
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
        "the network predicts against the context, 0.5 of the offsets left",
        "the network predicts with the context",
        "the network predicts against the context, 0.25 of the offsets left",
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
    made, reserve = [], samples_module.reserve
    monkeypatch.setattr(samples_module, "reserve", lambda *given: made.append(given[3]) or reserve(*given))
    two = tiny_run(tmp_path / "two", "stablenet", "train.epochs=1", f"method.parameters.features={place}")
    assert [str(each) for each in made] == [place] * 2  # of the training and the validation samples
    assert one.records[1:] == two.records[1:]


def test_components_of_offsets_that_are_off_are_refused(tmp_path):
    off = ("method.parameters.components=4", "method.parameters.offset=0.0")
    with pytest.raises(UserError, match="components must be left out with offset=0"):
        tiny_run(tmp_path / "run", "stablenet", *off)


@pytest.mark.parametrize("setting", ["strength=1", "strength=0", "offset=1", "components=1"])
def test_strength_and_offsets_need_the_whole_set(tmp_path, setting):
    with pytest.raises(UserError, match=f"{setting[:-2]} needs the whole training set"):
        tiny_run(tmp_path / "run", "stablenet", "method.parameters.solve=batch", f"method.parameters.{setting}")


@pytest.mark.parametrize("solve", ["batch", "dataset"])
def test_an_unknown_parameter_is_refused_by_both_strategies(tmp_path, solve):
    with pytest.raises(UserError, match=r"unknown setting 'method\.parameters\.presett': did you mean 'preset'"):
        tiny_run(tmp_path / "run", "stablenet", f"method.parameters.solve={solve}", "method.parameters.presett=paper")
    assert not (tmp_path / "run").exists()
