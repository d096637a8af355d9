"""The presets: `paper`, `paper-covariance`, `published`, `recommended`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from stablenet.registry import Registry
from stablenet.values import SettingError, read_values
from stablenet.weighting import recommended
from stablenet.weighting.settings import WeightingSettings

PRESETS: Registry[WeightingSettings] = Registry("preset")
PAPER = WeightingSettings(
    # As written; what the paper leaves open is taken from the published code (steps, momentum). A rate of 3.0 on a
    # sum over m(m−1)/2 pairs overshoots on most features, so it is the first rate tried: `retreat` quarters it.
    num_functions=5,
    scaling="none",
    form="paper",
    pairs="features",
    objective="sum",
    penalty=0.3,
    learning_rate=3.0,
    on_rise="retreat",
    memory="average",
)
PRESETS.add("paper", PAPER)
PRESETS.add(
    # Eq. 6, sigmaabw, taken literally grows with any unevenness of the weights, so that `paper` stays near ones. Here
    # it is read as the weighted covariance, as the authors' code computes it, of standardised features and relative to
    # its start, so that one penalty serves any number of features; all else is the paper's.
    "paper-covariance",
    replace(PAPER, form="covariance", scaling="standard", objective="relative"),
)
PRESETS.add(
    # What the authors' code computes with its default options. Its logits start at 1, which by the softmax's shift
    # invariance is the same as 0; its weights sum to 1 and its loss is their sum, which is our mean.
    "published",
    WeightingSettings(
        num_functions=1,
        fourier="cosine-sine",
        scaling="phase",
        redraw="step",
        form="covariance",
        pairs="features",
        pairing="same",
        objective="scaled-sum",
        penalty=70.0,
        learning_rate=1.0,
        decay_after=10,
        logits="joint",
        keep="last",
        min_ess=0.0,
        memory="average",
        memory_rows=128,
        memory_start="running-mean",
        memory_holds="logits",
        warmup_loss="sum",
    ),
)
PRESETS.add(recommended.NAME, recommended.BATCH)


def settings_of(preset: str, overrides: Mapping[str, Any], where: str = "") -> WeightingSettings:
    """The preset with some settings replaced; a wrong name or value is one sentence.

    where: the dotted name of the overrides, for messages.
    """
    chosen = PRESETS[preset]
    values = read_values(WeightingSettings, overrides, where)
    try:
        return replace(chosen, **values)
    except SettingError as error:
        raise error.within(where) from error


def preset_table() -> str:
    """The presets side by side, one setting a line."""
    names = list(PRESETS)
    rows = [["setting", *names]]
    for field in fields(WeightingSettings):
        rows.append([field.name, *(str(getattr(PRESETS[name], field.name)) for name in names)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)
