"""Runs of earlier releases are read, evaluated, exported and resumed, with the figures that the release gave.

`fixtures/first_release.tar.xz` was made by release 0.1, with one thread on a CPU:

    git archive e15ff11 --prefix=first/ | tar x
    cp tests/engine/fixtures/make_first_release.py first/
    cd first && PYTHONPATH=src:. OMP_NUM_THREADS=1 python make_first_release.py first_release.tar.xz

and `second_release.tar.xz` likewise by release 0.2, from 1381dc9. For each run they hold the folder of the finished
run, `answers.safetensors` with what its model says of two images, and the folder of the same run stopped inside its
second epoch.
"""

import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stablenet.engine.run import load_run
from stablenet.engine.session import Runtime
from stablenet.engine.train import train
from stablenet.evaluation.evaluate import evaluate_run
from stablenet.export import FORMATS, export_run
from stablenet.files import read_lines
from tests.engine import tiny

pytestmark = pytest.mark.usefixtures("one_thread")
FIXTURES = Path(__file__).parent / "fixtures"
RUNS = {
    "first": ("erm", "batch", "dataset", "recommended", "offsets"),
    "second": ("batch", "recommended", "swad"),  # the archive has more
}
CLOSE = 1e-4  # relative: other versions of torch and other processors round differently
assert tiny.SETTINGS  # the module registers the source of the runs


@pytest.fixture(params=[f"{release}/{run}" for release, runs in RUNS.items() for run in runs])
def place(request, tmp_path):
    release = request.param.partition("/")[0]
    with tarfile.open(FIXTURES / f"{release}_release.tar.xz") as archive:
        archive.extractall(tmp_path / release, filter="data")
    return tmp_path / request.param


def flatten(value, name=""):
    """Figures by their place in a record."""
    if isinstance(value, dict):
        pairs = [(f"{name}.{key}", item) for key, item in value.items()]
    elif isinstance(value, list):
        pairs = [(f"{name}[{k}]", item) for k, item in enumerate(value)]
    else:
        return {name: value}
    return {key: item for each in pairs for key, item in flatten(each[1], each[0]).items()}


def is_told_otherwise(record, name, place):
    """In 0.1 a solve told of the weights at their full strength, now as they are handed out; even ones were solved."""
    figure = name.rpartition(".")[2]
    if place.parent.name != "first":
        return False
    if place.name == "offsets" and figure.startswith("dependence_"):
        return True
    return record[".kind"] == "solve" and figure in ("dependence_after", "ess_ratio", "largest_weight")


def check_records(found, expected, place):
    """All that the release recorded; the present one may tell more."""
    assert [record["kind"] for record in found] == [record["kind"] for record in expected]
    for ours, theirs in zip(map(flatten, found), map(flatten, expected), strict=True):
        for name, value in theirs.items():
            if is_told_otherwise(theirs, name, place):
                continue
            expected = pytest.approx(value, rel=CLOSE, abs=CLOSE) if isinstance(value, float) else value
            assert ours.get(name) == expected, name


def test_a_stopped_run_goes_on_to_the_same_end(place):
    stopped, finished = load_run(place / "stopped"), load_run(place / "finished")
    assert stopped.status["state"] == "interrupted"
    assert stopped.status["step"] == 10
    resumed = train(stopped.config, Runtime(folder=stopped.path, device="cpu", resume=True))
    assert resumed.status == finished.status
    check_records(resumed.records, finished.records, place)
    for name in ("best.safetensors", "last.safetensors"):
        ours, theirs = load_file(resumed.path / name), load_file(finished.path / name)
        torch.testing.assert_close(ours, theirs, rtol=CLOSE, atol=CLOSE)


def test_a_finished_run_is_not_trained_again(place):
    before = (place / "finished" / "records.jsonl").read_bytes()
    run = load_run(place / "finished")
    train(run.config, Runtime(folder=run.path, device="cpu", resume=True))
    assert (place / "finished" / "records.jsonl").read_bytes() == before


def test_evaluation_finds_the_same_figures(place):
    evaluate_run(load_run(place / "finished"), device="cpu")
    then, now = read_lines(place / "finished" / "evaluation.jsonl")
    assert now["config_hash"] == then["config_hash"]
    check_records([now], [then], place)


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_the_exported_model_gives_the_same_answers(place, form):
    answers = load_file(place / "answers.safetensors")
    exported = export_run(load_run(place / "finished"), form)
    with torch.inference_mode():
        logits = FORMATS[form].run(exported.file, answers["images"])
    torch.testing.assert_close(logits, answers["logits"], rtol=CLOSE, atol=CLOSE)
