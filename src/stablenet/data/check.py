"""Checks of a manifest's invariants: no leakage, no duplicate files, the counts and the proportions."""

from __future__ import annotations

import hashlib
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from stablenet.data.image_list import CutoutList, ImageList
from stablenet.data.manifest import SOURCE_PARTS, TARGET_PARTS, Manifest
from stablenet.data.sources.source import AnyImageList
from stablenet.data.splits import counting
from stablenet.data.splits.adversarial import RANDOM
from stablenet.data.splits.counting import minor_count, minor_shares, round_share
from stablenet.data.splits.plain import GIVEN, HELD_OUT
from stablenet.errors import UserError


def find_duplicates(rows: pd.DataFrame, content: Iterable[Hashable]) -> list[list[str]]:
    """Groups of ids whose files are identical and appear in more than one domain or class.

    rows: with the columns id, label and domain.   content: a value per row that is equal for identical files only.
    """
    groups: dict[Hashable, dict[str, tuple[int, int]]] = defaultdict(dict)
    for key, image, *place in zip(content, rows["id"], rows["label"], rows["domain"], strict=True):
        groups[key][image] = (place[0], place[1])
    return [list(group) for group in groups.values() if len(set(group.values())) > 1]


def fingerprint_files(table: ImageList) -> list[Hashable]:
    """A value per row that is equal for identical files, without reading all of them.

    An archive contains checksums; in a folder only files of equal size are read. A file that cannot be read, such as
    a dangling link, equals no other: decoding reports it with all others.
    """
    paths = table.rows["path"].tolist()
    if not table.root.is_dir():
        with zipfile.ZipFile(table.root) as archive:
            members = {info.filename: (info.CRC, info.file_size) for info in archive.infolist()}
        return [members[path] for path in paths]
    sizes = [_size(table, path) for path in paths]
    alike = Counter(sizes)
    return [_hash(table, path) if alike[size] > 1 else size for path, size in zip(paths, sizes, strict=True)]


def _size(table: ImageList, path: str) -> Hashable:
    try:
        return (table.root / path).stat().st_size
    except OSError:
        return path


def _hash(table: ImageList, path: str) -> Hashable:
    try:
        return hashlib.sha256(table.open_bytes(path)).digest()
    except UserError:
        return path


@dataclass(frozen=True)
class Finding:
    """One invariant: what was checked, whether it holds (None if unknown), and the numbers."""

    name: str
    holds: bool | None
    detail: str


def check_manifest(manifest: Manifest, table: AnyImageList | None = None) -> list[Finding]:
    """Check every invariant of the manifest; with the source's image list also that it contains the same images.

    For a custom split only the invariants of every split are checked; its own rules are not known here.
    """
    findings = [*_check_rows(manifest)]
    if manifest.split in _CHECKS:
        findings += [_check_held_out(manifest), *_CHECKS[manifest.split](manifest)]
    else:
        known = ", ".join(_CHECKS)
        detail = f"not checked: {manifest.split} is not one of {known}"
        findings.append(Finding("the split's own rules", None, detail))
    if table is not None:
        findings.append(_compare_table(manifest, table))
    return findings


def dominant_share(manifest: Manifest, part: str) -> pd.DataFrame:
    """The most frequent domain of each class in a part: columns domain (name) and share, indexed by class."""
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
    """Validation has the recorded share of the source images, and of every class and domain within one image."""
    share: Any = manifest.parameters["validation"]
    source = manifest.rows[manifest.rows["part"].isin(SOURCE_PARTS)]
    held = source["part"] == "validation"
    if manifest.split == "classic" and manifest.parameters["published"]:
        return Finding("validation as published", bool(held.any()), f"{int(held.sum())} of {len(source)}")
    if share == GIVEN:
        return Finding("validation as given", bool(held.any()), f"{int(held.sum())} of {len(source)}")
    return _check_share("validation", source, share)


def _check_share(part: str, source: pd.DataFrame, share: float) -> Finding:
    """A part has a share of these rows, and of every class and domain among them within one image."""
    held = source["part"] == part
    groups = held.groupby([source["domain"], source["label"]])
    worst = float((groups.sum() - share * groups.size()).abs().max())
    exact = int(held.sum()) == round_share(len(source), share)
    detail = f"{int(held.sum())} of {len(source)}, stratified within {worst:.2f} images"
    return Finding(f"{part} holds {100 * share:.0f} %", exact and worst < 1, detail)


def _pairs(manifest: Manifest, parts: tuple[str, ...]) -> set[tuple[int, int]]:
    rows = manifest.rows[manifest.rows["part"].isin(parts)]
    return set(zip(rows["domain"], rows["label"], strict=True))


def _check_classic(manifest: Manifest) -> list[Finding]:
    target = manifest.domains.index(str(manifest.parameters["target"]))
    leaked = {domain for domain, _ in _pairs(manifest, SOURCE_PARTS)} & {target}
    other = {domain for domain, _ in _pairs(manifest, TARGET_PARTS)} - {target}
    detail = f"target {manifest.domains[target]}"
    return [Finding("target domain unseen in training", not leaked and not other, detail)]


def _check_test_share(manifest: Manifest) -> list[Finding]:
    share: Any = manifest.parameters["test"]
    return [_check_share("test", manifest.rows, share)]


