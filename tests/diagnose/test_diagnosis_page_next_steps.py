"""The argument of a diagnosis: shares in words with the right numbers, the ranked list, the commands, hostile names."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from stablenet.diagnose.diagnosis_page import (
    Asked,
    describe_class,
    order_classes,
    rank_samples,
    suggest_steps,
    write_lead,
    write_page,
)
from stablenet.diagnose.measure import Explained, Trade, study_context
from stablenet.diagnose.verdict import Diagnosis, Verdict, say_context, say_share, say_weight

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \" ' [/b] `a|b` &amp;"


def make(classes=("cat", "dog"), contexts=("indoors", "outdoors"), named=True, pictures=True, weights=None):
    """Forty samples, twenty of each class: one in twenty outside the class's own context weighs 5, the others 15/19."""
    y = torch.arange(40) % 2
    where = y.clone()
    where[0], where[1] = 1, 0  # a cat outdoors, a dog indoors
    w = torch.full((40,), 15 / 19, dtype=torch.float64)
    w[:2] = 5.0
    w = w if weights is None else weights
    scores = torch.linspace(0.2, 0.5, 40)
    scores[0], scores[1] = -0.6, -0.4
    fits = torch.stack([scores, -scores], 1)
    found = Explained(0.4, 0.005, (0.4, 0.3), (0.005, 0.005), (0.42, 0.32), 0.02, fits)
    features = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    return Diagnosis(
        name=HOSTILE if classes[0] == HOSTILE else "pets",
        classes=classes,
        y=y,
        features="made",
        whole=found,
        border=replace(found, share=0.3, raw=(0.31, 0.21)),
        trades=(Trade(1.0, 0.1, float(w.sum() ** 2 / (w * w).sum()) / 40),),
        weights=w,
        weights_from="made",
        verdict=Verdict("likely", ("a reason",), "an advice"),
        scores=scores,
        ids=tuple(f"{classes[0]} {k}" for k in range(40)),
        paths=tuple(f"files/{k}.png" for k in range(40)),
        show=(lambda position: np.full((8, 12, 3), position, np.uint8)) if pictures else None,
        rows=tuple(f"row {k}" for k in range(40)),
        context=study_context(contexts, where, y, features, w) if named else None,
    )


def read(diagnosis, tmp_path, **options):
    write_page(diagnosis, tmp_path / "page.html", **options)
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_class_in_words_with_its_shares():
    row = describe_class(make(), 0)
    assert (row.usual.name, row.usual.words) == ("cat in indoors", "95 % of the class, 75 % of its weight")
    assert (row.exceptions.name, row.exceptions.words) == ("cat in outdoors", "5 % of the class, 25 % of its weight")
    assert row.exceptions.positions.tolist() == [0]
    assert row.usual.positions[0] == 38  # the most typical first


def test_without_a_context_the_tenth_that_looks_least_like_the_class():
    row = describe_class(make(named=False), 1)
    assert row.exceptions.positions.tolist() == [1, 3]
    assert row.exceptions.share == pytest.approx(0.1)
    assert row.exceptions.weight == pytest.approx((5 + 15 / 19) / 20)
    assert row.exceptions.name == "images of dog that look least like the others"


def test_several_other_contexts_are_listed_most_frequent_first():
    found = make()
    where = found.y.clone()
    where[torch.tensor([0, 2, 4])] = torch.tensor([2, 1, 2])
    context = study_context(("indoors", "outdoors", "sky"), where, found.y, torch.randn(40, 3), found.weights)
    row = describe_class(replace(found, context=context), 0)
    assert row.exceptions.name == "cat in other contexts"
    assert row.exceptions.detail == "sky 10 %, outdoors 5 %"


def test_a_class_in_one_context_has_no_exceptions(tmp_path):
    found = make()
    context = study_context(("indoors", "outdoors"), found.y, found.y, torch.randn(40, 3), found.weights)
    row = describe_class(replace(found, context=context), 0)
    assert (row.exceptions.share, len(row.exceptions.positions)) == (0, 0)
    assert "None." in read(replace(found, context=context), tmp_path)


