"""Arithmetic on class counts: ratios, shares that add up, totals that are met exactly. Integers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from stablenet.errors import UserError
from stablenet.values import LARGEST_COUNT, SettingError, show


def parse_ratio(text: str) -> tuple[int, ...]:
    """ "5:1:1" -> (5, 1, 1): the dominant domain first, none larger than it."""
    try:
        terms = tuple(int(term) for term in text.split(":"))
    except ValueError:
        terms = ()
    if len(terms) < 2 or min(terms) < 1 or not max(terms) == terms[0] <= LARGEST_COUNT:
        told = f" {show(text)} is not like 5:1:1: whole numbers, the dominant domain's first, the largest"
        raise SettingError("ratio", told, "the ")
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
