"""A whole diagnosis, of images or of a table. Nothing is trained.

Images are read once, then shallow features are measured, weighed and judged. The weights are those that a run kept, or
are solved as training with the preset `recommended` solves them. Features that need no network are those of
`stablenet.weighting.evidence`.

For a table it shows which columns depend on the label and on each other, and what weights could remove. In a table
every column may be a cause, so the weights are those of `stablenet table fit`: they make the columns independent of
each other, not of the label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from stablenet.diagnose.measure import (
    STRENGTHS,
    ContextFindings,
    Trade,
    measure_explained,
    one_hot,
    read_own,
    share_left,
    study_context,
    weigh_labels,
)
from stablenet.diagnose.subject import FEWEST, Collected, Extract, Subject, choose_images, extract_features
from stablenet.diagnose.verdict import (
    HAND_MADE,
    NETWORK,
    SIGNIFICANT,
    Bars,
    ColumnFinding,
    Diagnosis,
    Pair,
    judge_images,
    judge_table,
)
from stablenet.errors import UserError
from stablenet.independence import independence_test, pairwise_independence_test
from stablenet.metrics import effective_share
from stablenet.models import FeatureTaps, build_network
from stablenet.tabular.encode import Encoding, encode, learn_encoding
from stablenet.tabular.estimator import MAX_CORRELATION
from stablenet.tabular.estimators import StableClassifier
from stablenet.tabular.reading import Array, DividedTable, TableQuestion, Task, divide_table, name_misfits, read_table
from stablenet.tabular.solve import FunctionSettings, SolveSettings, draw_functions, prepare_statistic, solve_table
from stablenet.weighting import evidence, pool_maps, recommended
from stablenet.weighting.evidence import Described, EvidenceSums, pool_border
from stablenet.weighting.recommended import TAPS, Decision

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # what published ImageNet weights were trained with


class ShallowStages:
    """Features of the first two stages; the network is run no further."""

    def __init__(self, name: str, pretrained: str, root: Path | None = None) -> None:
        if not pretrained:
            raise UserError(
                f"the backbone {name} has no weights: give --pretrained imagenet or a .safetensors file, "
                "or leave --backbone out to use the hand-made features"
            )
        network = build_network(name, 1, pretrained=pretrained, root=root).eval()
        missing = [stage for stage in TAPS if stage not in network.stages]
        if missing:
            raise UserError(f"the backbone {name} has no {missing[0]}: choose one with stages, such as resnet50")
        self._body = network.body
        self._taps = FeatureTaps(network.body, TAPS, stages=network.stages, pool=_pool_both)
        self.description = f"{name} with the weights {Path(pretrained).name}: pooled maps of its first two stages"

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """pixels: (b, s, s, 3) uint8.   Returns features of the whole image and of its border, (b, m) each."""
        images = pixels.permute(0, 3, 1, 2).float() / 255
        with self._taps.stop_early():
            self._body((images - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None])
        whole, border = torch.cat(list(self._taps.take().values()), 2)
        return whole, border


def _pool_both(maps: Tensor) -> Tensor:
    """Maps (b, c, h, w) pooled over the image and over its border: (2, b, 2c)."""
    if maps.ndim != 4:
        raise UserError("the stages of this backbone give no maps of positions: choose a convolutional one")
    return torch.stack([pool_maps(maps), pool_border(maps)])


Report = Callable[[str, int, int], None]  # what is done, how many, of how many
NETWORK_SIDE = 128  # the first stages see textures well there, at a third of the usual cost


@dataclass(frozen=True, kw_only=True)
class ImageChoices:
    """backbone, pretrained: as `stablenet.models.build_network` takes them; "" for the hand-made features.
    root: folder the weights may lie below.   limit: images looked at, drawn at random.   seed: draws them.
    """

    backbone: str = ""
    pretrained: str = ""
    root: Path | None = None
    limit: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.pretrained and not self.backbone:
            raise UserError("--pretrained needs --backbone: name the network the weights belong to, such as resnet50")


def diagnose_images(subject: Subject, choices: ImageChoices, report: Report | None = None) -> Diagnosis:
    """Does context predict the label, what could weights do about it, and which samples would they raise?"""
    extract, side, features = _choose_features(choices, subject.side)
    bars = NETWORK if choices.backbone else HAND_MADE
    chosen = choose_images(subject, choices.limit, choices.seed)
    seen = Observed(extract)
    found = extract_features(chosen, seen, side, _bind(report, "reading images"))
    return _judge(found, seen, features, bars, choices, report)


class Observed:
    """Features of images, and those on which the decision of `recommended` is based, in the same order."""

    def __init__(self, extract: Extract) -> None:
        self._extract = extract
        self._parts: list[Described] = []

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        seen = evidence.describe_pixels(pixels)
        self._parts.append(seen)
        return seen[:2] if self._extract is evidence.extract_bank else self._extract(pixels)

    def decide(self, y: Tensor, contexts: Tensor | None = None) -> Decision:
        """What training decides with act="auto".   y, contexts: (n,) of all images that were read, from 0 on."""
        sums = EvidenceSums(int(y.max()) + 1, 0 if contexts is None else int(contexts.max()) + 1)
        described = Described(*(torch.cat(parts) for parts in zip(*self._parts, strict=True)))
        sums.add(y, torch.arange(len(y)), described, contexts)
        return recommended.decide(sums.weigh())


def _judge(
    found: Collected, seen: Observed, features: str, bars: Bars, choices: ImageChoices, report: Report | None
) -> Diagnosis:
    subject = found.subject
    codes = torch.from_numpy(subject.y)
    y = codes.unique(return_inverse=True)[1]
    whole, outer = (measure_explained(z, one_hot(codes)) for z in (found.whole, found.border))
    named = None if subject.context is None else torch.from_numpy(subject.context)
    decision = seen.decide(y, named)
    trades, weights, origin = _weigh_images(found, y, choices)
    if report is not None:
        report("weights", 1, 1)
    context = None
    if named is not None:
        context = study_context(subject.contexts, named, y, found.whole, weights)
    return Diagnosis(
        name=subject.name,
        classes=tuple(subject.classes[code] for code in codes.unique().tolist()),
        y=y,
        features=features,
        whole=whole,
        border=outer,
        trades=tuple(trades),
        weights=weights,
        weights_from=origin,
        context=context,
        scores=read_own(whole.scores, y) / 2 + read_own(outer.scores, y) / 2,
        ids=tuple(subject.ids),
        paths=tuple(subject.paths),
        show=subject.show,
        notes=subject.notes,
        bars=bars,
        verdict=judge_images(whole, outer, trades[-1], decision, context, bars),
    )


def _weigh_images(found: Collected, y: Tensor, choices: ImageChoices) -> tuple[list[Trade], Tensor, str]:
    """The trade-offs on the way to the weights, the weights (n,), and where they come from."""
    subject, pretrained = found.subject, bool(choices.backbone)
    if subject.weights is None:
        trades, weights = weigh_labels(found.whole, y, pretrained=pretrained, seed=choices.seed)
        kind = "pretrained network" if pretrained else "network trained from scratch"
        return trades, weights, f"{subject.weights_note}solved with the preset `{recommended.NAME}` for a {kind}"
    weights = torch.from_numpy(subject.weights)
    left = None if subject.dependence is None else share_left(*subject.dependence)
    return [Trade(1.0, left, effective_share(weights))], weights, subject.weights_note


def _choose_features(choices: ImageChoices, own_side: int | None) -> tuple[Extract, int, str]:
    if choices.backbone:
        stages = ShallowStages(choices.backbone, choices.pretrained, choices.root)
        return stages, NETWORK_SIDE, stages.description
    return evidence.extract_bank, own_side or evidence.SIDE, evidence.DESCRIPTION


def _bind(report: Report | None, what: str) -> Callable[[int, int], None] | None:
    if report is None:
        return None
    return lambda done, total: report(what, done, total)


FIFTHS = ("lowest fifth", "second fifth", "middle fifth", "fourth fifth", "highest fifth")
ROWS_TESTED = 5000  # of a large table, for the tests of single columns and pairs
STRONG_PAIR = 0.1  # weaker dependence of two columns need not be removed
MOST_SHOWN = 30
WEIGHTS_FROM = "solved as `stablenet table fit` solves them"


def diagnose_table(
    frame: pd.DataFrame,
    question: TableQuestion,
    name: str = "table",
    report: Callable[[str, int, int], None] | None = None,
) -> Diagnosis:
    """The same questions as for images, with the table's own columns as features."""
    with name_misfits():
        return _diagnose(frame, question, name, report)


