"""What `recommended` decides on the beds to report on, without training: results/natural/decisions.json and its page.

    python -m benchmarks.decisions DATA          # DATA: MNIST, BSDS500, PACS, pets and places

The recipes and seeds are those of results/natural/division.md. Where it does not act, `recommended` is plain training
to the bit, so that there the decision is the whole result. Kept after every bed; known beds are not looked at again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.context import describe
from stablenet.engine.config import assemble_config
from stablenet.engine.run_data import open_data
from stablenet.weighting.evidence import Evidence, EvidenceSums
from stablenet.weighting.recommended import KINDS, LEAST_BORDER, SURROUNDINGS, TIED, decide

SEEDS, MORE = range(50, 55), range(50, 60)
PETS = ("street", "sea", "breeds", "few")
TARGETS = ("art_painting", "cartoon", "photo", "sketch")
DRAWN = ("data.parameters.published=false", "data.parameters.allow_shortfall=true")
Row = dict[str, Any]


def list_beds() -> Iterator[tuple[str, range, bool, tuple[str, ...]]]:
    """Recipe, seeds, whether there is something to gain, further settings."""
    for ratio in ("random", "0.95", "0.8", "0.9", "0.99"):
        for bed in PETS:
            yield f"natural-{bed}-{ratio}", MORE if ratio == "random" else SEEDS, ratio != "random", ()
    for ratio in ("random", "0.9", "0.95"):
        yield f"mnistm-{ratio if ratio == 'random' else 'dr' + ratio}", MORE, ratio != "random", ()
    yield "pacs-unbalanced-flexible-5", MORE, True, DRAWN
    for target in TARGETS:
        yield f"pacs-classic-{target}", SEEDS, False, ()
        yield f"pacs-unbalanced-5-{target}", SEEDS, False, ()


def look(recipe: str, seed: int, settings: tuple[str, ...], root: Path) -> Row:
    """As a training begins: all images of the training part, as they are stored."""
    config = assemble_config(recipe, settings=[f"seed={seed}", *settings])
    samples = open_data(config, root).open_part("train")
    named = int(samples.domain.max()) + 1 if len(samples.domain.unique()) > 1 else 0
    sums = EvidenceSums(int(samples.y.max()) + 1, named)
    sums.add(samples.y, samples.index, describe(samples), samples.domain)
    return {"seed": seed, "images": len(samples), **decide(sums.weigh()).figures}


def decide_by_pixels(row: Row) -> bool:
    """What the rule would say without the names of places, backgrounds and domains."""
    evidence = Evidence(
        border=row["border_predicts"],
        middle=row["middle_predicts"],
        quotient=row["border_over_middle"],
        least=row["border_over_middle_at_least"],
        blank=row.get("border_of_one_colour"),
    )
    return decide(evidence).act


def write_page(found: dict[str, list[Row]]) -> str:
    gains = {recipe: gain for recipe, _, gain, _ in list_beds()}
    looks = [(row["acts"] > 0, gains[recipe]) for recipe, rows in found.items() for row in rows]
    right = sum(acts == gain for acts, gain in looks)
    hits, acted, useful = sum(acts and gain for acts, gain in looks), sum(a for a, _ in looks), sum(g for _, g in looks)
    blind = sum(decide_by_pixels(row) == gains[recipe] for recipe, rows in found.items() for row in rows)
    beds = [2 * sum((row["acts"] > 0) == gains[recipe] for row in rows) > len(rows) for recipe, rows in found.items()]
    lines = [
        "# What `recommended` decides on the beds to report on",
        "",
        "`python -m benchmarks.decisions data`; recipes and seeds of [the division](division.md), looked at once.",
        "Where it does not act, it is plain training to the bit: the difference is zero.",
        "There is said to be something to gain where places, backgrounds or domains follow the class.",
        "",
        f"- Right: **{right} of {len(looks)}** looks; on most seeds of **{sum(beds)} of {len(beds)}** beds.",
        f"- Precision: where it acts there is something to gain, **{hits} of {acted}**.",
        f"- Recall: where there is something to gain it acts, **{hits} of {useful}**.",
        f"- From pixels alone, without names of places, backgrounds and domains: right on {blind} of {len(looks)}.",
        "",
        "Names can only keep it from acting. The last column: what the border predicts over what the middle does,",
        "two standard errors below what was measured, smallest and largest of the seeds.",
        f"It acts from {SURROUNDINGS} on, where the border predicts at least {100 * LEAST_BORDER:.0f} % of the label",
        f"(less with more than {KINDS} classes) and is not blank,",
        f"and named domains, if there are some, at least {100 * TIED:.0f} % of its entropy.",
        "",
        "| recipe | something to gain | seeds | acts | border over middle, at least |",
        "|---|---|---|---|---|",
    ]
    for recipe, rows in found.items():
        least = [row["border_over_middle_at_least"] for row in rows]
        acts = f"{sum(row['acts'] > 0 for row in rows)} of {len(rows)}"
        cells = [
            *(recipe, "yes" if gains[recipe] else "no", f"{rows[0]['seed']}–{rows[-1]['seed']}", acts),
            f"{min(least):.2f} to {max(least):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/natural"))
    arguments = parser.parse_args()
    file, page = arguments.out / "decisions.json", arguments.out / "decisions.md"
    found: dict[str, list[Row]] = json.loads(file.read_text()) if file.exists() else {}
    for recipe, seeds, _, settings in list_beds():
        if recipe in found:
            continue
        found[recipe] = [look(recipe, seed, settings, arguments.data) for seed in seeds]
        print(recipe, [row["acts"] for row in found[recipe]], flush=True)
        file.write_text(json.dumps(found, indent=1) + "\n")
        page.write_text(write_page(found))
    page.write_text(write_page(found))


if __name__ == "__main__":
    main()
