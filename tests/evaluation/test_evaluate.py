"""A finished run becomes figures and files; an unfinished one does not."""

import json

import pandas as pd
import pytest

from stablenet.engine.checkpoint import save_tensors
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import evaluate_rules, evaluate_run
from stablenet.evaluation.predict import predict_part
from tests.made_run import BEST_EPOCH, LAST_EPOCH, random_network


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_figures_agree_with_the_predictions_that_are_kept(run):
    (evaluation,) = evaluate_run(run, device="cpu")
    kept = pd.read_parquet(run.path / "predictions-source-validation-test.parquet")
    truth = run.manifest.part("test")
    assert list(kept["id"]) == list(truth["id"])
    assert list(kept["class"]) == [run.classes[label] for label in truth["label"]]
    assert evaluation.figures["accuracy"] == (kept["class"] == kept["predicted"]).mean()
    (record,) = lines(run.path / "evaluation.jsonl")
    assert record["epoch"] == evaluation.choice.epoch == BEST_EPOCH
    assert (record["rule"], record["part"]) == ("source-validation", "test")
    assert record["manifest_hash"] == run.manifest.hash
    assert record["figures"] == json.loads(json.dumps(evaluation.figures))


def test_each_rule_takes_its_own_model(run):
    (best,) = evaluate_run(run, device="cpu")
    (last,) = evaluate_run(run, rule="last", device="cpu")
    assert last.choice.epoch == LAST_EPOCH
    assert best.figures["loss"] != last.figures["loss"]
    assert [line["rule"] for line in lines(run.path / "evaluation.jsonl")] == ["source-validation", "last"]


def test_rules_together_are_as_alone_and_run_a_network_once(run, monkeypatch):
    alone = [evaluate_run(run, rule=rule, device="cpu")[0].figures for rule in ("source-validation", "last")]
    passes = []

    def predict(model, *rest, **options):
        passes.append(model)
        return predict_part(model, *rest, **options)

    monkeypatch.setattr("stablenet.evaluation.evaluate.predict_part", predict)
    together = evaluate_rules(run, ("source-validation", "last"), device="cpu")
    assert [evaluation.figures for evaluation in together] == alone
    assert len(passes) == 2
    again = evaluate_rules(run, ("last", "source-validation", "last"), device="cpu")
    assert [evaluation.choice.epoch for evaluation in again] == [LAST_EPOCH, BEST_EPOCH, LAST_EPOCH]
    assert len(passes) == 4  # the last epoch's network was run once, for both


def test_the_oracle_writes_into_a_file_of_its_own(run):
    with pytest.raises(UserError, match="needs target metrics"):
        evaluate_run(run, rule="oracle", device="cpu")
    run.folder.oracle.write_text('{"kind": "oracle", "epoch": 1, "test": {"accuracy": 0.9, "loss": 1}}\n')
    with pytest.raises(UserError, match="has no model 1"):
        evaluate_run(run, rule="oracle", device="cpu")
    save_tensors(run.folder.model(1), random_network(5).state_dict(), {"adaptation": {}})
    (evaluation,) = evaluate_run(run, rule="oracle", device="cpu")
    assert evaluation.choice.epoch == 1
    assert not (run.path / "evaluation.jsonl").exists()
    assert [line["rule"] for line in lines(run.path / "oracle-evaluation.jsonl")] == ["oracle"]


def test_what_cannot_be_evaluated_is_said(run):
    with pytest.raises(UserError, match="no images in the part 'test_rest'"):
        evaluate_run(run, parts=["test", "test_rest"], device="cpu")
    assert not (run.path / "evaluation.jsonl").exists()
    run.folder.set_status("interrupted", 2, 6)
    with pytest.raises(UserError, match=r"is interrupted, not finished: continue with .* --resume"):
        evaluate_run(run, device="cpu")
    run.folder.set_status("failed", 2, 6, "RuntimeError: shapes")
    with pytest.raises(UserError, match=r"failed \(RuntimeError: shapes\)") as caught:
        evaluate_run(run, device="cpu")
    assert "--resume" not in str(caught.value)
