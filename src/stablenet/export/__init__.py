"""A trained model in files that others can use: safetensors with a model card, ONNX, torch.export.

In reading order: `load` (a model from a run folder or from what was exported), `export_run` (from a run to files, read
back and compared), `package` (the model with its preprocessing inside), `formats`, and `hub` (the layout of the Hugging
Face Hub and of timm).
"""

from stablenet.export.export_run import Exported, export_run
from stablenet.export.formats import FORMATS
from stablenet.export.load import load_model
from stablenet.export.package import PackagedModel

__all__ = ["FORMATS", "Exported", "PackagedModel", "export_run", "load_model"]
