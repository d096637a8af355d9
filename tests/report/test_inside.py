"""Kept weights as tables, pages and pictures: by hand on made tables, then on real runs."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from stablenet.data.loader import MemoryPixels, PartSamples
from stablenet.errors import UserError
from stablenet.report.inside import (
    Album,
    UsedTable,
    draw_charts,
    mean_offsets,
    read_used,
    share_groups,
    sort_samples,
    summarise_classes,
    write_samples,
    write_sheet,
)
from tests.engine.tiny import STABLENET, tiny_run


def make_used(weights, offsets):
    table = pd.DataFrame(
        {
            "id": list("abcdef"),
            "label": ["dog", "cat", "cat", "cat", "dog", "dog"],
            "domain": ["grass", "grass", "snow", "grass", "snow", "snow"],
            "weight": np.float32(weights),
            "offset": np.float32(offsets),
        }
    )
    return UsedTable(("cat", "fox", "dog"), table.assign(context=2 * table["offset"]), None)


UNEVEN = make_used([0.5, 1, 3, 0, 1, 0.5], [0.0] * 6)
EVEN = make_used([1] * 6, [0.5, 1, -2, 1, -1, 0])


def test_classes_by_hand():
    found = summarise_classes(UNEVEN)
    assert found.index.tolist() == ["cat", "dog"]  # in their own order; the fox has no samples
    assert found["samples"].tolist() == [3, 3]
    assert found["effective"].tolist() == pytest.approx([4**2 / 10 / 3, 2**2 / 1.5 / 3])
    assert found["largest"].tolist() == [3, 1]
    assert found["smallest"].tolist() == [0, 0.5]
    even = summarise_classes(EVEN)
    assert even["offset"].tolist() == pytest.approx([0, -1 / 6])
    assert even["context"].tolist() == pytest.approx([0, -1 / 3])
    assert even["effective"].tolist() == [1, 1]


def test_samples_are_raised_by_weight_and_where_all_are_even_by_the_context_against_them():
    assert "".join(sort_samples(UNEVEN)["id"]) == "cbeafd"
    assert "".join(sort_samples(EVEN)["id"]) == "cefabd"
    assert (UNEVEN.even, EVEN.even, UNEVEN.with_offsets, EVEN.with_offsets) == (False, True, False, True)


def test_shares_of_domains_by_hand():
    number, weight = share_groups(UNEVEN, weighted=False), share_groups(UNEVEN, weighted=True)
    assert number.columns.tolist() == ["cat", "dog"]
    assert number.loc["grass"].tolist() == pytest.approx([2 / 3, 1 / 3])
    assert weight.loc["grass"].tolist() == pytest.approx([1 / 4, 1 / 4])
    assert weight.sum().tolist() == pytest.approx([1, 1])
    assert mean_offsets(EVEN).loc["snow"].tolist() == pytest.approx([-2, -0.5])


def test_images_that_were_left_out_are_not_shown():
    pixels = torch.arange(5, dtype=torch.uint8)[:, None, None, None].expand(5, 2, 2, 3).contiguous()
    index = torch.tensor([0, 1, 3, 4, 5])  # the most raised one could not be read
    zeros = torch.zeros(5, dtype=torch.int64)
    used = make_used([0.5, 1, 3, 0, 1.5, 0.25], [0.0] * 6)
    album = Album(used, PartSamples(MemoryPixels(list("abdef"), pixels), torch.arange(5), zeros, zeros, index, 6))
    raised, lowered = album.extremes(8)
    assert "".join(raised["id"]) == "e"  # the others that are left weigh one or less
    assert "".join(lowered["id"]) == "dfa"
    assert [int(image.flat[0]) for image in album.read(raised)] == [3]
    assert album.caption(raised) == ["×1.5"]
    assert "".join(album.extremes(1, "dog")[1]["id"]) == "f"
    assert album.extremes(1, "cat")[0].empty


def test_with_equal_weights_the_context_orders_the_samples_and_none_is_on_both_sides():
    six, zeros = torch.arange(6), torch.zeros(6, dtype=torch.int64)
    pixels = MemoryPixels(list("abcdef"), torch.zeros(6, 2, 2, 3, dtype=torch.uint8))
    against, along = Album(EVEN, PartSamples(pixels, six, zeros, zeros, six, 6)).extremes(8)
    assert "".join(against["id"]) == "cef"
    assert "".join(along["id"]) == "dba"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    alone = ("method.parameters.strength=0.0", "method.parameters.offset=1.0")
    settings = {"weights": ("stablenet",), "offsets": ("stablenet", *alone), "batches": STABLENET}
    return {name: tiny_run(folder / name, *chosen) for name, chosen in settings.items()}


@pytest.mark.parametrize("name", ["weights", "offsets", "batches"])
def test_the_page_stands_alone_and_shows_every_class(runs, name, tmp_path):
    run, used = runs[name], read_used(runs[name])
    write_sheet(run, used, tmp_path / "deep" / "sheet.html", 4)
    text = (tmp_path / "deep" / "sheet.html").read_text()
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', text) == []
    assert 2 * len(run.classes) <= text.count("<img ") <= 2 * 4 * len(run.classes)
    assert ("context contradicts the label most" in text) == (name == "offsets")
    assert "there were no offsets" not in text
    extreme = used.table["offset"].min() if name == "offsets" else used.table["weight"].max()
    assert (f"{extreme:+.2f}".replace("-", "−") if name == "offsets" else f"×{extreme:.2g}") in text
    assert (used.dependence is None) == (name == "offsets")  # even weights leave it as it is
    assert ("The statistic that is minimised" in text) == (name != "offsets")


def test_the_picture_has_a_row_per_class(runs, tmp_path):
    run = runs["weights"]
    write_sheet(run, read_used(run), tmp_path / "few.png", 2)
    write_sheet(run, read_used(run), tmp_path / "many.png", 6)
    sizes = []
    for name in ("few", "many"):
        with Image.open(tmp_path / f"{name}.png") as sheet:
            sizes.append(sheet.size)
    assert sizes[0][1] == sizes[1][1]
    assert sizes[0][0] < sizes[1][0]


def test_a_method_without_offsets_and_with_even_weights_can_be_drawn():
    charts = draw_charts(make_used([1] * 6, [0.0] * 6))
    assert set(charts) == {"spread", "groups"}


def test_the_table_is_sorted(runs, tmp_path):
    used = read_used(runs["weights"])
    write_samples(used, tmp_path / "weights.csv")
    table = pd.read_csv(tmp_path / "weights.csv")
    assert table["weight"].is_monotonic_decreasing
    assert sorted(table["id"]) == sorted(used.table["id"])
    assert list(table) == list(used.table)


def test_other_endings_are_refused(runs, tmp_path):
    run = runs["weights"]
    with pytest.raises(UserError, match=r"\.html or \.png"):
        write_sheet(run, read_used(run), tmp_path / "sheet.pdf", 2)
    with pytest.raises(UserError, match=r"as \.csv"):
        write_samples(read_used(run), tmp_path / "table.xlsx")
