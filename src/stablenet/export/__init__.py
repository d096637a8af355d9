"""A trained model in files that others can use: safetensors with a model card, ONNX, torch.export."""

from stablenet.export.export import Exported, export_run
from stablenet.export.formats import FORMATS
from stablenet.export.package import PackagedModel, load_model

__all__ = ["FORMATS", "Exported", "PackagedModel", "export_run", "load_model"]