def _check_unbalanced(manifest: Manifest) -> list[Finding]:
    """Minor domains have at most their share of every dominant class; published totals are met exactly."""
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
        gaps.append(f"{name} {100 * gap:.1f} %")
    detail = f"largest difference in a class's share: {', '.join(gaps)} (larger where images are missing)"
    detail += f"; no image of {', '.join(empty)}" if empty else ""
    lacking = any(note.startswith("shortfall") for note in manifest.notes)
    holds = worst < 1e-6 and (lacking or not empty)
    findings = [*_check_classic(manifest), Finding("class proportions of the dominant domain", holds, detail)]
    if parameters["published"]:
        listed = counting.find_unbalanced(manifest.source, parameters["ratio"], parameters["target"])
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
        listed = counting.find_flexible(manifest.source, parameters["ratio"]) or {}
        same = bool(listed) and all(
            _nonzero(source[name]) == dict(line.source) and _nonzero(target[name]) == dict(line.target)
            for name, line in listed.items()
        )
        findings.append(Finding("published counts", same, f"{len(listed)} classes"))
    else:
        findings.append(_check_class_ratios(manifest, source))
    return findings


def _check_class_ratios(manifest: Manifest, source: pd.DataFrame) -> Finding:
    """Minor domains have their share of the class's dominant one: exactly, or less where a shortfall is noted."""
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
    remarks = f"{', shortfall noted' if lacking else ''}{', violated by ' + ', '.join(wrong) if wrong else ''}"
    detail = f"ratio {parameters['ratio']}{remarks}"
    return Finding("every class keeps the ratio", not wrong, detail)


def _nonzero(column: pd.Series[int]) -> dict[str, int]:
    return {str(name): int(count) for name, count in column.items() if count}


def _check_adversarial(manifest: Manifest) -> list[Finding]:
    """The dominant background has the recorded share in both parts, and belongs to another class at test."""
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


def _check_correlated(manifest: Manifest) -> list[Finding]:
    """Foregrounds and backgrounds are apart; each class has the ratio in training; the test groups are equal."""
    parameters: dict[str, Any] = manifest.parameters
    train = manifest.counts("train") + manifest.counts("validation")
    test = manifest.counts("test")
    findings = [_check_disjoint(manifest, "foreground"), _check_disjoint(manifest, "background")]
    if parameters["ratio"] != RANDOM:
        before = parameters["dominant"]
        findings.append(_check_ratio("share of the own context in training", train, before, parameters["ratio"]))
    if parameters["test"] == "swapped":
        after = parameters["test_dominant"]
        findings.append(_check_ratio("share of another's context at test", test, after, parameters["ratio"]))
    else:
        low, high = int(test.to_numpy().min()), int(test.to_numpy().max())
        findings.append(Finding("test groups of equal size", 0 < low == high, f"{low} to {high} images"))
    return findings


def _check_disjoint(manifest: Manifest, column: str) -> Finding:
    of_target = manifest.rows["part"].isin(TARGET_PARTS)
    shared = set(manifest.rows.loc[of_target, column]) & set(manifest.rows.loc[~of_target, column])
    return Finding(f"no {column} in both training and test", not shared, f"{len(shared)} shared")


def _compare_cutouts(manifest: Manifest, table: CutoutList) -> Finding:
    """Every foreground is in the source with the same label, every background with the same context."""
    parameters: dict[str, Any] = manifest.parameters
    table = table.choose(parameters["classes"], parameters["only"], parameters["contexts"])
    missing = differ = 0
    for images, name, column in (
        (table.foregrounds, "foreground", "label"),
        (table.backgrounds, "background", "domain"),
    ):
        known = manifest.rows[name].map(images.rows.set_index("id")[column])
        missing += int(known.isna().sum())
        differ += int((known.dropna() != manifest.rows.loc[known.notna(), column]).sum())
    same = not missing and not differ and (table.classes, table.domains) == (manifest.classes, manifest.domains)
    detail = f"{missing} missing, {differ} labelled differently"
    return Finding("the source has these foregrounds and backgrounds", same, detail)


def _compare_table(manifest: Manifest, table: AnyImageList) -> Finding:
    """Every image is in the source, with the same label and, unless it is composed, the same domain."""
    if isinstance(table, CutoutList):
        return _compare_cutouts(manifest, table)
    columns = ["label"] if manifest.composed else ["label", "domain"]
    known = table.rows.set_index("id")[columns]
    there = manifest.rows["id"].isin(known.index)
    rows = manifest.rows[there]
    differ = int((known.loc[rows["id"]].to_numpy() != rows[columns].to_numpy()).any(axis=1).sum())
    same = bool(there.all()) and not differ and tuple(table.domains) == manifest.domains
    return Finding("the source has these images", same, f"{int((~there).sum())} missing, {differ} labelled differently")


_CHECKS: dict[str, Callable[[Manifest], list[Finding]]] = {
    "classic": _check_classic,
    "unbalanced": _check_unbalanced,
    "flexible": _check_flexible,
    "unbalanced+flexible": _check_flexible,
    "adversarial": _check_adversarial,
    "correlated": _check_correlated,
    HELD_OUT: _check_test_share,
    GIVEN: lambda manifest: [],  # whatever it is
}
