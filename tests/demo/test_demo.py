"""The whole demo, made small: two seeds, two epochs; what the page says is what the files say."""

import json
import shutil
from html.parser import HTMLParser

import pytest
import torch

from stablenet.demo import DemoSettings, run_demo
from stablenet.demo.demo_runs import gather_findings
from stablenet.demo.run_demo import read_sample_weights, share_dominant, show_extremes, show_part
from stablenet.engine.run import load_run
from stablenet.errors import UserError

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Checker(HTMLParser):
    """Counts what is open, and gathers everything a page would fetch."""

    def __init__(self):
        super().__init__()
        self.open, self.fetched, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.fetched += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return DemoSettings(
        output=tmp_path_factory.mktemp("demo"), seeds=(0, 1), epochs=2, workers=2
    )  # in the first one weights are ones


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def demo(settings, told):
    return run_demo(settings, lambda name, epoch: told.append((name, epoch)))


def test_the_figures_are_those_of_the_runs(demo, settings):
    for outcome in (*demo.findings.reference, *demo.findings.method):
        lines = [json.loads(line) for line in (outcome.run.path / "evaluation.jsonl").read_text().splitlines()]
        assert {line["rule"]: line["figures"]["accuracy"] for line in lines} == outcome.target
    assert demo.findings.seeds == [0, 1]
    assert len(list(settings.runs.glob("*/config.json"))) == 4


def test_the_page_stands_alone_and_tells_the_figures(demo):
    checker = Checker()
    checker.feed(demo.page.read_text())
    assert checker.open == []
    assert all(place.startswith(("data:", "#")) for place in checker.fetched)
    assert sum(place.startswith("data:image/png;base64,") for place in checker.fetched) > 20
    text = " ".join(checker.text)
    for outcomes in (demo.findings.reference, demo.findings.method):
        assert f"{100 * demo.findings.spread_target(outcomes).mean:.1f}" in text
    assert "http" not in text
    assert "StableNet" in text


def test_a_second_time_nothing_is_trained(demo, settings, told):
    before = {path: path.stat().st_mtime_ns for path in settings.runs.glob("*/*") if path.is_file()}
    reported = []
    again = run_demo(settings, lambda name, epoch: reported.append(epoch))
    assert {path: path.stat().st_mtime_ns for path in settings.runs.glob("*/*") if path.is_file()} == before
    assert again.findings.compare_target() == demo.findings.compare_target()
    assert {epoch for _, epoch in told} == {1, 2}
    assert reported == [2] * 4


def test_weights_are_those_of_the_method(demo):
    run = demo.findings.method[0].run
    found = read_sample_weights(run)
    assert found.weights.tolist() == run.weights()["weight"].tolist()
    assert float(found.weights.sum()) == pytest.approx(len(found.samples), rel=1e-4)
    assert found.ess == pytest.approx(float(1 / found.weights.double().square().mean()), rel=1e-4)
    assert 0.1 < found.ess < 0.9
    assert found.dependence[1] < found.dependence[0]
    solved = next(record for record in run.records if record["kind"] == "solve")
    assert found.dependence == (solved["dependence_before"], solved["dependence_after"])
    rows = run.manifest.part("train")
    dominant = run.manifest.parameters["dominant"]
    agrees = [
        run.manifest.domains[domain] == dominant[run.classes[label]]
        for domain, label in zip(rows["domain"], rows["label"], strict=True)
    ]
    assert found.agrees.tolist() == agrees
    assert found.shares[0] == pytest.approx(0.9, abs=0.01)
    raised, lowered = show_extremes(found, run.classes, 3)
    assert raised[0].caption == f"×{float(found.weights.max()):.2g}"
    assert lowered[0].caption == f"×{float(found.weights.min()):.2g}"


def test_runs_from_before_weights_were_kept_are_named(demo, tmp_path):
    old = shutil.copytree(demo.findings.method[0].run.path, tmp_path / "old")
    (old / "weights.parquet").unlink()
    with pytest.raises(UserError, match="trained by a version that did not save weights"):
        read_sample_weights(load_run(old))


def test_pictures_show_each_class_on_its_main_background(demo):
    run = demo.findings.method[0].run
    shown = show_part(run, "test", 2)
    assert [[picture.text for picture in row] for row in shown] == [[f"digit {name}"] * 2 for name in run.classes]


def test_share_by_hand():
    y, agrees = torch.tensor([0, 0, 1, 1]), torch.tensor([True, False, True, False])
    assert share_dominant(torch.tensor([1.0, 1.0, 3.0, 1.0]), y, agrees) == pytest.approx((0.5 + 0.75) / 2)


def test_seeds_without_their_pair_are_refused(demo):
    runs = [load_run(outcome.run.path) for outcome in (*demo.findings.reference, demo.findings.method[0])]
    with pytest.raises(ValueError, match="same seeds"):
        gather_findings(runs)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write to"):
        run_demo(DemoSettings(output=tmp_path / "file" / "demo"))
