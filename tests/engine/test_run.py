"""The run folder, and how the epochs of a run are ranked by source validation."""

import json

import pytest

from stablenet.algorithms import Judgement
from stablenet.engine.ranking import describe_judgement, find_best, validation_rank
from stablenet.engine.run import list_runs, load_run, open_folder
from stablenet.engine.run_folder import RunFolder
from stablenet.errors import UserError


def record(epoch, accuracy, loss):
    return {"kind": "epoch", "epoch": epoch, "validation": {"accuracy": accuracy, "loss": loss}}


def test_epochs_are_ranked_by_accuracy_then_loss_then_earliness():
    records = [record(1, 0.5, 1.0), record(2, 0.8, 0.9), record(3, 0.8, 0.7), record(4, 0.8, 0.7), record(5, 0.7, 0.1)]
    assert find_best(records)["epoch"] == 3
    assert find_best([{"kind": "start"}]) is None
    without = {"kind": "epoch", "epoch": 4, "validation": None}
    assert validation_rank(without) > validation_rank({**without, "epoch": 3})


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
    assert rank(0.90, 0.56) == rank(0.90, 0.56, judged={"other": 1.0}, rank_penalty=0.0) == (0.56, -0.7)
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


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not a run folder: choose another one"):
        open_folder(RunFolder(tmp_path), {"hash": "x"}, None, resume=True)
    with pytest.raises(UserError, match=r"it has no config\.json"):
        load_run(tmp_path)
    assert list(list_runs(tmp_path)) == []
