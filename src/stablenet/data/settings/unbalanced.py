"""Unbalanced: one source domain dominates; every minor domain keeps the dominant one's class proportions."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from stablenet.data.draw import shuffle
from stablenet.data.manifest import JSON, Manifest
from stablenet.data.settings import paper
from stablenet.data.settings.assemble import (
    Parts,
    build_manifest,
    check_share,
    class_counts,
    find_domain,
    take,
    training_pool,
)
from stablenet.data.settings.counts import (
    fit_total,
    floor_share,
    minor_count,
    minor_shares,
    name_shortfalls,
    parse_ratio,
)
from stablenet.data.table import ImageTable
from stablenet.errors import UserError


@dataclass(frozen=True, kw_only=True)
class UnbalancedSettings:
    """target: the domain left out.   ratio: dominant to minor domains, "5:1:1", or "5:1" for any number of them.
    dominant: the dominant domain; None takes the paper's choice, else one drawn with the seed.
    published: take the paper's totals where it lists them; False applies the ratio to what is there.
    target_share: share of every class of the target domain that is the test set; the rest is `test_rest`.
    validation: share held out; None takes 10 % (VLCS 30 %).
    allow_shortfall: where a class lacks images for the ratio, take what is there and note it.
    """

    target: str
    ratio: str = "5:1:1"
    dominant: str | None = None
    published: bool = True
    target_share: float = 0.2
    validation: float | None = None
    allow_shortfall: bool = False

    def __post_init__(self) -> None:
        parse_ratio(self.ratio)
        check_share("validation", self.validation)
        if not 0 < self.target_share <= 1:
            raise UserError(f"target_share must be above 0 and at most 1, got {self.target_share}")


def split_unbalanced(table: ImageTable, settings: UnbalancedSettings, seed: int) -> Manifest:
    target = find_domain(table, settings.target)
    dominant = _choose_dominant(table, settings, seed)
    listed = paper.find_unbalanced(table.name, settings.ratio, settings.target) if settings.published else None
    if listed is not None and listed.dominant != dominant:
        listed = None
    pool = table.rows[training_pool(table, seed)]
    counts, notes = _source_counts(table, settings, dominant, listed, pool)
    sizes = class_counts(pool, target, len(table.classes))
    counts |= {(target, label): floor_share(size, settings.target_share) for label, size in enumerate(sizes)}
    if listed is not None:
        _compare_test(counts, target, settings.target, listed.test)
    chosen = take(pool, counts, seed)
    test = chosen[chosen["domain"] == target]
    whole = table.rows[table.rows["domain"] == target]
    rest = whole[~whole["id"].isin(test["id"])]
    validation = paper.validation_share(table.name) if settings.validation is None else settings.validation
    parameters: dict[str, JSON] = {
        "target": settings.target,
        "ratio": settings.ratio,
        "dominant": dominant,
        "published": listed is not None,
        "target_share": float(settings.target_share),
        "validation": float(validation),
    }
    parts = Parts(chosen[chosen["domain"] != target], test, rest)
    return build_manifest(table, "unbalanced", parameters, seed, parts, notes)


def _choose_dominant(table: ImageTable, settings: UnbalancedSettings, seed: int) -> str:
    sources = [domain for domain in table.domains if domain != settings.target]
    name = settings.dominant or paper.find_dominant(table.name, settings.target)
    name = name or shuffle(sources, seed, "dominant")[0]
    find_domain(table, name)
    if name == settings.target:
        raise UserError(f"{name} is the target: the dominant domain must be another, one of {', '.join(sources)}")
    return name


def _source_counts(
    table: ImageTable,
    settings: UnbalancedSettings,
    dominant: str,
    listed: paper.UnbalancedCounts | None,
    pool: pd.DataFrame,
) -> tuple[dict[tuple[int, int], int], tuple[str, ...]]:
    """Images per (domain, label), and what has to be noted. The dominant domain is taken whole."""
    first = table.domains.index(dominant)
    full = class_counts(pool, first, len(table.classes))
    counts = {(first, label): size for label, size in enumerate(full)}
    minors = [domain for domain in table.domains if domain not in (settings.target, dominant)]
    missing: dict[str, int] = {}
    for name, share in zip(minors, minor_shares(settings.ratio, len(minors)), strict=True):
        minor = table.domains.index(name)
        have = class_counts(pool, minor, len(table.classes))
        wanted = [minor_count(size, share) for size in full]
        if listed is None:
            fitted = [min(pair) for pair in zip(wanted, have, strict=True)]
            lacking = (f"{table.classes[c]} in {name}" for c in range(len(have)))
            missing |= {place: w - h for place, w, h in zip(lacking, wanted, have, strict=True) if w > h}
        else:
            total = listed.source[name]
            fitted = fit_total([size * share for size in full], wanted, have, total) or []
            if sum(fitted) != total:
                raise UserError(_unlike_published(name, sum(have), total))
        counts |= {(minor, label): size for label, size in enumerate(fitted)}
    if listed is not None and sum(full) != listed.source[dominant]:
        raise UserError(_unlike_published(dominant, sum(full), listed.source[dominant]))
    if missing and not settings.allow_shortfall:
        raise UserError(
            f"the ratio {settings.ratio} cannot be met: {name_shortfalls(missing)}; lower the ratio, choose another "
            "dominant domain, or allow the shortfall (--allow-shortfall), which is then noted in the manifest"
        )
    notes = listed.notes if listed is not None else ()
    return counts, notes + ((f"shortfall: {name_shortfalls(missing)}",) if missing else ())


def _unlike_published(name: str, found: int, published: int) -> str:
    return (
        f"{name} has {found} images where the paper's split takes {published}: "
        "complete the data set, or apply the ratio to what is there (--no-published)"
    )


def _compare_test(counts: dict[tuple[int, int], int], target: int, name: str, published: int) -> None:
    found = sum(count for (domain, _), count in counts.items() if domain == target)
    if found != published:
        raise UserError(_unlike_published(f"the test part of {name}", found, published))
