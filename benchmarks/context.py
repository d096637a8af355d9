"""Whether to act, and on what: the rule of `recommended` and rival signs on the sets to develop on.

    python -m benchmarks.context DATA --cache CACHE        # DATA: MNIST, BSDS500, PACS, pets, places, ResNet-50 weights

Writes results/natural/context.json and context.md. Nothing is trained but linear heads:

- THE RULE on every bed, from the stored pixels of the training part, as training and diagnosis apply it.
- PROXIES of the context, on the beds with features of a pretrained ResNet-50: how well a low p(label | proxy) singles
  out the samples outside their class's main context (area under the curve, 0.5 for chance), and what logistic heads on
  its last layer gain on the test part when they are fitted with the proxy's offsets.
- RIVAL SIGNS on the same beds: by how much a cross-fitted head is more often right where the border predicts the label
  rightly, and what offsets gain on hidden pairs of class and border's prediction.

With `--only` the beds whose names begin so are measured, and the figures of the others kept. On one core, five minutes
without the reading of features, which takes 25 ms an image, 10,000 images.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from benchmarks.context_beds import LOOKED_AT, Bed, Images, Opener, draw_rows, list_beds
from benchmarks.probe import fit_head
from stablenet.data.loader import PartSamples
from stablenet.models.taps import LAST
from stablenet.weighting import recommended, solve_offsets
from stablenet.weighting.evidence import Described, EvidenceSums, describe_pixels
from stablenet.weighting.recommended import BORDER_TAP, TAPS, decide

STRENGTHS = (1.0, 1.5, 2.0)
RIDGE = 1e-3
AXES = 128  # of the last layer that heads see
DRAWS = 3  # of hidden pairs
LEAST_GROUP = 4  # test images of a class in a context for its accuracy to count
LEADING, STAGES, DEEP = "leading components", "of stages 1 and 2 alone", "of stage 3's border alone"
BORDER, TABLE, WHOLE, KNOWN = "pixels of the border", "its class", "pixels", "known context"
NAMES = (LEADING, STAGES, DEEP, BORDER, TABLE, WHOLE, KNOWN)
Row = dict[str, Any]


def describe(samples: PartSamples) -> Described:
    """Hand-made features of the pixels as they are stored."""
    parts = [describe_pixels(samples.pixels.read(rows)) for rows in samples.row.split(256)]
    return Described(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def judge(bed: Bed, y: Tensor, described: Described) -> Row:
    """What the rule says of a bed, blind."""
    sums = EvidenceSums(int(y.max()) + 1)
    sums.add(y, torch.arange(len(y)), described)
    decision = decide(sums.weigh())
    return {"images": len(y), "should_act": bed.acts, **decision.figures}


def make_proxies(images: Images, described: Described) -> dict[str, Tensor]:
    """Offsets (n, C) by each proxy, at full strength; those of the known context for comparison."""
    y = images.y
    stages = {tap: images.features[tap].float() for tap in (*TAPS, BORDER_TAP)}
    read = {LEADING: (*TAPS, BORDER_TAP), STAGES: TAPS, DEEP: (BORDER_TAP,)}
    leading = {
        name: solve_offsets({tap: stages[tap] for tap in taps}, y, components=recommended.PRETRAINED_COMPONENTS).values
        for name, taps in read.items()
    }
    border = solve_offsets(described.border, y)
    predicted = (border.values / border.trust + border.log_prior if border.trust else border.values).argmax(1)
    return {
        **leading,
        BORDER: trust_whole(border),
        TABLE: count_offsets(predicted, y),
        WHOLE: trust_whole(solve_offsets(described.whole, y)),
        KNOWN: count_offsets(images.context, y),
    }


def trust_whole(offsets: Any) -> Tensor:
    return offsets.values / offsets.trust if offsets.trust else offsets.values


def count_offsets(codes: Tensor, y: Tensor) -> Tensor:
    """log p(y | code) − log p(y) by counts of the other samples (n, C), drawn to the prior by √C samples."""
    classes = int(y.max()) + 1
    prior = torch.bincount(y, minlength=classes) / len(y)
    table = torch.zeros(int(codes.max()) + 1, classes)
    table.view(-1).index_add_(0, codes * classes + y, torch.ones(len(y)))
    rows = table[codes]
    rows[torch.arange(len(y)), y] -= 1
    likely = (rows + prior * classes**0.5) / (rows.sum(1, keepdim=True) + classes**0.5)
    return likely.log() - prior.log()


def single_out(offsets: Tensor, images: Images) -> float | None:
    """Area under the curve: samples outside their class's main context by low offsets of their own class."""
    own = offsets.gather(1, images.y[:, None]).squeeze(1)
    total, count = 0.0, 0
    for label in images.y.unique():
        rows = images.y == label
        off = images.context[rows] != images.context[rows].mode().values
        number, pairs = int(off.sum()), int(off.sum()) * int((~off).sum())
        if pairs:
            rank = own[rows].argsort().argsort().double()
            area = 1 - float(rank[off].sum() - number * (number - 1) / 2) / pairs
            total, count = total + number * area, count + number
    return round(total / count, 3) if count else None


