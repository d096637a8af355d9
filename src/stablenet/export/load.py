"""A trained model from a run folder, an exported folder or its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stablenet.algorithms import Context, build_predictor
from stablenet.engine.checkpoint import load_tensors, name_misfit
from stablenet.engine.run import RunFolder, load_run
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import load_chosen
from stablenet.evaluation.selection import DEFAULT_RULE
from stablenet.export.hub import restore_names
from stablenet.export.package import PackagedModel, describe_model
from stablenet.values import read_fields

WEIGHTS = "model.safetensors"  # of an exported folder
SETTINGS, CLASSIFIER = "model", "classifier"  # in the file's header: the model's settings, and how its head is called


def load_model(path: Path | str, rule: str | None = None) -> PackagedModel:
    """A trained model, ready for images, in eval mode on the CPU.

    path: a run folder, an exported folder, or its file model.safetensors.
    rule: which model of a run folder, by default the one with the best source validation; an exported folder has one.
    """
    place = Path(path)
    file = place / WEIGHTS if place.is_dir() else place
    if file.is_file():
        if rule is not None:
            raise UserError(f"{place} is an exported model, chosen when it was exported: leave the rule {rule!r} out")
        return _load_exported(file)
    if not RunFolder(place).config.exists():
        raise UserError(
            f"there is no model in {place}: give a run folder, or one with a {WEIGHTS} that `stablenet export` wrote"
        )
    run = load_run(place)
    network, _ = load_chosen(run, rule or DEFAULT_RULE)
    return PackagedModel(network, describe_model(run, network)).eval()


def _load_exported(file: Path) -> PackagedModel:
    """The one file holds all that is needed."""
    tensors, meta = load_tensors(file)
    settings: dict[str, Any] | None = meta.get(SETTINGS)
    if settings is None:
        raise UserError(f"{file} is no exported model: make one with `stablenet export RUN --format safetensors`")
    with name_misfit(file):
        network = build_predictor(
            settings["backbone"],
            settings["parameters"],
            settings["adaptation"],
            settings["method"],
            settings["method_parameters"],
            read_fields(Context, settings["context"], "context"),
        )
        network.load_state_dict(restore_names(tensors, meta.get(CLASSIFIER, "")))
    return PackagedModel(network, settings).eval()
