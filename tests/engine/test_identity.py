"""A config's hash: of its meaning and of the contents of the files it names, the same wherever it is built."""

import hashlib
import json
import os
from dataclasses import replace

import pytest
import torch

from stablenet.bench.collect import read_run
from stablenet.data.sources import read_source
from stablenet.data.splits import split_images
from stablenet.engine.checkpoint import save_tensors
from stablenet.engine.config import read_config
from stablenet.engine.identity import Contents, identify, read_contents, recall_contents, tell_weights
from stablenet.engine.run import describe_config, open_folder
from stablenet.engine.run_folder import RunFolder
from stablenet.errors import UserError
from tests.engine.tiny import tiny_config

KNOWN = "6c7f0473923bb2f0734a3206a52f3d4daa6fe94fb2122e364028113588c8f6f6"


def hash_of(config, **contents):
    return identify(config, Contents(**contents)).hash


def test_hash_is_of_the_meaning():
    config = tiny_config()
    assert hash_of(config) == hash_of(tiny_config("erm", "label=other"))
    assert hash_of(config) != hash_of(tiny_config("erm", "seed=1"))
    assert hash_of(config) == hash_of(read_config(config.plain()))
    one, two = (tiny_config("erm", f"data.manifest={name}") for name in ("a.tsv", "b.tsv"))
    assert hash_of(one, manifest="x") == hash_of(two, manifest="x")
    assert hash_of(one, manifest="x") != hash_of(one, manifest="y")
    assert hash_of(one, weights="x") != hash_of(one, weights="y")


def test_a_hash_of_version_0_1_is_found_again():
    assert identify(read_config({}), Contents()).hash == KNOWN


def test_the_length_of_an_epoch_counts_where_it_is_set():
    config = tiny_config("erm", "train.epoch_steps=2")
    assert hash_of(config) != hash_of(tiny_config("erm"))
    assert hash_of(config) == hash_of(read_config(config.plain()))


def test_columns_and_the_contents_of_a_list_count_where_they_are_used():
    config = tiny_config("erm", "data.source=image-list")
    assert hash_of(config) != hash_of(tiny_config("erm", "data.source=image-list", "data.columns.label=species"))
    one, two = (tiny_config("erm", "data.source=image-list", f"data.image_list={name}.csv") for name in "ab")
    assert hash_of(one, image_list="x") == hash_of(two, image_list="x")
    assert len({hash_of(config), hash_of(one, image_list="x"), hash_of(one, image_list="y")}) == 3
    described = identify(one, Contents(image_list="x"))
    assert recall_contents(one, described.hashed) == Contents(image_list="x")


def test_a_list_is_known_by_its_contents(tmp_path):
    file = tmp_path / "l.csv"
    config = tiny_config("erm", "data.source=image-list", f"data.image_list={file}")
    file.write_text("path,label\n")
    before = read_contents(config, None)
    file.write_text("path,label,domain\n")
    assert read_contents(config, None) != before


def test_a_series_is_the_same_for_all_seeds():
    one, two, other = (
        identify(tiny_config("erm", word), Contents()) for word in ("seed=1", "seed=2", "train.decay=0.5")
    )
    assert one.series == two.series != other.series
    assert one.hash != two.hash


@pytest.fixture
def named(tmp_path):
    """A config that names two files, the split and the weights."""
    split = split_images(read_source("tiny", None), "adversarial", 3, validation=0.2)
    split.save(tmp_path / "split.tsv")
    save_tensors(tmp_path / "weights.safetensors", {"x": torch.zeros(3)}, {})
    files = (f"data.manifest={tmp_path / 'split.tsv'}", f"model.pretrained={tmp_path / 'weights.safetensors'}")
    return tiny_config("erm", *files), split


def test_a_folder_a_table_and_a_scan_agree(tmp_path, named):
    config, split = named
    asked = identify(config, read_contents(config, None))
    described = describe_config(config, split, None)
    assert (described["hash"], described["hashed"]) == (asked.hash, asked.hashed)
    assert described["hashed"]["data"]["manifest"] == split.hash
    folder = RunFolder(tmp_path / "run")
    open_folder(folder, described, split, resume=False)
    for file in ("split.tsv", "weights.safetensors"):  # what a run is known by lies in its folder
        (tmp_path / file).unlink()
    found = read_run(folder.path)
    assert (found.hash, found.series) == (asked.hash, asked.series)
    assert recall_contents(config, json.loads(json.dumps(described["hashed"]))) == Contents(
        manifest=split.hash, weights=asked.hashed["model"]["pretrained"]
    )


def test_a_file_of_weights_is_told_with_its_hash(tmp_path, named):
    path = tmp_path / "weights.safetensors"
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    assert tell_weights(named[0], None) == [f"initial weights: {path}, SHA-256 {found}"]
    assert tell_weights(tiny_config("erm"), None) == []


def test_changed_files_are_other_contents(tmp_path, named):
    config, split = named
    before = read_contents(config, None)
    assert read_contents(config, None) == before
    replace(split, seed=4).save(tmp_path / "split.tsv")
    save_tensors(tmp_path / "weights.safetensors", {"x": torch.ones(3)}, {})
    for file in ("split.tsv", "weights.safetensors"):
        os.utime(tmp_path / file, ns=(1, 1))  # a clock that is too coarse to tell the two apart is not what is tested
    after = read_contents(config, None)
    assert after.manifest != before.manifest
    assert after.weights != before.weights


def test_a_split_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="does not exist: check the path"):
        read_contents(tiny_config("erm", f"data.manifest={tmp_path / 'none.tsv'}"), None)
