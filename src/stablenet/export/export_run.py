"""Exports a run with a model card; what was written is read back and compared."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from stablenet._version import __version__
from stablenet.data.sources import SOURCES
from stablenet.engine.checkpoint import save_tensors
from stablenet.engine.run import Run, find_decision, find_version
from stablenet.engine.run_folder import FINISHED, RunFolder
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import DEFAULT_RULE, RECORDS, Choice, load_chosen
from stablenet.export.package import (
    CLASSIFIER,
    CONFIG,
    SETTINGS,
    WEIGHTS,
    PackagedModel,
    describe_for_hub,
    describe_model,
    find_classifier,
    load_model,
    rename_weights,
)
from stablenet.files import read_bytes, read_lines, write_bytes, write_json, write_text, write_whole
from stablenet.registry import Registry, import_extra

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
        session = runtime.InferenceSession(read_bytes(path), providers=["CPUExecutionProvider"])
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
        logits: Tensor = torch.export.load(BytesIO(read_bytes(path))).module()(images)[0]
        return logits


FORMATS: Registry[Format] = Registry("format")
FORMATS.add("safetensors", Safetensors())
FORMATS.add("onnx", Onnx())
FORMATS.add("torch", TorchExport())


def _example(model: PackagedModel) -> Tensor:
    return torch.zeros(_TRACED, 3, model.image_size, model.image_size)


CARD = "README.md"


def write_card(run: Run, model: PackagedModel, choice: Choice, folder: Path) -> Path:
    """README.md beside the exported files; it names those that lie there."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=escape_markdown)
    environment.filters |= {"code": write_code, "ours": Markdown}  # ours: texts of this package, with their links
    template = environment.from_string(files("stablenet.export").joinpath("card.md.jinja").read_text("utf-8"))
    text = template.render(_gather(run, model, choice, folder))
    card = folder / CARD
    write_text(card, text)
    return card


class Markdown(str):
    """Text that is Markdown already."""


_SPECIAL = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\n": " ", "\r": " "} | {sign: f"\\{sign}" for sign in "\\`*_[]|~$#"}
)


def escape_markdown(value: Any) -> Any:
    """Escape what a template shows to plain text: no markup, no HTML, no line break."""
    return value.translate(_SPECIAL) if isinstance(value, str) and not isinstance(value, Markdown) else value


def write_code(value: object) -> Markdown:
    """A code span that nothing in the value can end; pipes are escaped, because it may be in a table."""
    text = " ".join(str(value).split()).replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence, pad = "`" * (longest + 1), " " if text.startswith("`") or text.endswith("`") else ""
    return Markdown(f"{fence}{pad}{text}{pad}{fence}" if text else "")


def _gather(run: Run, model: PackagedModel, choice: Choice, folder: Path) -> dict[str, Any]:
    manifest, config = run.manifest, run.config
    source = SOURCES[manifest.source]
    there = [FORMATS[name] for name in FORMATS if (folder / FORMATS[name].file).exists()]
    return {
        "version": __version__,
        "name": config.name,
        "config": config,
        "config_hash": run.hash,
        "preset": find_version(run.folder, config),
        "decided": find_decision(run.records),
        "settings": model.settings,
        "manifest": manifest,
        "source": source,
        "parameters": json.dumps(manifest.parameters, ensure_ascii=False),
        "method_parameters": json.dumps(config.method.parameters, ensure_ascii=False),
        "counts": {part: len(manifest.part(part)) for part in ("train", "validation", "test")},
        "choice": choice,
        "validation": _find_validation(run, choice.epoch),
        "evaluations": _find_evaluations(run, choice),
        "formats": there,
        "has_timm": bool(find_classifier(model)),
        "weights": sum(p.numel() for p in model.parameters()),
    }


def _find_validation(run: Run, epoch: int) -> dict[str, Any] | None:
    """Figures of source validation in the chosen epoch, None where the split has no such part."""
    epochs = (record for record in run.records if record["kind"] == "epoch")
    found: dict[str, Any] | None = next(record["validation"] for record in epochs if record["epoch"] == epoch)
    return found


def _find_evaluations(run: Run, choice: Choice) -> list[dict[str, Any]]:
    """The latest evaluation of every part under this rule; the oracle's are never shown on a card."""
    latest = {line["part"]: line for line in read_lines(run.path / RECORDS) if line["rule"] == choice.rule.name}
    return list(latest.values())


_PROBES = 5  # another number than the graph was traced with
_TOLERANCE = 1e-3  # of the largest logit; engines order their sums as they like


@dataclass(frozen=True)
class Exported:
    """file, card: what was written.   difference: largest one between its logits and the run's own model's."""

    file: Path
    card: Path
    difference: float


def export_run(run: Run, form: str = "safetensors", output: Path | None = None, rule: str = DEFAULT_RULE) -> Exported:
    """Write the model a rule chooses in a format, with config.json and a card, ready for the Hugging Face Hub.

    output: a folder, `export` in the run's by default.
    """
    chosen = FORMATS[form]
    state = run.status["state"]
    if state != FINISHED:
        raise UserError(f"the run {run.path} is {state}, not finished: go on with `stablenet train --resume` first")
    network, choice = load_chosen(run, rule)
    model = PackagedModel(network, describe_model(run, network)).eval()
    folder = output or run.path / "export"
    _open_folder(folder)
    file = folder / chosen.file
    chosen.write(model, file)
    difference = compare_outputs(model, chosen.run(file, make_probes(model)))
    write_json(folder / CONFIG, describe_for_hub(model))
    return Exported(file, write_card(run, model, choice, folder), difference)


def _open_folder(folder: Path) -> None:
    if RunFolder(folder).status.exists():
        raise UserError(f"{folder} is a run folder, whose {CONFIG} would be overwritten: give another --output")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from error


def make_probes(model: PackagedModel) -> Tensor:
    """Some images (b, 3, s, s) in 0..1, the same every time."""
    shape = (_PROBES, 3, model.image_size, model.image_size)
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def compare_outputs(model: PackagedModel, logits: Tensor) -> float:
    """The largest difference to the model's own logits for the probes; too large a one is a failed export."""
    expected: Tensor = model(make_probes(model))[0]
    difference = float((logits - expected).abs().max())
    if not difference <= _TOLERANCE * max(1.0, float(expected.abs().max())):
        raise RuntimeError(f"the exported model's logits differ by {difference:.2g} from the run's: do not use it")
    return difference