def measure(predicted: Tensor, test: Images, train: Images) -> Row:
    """mean, worst group of class and context, and mean away from each class's main training context, in percent."""
    right = (predicted == test.y).float()
    group = test.y * (int(test.context.max()) + 1) + test.context
    sizes = [(float(right[group == g].mean()), int((group == g).sum())) for g in group.unique()]
    main = torch.stack([train.context[train.y == label].mode().values for label in range(int(train.y.max()) + 1)])
    away = right[test.context != main[test.y]]
    found = {"mean": float(right.mean()), "away": float(away.mean())}
    found["worst"] = min(share for share, size in sizes if size >= LEAST_GROUP)
    return {name: round(100 * value, 2) for name, value in found.items()}


def project(train: Tensor, *others: Tensor) -> list[Tensor]:
    """The leading axes of standardized features, all of the same mean scale."""
    centre, scale = train.mean(0), train.std(0).clamp_min(1e-6)
    z = [(features - centre) / scale for features in (train, *others)]
    axes = torch.linalg.svd(z[0], full_matrices=False).Vh[:AXES].T
    spread = (z[0] @ axes).std()
    return [features @ axes / spread for features in z]


def predict(z: Tensor, head: tuple[Tensor, Tensor]) -> Tensor:
    return (z @ head[0] + head[1]).argmax(1)


def try_heads(train: Images, test: Images, proxies: dict[str, Tensor]) -> Row:
    """Of plain heads the figures, of heads with offsets what they gain, by proxy and strength."""
    z, z_test = project(train.features[LAST].float(), test.features[LAST].float())
    ones = torch.ones(len(z))
    plain = measure(predict(z_test, fit_head(z, train.y, ones, torch.zeros_like(proxies[KNOWN]), RIDGE)), test, train)
    gains: Row = {}
    for name, offsets in proxies.items():
        for strength in STRENGTHS:
            head = fit_head(z, train.y, ones, strength * offsets, RIDGE)
            found = measure(predict(z_test, head), test, train)
            gains.setdefault(name, {})[str(strength)] = {key: round(found[key] - plain[key], 2) for key in plain}
    return {"plain": plain, "gains": gains}


def measure_excess(z: Tensor, y: Tensor, border: Tensor) -> float:
    """Accuracy of cross-fitted heads where the border predicts the label rightly, less where it does not."""
    zeros = torch.zeros(len(y), int(y.max()) + 1)
    fold, right = torch.arange(len(y)) % 5, torch.zeros(len(y), dtype=torch.bool)
    for k in range(5):
        shown = fold != k
        head = fit_head(z[shown], y[shown], torch.ones(int(shown.sum())), zeros[shown], RIDGE)
        right[~shown] = predict(z[~shown], head) == y[~shown]
    agrees = border == y
    return round(100 * float(right[agrees].float().mean() - right[~agrees].float().mean()), 2)


