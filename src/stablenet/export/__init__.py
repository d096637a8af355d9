"""A trained model in files that others can use: safetensors with a model card, ONNX, torch.export.

In reading order: `package` (the model with its preprocessing inside, in the layout of the Hugging Face Hub and of timm,
and loaded again) and `export_run` (from a run to files of every format, read back and compared).
"""

from stablenet.export.export_run import FORMATS, Exported, export_run
from stablenet.export.package import PackagedModel, load_model

__all__ = ["FORMATS", "Exported", "PackagedModel", "export_run", "load_model"]
