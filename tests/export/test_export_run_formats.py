"""Every format gives what the run's own model gives."""

import sys

import numpy as np
import onnxruntime
import pytest
import torch

from stablenet.data.augment import Normalization
from stablenet.errors import UserError
from stablenet.export import FORMATS, PackagedModel, export_run, load_model
from stablenet.models import build_network
from tests.made_run import random_network

SETTINGS = {
    "backbone": "paper-cnn",
    "parameters": {},
    "adaptation": {},
    "method": "erm",
    "method_parameters": {},
    "context": {"num_classes": 10, "num_domains": 1, "num_samples": 1, "epochs": 1, "seed": 0},
    "classes": [str(k) for k in range(10)],
    "image_size": 28,
    "store_size": None,
    "mean": [0.4, 0.5, 0.6],
    "std": [0.2, 0.3, 0.4],
}


@pytest.fixture(scope="module")
def images():
    return torch.rand(7, 3, 28, 28, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def expected(images):
    """Normalized by the data pipeline, then the bare network."""
    normal = Normalization(tuple(SETTINGS["mean"]), tuple(SETTINGS["std"]))(images)
    with torch.no_grad():
        return random_network(3)(normal)


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_file_gives_the_networks_logits_for_any_number_of_images(name, images, expected, tmp_path):
    path = tmp_path / FORMATS[name].file
    FORMATS[name].write(PackagedModel(random_network(3), SETTINGS).eval(), path)
    for count in (1, 7):
        with torch.no_grad():
            logits = FORMATS[name].run(path, images[:count])
        torch.testing.assert_close(logits, expected[:count], atol=1e-4, rtol=1e-4)
    assert list(tmp_path.iterdir()) == [path]  # one file holds everything


def test_onnx_as_another_program_runs_it(images, expected, tmp_path):
    FORMATS["onnx"].write(PackagedModel(random_network(3), SETTINGS).eval(), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    logits, probabilities = session.run(None, {"images": images.numpy()})
    np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(probabilities, expected.softmax(1).numpy(), atol=1e-5)


def test_safetensors_come_back_as_a_model(images, expected, tmp_path):
    FORMATS["safetensors"].write(PackagedModel(random_network(3), SETTINGS), tmp_path / "model.safetensors")
    model = load_model(tmp_path / "model.safetensors")
    assert model.classes == tuple(SETTINGS["classes"])
    assert not model.training
    with torch.no_grad():
        torch.testing.assert_close(model(images)[1].sum(1), torch.ones(7))


def test_a_runs_own_file_is_no_exported_model(run):
    with pytest.raises(UserError, match="is not an exported model"):
        load_model(run.folder.model("best"))


def test_a_missing_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"ONNX needs onnxscript: install it with `pip install 'stablenet\[onnx\]'`"):
        FORMATS["onnx"].write(PackagedModel(random_network(0), SETTINGS).eval(), tmp_path / "model.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["resnet18", "vit_b_16"])
@pytest.mark.parametrize("name", list(FORMATS))
def test_other_families(name, backbone, tmp_path):
    settings = {**SETTINGS, "backbone": backbone, "image_size": 224}
    model = PackagedModel(build_network(backbone, 10).eval(), settings).eval()
    path = tmp_path / FORMATS[name].file
    FORMATS[name].write(model, path)
    images = torch.rand(3, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(FORMATS[name].run(path, images), model(images)[0], atol=1e-3, rtol=1e-3)


def test_an_unknown_format_names_the_known(run):
    with pytest.raises(UserError, match="unknown format 'tflite': choose from onnx, safetensors, torch"):
        export_run(run, "tflite")
