"""Proof that a manifest keeps its promises: no leakage between parts, the counts, the proportions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from stablenet.data.manifest import SOURCE_PARTS, TARGET_PARTS, Manifest
from stablenet.data.settings import paper
from stablenet.data.settings.adversarial import RANDOM
from stablenet.data.settings.counts import minor_count, minor_shares, round_share
from stablenet.data.sources.base import Table


@dataclass(frozen=True)
class Finding:
    """One invariant: what was checked, whether it holds (None: nobody here can tell), and the figures."""

    name: str
    holds: bool | None
    detail: str


def check_manifest(manifest: Manifest, table: Table | None = None) -> list[Finding]:
    """Every invariant of the manifest; with the source's table also that its images are there, as it says.

    A setting of one's own is held to what every split promises; its own rules are not known here.
    """
    findings = [*_check_rows(manifest)]
    if manifest.setting in _CHECKS:
        findings += [_check_held_out(manifest), *_CHECKS[manifest.setting](manifest)]
    else:
        known = ", ".join(_CHECKS)
        detail = f"not checked: {manifest.setting} is none of {known}"
        findings.append(Finding("the setting's own rules", None, detail))
    if table is not None:
        findings.append(_compare_table(manifest, table))
    return findings


def dominant_share(manifest: Manifest, part: str) -> pd.DataFrame:
    """The most frequent domain of every class in a part: columns domain (name), share; index the classes."""
    counts = manifest.counts(part)
    total = counts.sum().replace(0, 1)
    return pd.DataFrame({"domain": counts.idxmax(), "share": counts.max() / total})


def _check_rows(manifest: Manifest) -> Iterator[Finding]:
    rows = manifest.rows
    parts = rows.groupby("id")["part"].nunique()
    shared = parts.index[parts > 1]
    yield Finding("no image in two parts", shared.empty, f"{len(shared)} shared, {len(parts)} images")
    twice = int(rows["id"].duplicated().sum())
    yield Finding("no image twice", twice == 0, f"{twice} repeated of {len(rows)} rows")
    sizes = {part: len(manifest.part(part)) for part in ("train", "validation", "test")}
    labels = rows["label"].between(0, len(manifest.classes) - 1).all()
    domains = rows["domain"].between(0, len(manifest.domains) - 1).all()
    yield Finding("labels and domains known", bool(labels and domains), f"{len(manifest.classes)} classes")
    yield Finding("parts filled", min(sizes["train"], sizes["test"]) > 0, str(sizes))


def _check_held_out(manifest: Manifest) -> Finding:
    """Validation has the written share of the source images, of every class and domain within one image."""
    share: Any = manifest.parameters["validation"]
    source = manifest.rows[manifest.rows["part"].isin(SOURCE_PARTS)]
    held = source["part"] == "validation"
    if manifest.setting == "classic" and manifest.parameters["published"]:
        return Finding("validation as published", bool(held.any()), f"{int(held.sum())} of {len(source)}")
    groups = held.groupby([source["domain"], source["label"]])
    worst = float((groups.sum() - share * groups.size()).abs().max())
    exact = int(held.sum()) == round_share(len(source), share)
    detail = f"{int(held.sum())} of {len(source)}, stratified within {worst:.2f} images"
    return Finding(f"validation holds {share:.0%}", exact and worst < 1, detail)


def _pairs(manifest: Manifest, parts: tuple[str, ...]) -> set[tuple[int, int]]:
    rows = manifest.rows[manifest.rows["part"].isin(parts)]
    return set(zip(rows["domain"], rows["label"], strict=True))


def _check_classic(manifest: Manifest) -> list[Finding]:
    target = manifest.domains.index(str(manifest.parameters["target"]))
    leaked = {domain for domain, _ in _pairs(manifest, SOURCE_PARTS)} & {target}
    strange = {domain for domain, _ in _pairs(manifest, TARGET_PARTS)} - {target}
    detail = f"target {manifest.domains[target]}"
    return [Finding("target domain unseen in training", not leaked and not strange, detail)]


def _check_unbalanced(manifest: Manifest) -> list[Finding]:
    """Minor domains hold at most their share of every dominant class; published totals are met exactly."""
    parameters: dict[str, Any] = manifest.parameters
    counts = manifest.counts("train") + manifest.counts("validation")
    dominant = counts.loc[parameters["dominant"]]
    minors = [d for d in manifest.domains if d not in (parameters["target"], parameters["dominant"])]
    worst = 0.0
    gaps, empty = [], []
    for name, share in zip(minors, minor_shares(parameters["ratio"], len(minors)), strict=True):
        worst = max(worst, float((counts.loc[name].to_numpy() - float(share) * dominant.to_numpy()).max()))
        if not counts.loc[name].sum():
            empty.append(name)
            continue
        gap = np.abs(counts.loc[name] / counts.loc[name].sum() - dominant / dominant.sum()).max()
        gaps.append(f"{name} {gap:.1%}")
    detail = f"largest difference of a class's share: {', '.join(gaps)} (more where images are lacking)"
    detail += f"; no image of {', '.join(empty)}" if empty else ""
    lacking = any(note.startswith("shortfall") for note in manifest.notes)
    holds = worst < 1e-6 and (lacking or not empty)
    findings = [*_check_classic(manifest), Finding("class proportions of the dominant domain", holds, detail)]
    if parameters["published"]:
        listed = paper.find_unbalanced(manifest.source, parameters["ratio"], parameters["target"])
        totals = {name: int(counts.loc[name].to_numpy().sum()) for name in listed.source} if listed else {}
        tested = len(manifest.part("test"))
        same = listed is not None and totals == dict(listed.source) and tested == listed.test
        findings.append(Finding("published totals", same, f"{totals}, test {tested}"))
    return findings


def _check_apart(manifest: Manifest) -> Finding:
    both = _pairs(manifest, SOURCE_PARTS) & _pairs(manifest, TARGET_PARTS)
    return Finding("no domain of a class in both training and test", not both, f"{len(both)} shared")


def _check_flexible(manifest: Manifest) -> list[Finding]:
    """Source and target domains differ for every class; counts are the published ones, or follow the ratio."""
    parameters: dict[str, Any] = manifest.parameters
    source = manifest.counts("train") + manifest.counts("validation")
    target = manifest.counts("test")
    findings = [_check_apart(manifest)]
    if parameters["published"]:
        listed = paper.find_flexible(manifest.source, parameters["ratio"]) or {}
        same = bool(listed) and all(
            _nonzero(source[name]) == dict(line.source) and _nonzero(target[name]) == dict(line.target)
            for name, line in listed.items()
        )
        findings.append(Finding("published counts", same, f"{len(listed)} classes"))
    else:
        findings.append(_check_class_ratios(manifest, source))
    return findings


def _check_class_ratios(manifest: Manifest, source: pd.DataFrame) -> Finding:
    """Minor domains hold their share of the class's dominant one: exactly, or less where a shortfall is noted."""
    parameters: dict[str, Any] = manifest.parameters
    lacking = any(note.startswith("shortfall") for note in manifest.notes)
    wrong = []
    for name, dominant in parameters["dominant"].items():
        found = _nonzero(source[name])
        first = found.pop(dominant, 0)
        shares = minor_shares(parameters["ratio"], len(found))
        wanted = sorted(minor_count(first, share) for share in shares)
        pairs = list(zip(sorted(found.values()), wanted, strict=True))
        if not all(have == want or (lacking and have < want) for have, want in pairs):
            wrong.append(name)
    said = f"{', shortfall noted' if lacking else ''}{', not by ' + ', '.join(wrong) if wrong else ''}"
    detail = f"ratio {parameters['ratio']}{said}"
    return Finding("every class keeps the ratio", not wrong, detail)


