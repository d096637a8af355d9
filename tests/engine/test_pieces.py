"""Totals, schedules, graphs' conditions, ranks, random numbers."""

import ast
import json
import math
from pathlib import Path

import pytest
import torch

import stablenet
from stablenet.algorithms import ALGORITHMS, ERM, Judgement
from stablenet.algorithms.base import Context
from stablenet.engine.config import TrainConfig
from stablenet.engine.devices import own_random_numbers, seed_generators
from stablenet.engine.graphs import choose_graphs
from stablenet.engine.optimizers import learning_rate
from stablenet.engine.records import OLD_FINDING, describe_judgement, validation_rank
from stablenet.engine.totals import Totals
from stablenet.models import build_network

CPU = torch.device("cpu")


def test_totals_average_what_there_is():
    totals = Totals(CPU)
    for step, (loss, other) in enumerate([(1.0, math.nan), (2.0, 4.0), (6.0, 8.0)], 1):
        totals.add(step, torch.tensor(loss), {"other": torch.tensor(other)})
    assert totals.means() == {"loss": 3.0, "other": 6.0}
    assert totals.latest() == {"loss": 6.0, "other": 8.0}
    assert totals.bad_step() is None


def test_totals_name_the_first_bad_step():
    totals = Totals(CPU)
    for step, loss in enumerate([1.0, math.inf, 2.0, math.nan], 1):
        totals.add(step, torch.tensor(loss), {})
    assert totals.bad_step() == 2


def test_totals_come_back():
    totals, other = Totals(CPU), Totals(CPU)
    totals.add(1, torch.tensor(1.0), {"a": torch.tensor(3.0)})
    tensors, names = totals.state()
    other.restore(tensors, names)
    for each in (totals, other):
        each.add(2, torch.tensor(2.0), {"a": torch.tensor(5.0)})
    assert other.means() == totals.means() == {"loss": 1.5, "a": 4.0}


def test_schedules():
    steps = TrainConfig(learning_rate=1.0, milestones=(2, 4), decay=0.1)
    assert [learning_rate(steps, e, 0, 9) for e in range(5)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    cosine = TrainConfig(learning_rate=1.0, schedule="cosine")
    assert [learning_rate(cosine, 0, s, 4) for s in range(5)] == pytest.approx(
        [1, 0.853553, 0.5, 0.146447, 0], abs=1e-6
    )
    assert learning_rate(TrainConfig(learning_rate=1.0, schedule="constant"), 29, 10, 10) == 1.0


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


def method_with(name, **parameters):
    context = Context(num_classes=7, num_domains=3, num_samples=100, epochs=1, seed=0)
    return ERM(build_network(name, 7, parameters=parameters), ERM.settings_type(), context)


def test_random_numbers_are_functions_of_seed_rank_and_step():
    def draw(*where):
        with own_random_numbers(CPU):
            seed_generators(CPU, *where)
            return torch.rand(3).tolist()

    before = torch.get_rng_state()
    draws = [draw(seed, rank, step) for seed in (0, 1) for rank in (0, 1) for step in (-1, 0, 1)]
    assert len({tuple(d) for d in draws}) == len(draws)
    assert draw(1, 1, 1) == draws[-1]
    assert torch.equal(torch.get_rng_state(), before)


def test_less_than_an_effective_sample_is_told_apart_by_the_loss():
    def rank(accuracy, loss):
        figures = {"weighted_accuracy": accuracy, "weighted_loss": loss, "weighted_count": 80.0}
        return validation_rank({"validation": {"accuracy": 1 - accuracy, "loss": -loss, **figures}})

    assert rank(0.912, 0.29) > rank(0.915, 0.47)
    assert rank(0.94, 0.47) > rank(0.915, 0.29)


def test_what_uses_the_context_ranks_lower_by_what_it_gains_from_it():
    def rank(plain, weighted, **judged):
        figures = {"weighted_accuracy": weighted, "weighted_loss": 0.7, "weighted_count": 100.0}
        return validation_rank({"validation": {"accuracy": plain, "loss": 0.9, **figures}, **judged})

    old = {"judged": {"context_use": 4.0}}  # the records of version 0.1 name no penalty
    assert rank(0.90, 0.56) == rank(0.90, 0.56, judged={"other": 1.0}) == (0.56, -0.7)
    assert rank(0.90, 0.56, **old)[0] == pytest.approx(0.22)
    assert rank(0.30, 0.56, **old)[0] == pytest.approx(0.30)
    assert rank(0.95, 0.90, **old) > rank(0.30, 0.31)  # trained, and not quite free of the context
    for plain, weighted in ((0.90, 0.56), (0.30, 0.56), (0.95, 0.90), (1 / 3, 0.77)):
        new = describe_judgement(Judgement(figures={"context_use": 4.0}, penalty=abs(plain - weighted)))
        assert rank(plain, weighted, **json.loads(json.dumps(new))) == rank(plain, weighted, **old)


def test_a_penalty_counts_with_plain_figures_too():
    record = {"validation": {"accuracy": 0.75, "loss": 0.5}}
    assert validation_rank(record) == (0.75, -0.5)
    assert validation_rank(record | describe_judgement(Judgement(penalty=0.25))) == (0.5, -0.5)
    assert describe_judgement(Judgement()) == {}


def test_the_engine_knows_no_method_by_name():
    package = Path(stablenet.__file__).parent
    files = [*sorted((package / "engine").glob("*.py")), package / "cli" / "progress.py"]
    words = {name for name in ALGORITHMS if name not in ("erm", "stablenet")}  # the default; the package's own name
    words |= {"context_use", "offsets_left", "dependence_before", "dependence_after", "ess_ratio"}
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    said = [node.value for node in nodes if isinstance(node, ast.Constant) and node.value in words]
    assert said == [OLD_FINDING]
