"""Unbalanced: one source domain dominates. Flexible: every class has its own domains. And both together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd

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
    name_shortfalls,
    need_domains,
    parse_ratio,
    refuse_nothing,
    shuffle,
    take,
    training_pool,
)
from stablenet.errors import UserError
from stablenet.registry import unknown_name
from stablenet.values import Count, ShareAboveZero, ShareBelowOne, check_fields

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


@dataclass(frozen=True, kw_only=True)
class FlexibleSettings:
    """ratio: dominant to minor domains of a class; "1:1" takes equally many from every source domain.
    published: take the paper's counts where it lists them; False draws domains and applies the ratio.
    dominant: class -> its dominant domain, where it is not to be drawn.
    target: class -> its target domains, where they are not to be drawn.
    targets: target domains per class; None takes 1 (NICO 2). All other domains of the class are sources.
    validation: share held out of every class and source domain; None takes 10 % (VLCS 30 %).
    allow_shortfall: where a class lacks images for the ratio, take what is there and note it.
    """

    ratio: str = "1:1:1"
    published: bool = True
    dominant: Mapping[str, str] | None = None
    target: Mapping[str, tuple[str, ...]] | None = None
    targets: Count | None = None
    validation: ShareBelowOne | None = None
    allow_shortfall: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        parse_ratio(self.ratio)

    @property
    def chooses(self) -> bool:
        """Whether the caller chose domains, so that the paper's tables no longer apply."""
        return self.dominant is not None or self.target is not None or self.targets is not None


@dataclass(frozen=True, kw_only=True)
class UnbalancedFlexibleSettings(FlexibleSettings):
    ratio: str = "5:1:1"


@dataclass(frozen=True)
class ClassPlan:
    """Counts of one class: source domains (the dominant one first) and target domains (None: all there are)."""

    source: Mapping[str, int]
    target: Mapping[str, int | None]


def split_flexible(table: ImageList, settings: FlexibleSettings, seed: int) -> Manifest:
    need_domains(table, "flexible")
    in_pool = training_pool(table, seed)
    pool = table.rows[in_pool]
    listed = None
    if settings.published and not settings.chooses:
        listed = counting.find_flexible(table.name, settings.ratio)
    if listed is None:
        plans, notes = _draw_plans(table, settings, pool, seed)
    else:
        plans = {name: ClassPlan(line.source, line.target) for name, line in listed.items()}
        notes = tuple(note for line in listed.values() for note in line.notes)
    source = take(pool, _number(table, {name: plan.source for name, plan in plans.items()}, pool), seed)
    test = take(pool, _number(table, {name: plan.target for name, plan in plans.items()}, pool), seed)
    pairs = set(zip(test["domain"], test["label"], strict=True))
    whole = table.rows[[pair in pairs for pair in zip(table.rows["domain"], table.rows["label"], strict=True)]]
    rest = whole[~whole["id"].isin(test["id"])]
    validation = counting.validation_share(table.name) if settings.validation is None else settings.validation
    parameters: dict[str, JSON] = {
        "ratio": settings.ratio,
        "dominant": {name: next(iter(plan.source)) for name, plan in plans.items()},
        "target": {name: list(plan.target) for name, plan in plans.items()},
        "published": listed is not None,
        "validation": float(validation),
    }
    name = "unbalanced+flexible" if isinstance(settings, UnbalancedFlexibleSettings) else "flexible"
    return build_manifest(table, name, parameters, seed, SplitRows(source, test, rest), notes)


def _number(
    table: ImageList, plans: Mapping[str, Mapping[str, int | None]], pool: pd.DataFrame
) -> dict[tuple[int, int], int]:
    """Counts per (domain, label), after checking that they are available."""
    sizes = pool.groupby(["domain", "label"]).size()
    counts: dict[tuple[int, int], int] = {}
    missing: dict[str, int] = {}
    for name, plan in plans.items():
        label = table.classes.index(name)
        for domain, count in plan.items():
            key = (table.domains.index(domain), label)
            have = int(sizes.get(key, 0))
            counts[key] = have if count is None else count
            if counts[key] > have:
                missing[f"{name} in {domain}"] = counts[key] - have
    if missing:
        raise UserError(
            f"the paper's split cannot be met: {name_shortfalls(missing)}; complete the data set, "
            "or apply the ratio to what is there (--no-published)"
        )
    return counts


def _draw_plans(
    table: ImageList, settings: FlexibleSettings, pool: pd.DataFrame, seed: int
) -> tuple[dict[str, ClassPlan], tuple[str, ...]]:
    """Domains drawn or chosen, counts by the ratio, for every class."""
    for given in (settings.dominant, settings.target):
        for name in given or ():
            if name not in table.classes:
                raise UserError(unknown_name(f"class of {table.name}", name, table.classes))
    plans: dict[str, ClassPlan] = {}
    missing: dict[str, int] = {}
    for label, name in enumerate(table.classes):
        numbers = np.bincount(pool.loc[pool["label"] == label, "domain"], minlength=len(table.domains))
        have = {domain: int(n) for domain, n in zip(table.domains, numbers, strict=True) if n}
        targets, sources = _choose_domains(table, settings, name, list(have), seed)
        wanted = _wanted(settings.ratio, sources, have)
        for domain, count in wanted.items():
            refuse_nothing(settings.ratio, f"{name} in {domain}", count, f"{sources[0]} with {have[sources[0]]} images")
        missing |= {f"{name} in {d}": n - have[d] for d, n in wanted.items() if n > have[d]}
        plans[name] = ClassPlan({d: min(n, have[d]) for d, n in wanted.items()}, dict.fromkeys(targets))
    return plans, accept_shortfalls(settings.ratio, missing, settings.allow_shortfall)


def _choose_domains(
    table: ImageList, settings: FlexibleSettings, name: str, there: list[str], seed: int
) -> tuple[list[str], list[str]]:
    """(targets, sources with the dominant one first) of one class; what is not given is drawn."""
    given = list((settings.target or {}).get(name, ()))
    dominant = (settings.dominant or {}).get(name)
    for domain in (*given, *([dominant] if dominant else [])):
        find_domain(table, domain)
        if domain not in there:
            raise UserError(f"{name} has no images in {domain}: it has {', '.join(there)}")
    order = [domain for domain in shuffle(there, seed, "flexible", name) if domain != dominant]
    number = settings.targets or counting.target_domains(table.name)
    targets = given or order[:number]
    sources = [domain for domain in order if domain not in targets]
    if dominant is not None and dominant not in targets:
        sources.insert(0, dominant)
    if dominant in targets or len(sources) < 2 or (not given and len(targets) < number):
        raise UserError(
            f"{name} has the domains {', '.join(there)}: too few for {max(number, len(given))} target, "
            "one dominant and at least one minor domain, all different"
        )
    return targets, sources


def _wanted(ratio: str, sources: list[str], have: Mapping[str, int]) -> dict[str, int]:
    """Images per source domain: the dominant one whole, the minor ones their share of it."""
    shares = minor_shares(ratio, len(sources) - 1)
    if all(share == 1 for share in shares):
        return dict.fromkeys(sources, min(have[domain] for domain in sources))
    first = have[sources[0]]
    minors = {domain: minor_count(first, share) for domain, share in zip(sources[1:], shares, strict=True)}
    return {sources[0]: first} | minors
