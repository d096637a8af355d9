"""From a run to files for others; what was written is read back and compared before it is called done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stablenet.engine.folder import FINISHED
from stablenet.engine.runs import Run
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import load_chosen
from stablenet.evaluation.selection import DEFAULT_RULE
from stablenet.export.card import write_card
from stablenet.export.formats import FORMATS
from stablenet.export.package import PackagedModel, describe_model

_PROBES = 5  # another number than the graph was traced with
_TOLERANCE = 1e-3  # of the largest logit; engines order their sums as they like


@dataclass(frozen=True)
class Exported:
    """file, card: what was written.   difference: largest one between its logits and the run's own model's."""

    file: Path
    card: Path
    difference: float


def export_run(run: Run, form: str = "safetensors", output: Path | None = None, rule: str = DEFAULT_RULE) -> Exported:
    """Write the model a rule chooses in a format, and its card. output: a folder, `export` in the run's by default."""
    chosen = FORMATS[form]
    state = run.status["state"]
    if state != FINISHED:
        raise UserError(f"the run {run.path} is {state}, not finished: go on with `stablenet train --resume` first")
    network, choice = load_chosen(run, rule)
    model = PackagedModel(network, describe_model(run, network)).eval()
    folder = output or run.path / "export"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from error
    file = folder / chosen.file
    chosen.write(model, file)
    difference = compare_outputs(model, chosen.run(file, make_probes(model)))
    return Exported(file, write_card(run, model, choice, folder), difference)


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
