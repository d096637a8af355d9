"""Torch data sets of the parts of a split: bundled data, folders, CSV files, manifests."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import stablenet
from stablenet import UserError
from stablenet.data.sources import read_source
from stablenet.data.splits import split_images

SMALL = {"train_size": 60, "test_size": 20, "validation": 0.25}
CLASSES, DOMAINS = ("cat", "dog"), ("photo", "sketch", "toy")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("STABLENET_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def pictures(tmp_path):
    """Every image has one colour: its red says which it is."""
    root, lines = tmp_path / "pictures", ["path,label,domain"]
    for number, (label, domain, k) in enumerate(
        (label, domain, k) for domain in DOMAINS for label in CLASSES for k in range(4)
    ):
        path = root / domain / label / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 5), (10 * number, 1, 2)).save(path)
        lines.append(f"pictures/{domain}/{label}/{k}.png,{label},{domain}")
    (tmp_path / "images.csv").write_text("\n".join(lines) + "\n")
    return root


def test_the_bundled_data(tmp_path):
    data = stablenet.datasets.load("embedded", split="adversarial", ratio=0.9, **SMALL)
    assert (len(data.train), len(data.validation), len(data.test)) == (45, 15, 20)
    image, label = data.train[3]
    assert (image.shape, image.dtype) == ((3, 28, 28), torch.float32)
    assert 0 <= float(image.min()) < float(image.max()) <= 1
    expected = split_images(read_source("embedded", None), "adversarial", 0, ratio=0.9, **SMALL)
    rows = expected.part("train")
    assert data.train.ids == rows["id"].tolist()
    assert data.train.targets.tolist() == rows["label"].tolist()
    assert data.train.target_domains.tolist() == rows["domain"].tolist()
    assert label == rows["label"][3]
    assert repr(data) == "embedded, adversarial: 10 classes, 200 domains; train 45, validation 15, test 20"


def test_a_folder_and_a_list_hold_the_same(pictures):
    of_folder = stablenet.datasets.load(pictures, target="sketch", validation=0.25)
    of_list = stablenet.datasets.load(str(pictures.parent / "images.csv"), target="sketch", validation=0.25)
    for data in (of_folder, of_list):
        assert (data.classes, data.domains) == (CLASSES, DOMAINS)
        assert data.groups[4] == "dog on sketch"
        assert (len(data.train), len(data.validation), len(data.test)) == (12, 4, 8)
        test = data.test
        assert {test.groups[group] for group in test.target_groups.tolist()} == {"cat on sketch", "dog on sketch"}
        for part in (data.train, data.validation, test):
            for place, (image, label) in enumerate(part):
                assert label == int(part.targets[place])
                number = round(float(image[0, 0, 0]) * 25.5)
                assert image.shape == (3, 5, 6)
                assert number == 8 * part.target_domains[place] + 4 * label + int(part.ids[place].split("/")[-1][0])


def test_images_go_through_a_transform_as_pil_images(pictures):
    data = stablenet.datasets.load(pictures, target="toy", size=4, transform=lambda image: np.asarray(image).shape)
    assert data.train[0] == ((4, 4, 3), 0)


def test_a_loader_reads_them(pictures):
    data = stablenet.datasets.load("folder", root=str(pictures), split="classic", target="toy", validation=0.0)
    images, labels = next(iter(DataLoader(data.train, batch_size=5)))
    assert (images.shape, labels.tolist()) == ((5, 3, 5, 6), data.train.targets[:5].tolist())
    assert len(data.validation) == 0


def test_a_split_that_is_a_file(tmp_path):
    drawn = split_images(read_source("embedded", None), "adversarial", 5, **SMALL)
    drawn.save(tmp_path / "split.tsv")
    data = stablenet.datasets.load("embedded", split=tmp_path / "split.tsv")
    assert data.manifest.hash == drawn.hash
    assert data.manifest.hash != stablenet.datasets.load("embedded", **SMALL).manifest.hash, "another seed"
    with pytest.raises(UserError, match="is a file: leave out its parameters ratio"):
        stablenet.datasets.load("embedded", split=str(tmp_path / "split.tsv"), ratio=0.5)


def test_mistakes_name_what_there_is(pictures):
    with pytest.raises(UserError, match=r"unknown data source 'pax': did you mean 'pacs'.*nor is there a folder"):
        stablenet.datasets.load("pax")
    with pytest.raises(UserError, match="needs a folder or archive"):
        stablenet.datasets.load("pacs", split="classic", target="sketch")
    with pytest.raises(UserError, match="needs a target: one of photo, sketch, toy"):
        stablenet.datasets.load(pictures, split="classic")
    with pytest.raises(UserError, match="the split classic has no parameter tarket"):
        stablenet.datasets.load(pictures, target="toy", tarket="toy")
    with pytest.raises(UserError, match="seed must be a whole number, got 'a'"):
        stablenet.datasets.load(pictures, seed="a")


def test_the_package_alone_imports_none_of_it():
    script = "import sys, stablenet; print('torch' in sys.modules); stablenet.datasets; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_images_of_several_sizes_need_one(pictures):
    Image.new("RGB", (9, 9)).save(pictures / "toy" / "cat" / "0.png")
    with pytest.raises(UserError, match="the images of pictures have several sizes: give one for all, such as size="):
        stablenet.datasets.load(pictures, target="toy")
    assert stablenet.datasets.load(pictures, target="toy", size=4).train[0][0].shape == (3, 4, 4)
