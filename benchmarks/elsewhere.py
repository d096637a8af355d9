"""What the rule of `recommended` says of real sets it was not made for: results/natural/elsewhere.md. No training.

    python -m benchmarks.elsewhere DATA          # DATA: PACS, pets, places

Whole sets as they are, single domains of them, sets tied by leaving images out, and sets whose class is the style or
the place itself, where acting takes away what is to be learned. No rule was changed after this.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stablenet.data.image_list import ImageList
from stablenet.data.sources import read_source
from stablenet.data.sources.own import open_own
from stablenet.diagnose.diagnoses import Observed
from stablenet.diagnose.subject import Subject, choose_images, extract_features, from_table
from stablenet.weighting import evidence

MOST = 1500  # images looked at
DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
Row = dict[str, Any]
Made = Callable[[], Subject]


def keep_domain(table: ImageList, name: str) -> Subject:
    """The images of one domain alone; their classes stay."""
    rows = table.rows[table.rows["domain"] == table.domains.index(name)]
    return from_table(replace(table, rows=rows.reset_index(drop=True)))


def swap(subject: Subject) -> Subject:
    """The contexts as classes, no context."""
    assert subject.context is not None
    return replace(subject, classes=subject.contexts, y=subject.context, contexts=(), context=None)


def forget(subject: Subject) -> Subject:
    return replace(subject, contexts=(), context=None)


def tie(subject: Subject, ratio: float) -> Subject:
    """`ratio` of a class from one context, the k-th class from the k-th: images are dropped, none is changed."""
    assert subject.context is not None
    rng, kept = np.random.default_rng(0), []
    for label in range(len(subject.classes)):
        rows = np.flatnonzero(subject.y == label)
        own = rows[subject.context[rows] == label % len(subject.contexts)]
        others = rng.permutation(rows[subject.context[rows] != label % len(subject.contexts)])
        kept.append(np.concatenate([own, others[: round(len(own) * (1 - ratio) / ratio)]]))
    return forget(subject.take(np.sort(np.concatenate(kept))))


def list_sets(data: Path) -> Iterator[tuple[str, str, bool | None, Made]]:
    """Name, what is known of it, whether to act (None: unknown), and how it is made."""
    pets, places = data / "pet-cutouts.zip", data / "places.zip"

    def read_pacs() -> ImageList:
        table = read_source("pacs", data)
        assert isinstance(table, ImageList)
        return table

    for name in DOMAINS:
        yield f"PACS, {name} alone", "surroundings as found", None, partial(lambda n: keep_domain(read_pacs(), n), name)
    yield "PACS, all domains", "domains hardly predict the class", False, lambda: forget(from_table(read_pacs()))
    for share in (0.4, 0.6, 0.8, 0.95):
        known = f"{100 * share:.0f} % of a class from one domain"
        yield f"PACS, {share} in one domain", known, True, partial(lambda r: tie(from_table(read_pacs()), r), share)
    yield "PACS, the domain as the class", "the style is the class", False, lambda: swap(from_table(read_pacs()))
    yield "pets cut out, 37 breeds", "no surroundings", False, lambda: forget(from_table(open_own(pets)))
    yield "pets cut out, cats and dogs", "no surroundings", False, lambda: swap(from_table(open_own(pets)))
    yield "places", "the surroundings are the class", False, lambda: forget(from_table(open_own(places)))


def look(subject: Subject) -> Row:
    """The decision from the pixels alone."""
    seen = Observed(evidence.extract_bank)
    found = extract_features(choose_images(subject, MOST, 0), seen, evidence.SIDE).subject
    decision = seen.decide(torch.from_numpy(np.unique(found.y, return_inverse=True)[1]))
    return {"images": len(found), **decision.figures}


def write_page(found: dict[str, tuple[str, bool | None, Row]]) -> str:
    lines = [
        "# The rule elsewhere",
        "",
        "`python -m benchmarks.elsewhere data`: what `recommended` would decide, from pixels alone, on sets of real",
        f"images made in other ways than those its numbers were chosen on, at most {MOST:,} images each. Nothing was",
        "trained, and no number changed after it.",
        "",
        "| set | what is known | images | border | middle | border over middle, at least | the rule | right |",
        "|---" * 8 + "|",
    ]
    for name, (known, should, row) in found.items():
        shares = f"{100 * row['border_predicts']:.0f} % | {100 * row['middle_predicts']:.0f} %"
        quotient = f"{row['border_over_middle']:.2f}, {row['border_over_middle_at_least']:.2f}"
        right = "" if should is None else "yes" if should == (row["acts"] > 0) else "**no**"
        does = "acts" if row["acts"] else "plain"
        lines.append(f"| {name} | {known} | {row['images']:,} | {shares} | {quotient} | {does} | {right} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/natural"))
    arguments = parser.parse_args()
    found: dict[str, tuple[str, bool | None, Row]] = {}
    for name, known, should, make in list_sets(arguments.data):
        found[name] = known, should, look(make())
        print(name, found[name][2]["decision"], flush=True)
        (arguments.out / "elsewhere.md").write_text(write_page(found))


if __name__ == "__main__":
    main()