def _nonzero(column: pd.Series[int]) -> dict[str, int]:
    return {str(name): int(count) for name, count in column.items() if count}


def _check_adversarial(manifest: Manifest) -> list[Finding]:
    """The dominant background has the written share in both parts, and stands behind another class at test."""
    parameters: dict[str, Any] = manifest.parameters
    if parameters["ratio"] == RANDOM:
        used = len({domain for domain, _ in _pairs(manifest, ("train", "validation", "test"))})
        return [Finding("backgrounds drawn from all", used <= parameters["backgrounds"], f"{used} seen")]
    train = manifest.counts("train") + manifest.counts("validation")
    before, after = parameters["dominant"], parameters["test_dominant"]
    swapped = sorted(before.values()) == sorted(after.values()) and all(before[c] != after[c] for c in before)
    return [
        _check_apart(manifest),
        _check_ratio("dominant ratio in training", train, before, parameters["ratio"]),
        _check_ratio("dominant ratio at test", manifest.counts("test"), after, parameters["test_ratio"]),
        Finding("dominant backgrounds swapped", swapped, f"{len(before)} classes"),
    ]


def _check_ratio(name: str, counts: pd.DataFrame, dominant: dict[str, str], ratio: float) -> Finding:
    found = {c: int(counts[c][domain]) for c, domain in dominant.items()}
    exact = all(n == round_share(int(counts[c].sum()), ratio) for c, n in found.items())
    shares = [n / max(1, counts[c].sum()) for c, n in found.items()]
    return Finding(f"{name}: {ratio:g}", exact, f"{min(shares):.4f} to {max(shares):.4f}")


def _compare_table(manifest: Manifest, table: Table) -> Finding:
    """Every row's image is in the source, with the same label and, unless it is composed, the same domain."""
    columns = ["label"] if manifest.composed else ["label", "domain"]
    known = table.rows.set_index("id")[columns]
    there = manifest.rows["id"].isin(known.index)
    rows = manifest.rows[there]
    differ = int((known.loc[rows["id"]].to_numpy() != rows[columns].to_numpy()).any(axis=1).sum())
    same = bool(there.all()) and not differ and tuple(table.domains) == manifest.domains
    return Finding("the source has these images", same, f"{int((~there).sum())} missing, {differ} labelled otherwise")


_CHECKS: dict[str, Callable[[Manifest], list[Finding]]] = {
    "classic": _check_classic,
    "unbalanced": _check_unbalanced,
    "flexible": _check_flexible,
    "unbalanced+flexible": _check_flexible,
    "adversarial": _check_adversarial,
}
