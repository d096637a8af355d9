"""What all splits share: arithmetic on class counts, the paper's tables of counts, and rows drawn by them.

Integers only: ratios, shares that add up, totals that are met exactly. The paper's tables are read from
`paper_counts.toml`, with its slips corrected and named.

NumPy does not guarantee the same random stream in every version. Ordering by SHA-256 of (seed, purpose, item) needs no
stream, and adding or removing an image does not change the order of the others.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stablenet.data.image_list import ComposedList, CutoutList, ImageList
from stablenet.data.manifest import JSON, Manifest
from stablenet.errors import UserError
from stablenet.registry import unknown_name
from stablenet.values import LARGEST_COUNT, SettingError, show


def shuffle(items: Iterable[str], seed: int, *purpose: str) -> list[str]:
    """The items in random order, which depends on seed and purpose."""
    return sorted(items, key=lambda item: _digest(item, seed, purpose))


def shuffle_rows(rows: pd.DataFrame, seed: int, *purpose: str) -> pd.DataFrame:
    """The rows in the random order of their ids, which must be unique."""
    order = {item: place for place, item in enumerate(shuffle(rows["id"], seed, *purpose))}
    return rows.iloc[np.argsort(rows["id"].map(order).to_numpy(), kind="stable")].reset_index(drop=True)


def draw_places(items: Iterable[str], seed: int, *purpose: str) -> NDArray[np.int64]:
    """Two independent uniform integers in 0..65535 for each item, shape (n, 2)."""
    raw = b"".join(_digest(item, seed, purpose)[:4] for item in items)
    return np.frombuffer(raw, ">u2").astype(np.int64).reshape(-1, 2)


def _digest(item: str, seed: int, purpose: tuple[str, ...]) -> bytes:
    return hashlib.sha256("\x1f".join((str(seed), *purpose, item)).encode()).digest()


def parse_ratio(text: str) -> tuple[int, ...]:
    """ "5:1:1" -> (5, 1, 1): the dominant domain first, none larger than it."""
    try:
        terms = tuple(int(term) for term in text.split(":"))
    except ValueError:
        terms = ()
    if len(terms) < 2 or min(terms) < 1 or not max(terms) == terms[0] <= LARGEST_COUNT:
        message = f" {show(text)} is not like 5:1:1: whole numbers, the dominant domain's first, the largest"
        raise SettingError("ratio", message, "the ")
    return terms


def minor_shares(ratio: str, minors: int) -> list[Fraction]:
    """What each of the minor domains holds relative to the dominant one. Equal terms serve any number of them."""
    terms = parse_ratio(ratio)
    small = list(terms[1:])
    if len(set(small)) == 1:
        small = small[:1] * minors
    if len(small) != minors:
        raise UserError(f"the ratio {ratio} has {len(small)} minor terms where there are {minors} minor domains")
    return [Fraction(term, terms[0]) for term in small]


def minor_count(count: int, share: Fraction) -> int:
    """A minor domain's images beside `count` of the dominant one: the share is cut to three decimals.

    A third is 0.333: so the paper's counts for 3:1:1 come about.
    """
    return count * int(1000 * share) // 1000


def refuse_nothing(ratio: str, minor: str, count: int, dominant: str) -> None:
    """A ratio so steep that a minor domain's share rounds down to no image is not met by leaving it out."""
    if count == 0:
        raise UserError(
            f"the ratio {ratio} leaves no image to {minor}: its share of the dominant {dominant} is less than one; "
            "lower the ratio, or choose another dominant domain"
        )


def floor_share(count: int, share: float) -> int:
    """The share of a count, rounded down; the share is read as the decimal it is written as."""
    return int(Fraction(str(share)) * count)


def allot(total: int, sizes: Sequence[int]) -> list[int]:
    """Split total over groups in proportion to their sizes (largest remainders), none beyond its size."""
    whole = sum(sizes)
    if total > whole:
        raise UserError(f"{total} images were asked for where there are {whole}")
    if whole == 0:
        return [0] * len(sizes)
    shares = [Fraction(total * size, whole) for size in sizes]
    parts = [int(share) for share in shares]
    by_remainder = sorted(range(len(sizes)), key=lambda group: (parts[group] - shares[group], group))
    for group in by_remainder[: total - sum(parts)]:
        parts[group] += 1
    return parts


def round_share(count: int, share: float) -> int:
    """The share of a count, halves rounded up; the share is read as the decimal it is written as."""
    exact = Fraction(str(share)) * count
    return int(exact + Fraction(1, 2))


def fit_total(
    exact: Sequence[Fraction], wanted: Sequence[int], available: Sequence[int], total: int
) -> list[int] | None:
    """Counts near min(wanted, available) that add up to total, or None where fewer are available.

    Too many: the largest classes give one each. Too few: those furthest below their exact share take one each.
    """
    counts = [min(pair) for pair in zip(wanted, available, strict=True)]
    if sum(available) < total:
        return None
    while (surplus := sum(counts) - total) > 0:
        givers = sorted((g for g, n in enumerate(counts) if n), key=lambda group: (-wanted[group], group))
        for group in givers[:surplus]:
            counts[group] -= 1
    while sum(counts) < total:
        takers = (group for group, count in enumerate(counts) if count < available[group])
        counts[min(takers, key=lambda group: (counts[group] - exact[group], group))] += 1
    return counts


