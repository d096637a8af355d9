"""The paper's tables of splits, read from `paper_counts.toml`, with its slips put right and named."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

DEFAULT_VALIDATION = 0.1
DEFAULT_TARGETS = 1


@dataclass(frozen=True)
class UnbalancedCounts:
    """One line of a table: images per source domain, and in the target's test set."""

    dominant: str
    source: Mapping[str, int]
    test: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class FlexibleCounts:
    """One class of a table: images per source domain, the dominant one first, and per target domain."""

    source: Mapping[str, int]
    target: Mapping[str, int]
    notes: tuple[str, ...]


def spell_ratio(ratio: str) -> str:
    """ "5:1" as the tables spell it, "5:1:1": they all have two minor domains."""
    terms = ratio.split(":")
    return ":".join([*terms, terms[1]]) if len(terms) == 2 else ratio


def find_unbalanced(source: str, ratio: str, target: str) -> UnbalancedCounts | None:
    """The published counts of the unbalanced setting, None where the paper lists none."""
    line = _load().get(source, {}).get("unbalanced", {}).get(spell_ratio(ratio), {}).get(target)
    if line is None:
        return None
    printed = {key: count for key, count in line.items() if key not in ("dominant", "test")}
    counts, notes = _mend(printed, source, "unbalanced", spell_ratio(ratio), target)
    return UnbalancedCounts(line["dominant"], counts, line["test"], notes)


def find_dominant(source: str, target: str) -> str | None:
    """The dominant domain the paper chose for a target; it is the same for all ratios."""
    for lines in _load().get(source, {}).get("unbalanced", {}).values():
        if target in lines:
            return str(lines[target]["dominant"])
    return None


def find_flexible(source: str, ratio: str) -> dict[str, FlexibleCounts] | None:
    """The published counts of the flexible settings per class, None where the paper lists none."""
    table = _load().get(source, {}).get("flexible", {}).get(spell_ratio(ratio))
    if table is None:
        return None
    lines = {}
    for name, line in table.items():
        counts, notes = _mend(line["source"], source, "flexible", spell_ratio(ratio), name)
        lines[name] = FlexibleCounts(counts, line["target"], notes)
    return lines


def validation_share(source: str) -> float:
    """Share of the training images held out for selection."""
    return float(_load().get(source, {}).get("validation", DEFAULT_VALIDATION))


def target_domains(source: str) -> int:
    """Target domains per class in the flexible settings."""
    return int(_load().get(source, {}).get("targets", DEFAULT_TARGETS))


def pool_share(source: str) -> float:
    """Share of the whole data set the paper's splits are drawn from."""
    return float(_load().get(source, {}).get("pool", 1.0))


def pool_counts(source: str) -> dict[str, list[int]]:
    """Images per domain and class in that share, where they are known."""
    return dict(_load().get(source, {}).get("pool_counts", {}))


def _mend(
    printed: Mapping[str, int], source: str, setting: str, ratio: str, group: str
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Printed counts with the slips of this line put right, and a note for each."""
    counts, notes = dict(printed), []
    for slip in _load()["slips"]:
        if (slip["set"], slip["setting"], slip["ratio"], slip["group"]) == (source, setting, ratio, group):
            counts[slip["domain"]] = slip["used"]
            notes.append(
                f"{group}, {slip['domain']}: {slip['printed']} in the paper, {slip['used']} here: {slip['why']}"
            )
    return counts, tuple(notes)


@cache
def _load() -> dict[str, Any]:
    return tomllib.loads(files("stablenet.data").joinpath("paper_counts.toml").read_text(encoding="utf-8"))