def test_the_list_ranks_those_that_break_the_correlation_first():
    frame = rank_samples(make())
    assert frame["rank"].tolist() == list(range(1, 41))
    first = frame.iloc[0]
    assert (first.id, first.path, first.label, first.domain, first.outside) == (
        "cat 0",
        "files/0.png",
        "cat",
        "outdoors",
        "yes",
    )
    assert (first.context_score, first.weight) == (-0.6, 5.0)
    assert rank_samples(make(named=False))["domain"].eq("").all()


def test_the_page_makes_its_argument_in_pictures_and_words(tmp_path):
    asked = Asked(kind="own images", data="my pets", options=("--context", "place"))
    text = read(make(), tmp_path, asked=asked)
    argument = text.partition("</header>")[2].partition("</section>")[0]
    assert argument.count('<div class="class">') == 2
    assert argument.count('class="zoom"') == 2 * (5 + 1)
    assert "<b>cat in outdoors</b>: 5 % of the class, 25 % of its weight" in argument
    assert "Cramér" not in argument
    assert "5 % of the samples lie outside their class&#39;s usual context and carry 25 % of the weight." in text
    labels = re.findall(r">((?:whole|border) \d+ %)<", text)
    assert labels == ["whole 42 %", "border 31 %", "whole 32 %", "border 21 %"]
    tail = text.partition("What to do next")[2]
    assert "stablenet try &#39;my pets&#39; --context place" in tail
    assert "--csv exceptions.csv" in tail
    assert "<h2" not in tail  # the page ends with it


def test_rows_of_a_table_stand_as_text(tmp_path):
    text = read(make(pictures=False), tmp_path)
    assert "<b>×5</b> cat: row 0" in text
    assert "<img" not in text


def test_even_weights_are_not_told_as_weights(tmp_path):
    even = make(weights=torch.ones(40, dtype=torch.float64))
    text = read(even, tmp_path)
    assert "of its weight" not in text.partition("</section>")[0]
    assert "carry" not in write_lead(even)
    assert "−0.60" in text


@pytest.mark.parametrize("named", [True, False])
def test_names_from_the_data_are_only_text(tmp_path, named):
    found = make(classes=(HOSTILE, "dog"), contexts=(HOSTILE, "b"), named=named)
    asked = Asked(kind="own images", data=HOSTILE, options=("--context", HOSTILE))
    text = read(found, tmp_path, asked=asked, command=HOSTILE)
    assert text.count("<script") == 1
    assert "<img src=x" not in text
    assert "alert(1)&lt;/script&gt;" in text


def test_words_for_shares():
    assert (say_share(0.004), say_share(0.25), say_share(1.0), say_share(0.998)) == ("0.4 %", "25 %", "100 %", "99.8 %")
    assert say_weight(0.05, 0.25) == "carry 25 % of the weight"
    assert say_weight(0.05, 0.05) == "carry the same share of the weight"
    assert say_context(make().context) == (
        "The label follows the context you named: 95 % of the samples lie in their class's main context; "
        "the other 5 % carry 25 % of the weight."
    )


def test_classes_best_predicted_first():
    assert order_classes(make()) == [0, 1]


@pytest.mark.parametrize(
    ("asked", "level", "first"),
    [
        (Asked(kind="own images", data="pets"), "likely", "stablenet try pets"),
        (Asked(kind="own images", data="pets"), "unlikely", "stablenet diagnose pets --csv exceptions.csv"),
        (Asked(kind="own images", data="pets", csv="e.csv"), "unlikely", "stablenet try pets"),
        (Asked(kind="run", data="runs/a"), "likely", "stablenet weights runs/a"),
        (Asked(kind="source", data="pacs"), "perhaps", "stablenet list recipes --match 'pacs*'"),
        (Asked(kind="table", data="t.csv", table=("--target", "y")), "perhaps", "stablenet table fit t.csv --target y"),
    ],
)
def test_the_command_to_run_next(asked, level, first):
    assert suggest_steps(asked, level)[0].command == first
