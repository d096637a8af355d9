"""The export formats by name. Each writes one file, reads it back, and gives its outputs for some images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from io import BytesIO
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from stablenet.engine.checkpoint import save_tensors
from stablenet.export.hub import find_classifier, rename_weights
from stablenet.export.load import CLASSIFIER, SETTINGS, WEIGHTS, load_model
from stablenet.export.package import PackagedModel
from stablenet.files import write_bytes, write_whole
from stablenet.imports import import_extra
from stablenet.registry import Registry

INPUT, OUTPUTS = "images", ("logits", "probabilities")
_TRACED = 2  # images in the batch a graph is traced with; the number stays free


class Format(ABC):
    """A subclass is final."""

    title: ClassVar[str]
    file: ClassVar[str]

    @abstractmethod
    def write(self, model: PackagedModel, path: Path) -> None:
        """The model in one file, whole or not at all."""

    @abstractmethod
    def run(self, path: Path, images: Tensor) -> Tensor:
        """Logits (b, classes) the file gives for images (b, 3, s, s) in 0..1."""


class Safetensors(Format):
    title = "weights and settings, for `stablenet.load_model`"
    file = WEIGHTS

    def write(self, model: PackagedModel, path: Path) -> None:
        classifier = find_classifier(model)
        weights = rename_weights(model.network.state_dict(), classifier)
        save_tensors(path, weights, {SETTINGS: model.settings, CLASSIFIER: classifier})

    def run(self, path: Path, images: Tensor) -> Tensor:
        logits: Tensor = load_model(path)(images)[0]
        return logits


class Onnx(Format):
    title = "a graph for ONNX Runtime and other engines"
    file = "model.onnx"

    def write(self, model: PackagedModel, path: Path) -> None:
        for module in ("onnx", "onnxscript", "onnxruntime"):
            import_extra(module, "onnx", "ONNX")
        program = torch.onnx.export(
            model,
            (_example(model),),
            dynamo=True,
            verbose=False,
            input_names=[INPUT],
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
        assert program is not None
        write_whole(path, lambda partial: program.save(partial, external_data=False))

    def run(self, path: Path, images: Tensor) -> Tensor:
        runtime = import_extra("onnxruntime", "onnx", "ONNX")
        session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
        return torch.from_numpy(session.run([OUTPUTS[0]], {INPUT: images.numpy()})[0])


class TorchExport(Format):
    title = "a graph for torch.export.load, without this package"
    file = "model.pt2"

    def write(self, model: PackagedModel, path: Path) -> None:
        shapes = ({0: torch.export.Dim("batch")},)
        program = torch.export.export(model, (_example(model),), dynamic_shapes=shapes)
        buffer = BytesIO()
        torch.export.save(program, buffer)
        write_bytes(path, buffer.getvalue())

    def run(self, path: Path, images: Tensor) -> Tensor:
        logits: Tensor = torch.export.load(BytesIO(path.read_bytes())).module()(images)[0]
        return logits


FORMATS: Registry[Format] = Registry("format")
FORMATS.add("safetensors", Safetensors())
FORMATS.add("onnx", Onnx())
FORMATS.add("torch", TorchExport())


def _example(model: PackagedModel) -> Tensor:
    return torch.zeros(_TRACED, 3, model.image_size, model.image_size)
