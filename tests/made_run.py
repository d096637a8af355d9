"""A finished run of the embedded data, written by hand: nothing is trained."""

import json

import pytest
import torch

from stablenet.data.sources import read_source
from stablenet.data.splits import split_images
from stablenet.engine.checkpoint import save_tensors
from stablenet.engine.config import hash_values, read_config
from stablenet.engine.run import load_run
from stablenet.engine.run_folder import RunFolder
from stablenet.models import build_network

BEST_EPOCH, LAST_EPOCH = 2, 3


@pytest.fixture(scope="session")
def manifest():
    table = read_source("embedded", None)
    return split_images(table, "adversarial", 0, train_size=40, test_size=60, validation=0.25, backgrounds=20)


@pytest.fixture
def run(tmp_path, manifest):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    manifest.save(folder.manifest)
    config = read_config({"data": {"mean": [0.5] * 3, "std": [0.5] * 3}})
    folder.config.write_text(json.dumps({"config": config.plain(), "hash": hash_values({}), "hashed": {}}))
    validation = {1: 0.2, BEST_EPOCH: 0.8, LAST_EPOCH: 0.5}
    records = [
        {"kind": "epoch", "epoch": number, "step": 10 * number, "validation": made_figures(accuracy)}
        for number, accuracy in validation.items()
    ]
    folder.records.write_text("".join(json.dumps(record) + "\n" for record in records))
    for seed, which in enumerate(("best", "last")):
        save_tensors(folder.model(which), random_network(seed).state_dict(), {"adaptation": {}})
    folder.set_status("finished", LAST_EPOCH, 9)
    return load_run(folder.path)


def random_network(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build_network("paper-cnn", 10).eval()


def made_figures(accuracy):
    return {
        "count": 10,
        "accuracy": accuracy,
        "loss": 1.0,
        "mean_domain_accuracy": accuracy,
        "worst_group_accuracy": accuracy,
    }
