"""What is exported has the layout of the Hugging Face Hub, and timm reads the networks that it has."""

import json

import pytest
import torch

from stablenet.errors import UserError
from stablenet.export import FORMATS, PackagedModel, export_run, load_model
from stablenet.export.package import describe_for_hub, find_classifier
from stablenet.files import write_json
from stablenet.models import build_network
from tests.export.test_export_run_formats import SETTINGS

# Classifiers at different places, with and without layers of their own before them.
TIMM = [
    ("timm/resnet10t", 64, {}),
    ("timm/convnext_atto", 64, {}),
    ("timm/vit_tiny_patch16_224", 32, {"img_size": 32}),
    ("timm/mobilenetv3_small_050", 64, {}),
]
TORCHVISION = [("resnet18", 64, {}), ("resnet50", 64, {})]


def make(backbone, side, parameters):
    torch.manual_seed(0)
    network = build_network(backbone, 3, parameters=parameters)
    network.train()
    with torch.no_grad():
        network(torch.rand(4, 3, side, side))  # statistics of their own
    settings = {**SETTINGS, "backbone": backbone, "parameters": parameters, "classes": ["a", "b", "c"]}
    settings["context"] = {**SETTINGS["context"], "num_classes": 3}
    return PackagedModel(network, {**settings, "image_size": side}).eval()


def write(model, folder):
    FORMATS["safetensors"].write(model, folder / "model.safetensors")
    write_json(folder / "config.json", describe_for_hub(model))


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")  # timm's own
@pytest.mark.parametrize(("backbone", "side", "parameters"), TIMM + TORCHVISION)
def test_timm_reads_the_folder(backbone, side, parameters, tmp_path):
    import timm

    model = make(backbone, side, parameters)
    write(model, tmp_path)
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = torch.rand(2, 3, side, side)
    torch.testing.assert_close(theirs(images), model.network(images))
    assert theirs.pretrained_cfg["label_names"] == ["a", "b", "c"]
    assert not torch.equal(theirs(images), make_other(theirs)(images)), "the weights decide"
    torch.testing.assert_close(load_model(tmp_path)(images)[0], model(images)[0])


def make_other(model):
    import copy

    other = copy.deepcopy(model)
    torch.nn.init.normal_(other.get_classifier().weight)
    return other


@pytest.mark.filterwarnings("ignore")
def test_timms_preprocessing_is_ours(tmp_path):
    import numpy as np
    from PIL import Image
    from timm.data import create_transform, resolve_data_config

    model = make("resnet18", 32, {})
    config = resolve_data_config(pretrained_cfg=describe_for_hub(model)["pretrained_cfg"])
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8).repeat(2, 0))
    theirs = create_transform(**config)(picture)
    ours = (model.preprocess(picture) - model.mean[0]) / model.std[0]
    assert theirs.shape == ours.shape
    assert (theirs - ours).abs().max() < 0.05, "Pillow and torchvision round differently"


@pytest.mark.parametrize(
    ("backbone", "settings", "name"),
    [
        ("resnet18", {}, "fc"),
        ("resnet18", {"adaptation": {"bn_eps": 0.1}}, ""),
        ("resnet18", {"parameters": {"zero_init_residual": True}}, ""),
        ("paper-cnn", {}, ""),
        ("mobilenet_v3_small", {}, ""),
    ],
)
def test_networks_that_timm_has_otherwise_keep_their_own_names(backbone, settings, name, tmp_path):
    model = make(backbone, 28, {})
    model.settings |= settings
    assert find_classifier(model) == name
    write(model, tmp_path)
    loaded = load_model(tmp_path) if not settings else model
    assert loaded.network.state_dict().keys() == model.network.state_dict().keys()


def test_a_run_is_exported_with_its_config(run):
    folder = export_run(run).file.parent
    config = json.loads((folder / "config.json").read_text())
    assert (config["architecture"], config["num_classes"]) == ("paper-cnn", 10)
    assert config["label_names"] == list(run.classes)
    assert config["pretrained_cfg"]["input_size"] == [3, 28, 28]
    assert config["pretrained_cfg"]["mean"] == [0.5] * 3
    card = (folder / "README.md").read_text()
    assert 'stablenet.load_model("FOLDER")' in card
    assert "timm" not in card


def test_a_runs_own_config_is_not_overwritten(run):
    before = run.folder.config.read_bytes()
    with pytest.raises(UserError, match=r"is a run folder, whose config\.json would be overwritten"):
        export_run(run, output=run.path)
    assert run.folder.config.read_bytes() == before