def _diagnose(
    frame: pd.DataFrame, question: TableQuestion, name: str, report: Callable[[str, int, int], None] | None
) -> Diagnosis:
    table = divide_table(frame, question)
    x = table.x
    if len(x) < FEWEST:
        raise UserError(f"the table has {len(x)} rows to use: at least {FEWEST} are needed")
    codes, classes, notes = _read_target(table.y, table.task)
    y = torch.from_numpy(codes)
    design, encoding = _encode(x, question)
    trades, weights = _weigh_columns(design, encoding, question.seed, report)
    numbers = encoding.number_columns(design)
    columns = _test_columns(numbers, encoding, y, question.seed)
    pairs, count = _test_pairs(numbers, encoding, question.seed)
    context = _study(table, question, y, design, weights)
    whole = measure_explained(torch.from_numpy(design), one_hot(y))
    return Diagnosis(
        name=name,
        classes=classes,
        y=y,
        features=f"the {x.shape[1]} columns of the table",
        whole=whole,
        trades=tuple(trades),
        weights=weights,
        weights_from=WEIGHTS_FROM,
        context=context,
        scores=read_own(whole.scores, y),
        ids=tuple(str(name) for name in x.index),
        columns=tuple(columns),
        pairs=tuple(pairs),
        rows=tuple(_describe_rows(x)),
        notes=(*table.notes, *notes),
        verdict=judge_table(len(pairs), count, trades[-1], context, _lowest_class(weights, y)),
    )


