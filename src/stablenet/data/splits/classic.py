"""Classic: leave one domain out; the others train, a share of them is held out for selection."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from stablenet.data.image_list import ImageList
from stablenet.data.manifest import JSON, Manifest
from stablenet.data.splits import counting
from stablenet.data.splits.counting import SplitRows, build_manifest, find_domain, need_domains
from stablenet.values import ShareBelowOne, check_fields


@dataclass(frozen=True, kw_only=True)
class ClassicSettings:
    """target: the domain left out.
    validation: share of the source domains held out; None takes the source's published division where it has
    one (PACS's lists, VLCS's folders), else 10 % (VLCS 30 %).
    """

    target: str
    validation: ShareBelowOne | None = None

    def __post_init__(self) -> None:
        check_fields(self)


def split_classic(table: ImageList, settings: ClassicSettings, seed: int) -> Manifest:
    need_domains(table, "classic")
    target = find_domain(table, settings.target)
    is_target = table.rows["domain"] == target
    source, test = table.rows[~is_target], table.rows[is_target]
    published = settings.validation is None and "subset" in source and (source["subset"] != "").all()
    share = counting.validation_share(table.name) if settings.validation is None else settings.validation
    parts = SplitRows(source, test)
    if published:
        held = _published_validation(source["subset"])
        parts = SplitRows(source[~held], test, validation=source[held])
    parameters: dict[str, JSON] = {"target": settings.target, "validation": float(share), "published": bool(published)}
    return build_manifest(table, "classic", parameters, seed, parts)


def _published_validation(subset: pd.Series[str]) -> pd.Series[bool]:
    """VLCS holds its 30 % in `test`; PACS, whose lists have no such subset, its 10 % in `crossval`."""
    return subset == ("test" if (subset == "test").any() else "crossval")