def gain_on_hidden(z: Tensor, y: Tensor, border: Tensor, offsets: Tensor) -> tuple[float, float]:
    """What offsets gain on hidden pairs of class and border's prediction and on pairs that agree: mean and error.

    Of every class the samples are hidden that the border takes for one other class, drawn, and a fifth of those that it
    takes rightly; accuracy is the mean of both.
    """
    gains = []
    for draw in range(DRAWS):
        generator = torch.Generator().manual_seed(draw)
        agrees, hidden = border == y, torch.zeros(len(y), dtype=torch.bool)
        for label in y.unique():
            others = border[(y == label) & ~agrees].unique()
            if len(others):
                hidden |= (y == label) & (border == others[torch.randint(len(others), (), generator=generator)])
        held = agrees & (torch.rand(len(y), generator=generator) < 0.2)
        shown = ~hidden & ~held
        ones, figures = torch.ones(int(shown.sum())), []
        for added in (torch.zeros_like(offsets), offsets):
            right = predict(z, fit_head(z[shown], y[shown], ones, added[shown], RIDGE)) == y
            figures.append(100 * float(right[hidden].float().mean() + right[held].float().mean()) / 2)
        gains.append(figures[1] - figures[0])
    return round(mean(gains), 2), round(stdev(gains) / DRAWS**0.5, 2)


def study(bed: Bed, opener: Opener) -> Row:
    """Everything of a bed."""
    samples = opener.open(bed, "train")
    rows = draw_rows(torch.arange(len(samples)), LOOKED_AT).sort().values
    kept = PartSamples(samples.pixels, samples.row[rows], *(torch.empty(0),) * 3, 0)
    y = samples.y[rows]
    if bed.per_class:
        few = torch.cat([(y == label).nonzero().squeeze(1)[: bed.per_class] for label in y.unique()])
        kept, y = PartSamples(samples.pixels, kept.row[few], *(torch.empty(0),) * 3, 0), y[few]
    found = {"bed": bed.name, **judge(bed, y, describe(kept))}
    return found | (study_network(bed, opener, samples) if bed.network else {})


def study_network(bed: Bed, opener: Opener, samples: PartSamples) -> Row:
    train, test = opener.read_features(bed, "train"), opener.read_features(bed, "test")
    place = {name: row for row, name in enumerate(samples.pixels.ids)}
    row = torch.tensor([place[name] for name in train.ids])
    described = describe(PartSamples(samples.pixels, row, train.y, train.context, row, len(row)))
    proxies = make_proxies(train, described)
    [z] = project(train.features[LAST].float())
    border = (proxies[BORDER] + (torch.bincount(train.y) / len(train.y)).log()).argmax(1)
    found = {
        "singles_out": {name: single_out(offsets, train) for name, offsets in proxies.items()},
        **try_heads(train, test, proxies),
    }
    if len(border.unique()) > 1:  # else it predicts nothing
        found["excess"] = measure_excess(z, train.y, border)
        found["hidden"] = gain_on_hidden(z, train.y, border, proxies[LEADING])
    return found


def write_rule(rows: Sequence[Row]) -> str:
    head = "| bed | images | border | middle | border over middle | at least | the rule | right |"
    lines = [head, "|---" * 8 + "|"]
    for row in rows:
        shares = f"{100 * row['border_predicts']:.1f} % | {100 * row['middle_predicts']:.1f} %"
        quotient = f"{row['border_over_middle']:.2f} | {row['border_over_middle_at_least']:.2f}"
        does, right = "acts" if row["acts"] else "plain", "yes" if bool(row["acts"]) == row["should_act"] else "**no**"
        lines.append(f"| {row['bed']} | {row['images']:,} | {shares} | {quotient} | {does} | {right} |")
    return "\n".join(lines)