def accept_shortfalls(ratio: str, missing: Mapping[str, int], allowed: bool) -> tuple[str, ...]:
    """A note on who lacks how many ("house in sketch" -> 15), or an error where that is not allowed."""
    if missing and not allowed:
        raise UserError(
            f"the ratio {ratio} cannot be met: {name_shortfalls(missing)}; lower the ratio, choose another dominant "
            "domain, or allow the shortfall (--allow-shortfall), which is then noted in the manifest"
        )
    return (f"shortfall: {name_shortfalls(missing)}",) if missing else ()


def name_shortfalls(missing: Mapping[str, int]) -> str:
    """ "house lacks 15 in sketch, …": which class lacks how many."""
    listed = [f"{place} lacks {count}" for place, count in missing.items()]
    return ", ".join(listed[:20]) + (f" and {len(listed) - 20} more" if len(listed) > 20 else "")


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
    """The published counts of the unbalanced split, None where the paper lists none."""
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
    """The published counts of the flexible splits per class, None where the paper lists none."""
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
    """Target domains per class in the flexible splits."""
    return int(_load().get(source, {}).get("targets", DEFAULT_TARGETS))


def pool_share(source: str) -> float:
    """Share of the whole data set the paper's splits are drawn from."""
    return float(_load().get(source, {}).get("pool", 1.0))


def pool_counts(source: str) -> dict[str, list[int]]:
    """Images per domain and class in that share, where they are known."""
    return dict(_load().get(source, {}).get("pool_counts", {}))


def _mend(
    printed: Mapping[str, int], source: str, split: str, ratio: str, group: str
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Printed counts with the slips of this line put right, and a note for each."""
    counts, notes = dict(printed), []
    for slip in _load()["slips"]:
        if (slip["set"], slip["split"], slip["ratio"], slip["group"]) == (source, split, ratio, group):
            counts[slip["domain"]] = slip["used"]
            notes.append(
                f"{group}, {slip['domain']}: {slip['printed']} in the paper, {slip['used']} here: {slip['why']}"
            )
    return counts, tuple(notes)


@cache
def _load() -> dict[str, Any]:
    return tomllib.loads(files("stablenet.data").joinpath("paper_counts.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class SplitRows:
    """The rows of a split before it is written down; validation is held out of source unless it is given."""

    source: pd.DataFrame
    test: pd.DataFrame
    rest: pd.DataFrame | None = None
    validation: pd.DataFrame | None = None


def class_counts(rows: pd.DataFrame, domain: int, classes: int) -> list[int]:
    """Images of one domain per class."""
    labels = rows.loc[rows["domain"] == domain, "label"]
    return [int((labels == label).sum()) for label in range(classes)]


def take(rows: pd.DataFrame, counts: Mapping[tuple[int, int], int], seed: int, *purpose: str) -> pd.DataFrame:
    """The first images of every (domain, label) in random order: smaller counts are subsets of larger ones."""
    rows = shuffle_rows(rows, seed, *(purpose or ("take",)))
    keys = pd.MultiIndex.from_frame(rows[["domain", "label"]])
    wanted = pd.Series(counts, dtype="int64").reindex(keys, fill_value=0).to_numpy()
    return rows[rows.groupby(["domain", "label"]).cumcount().to_numpy() < wanted]


def hold_out(
    rows: pd.DataFrame, share: float, seed: int, purpose: str = "validation"
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(kept, held out): the share is held out of every (domain, label) alike, and exact in total."""
    sizes = rows.groupby(["domain", "label"], sort=True).size()
    held = allot(round_share(len(rows), share), sizes.tolist())
    counts = dict(zip(sizes.index.tolist(), held, strict=True))
    held_out = rows["id"].isin(take(rows, counts, seed, purpose)["id"])
    return rows[~held_out], rows[held_out]


def training_pool(table: ImageList, seed: int) -> pd.Series[bool]:
    """Which rows the paper's splits are drawn from: all, or for VLCS the published or a drawn 70 %."""
    share = pool_share(table.name)
    rows = table.rows
    if share == 1.0:
        return pd.Series(True, index=rows.index)
    if "subset" in rows and (rows["subset"] != "").all():
        return rows["subset"] != "test"
    known = pool_counts(table.name)
    counts: dict[tuple[int, int], int] = {}
    for number, domain in enumerate(table.domains):
        sizes = class_counts(rows, number, len(table.classes))
        drawn = allot(round_share(sum(sizes), share), sizes)
        listed = known.get(domain, drawn)
        fits = sum(listed) == sum(drawn) and all(a <= b for a, b in zip(listed, sizes, strict=True))
        counts |= {(number, label): n for label, n in enumerate(listed if fits else drawn)}
    return rows["id"].isin(take(rows, counts, seed, "pool")["id"])


def find_domain(table: ImageList | ComposedList, name: str) -> int:
    if name not in table.domains:
        raise UserError(unknown_name(f"domain of {table.name}", name, table.domains))
    return table.domains.index(name)


def need_domains(table: ImageList, split: str) -> None:
    """A domain can be left out, or dominate, only where there is another one."""
    if not table.contexts:
        raise UserError(
            f"{table.known_as} has only one domain, {table.domains[0]}: {split} would leave no image to "
            "train on; the split held-out needs no domains"
        )


def build_manifest(
    table: ImageList | ComposedList | CutoutList,
    split: str,
    parameters: dict[str, JSON],
    seed: int,
    parts: SplitRows,
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
        split=split,
        parameters=parameters,
        seed=seed,
        classes=table.classes,
        domains=table.domains,
        rows=pd.concat(frames, ignore_index=True),
        notes=(*getattr(table, "notes", ()), *notes),
    )
