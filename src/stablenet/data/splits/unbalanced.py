"""Unbalanced: one source domain dominates; every minor domain keeps the dominant one's class proportions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pandas as pd

from stablenet.data.draw import shuffle
from stablenet.data.image_list import ImageList
from stablenet.data.manifest import JSON, Manifest
from stablenet.data.splits import counting
from stablenet.data.splits.counting import (
    SplitRows,
    accept_shortfalls,
    build_manifest,
    class_counts,
    find_domain,
    fit_total,
    floor_share,
    minor_count,
    minor_shares,
    need_domains,
    parse_ratio,
    refuse_nothing,
    take,
    training_pool,
)
from stablenet.errors import UserError
from stablenet.values import ShareAboveZero, ShareBelowOne, check_fields

Sizes: TypeAlias = dict[str, list[int]]  # domain -> images per class
Notes: TypeAlias = tuple[str, ...]


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
    target_share: ShareAboveZero = 0.2
    validation: ShareBelowOne | None = None
    allow_shortfall: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        parse_ratio(self.ratio)


def split_unbalanced(table: ImageList, settings: UnbalancedSettings, seed: int) -> Manifest:
    need_domains(table, "unbalanced")
    target = find_domain(table, settings.target)
    dominant = _choose_dominant(table, settings, seed)
    listed = counting.find_unbalanced(table.name, settings.ratio, settings.target) if settings.published else None
    if listed is not None and listed.dominant != dominant:
        listed = None
    pool = table.rows[training_pool(table, seed)]
    sizes = {name: class_counts(pool, number, len(table.classes)) for number, name in enumerate(table.domains)}
    if listed is None:
        plan, notes = _plan_by_ratio(table, settings, dominant, sizes)
    else:
        plan, notes = _plan_as_published(settings, listed, sizes)
    plan[settings.target] = [floor_share(size, settings.target_share) for size in sizes[settings.target]]
    if listed is not None:
        _compare(f"the test part of {settings.target}", sum(plan[settings.target]), listed.test)
    validation = counting.validation_share(table.name) if settings.validation is None else settings.validation
    parameters: dict[str, JSON] = {
        "target": settings.target,
        "ratio": settings.ratio,
        "dominant": dominant,
        "published": listed is not None,
        "target_share": float(settings.target_share),
        "validation": float(validation),
    }
    parts = _choose_parts(table, pool, plan, target, seed)
    return build_manifest(table, "unbalanced", parameters, seed, parts, notes)


def _choose_dominant(table: ImageList, settings: UnbalancedSettings, seed: int) -> str:
    sources = [domain for domain in table.domains if domain != settings.target]
    name = settings.dominant or counting.find_dominant(table.name, settings.target)
    name = name or shuffle(sources, seed, "dominant")[0]
    find_domain(table, name)
    if name == settings.target:
        raise UserError(f"{name} is the target: the dominant domain must be another, one of {', '.join(sources)}")
    return name


def _plan_by_ratio(table: ImageList, settings: UnbalancedSettings, dominant: str, sizes: Sizes) -> tuple[Sizes, Notes]:
    """The dominant domain whole, of the minor ones their share of each of its classes, as far as it is there."""
    plan, missing = {dominant: sizes[dominant]}, {}
    minors = [domain for domain in table.domains if domain not in (settings.target, dominant)]
    for name, share in zip(minors, minor_shares(settings.ratio, len(minors)), strict=True):
        wanted = [minor_count(size, share) for size in sizes[dominant]]
        refuse_nothing(settings.ratio, name, sum(wanted), f"{dominant} with {sum(sizes[dominant])} images")
        plan[name] = [min(pair) for pair in zip(wanted, sizes[name], strict=True)]
        for label, (want, have) in enumerate(zip(wanted, plan[name], strict=True)):
            if want > have:
                missing[f"{table.classes[label]} in {name}"] = want - have
    return plan, accept_shortfalls(settings.ratio, missing, settings.allow_shortfall)


def _plan_as_published(
    settings: UnbalancedSettings, listed: counting.UnbalancedCounts, sizes: Sizes
) -> tuple[Sizes, Notes]:
    """The published totals, spread over the classes in the dominant domain's proportions within what exists."""
    full = sizes[listed.dominant]
    _compare(listed.dominant, sum(full), listed.source[listed.dominant])
    plan = {listed.dominant: full}
    minors = sorted(name for name in listed.source if name != listed.dominant)
    for name, share in zip(minors, minor_shares(settings.ratio, len(minors)), strict=True):
        wanted = [minor_count(size, share) for size in full]
        fitted = fit_total([size * share for size in full], wanted, sizes[name], listed.source[name])
        plan[name] = sizes[name] if fitted is None else fitted
        _compare(name, sum(plan[name]), listed.source[name])
    return plan, listed.notes


def _compare(name: str, found: int, published: int) -> None:
    if found != published:
        raise UserError(
            f"{name} has {found} images where the paper's split takes {published}: "
            "complete the data set, or apply the ratio to what is there (--no-published)"
        )


def _choose_parts(table: ImageList, pool: pd.DataFrame, plan: Sizes, target: int, seed: int) -> SplitRows:
    """The planned images; what is left of the target domain, in the pool or outside it, is the rest."""
    counts = {(table.domains.index(name), label): n for name, sizes in plan.items() for label, n in enumerate(sizes)}
    chosen = take(pool, counts, seed)
    test = chosen[chosen["domain"] == target]
    whole = table.rows[table.rows["domain"] == target]
    return SplitRows(chosen[chosen["domain"] != target], test, whole[~whole["id"].isin(test["id"])])
