"""From chosen counts to rows: who is taken, who is held out, and the manifest of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from stablenet.data.draw import shuffle_rows
from stablenet.data.manifest import JSON, Manifest
from stablenet.data.settings import paper
from stablenet.data.settings.counts import allot, round_share
from stablenet.data.table import ComposedTable, ImageTable
from stablenet.errors import UserError
from stablenet.registry import unknown_name
from stablenet.values import ShareBelowOne, convert


@dataclass(frozen=True)
class Parts:
    """The rows of a split before it is written down; validation is held out of source unless it is given."""

    source: pd.DataFrame
    test: pd.DataFrame
    rest: pd.DataFrame | None = None
    validation: pd.DataFrame | None = None


def class_counts(rows: pd.DataFrame, domain: int, classes: int) -> list[int]:
    """Images of one domain per class."""
    labels = rows.loc[rows["domain"] == domain, "label"]
    return [int((labels == label).sum()) for label in range(classes)]


def take(rows: pd.DataFrame, counts: Mapping[tuple[int, int], int], seed: int, purpose: str = "take") -> pd.DataFrame:
    """The first images of every (domain, label) in random order: smaller counts are subsets of larger ones."""
    rows = shuffle_rows(rows, seed, purpose)
    keys = pd.MultiIndex.from_frame(rows[["domain", "label"]])
    wanted = pd.Series(counts, dtype="int64").reindex(keys, fill_value=0).to_numpy()
    return rows[rows.groupby(["domain", "label"]).cumcount().to_numpy() < wanted]


def hold_out(rows: pd.DataFrame, share: float, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(training, validation): the share is held out of every (domain, label) alike, and exact in total."""
    sizes = rows.groupby(["domain", "label"], sort=True).size()
    held = allot(round_share(len(rows), share), sizes.tolist())
    counts = dict(zip(sizes.index.tolist(), held, strict=True))
    held_out = rows["id"].isin(take(rows, counts, seed, "validation")["id"])
    return rows[~held_out], rows[held_out]


def training_pool(table: ImageTable, seed: int) -> pd.Series[bool]:
    """Which rows the paper's splits are drawn from: all, or for VLCS the published or a drawn 70 %."""
    share = paper.pool_share(table.name)
    rows = table.rows
    if share == 1.0:
        return pd.Series(True, index=rows.index)
    if "subset" in rows and (rows["subset"] != "").all():
        return rows["subset"] != "test"
    known = paper.pool_counts(table.name)
    counts: dict[tuple[int, int], int] = {}
    for number, domain in enumerate(table.domains):
        sizes = class_counts(rows, number, len(table.classes))
        drawn = allot(round_share(sum(sizes), share), sizes)
        listed = known.get(domain, drawn)
        fits = sum(listed) == sum(drawn) and all(a <= b for a, b in zip(listed, sizes, strict=True))
        counts |= {(number, label): n for label, n in enumerate(listed if fits else drawn)}
    return rows["id"].isin(take(rows, counts, seed, "pool")["id"])


def find_domain(table: ImageTable | ComposedTable, name: str) -> int:
    if name not in table.domains:
        raise UserError(unknown_name(f"domain of {table.name}", name, table.domains))
    return table.domains.index(name)


def check_share(name: str, share: float | None) -> None:
    """For settings that state no type of their own for it."""
    convert(share, ShareBelowOne | None, name)


def build_manifest(
    table: ImageTable | ComposedTable,
    setting: str,
    parameters: dict[str, JSON],
    seed: int,
    parts: Parts,
    notes: tuple[str, ...] = (),
) -> Manifest:
    """Write the parts down. The share `parameters["validation"]` is held out unless the parts have their own."""
    train, validation = parts.source, parts.validation
    if validation is None:
        share = parameters["validation"]
        assert isinstance(share, float)
        train, validation = hold_out(parts.source, share, seed)
    named = {"train": train, "validation": validation, "test": parts.test, "test_rest": parts.rest}
    frames = [rows.assign(part=part) for part, rows in named.items() if rows is not None]
    return Manifest(
        source=table.name,
        setting=setting,
        parameters=parameters,
        seed=seed,
        classes=table.classes,
        domains=table.domains,
        rows=pd.concat(frames, ignore_index=True),
        notes=(*getattr(table, "notes", ()), *notes),
    )
