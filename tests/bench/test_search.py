"""Search: equal budgets, source validation alone, chosen values in the record."""

import math
from types import SimpleNamespace

import pytest

from stablenet.algorithms import ALGORITHMS, read_settings
from stablenet.bench.cells import check_methods, make_run, read_record
from stablenet.bench.plan import TablePart, make_plan
from stablenet.bench.search import SearchSettings, _read_score, draw_searches, draw_trial, find_space, search
from stablenet.bench.worker import RunOutcome, perform
from stablenet.engine.config import assemble_config, merge
from stablenet.errors import UserError
from stablenet.files import read_lines
from stablenet.weighting import PRESETS, recommended

SPACE = """
[common]
"train.learning_rate" = { times = [0.001, 2.0] }
[stablenet]
"method.parameters.overrides.penalty" = { choices = [0.1, 0.5] }
"""
ONE_COLUMN = TablePart(columns=("most",))


class HereExecutor:
    """Carries out orders in this process, one after the other."""

    def __init__(self):
        self.orders = []

    def run(self, orders, tell):
        self.orders += orders
        return [perform(order) for order in orders]


class RefusingExecutor:
    def run(self, orders, tell):
        return [RunOutcome(order.name, "failed", "no") for order in orders]


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "space.toml").write_text(SPACE)
    return SearchSettings(budget=3, seeds=(0,), space=tmp_path / "space.toml")


def test_a_search_trains_scores_and_records(bench, settings):
    executor = HereExecutor()
    found = search(bench.table, bench.runs, ONE_COLUMN, settings, executor, print)
    assert [(each.row.id, len(each.trials)) for each in found] == [("erm", 3), ("stablenet", 3)]
    assert len(executor.orders) == 4  # the recipe's own two runs were there
    for each in found:
        assert each.trials[0].values == {}
        for trial in each.trials:
            (folder,) = trial.folders
            epochs = [line for line in read_lines(bench.runs / folder / "records.jsonl") if line["kind"] == "epoch"]
            assert trial.score == pytest.approx(100 * max(line["validation"]["accuracy"] for line in epochs))
        best = max(trial.score for trial in each.trials)
        assert each.best == next(trial for trial in each.trials if trial.score == best)
        recorded = read_record(bench.runs, bench.table)["search"][each.row.id][""]
        assert recorded["values"] == each.best.values
        assert (recorded["budget"], recorded["seeds"], len(recorded["trials"])) == (3, [0], 3)
    plan = make_plan(bench.table, bench.runs, TablePart(columns=("most",), seeds=(0,), tuned=True))
    assert {run.run.hash for run in plan.runs} == {each.best.runs[0].hash for each in found}


def test_a_trial_is_scored_by_what_ranks_its_epochs(tmp_path, monkeypatch):
    (tmp_path / "config.json").touch()
    weighted = {"weighted_accuracy": 0.625, "weighted_loss": 0.7, "weighted_count": 80.0}
    epoch = {"kind": "epoch", "epoch": 1, "validation": {"accuracy": 0.9, "loss": 0.3, **weighted}}
    run = SimpleNamespace(status={"state": "finished"}, records=[epoch])
    monkeypatch.setattr("stablenet.bench.search.load_run", lambda path: run)
    assert _read_score(tmp_path) == pytest.approx(62.5)  # not the plain 90 of a network that uses the context


def test_the_target_is_never_looked_at(bench, settings):
    executor = HereExecutor()
    search(bench.table, bench.runs, TablePart(columns=("most",), methods=("erm",)), settings, executor, print)
    for order in executor.orders:
        assert not list((bench.runs / order.name).glob("evaluation.jsonl"))
        assert not list((bench.runs / order.name).glob("predictions*"))


def test_trials_are_drawn_from_their_space(made):
    settings = SearchSettings(budget=40)
    (found,) = draw_searches(made.table, TablePart(columns=("most",), methods=("stablenet",)), settings)
    rates = [trial.runs[0].config.train.learning_rate for trial in found.trials]
    penalties = [t.runs[0].config.method.parameters["overrides"]["penalty"] for t in found.trials[1:]]
    assert rates[0] == 0.02
    assert all(0.002 <= rate <= 0.06 for rate in rates)
    assert all(0.003 <= penalty <= 1 for penalty in penalties)
    assert len(set(rates)) == 40
    # Log-uniform: about half of the factors lie below the geometric mean.
    assert 10 <= sum(rate < 0.02 * math.sqrt(0.1 * 3) for rate in rates) <= 30
    assert found == draw_searches(made.table, TablePart(columns=("most",), methods=("stablenet",)), settings)[0]
    other = draw_searches(made.table, TablePart(columns=("most",), methods=("stablenet",)), SearchSettings(draw=1))[0]
    assert other.trials[1].values != found.trials[1].values


