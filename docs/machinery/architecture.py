"""The picture of the page Architecture, drawn from the list below: `python -m docs.machinery.architecture`.

The picture has its own background and follows light and dark mode, so that it can be read on any page.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "pictures" / "architecture.svg"
WIDTH, HEIGHT, BOX = 1000, 696, 84  # of the picture, and the height of a box
STYLE = """
  svg { font-family: system-ui, sans-serif; --ground: #ffffff; --frame: #f1f4f6; --box: #ffffff; --ink: #1d2730;
        --soft: #55636f; --line: #8a98a4; --one: #c2571a; --two: #0b7a75; }
  @media (prefers-color-scheme: dark) {
    svg { --ground: #16191d; --frame: #1f242a; --box: #2a3138; --ink: #e8edf1; --soft: #a9b6c1; --line: #71808d;
          --one: #f0955b; --two: #4fc9c2; }
  }
  .ground { fill: var(--ground); } .frame { fill: var(--frame); } .box { fill: var(--box); stroke: var(--line); }
  .one { stroke: var(--one); stroke-width: 2; } .two { stroke: var(--two); stroke-width: 2; }
  .title { font-size: 16.5px; font-weight: 600; fill: var(--ink); } .name { font-size: 14px; fill: var(--soft); }
  .code { font-family: ui-monospace, monospace; font-size: 13.2px; fill: var(--soft); }
  .arrow { fill: none; stroke: var(--line); stroke-width: 1.6; marker-end: url(#head); } .head { fill: var(--line); }
"""


@dataclass(frozen=True)
class Step:
    """file: below `src/stablenet`.   note: a third line, such as the function.   style: a class of the box."""

    title: str
    file: str
    note: str
    x: int
    y: int
    width: int
    style: str = ""


FRAMES = (  # what happens when, y, height
    ("Data, once", 16, 134),
    ("Training, for every batch", 162, 372),
    ("Results, from files", 546, 134),
)
COLUMNS = (32, 272, 512, 752)
WIDE = 216
STEPS = (
    Step("1  Source", "data/sources/source.py", "read_source", COLUMNS[0], 52, WIDE),
    Step("2  Split", "data/splits/__init__.py", "split_images", COLUMNS[1], 52, WIDE),
    Step("3  Manifest", "data/manifest.py", "Manifest", COLUMNS[2], 52, WIDE),
    Step("4  Pixel store", "data/prepare.py", "prepare", COLUMNS[3], 52, WIDE),
    Step("5  Loader", "data/loader.py", "Loader.epoch", COLUMNS[0], 198, WIDE),
    Step("6  Augmentation", "data/augment.py", "Augment.apply", COLUMNS[1], 198, WIDE),
    Step("7  Network", "models/network.py", "Network.forward_taps", COLUMNS[2], 198, WIDE),
    Step("8  Taps", "models/taps.py", "shape_tap", COLUMNS[3], 198, WIDE),
    Step("11  Step", "engine/stepping.py", "EngineStepper.descend", COLUMNS[0], 318, WIDE),
    Step("10  Loss", "algorithms/algorithm.py", "classify", COLUMNS[1], 318, WIDE),
    Step("9  Weights, batch", "weighting/module.py", "paper: in every step", COLUMNS[3], 318, WIDE, "one"),
    Step("9  Weights, whole set", "weighting/dataset.py", "recommended: once", COLUMNS[3], 428, WIDE, "two"),
    Step("12  Records, models", "engine/state.py", "save_checkpoint", COLUMNS[0], 582, WIDE),
    Step("13  Selection", "evaluation/evaluate.py", "select_epoch", COLUMNS[1], 582, WIDE),
    Step("14  Evaluation", "evaluation/evaluate.py", "evaluate_run", COLUMNS[2], 582, WIDE),
    Step("16  Report page", "report/report_page.py", "build_report", COLUMNS[3], 582, WIDE),
    Step("15  weights.parquet", "engine/run.py", "save_weights", COLUMNS[2], 428, WIDE),
)
ARROWS = (
    *(f"M{x + WIDE} {y + BOX / 2:g} H{x + 237}" for y in (52, 198, 582) for x in COLUMNS[:3]),
    "M860 136 V156 H228 V195",  # pixels to the loader
    f"M860 {198 + BOX} V315",  # taps to weights of the batch
    "M968 240 H976 V470 H971",  # taps to weights of the whole set
    f"M620 {198 + BOX} V300 H380 V315",  # logits to the loss
    "M752 360 H491",  # weights to the loss
    "M752 448 H740 V376 H491",  # weights and offsets to the loss
    "M380 402 V470 H509",  # what entered the loss is kept
    "M272 360 H251",  # loss to step
    "M100 318 V285",  # next batch
    "M228 402 V579",  # step to records
    "M620 512 V548 H860 V579",  # kept weights to the report
)
NAMES = (  # text, x, y
    ("next batch", 108, 305),
    ("logits", 496, 295),
    ("after each epoch", 98, 480),
    ("weight", 660, 353),
    ("weight and offset", 598, 394),
    ("at the end", 400, 462),
)


def draw() -> str:
    """The picture as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>From the source to the report page</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="12"/>',
    ]
    for title, y, height in FRAMES:
        parts.append(f'<rect class="frame" x="16" y="{y}" width="{WIDTH - 32}" height="{height}" rx="10"/>')
        parts.append(_write("name", title, 32, y + 23))
    parts += [f'<path class="arrow" d="{path}"/>' for path in ARROWS]
    parts += [_write("name", text, x, y) for text, x, y in NAMES]
    for step in STEPS:
        parts.append(
            f'<rect class="box {step.style}" x="{step.x}" y="{step.y}" width="{step.width}" height="{BOX}" rx="8"/>'
        )
        for kind, text, down in (
            ("title", step.title, 27),
            ("code", step.file, 50),
            ("code" if step.note.isidentifier() or "." in step.note else "name", step.note, 70),
        ):
            parts.append(_write(kind, text, step.x + 14, step.y + down))
    return "\n".join([*parts, "</svg>", ""])


def _write(kind: str, text: str, x: int, y: int) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
