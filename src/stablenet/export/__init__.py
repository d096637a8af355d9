"""A trained model in files that others can use: safetensors with a model card, ONNX, torch.export.

In reading order: `export_run` (from a run to files, read back and compared), `package` (the model with its
normalization inside) and `formats`.
"""

from stablenet.export.export_run import Exported, export_run
from stablenet.export.formats import FORMATS
from stablenet.export.package import PackagedModel, load_model

__all__ = ["FORMATS", "Exported", "PackagedModel", "export_run", "load_model"]
