"""The benchmark of scale: its trainings run, and its page judges what a GPU measured."""

import json
from dataclasses import replace

from benchmarks.scale import CUDA, judge_replay, judge_resnet
from benchmarks.scale_measures import Fit
from benchmarks.train import DEMO_GPU, open_training, prepare

from stablenet.engine.session import start_fabric


def test_a_contestant_trains_an_epoch_and_records_it(tmp_path):
    config, data = prepare(replace(DEMO_GPU, made=160), "stablenet paper")
    config = replace(config, train=replace(config.train, max_steps=1))
    session, training = open_training(config, data, start_fabric("cpu", "auto"), tmp_path / "run", graphs=False)
    training.run()
    records = [json.loads(line) for line in session.folder.records.read_text().splitlines()]
    [epoch] = [record for record in records if record["kind"] == "epoch"]
    assert {"loss", "dependence_after"} <= set(epoch["train"])


def test_steps_are_judged_by_their_bars():
    plain = {"loss": 1.0, "dependence_after": 0.5, "replayed_steps": 0}
    other = {"loss": 1.001, "dependence_after": 0.4, "replayed_steps": 119}
    epochs = {"quick": {"graphs": plain, "plain": plain}, "slow": {"graphs": other, "plain": plain}}
    found = {"ratios": {"quick": 1.2, "slow": 1.3}, "epochs": epochs}
    lines = judge_replay(CUDA["replay"], [Fit("replay", 5, 1.0, 1.0, 1.0, 1.0, found)])
    assert [line[3] for line in lines] == ["holds", "holds", "**missed**", "**missed**"]
    assert "119 steps replayed" in lines[3][1]
    found = {"plain": 0.0100, "weighted": 0.0102, "call": 0.0005}
    ratio, _ = judge_resnet(CUDA["resnet"], [Fit("resnet", 7, 1.0, 1.0, 1.0, 1.0, found)])
    assert ratio[1:] == ("1.020 ×", "≤ 1.03 ×", "holds")
