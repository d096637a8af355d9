"""The generators: one module for each kind of input. A trial is a function of the seed and its number alone."""

from __future__ import annotations

from campaign.parts import (
    archives,
    diverging,
    estimators,
    images,
    machines,
    masks,
    names,
    options,
    pairs,
    runs,
    settings,
    signals,
    soak,
    stores,
    strangers,
    systems,
    tables,
    toml,
    weighting,
)
from campaign.parts.part import Part

PARTS = {
    "settings": Part(24, settings.make),
    "options": Part(20, options.make),
    "runs": Part(14, runs.make),
    "stores": Part(6, stores.make),
    "strangers": Part(5, strangers.make),
    "toml": Part(10, toml.make),
    "images": Part(6, images.make),
    "tables": Part(8, tables.make),
    "archives": Part(5, archives.make),
    "systems": Part(6, systems.make),
    "machines": Part(7, machines.make),
    "masks": Part(3, masks.make),
    "names": Part(5, names.make),
    "diverging": Part(5, diverging.make),
    "signals": Part(6, signals.make),
    "soak": Part(0.5, soak.make),
    "pairs": Part(1, pairs.make),
    "weighting": Part(12, weighting.make),
    "estimators": Part(2, estimators.make),
}
