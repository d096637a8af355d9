"""`stablenet diagnose RUN`: the weights the run kept, or, where it kept none, those of the preset."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from stablenet import UserError
from stablenet.cli.verbs import app
from stablenet.diagnose.diagnoses import ImageChoices, diagnose_images
from stablenet.diagnose.measure import weigh_labels
from stablenet.diagnose.subject import extract_features, open_run
from stablenet.weighting.evidence import extract_bank
from tests.engine.tiny import tiny_run


@pytest.fixture(scope="module")
def weighed(tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("weighed") / "run", "stablenet")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("plain") / "run", "erm")


def diagnose(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)])


def test_the_weights_of_a_run_are_read_and_not_solved_again(weighed, monkeypatch):
    monkeypatch.setattr("stablenet.diagnose.diagnoses.weigh_labels", None)  # would fail if it were called
    found = diagnose_images(open_run(weighed, None), ImageChoices())
    kept = weighed.weights()
    np.testing.assert_array_equal(found.weights.numpy(), kept["weight"].to_numpy())
    assert [found.classes[k] for k in found.y.tolist()] == kept["label"].tolist()
    assert set(found.context.names) == set(kept["domain"])
    (solve,) = (record for record in weighed.records if record["kind"] == "solve")
    (trade,) = found.trades
    assert trade.left == pytest.approx(solve["dependence_after"] / solve["dependence_before"])
    assert "read from weights.parquet" in found.weights_from


def test_a_part_of_a_run_keeps_its_own_weights(weighed):
    subject = open_run(weighed, None)
    rows = np.array([5, 2, 40])
    np.testing.assert_array_equal(subject.take(rows).weights, weighed.weights()["weight"].to_numpy()[rows])


def check_solved(run, found):
    subject = open_run(run, None)
    features = extract_features(subject, extract_bank, 28).whole
    _, expected = weigh_labels(features, torch.from_numpy(subject.y), pretrained=False)
    torch.testing.assert_close(found.weights, expected)
    assert "solved with the preset `recommended`" in found.weights_from


def test_a_method_without_weights_gets_those_of_the_preset(plain):
    found = diagnose_images(open_run(plain, None), ImageChoices())
    assert found.weights_from.startswith("the run had none (erm); ")
    check_solved(plain, found)


def test_an_older_run_gets_those_of_the_preset(weighed, tmp_path):
    older = tiny_run(tmp_path / "older", "stablenet")
    older.folder.weights.unlink()
    found = diagnose_images(open_run(older, None), ImageChoices())
    assert found.weights_from.startswith("the run kept none; ")
    check_solved(older, found)


def test_even_weights_of_a_run_are_said_to_be_even(tmp_path):
    offsets = ("method.parameters.strength=0.0", "method.parameters.offset=1.0")
    run = tiny_run(tmp_path / "run", "stablenet", *offsets)
    page = tmp_path / "page.html"
    result = diagnose(run.path, "-o", page)
    assert result.exit_code == 0, result.output
    assert "All samples weigh the same" in result.output
    assert "Raised most" not in page.read_text()


def test_output_and_page_say_where_the_weights_come_from(weighed, plain, tmp_path):
    for run, words in ((weighed, "read from weights.parquet"), (plain, "solved with the preset")):
        page = tmp_path / f"{run.config.method.name}.html"
        result = diagnose(run.path, "-o", page)
        assert result.exit_code == 0, result.output
        assert words in " ".join(result.output.split())
        assert words in page.read_text()
        assert "Raised most" in page.read_text()


def test_a_run_has_its_own_split(weighed):
    result = diagnose(weighed.path, "--split", "adversarial")
    assert isinstance(result.exception, UserError)
    assert "own split" in str(result.exception)
