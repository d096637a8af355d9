"""The answer in both directions, on data whose answer is known, and the ways to hand data over."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torchvision.models import resnet18

from stablenet import UserError
from stablenet.data.sources.own import open_own
from stablenet.data.splits import split_images
from stablenet.diagnose.diagnoses import ImageChoices, ShallowStages, diagnose_images
from stablenet.diagnose.diagnosis_page import write_page
from stablenet.diagnose.subject import Division, choose_images, extract_features, open_place, open_source


@cache
def diagnose_embedded(ratio, seed=0):
    subject = open_source("embedded", None, None, "adversarial", {"ratio": ratio, "seed": seed})
    return diagnose_images(subject, ImageChoices(limit=1000))


def test_dominant_backgrounds_are_found_and_their_exceptions_raised():
    found = diagnose_embedded(0.9)
    assert found.verdict.level == "likely"
    assert found.border.share > 0.5
    assert found.context.weight_minority > 2
    assert found.context.weight_majority < 1
    assert found.trades[-1].left < 0.3 < 1
    assert [t.ess for t in found.trades] == sorted((t.ess for t in found.trades), reverse=True)
    assert float(found.weights.sum()) == pytest.approx(len(found), rel=1e-4)


def test_random_backgrounds_are_no_context():
    found = diagnose_embedded("random")
    assert found.verdict.level == "unlikely"
    assert found.border.share < 0.12
    assert found.context.v_before < 0.1


def test_without_the_domains_the_answers_stay():
    for ratio, level in ((0.9, "likely"), ("random", "unlikely")):
        subject = open_source("embedded", None, None, "adversarial", {"ratio": ratio, "seed": 1})
        bare = subject.__class__(**{**subject.__dict__, "context": None, "contexts": ()})
        found = diagnose_images(bare, ImageChoices(limit=800))
        assert found.verdict.level == level
        assert found.context is None


def paint(path, colour, generator):
    pixels = np.clip(np.array(colour) + generator.normal(0, 30, (20, 24, 3)), 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def folder(tmp_path):
    """Cows on green, camels on sand; one in ten the other way round."""
    generator = np.random.default_rng(0)
    colours = {"grass": (60, 160, 60), "sand": (210, 180, 120)}
    for k in range(120):
        name, usual, other = ("cow", "grass", "sand") if k % 2 else ("camel", "sand", "grass")
        where = other if k % 20 in (0, 1) else usual
        paint(tmp_path / "data" / where / name / f"{k}.png", colours[where], generator)
    return tmp_path / "data"


def flatten(folder, to):
    for file in folder.glob("*/*/*.png"):
        place = to / file.parent.name / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())
    return to


def test_a_folder_of_domains_names_its_context(folder):
    found = diagnose_images(open_place(folder), ImageChoices())
    assert found.classes == ("camel", "cow")
    assert found.context.names == ("grass", "sand")
    assert found.context.v_before == pytest.approx(0.8, abs=0.05)
    assert found.context.weight_minority > 2
    assert found.verdict.level == "likely"


def test_a_folder_of_classes_and_a_listing_see_the_same_images(folder, tmp_path):
    plain = diagnose_images(open_place(flatten(folder, tmp_path / "flat")), ImageChoices())
    assert plain.context is None
    lines = [f"{f.relative_to(tmp_path)},{f.parent.name},{f.parent.parent.name}" for f in folder.glob("*/*/*.png")]
    listing = tmp_path / "images.csv"
    listing.write_text("path,animal,ground\n" + "\n".join(lines) + "\n")
    listed = diagnose_images(open_place(listing, "animal", "ground"), ImageChoices())
    assert listed.context.minority == pytest.approx(0.1)
    assert listed.border.share == pytest.approx(plain.border.share, abs=0.01)


def test_broken_images_are_told_and_many_refused(folder):
    files = sorted(folder.glob("*/*/*.png"))
    files[0].write_bytes(b"no image")
    found = diagnose_images(open_place(folder), ImageChoices())
    name = files[0].relative_to(folder).as_posix()
    assert found.notes == (f"1 image could not be read, such as {name}",)
    for file in files[1:20]:
        file.write_bytes(b"no image")
    with pytest.raises(UserError, match=f"20 of the first 64 images of data cannot be read, such as {name}"):
        diagnose_images(open_place(folder), ImageChoices())


def test_images_that_cannot_be_read_stop_the_reading_at_once(folder):
    for file in folder.glob("*/*/*.png"):
        file.write_bytes(b"no image")
    subject, asked = open_place(folder), []
    with pytest.raises(UserError, match="64 of the first 64 images"):
        extract_features(subject, None, 32, lambda done, total: asked.append(done))
    assert asked == []


def test_of_a_given_split_the_training_part_is_diagnosed(folder, tmp_path):
    images = flatten(folder, tmp_path / "flat")
    lines = [f"{file.relative_to(tmp_path)},{file.parent.name},{int(file.stem) % 3}" for file in images.glob("*/*.png")]
    listing = tmp_path / "images.csv"
    listing.write_text("path,label,split\n" + "\n".join(lines) + "\n")
    subject = open_place(listing)
    assert subject.name == "images"
    assert len(subject) == 40
    assert {int(name.split("/")[-1].split(".")[0]) % 3 for name in subject.ids} == {0}
    assert subject.notes == ("the training part of the given split (train 40, validation 40, test 40)",)
    assert len(open_place(listing, part="none")) == 120


def test_of_any_split_the_training_part_is_diagnosed(folder, tmp_path):
    classic = open_place(folder, division=Division(split="classic", parameters={"target": "sand", "validation": 0.0}))
    assert {name.split("/")[0] for name in classic.ids} == {"grass"}
    split_images(open_own(folder), "held-out", test=0.5, validation=0.0).save(tmp_path / "m.tsv")
    half = open_place(folder, division=Division(manifest=tmp_path / "m.tsv"))
    assert len(half) == 60
    assert half.notes == ("the training part of the split held-out: train 60, test 60",)


def test_rare_classes_and_a_limit_are_told(folder):
    paint(folder / "sand" / "goat" / "1.png", (0, 0, 0), np.random.default_rng(1))
    subject = choose_images(open_place(folder), 10_000, 0)
    assert len(subject) == 120
    assert subject.notes == ("left out, with fewer than 10 images: goat",)
    drawn = choose_images(open_place(folder), 100, 0)
    assert "100 of 121 images" in drawn.notes[0]
    with pytest.raises(UserError, match="too small to diagnose: 30 images in 2 classes; at least 50 are needed"):
        choose_images(open_place(folder), 30, 0)


def test_a_backbone_gives_its_first_stages_and_no_more(folder, tmp_path):
    torch.manual_seed(0)
    network = resnet18(weights=None)
    network.layer3 = torch.nn.Module()  # would fail if it were run
    body = {key: value for key, value in resnet18(weights=None).state_dict().items() if not key.startswith("fc.")}
    save_file(body, tmp_path / "w.safetensors")
    stages = ShallowStages("resnet18", str(tmp_path / "w.safetensors"))
    stages._body.layer3 = network.layer3
    found = extract_features(open_place(folder), stages, 32)
    assert found.whole.shape == found.border.shape == (120, 2 * (64 + 128))
    reference = resnet18(weights=None).eval()
    reference.load_state_dict(body, strict=False)
    pixels = torch.from_numpy(found.subject.load(3, 32).copy()).permute(2, 0, 1)[None].float() / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = (pixels - mean[:, None, None]) / std[:, None, None]
    with torch.no_grad():
        maps = reference.layer1(reference.maxpool(reference.relu(reference.bn1(reference.conv1(x)))))
    torch.testing.assert_close(found.whole[3, :64], maps.mean((2, 3))[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("choices", "match"),
    [({"pretrained": "imagenet"}, "needs --backbone"), ({"backbone": "resnet18"}, "has no weights")],
)
def test_half_a_backbone_is_refused(choices, match, folder):
    with pytest.raises(UserError, match=match):
        diagnose_images(open_place(folder), ImageChoices(**choices))


def test_mistakes_in_the_place_are_named(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        open_place(tmp_path / "nothing")
    (tmp_path / "empty" / "a").mkdir(parents=True)
    with pytest.raises(UserError, match="holds no images"):
        open_place(tmp_path / "empty")
    with pytest.raises(UserError, match="composed by a split"):
        open_source("embedded", None, None, "", {})
    listing = tmp_path / "l.csv"
    listing.write_text("path,label\na.png,x\n")
    with pytest.raises(UserError, match="column 'place'"):
        open_place(listing, context="place")


def test_the_page_holds_everything_itself(tmp_path):
    found = diagnose_embedded(0.9)
    write_page(found, tmp_path / "page.html", "stablenet diagnose <x>")
    text = (tmp_path / "page.html").read_text()
    assert found.verdict.headline in text
    assert "stablenet diagnose &lt;x&gt;" in text
    assert text.count("<svg") == 3
    assert text.count("data:image/png") == 10 * 12  # of each class six usual ones and six exceptions
    assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg)", text)
    assert 'src="data:' in text
    assert f"{found.context.weight_minority:.2f}" in text