def _read_target(y: pd.Series[Any], task: Task) -> tuple[Array, tuple[str, ...], list[str]]:
    """Codes (n,), class names and notes; numbers are cut into fifths, so that one way serves both."""
    if y.nunique() < 2:
        raise UserError(f"the column {y.name!r} holds one value: there is nothing to predict")
    if task == "regression":
        if not pd.api.types.is_numeric_dtype(y):
            raise UserError(f"the target holds {y.iloc[0]!r}, which is not a number: use --task classification")
        codes = pd.qcut(y, len(FIFTHS), labels=False, duplicates="drop").to_numpy(np.int64)
        _, codes = np.unique(codes, return_inverse=True)
        return codes, FIFTHS[: codes.max() + 1], [f"{y.name} is a number: it was cut into fifths"]
    codes, names = pd.factorize(y, sort=True)
    return codes.astype(np.int64), tuple(map(str, names)), []


def _encode(x: pd.DataFrame, question: TableQuestion) -> tuple[Array, Encoding]:
    owner, chosen = StableClassifier(), [name for name in question.categorical if name in x.columns]
    table = read_table(owner, x, chosen)
    encoding = learn_encoding(owner, table, chosen, np.full(len(x), 1 / len(x)))
    return encode(owner, table, encoding), encoding


def _weigh_columns(
    design: Array, encoding: Encoding, seed: int, report: Callable[[str, int, int], None] | None
) -> tuple[list[Trade], torch.Tensor]:
    ones = np.ones(len(design))
    functions = draw_functions(encoding, FunctionSettings(seed=seed))
    statistic = prepare_statistic(design, encoding, functions, ones, MAX_CORRELATION)
    before = float(statistic.value_and_gradient(torch.from_numpy(ones))[0])
    weights = torch.from_numpy(solve_table(statistic, ones, SolveSettings()))
    trades = []
    for strength in STRENGTHS:
        part = 1 + strength * (weights - 1)
        after = float(statistic.value_and_gradient(part)[0])
        trades.append(Trade(strength, share_left(before, after), effective_share(part)))
    if report is not None:
        report("solving weights", 1, 1)
    return trades, weights


def _lowest_class(weights: torch.Tensor, y: torch.Tensor) -> float:
    """The mean weight of the class that loses most."""
    classes = one_hot(y)
    return float((classes.T @ weights / classes.sum(0)).min())


def _draw_rows(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).permutation(count)[:ROWS_TESTED]


def _test_columns(numbers: Array, encoding: Encoding, y: torch.Tensor, seed: int) -> list[ColumnFinding]:
    rows = _draw_rows(len(numbers), seed)
    labels = one_hot(y)[rows]
    labels = labels[:, labels.sum(0) > 0]
    result = independence_test(numbers[rows], labels, method="asymptotic", adjustment="holm")
    strengths, p_values = result.strength.amax(1).tolist(), result.p_value.amin(1).tolist()
    found = [
        ColumnFinding(block.name, strength, p)
        for block, strength, p in zip(encoding.blocks, strengths, p_values, strict=True)
    ]
    return sorted(found, key=lambda column: -column.strength)[:MOST_SHOWN]


def _test_pairs(numbers: Array, encoding: Encoding, seed: int) -> tuple[list[Pair], int]:
    """Pairs that clearly depend on each other, strongest first, and the number of all pairs."""
    result = pairwise_independence_test(numbers[_draw_rows(len(numbers), seed)])
    names = [block.name for block in encoding.blocks]
    pairs = [
        Pair(names[i], names[j], float(result.strength[i, j]), float(result.p_value[i, j]))
        for i in range(len(names))
        for j in range(i + 1, len(names))
    ]
    plain = [pair for pair in pairs if pair.p_value <= SIGNIFICANT and pair.strength >= STRONG_PAIR]
    return sorted(plain, key=lambda pair: -pair.strength), len(pairs)


def _study(
    table: DividedTable, question: TableQuestion, y: torch.Tensor, design: Array, weights: torch.Tensor
) -> ContextFindings | None:
    if table.environments is None:
        return None
    codes, names = pd.factorize(table.environments, sort=True)
    if len(names) < 2:
        raise UserError(f"the column {question.environment!r} holds one value: at least two are needed")
    context = torch.from_numpy(codes.astype(np.int64))
    return study_context(tuple(map(str, names)), context, y, torch.from_numpy(design), weights)


def _describe_rows(x: pd.DataFrame) -> list[str]:
    """The first few columns of every row, short enough for a page."""
    shown = x.iloc[:, :6]
    columns = [[f"{name} {_show(value)}" for value in shown[name]] for name in shown]
    return [" · ".join(parts) for parts in zip(*columns, strict=True)]


def _show(value: Any) -> str:
    if pd.isna(value):
        return "missing"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