def write_proxies(rows: Sequence[Row]) -> str:
    lines = ["| bed | " + " | ".join(NAMES) + " |", "|---" * (1 + len(NAMES)) + "|"]
    for row in rows:
        cells = []
        for name in NAMES:
            gains = " ".join(f"{row['gains'][name][str(strength)]['away']:+.1f}" for strength in STRENGTHS)
            area = row["singles_out"][name]
            cells.append(f"{'–' if area is None else f'{area:.2f}'}: {gains}")
        lines.append(f"| {row['bed']} ({row['plain']['away']:.1f}) | " + " | ".join(cells) + " |")
    return "\n".join(lines).replace("-", "−").replace("|−−−", "|---")


def write_signs(rows: Sequence[Row]) -> str:
    lines = ["| bed | border over middle | excess accuracy | gain on hidden pairs | gain at test |", "|---" * 5 + "|"]
    for row in rows:
        excess = f"{row['excess']:+.1f}" if "excess" in row else "–"
        hidden = "{:+.1f} ± {:.1f}".format(*row["hidden"]) if "hidden" in row else "–"
        tested = f"{row['gains'][LEADING]['1.0']['away']:+.1f}"
        cells = f"{row['border_over_middle']:.2f} | {excess} | {hidden} | {tested}"
        lines.append(f"| {row['bed']} | {cells} |".replace("-", "−"))
    return "\n".join(lines)


def write_strengths(rows: Sequence[Row]) -> str:
    """What the heads gain by proxy and strength where the rule acts: means over beds of the three figures."""
    acted = [row for row in rows if row["acts"]]
    heads = [f"{name} × {strength:g}" for name in NAMES[:3] for strength in STRENGTHS]
    lines = ["| offsets | mean | away from the main context | worst group | beds ahead, away |", "|---" * 5 + "|"]
    for head in (*heads, *(f"{KNOWN} × {strength:g}" for strength in STRENGTHS)):
        name, _, strength = head.partition(" × ")
        gains = [row["gains"][name][str(float(strength))] for row in acted]
        cells = []
        for key in ("mean", "away", "worst"):
            values = [gain[key] for gain in gains]
            cells.append(f"{mean(values):+.1f} ± {stdev(values):.1f}".replace("-", "−"))
        ahead = sum(gain["away"] > 0 for gain in gains)
        lines.append(f"| {head} | {' | '.join(cells)} | {ahead} of {len(gains)} |")
    return "\n".join(lines)


def fill(text: str, parts: dict[str, str]) -> str:
    """Put tables between the marks of their names in a page."""
    for name, table in parts.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        before, rest = text.split(begin)
        text = before + begin + table + "\n" + end + rest.split(end)[1]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("context-cache"), help="for features of the network")
    parser.add_argument("--out", type=Path, default=Path("results/natural"))
    parser.add_argument("--only", default="", help="measure the beds whose names begin so, keep the others")
    arguments = parser.parse_args()
    file, page = arguments.out / "context.json", arguments.out / "context.md"
    known = {row["bed"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    opener, beds = Opener(arguments.data, arguments.cache), list(list_beds())
    for bed in beds:
        if bed.name.startswith(arguments.only):
            known[bed.name] = study(bed, opener)
            print(json.dumps(known[bed.name]), flush=True)
            file.write_text(json.dumps([known[b.name] for b in beds if b.name in known], indent=1) + "\n")
    rows = [known[bed.name] for bed in beds if bed.name in known]
    heads = [row for row in rows if "gains" in row]
    parts = {
        "rule": write_rule(rows),
        "proxies": write_proxies(heads),
        "signs": write_signs(heads),
        "strengths": write_strengths(heads),
    }
    page.write_text(fill(page.read_text(), parts))


if __name__ == "__main__":
    main()
