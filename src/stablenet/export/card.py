"""The model card: what a model is, what it was trained on, what it measured, and how to use it."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from stablenet._version import __version__
from stablenet.data.sources import SOURCES
from stablenet.engine.runs import Run
from stablenet.evaluation.evaluate import RECORDS
from stablenet.evaluation.selection import Choice
from stablenet.export.formats import FORMATS
from stablenet.export.package import PackagedModel
from stablenet.files import read_lines, write_text

CARD = "README.md"


def write_card(run: Run, model: PackagedModel, choice: Choice, folder: Path) -> Path:
    """README.md beside the exported files; it names those that lie there."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("stablenet.export").joinpath("card.md.jinja").read_text("utf-8"))
    text = template.render(_gather(run, model, choice, folder))
    card = folder / CARD
    write_text(card, text)
    return card


def _gather(run: Run, model: PackagedModel, choice: Choice, folder: Path) -> dict[str, Any]:
    manifest, config = run.manifest, run.config
    source = SOURCES[manifest.source]
    there = [FORMATS[name] for name in FORMATS if (folder / FORMATS[name].file).exists()]
    return {
        "version": __version__,
        "name": config.name,
        "config": config,
        "config_hash": run.hash,
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
        "weights": sum(p.numel() for p in model.parameters()),
    }


def _find_validation(run: Run, epoch: int) -> dict[str, Any] | None:
    """Figures of source validation in the chosen epoch, None where the split has no such part."""
    epochs = (record for record in run.records if record["kind"] == "epoch")
    found: dict[str, Any] | None = next(record["validation"] for record in epochs if record["epoch"] == epoch)
    return found


def _find_evaluations(run: Run, choice: Choice) -> list[dict[str, Any]]:
    """The latest evaluation of every part under this rule; the oracle's are never told on a card."""
    latest = {line["part"]: line for line in read_lines(run.path / RECORDS) if line["rule"] == choice.rule.name}
    return list(latest.values())