@pytest.mark.parametrize("method", list(ALGORITHMS))
def test_every_method_takes_its_space(made, method):
    from dataclasses import replace

    row = replace(made.table.rows[0], method=method)
    base = make_run(made.table, row, made.table.columns[0], 0).config
    for key in range(4):
        values = draw_trial(find_space(base), base, str(key))
        check_methods([make_run(made.table, row, made.table.columns[0], 0, values)])


@pytest.mark.parametrize("preset", ["recommended", "paper", "paper-covariance", "published"])
def test_a_presets_own_values_lie_in_its_space(preset):
    """The default is among what is searched, and offsets are where the preset has them."""
    config = assemble_config(settings=["method.name=stablenet", f"method.parameters.preset={preset}"])
    space = find_space(config)
    low, high = space["method.parameters.overrides.penalty"]["log"]
    assert preset == "recommended" or low < PRESETS[preset].penalty < high
    if preset == "recommended":
        assert low < recommended.WHOLE_SET["penalty"] < recommended.PRETRAINED_PENALTY < high
        offsets = {0.0, recommended.BESIDE_WEIGHTS, 1.0, recommended.PRETRAINED_OFFSET}
        assert offsets <= set(space["method.parameters.offset"]["choices"])
    assert ("method.parameters.offset" in space) == (preset == "recommended")
    assert "train.weight_decay" in space
    for key in range(4):
        values = draw_trial(space, config, str(key))
        read_settings("stablenet", merge(config.plain(), values)["method"]["parameters"])


def test_averaging_has_settings_of_its_own_and_is_scored_by_its_model(tmp_path, monkeypatch):
    plain = assemble_config(settings=["method.name=erm"])
    averaged = assemble_config(settings=["method.name=erm", "train.averaging=swad"])
    assert set(find_space(averaged)) - set(find_space(plain)) == {"train.swad.tolerance_ratio", "train.swad.n_converge"}
    (tmp_path / "config.json").touch()
    records = [
        {"kind": "epoch", "epoch": 1, "validation": {"accuracy": 0.9, "loss": 0.3}},
        {"kind": "averaged", "epoch": 1, "validation": {"accuracy": 0.95, "loss": 0.2}},
    ]
    run = SimpleNamespace(status={"state": "finished"}, records=records)
    monkeypatch.setattr("stablenet.bench.search.load_run", lambda path: run)
    assert _read_score(tmp_path) == pytest.approx(95)


def test_a_search_without_a_single_good_trial_is_no_choice(bench, settings, tmp_path):
    with pytest.raises(UserError, match="every trial of erm in bars, stablenet in bars failed"):
        search(bench.table, tmp_path / "none", ONE_COLUMN, settings, RefusingExecutor(), print)
    assert read_record(tmp_path / "none", bench.table) == {}


def test_a_method_that_fails_takes_no_other_with_it(bench, settings):
    """D-SAM refuses the network; what was chosen for those before and behind it stands in the record."""
    choice = TablePart(columns=("most",), methods=("d-sam", "erm"))
    with pytest.raises(UserError, match="every trial of d-sam in bars failed"):
        search(bench.table, bench.runs, choice, settings, HereExecutor(), print)
    assert list(read_record(bench.runs, bench.table)["search"]) == ["erm"]


def test_a_failed_trial_is_not_chosen(bench, settings):
    (found, _) = search(bench.table, bench.runs, ONE_COLUMN, settings, RefusingExecutor(), print)
    assert [trial.score is None for trial in found.trials] == [False, True, True]
    assert found.best.values == {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"train.learning_rate" = { times = [2.0, 0.1] }', "two increasing numbers"),
        ('"train.learning_rate" = { log = [0, 1] }', "two increasing numbers"),
        ('"train.learning_rate" = { between = [0, 1] }', "must be one of times, log"),
        ('"train.learning_rate" = 3', "must be one of times, log"),
        ('"method.parameters.gamma" = { times = [1.0, 2.0] }', "is not a number in the config"),
        ('"train.learning_rat" = { log = [1.0, 2.0] }', "learning_rate"),
    ],
)
def test_mistakes_in_a_space_are_named(made, tmp_path, line, message):
    (tmp_path / "space.toml").write_text(f"[common]\n{line}\n")
    with pytest.raises(UserError, match=message):
        draw_searches(made.table, ONE_COLUMN, SearchSettings(space=tmp_path / "space.toml"))


def test_an_empty_space_and_no_budget_are_refused(made, tmp_path):
    (tmp_path / "space.toml").write_text("[focal]\n")
    with pytest.raises(UserError, match="nothing for erm"):
        draw_searches(made.table, ONE_COLUMN, SearchSettings(space=tmp_path / "space.toml"))
    with pytest.raises(UserError, match="at least 2"):
        SearchSettings(budget=1)
