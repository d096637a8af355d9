"""The data of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from stablenet.data.image_list import ImageList
from stablenet.data.prepare import default_store_path, prepare
from stablenet.data.sources import read_source
from stablenet.data.splits import split_images
from stablenet.engine.config import DataConfig
from stablenet.engine.run_data import RunData
from stablenet.errors import UserError


def test_a_run_takes_a_store_its_user_made_with_skip_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLENET_CACHE", str(tmp_path / "cache"))
    for number, (domain, label) in enumerate((d, c) for d in "pqt" for c in "ab"):
        folder = tmp_path / "images" / domain / label
        folder.mkdir(parents=True)
        for k in range(3):
            pixels = np.full((8, 8, 3), 9 * number + k, np.uint8)
            Image.fromarray(pixels).save(folder / f"{k}.png")
    (tmp_path / "images" / "p" / "a" / "1.png").write_bytes(b"no image")
    table = read_source("folder", tmp_path / "images")
    assert isinstance(table, ImageList)
    manifest = split_images(table, "classic", 0, target="t", validation=0.0)

    def open_training() -> int:
        config = DataConfig(source="folder", split="classic", store_size=16)
        return len(RunData(config, manifest, tmp_path / "images").open_part("train"))

    with pytest.raises(UserError, match=r"p/a/1\.png: not an image") as caught:
        open_training()
    assert "`stablenet data prepare folder --size 16 --skip-bad`" in str(caught.value)
    prepare(table, default_store_path(table, 16), size=16, skip_bad=True)
    assert open_training() == 11


@pytest.mark.parametrize(
    ("sizes", "settings", "side"),
    [
        ((8,), {}, None),
        ((8, 9), {}, 28),
        ((8, 9), {"augment": True, "image_size": 224}, 256),
        ((8, 9), {"store_size": 20}, 20),
        ((8,), {"store_size": 20}, 20),
    ],
)
def test_images_of_several_sizes_are_stored_as_the_network_needs(
    sizes: tuple[int, ...], settings: dict[str, Any], side: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABLENET_CACHE", str(tmp_path / "cache"))
    for k in range(8):
        file = tmp_path / "images" / "ab"[k % 2] / f"{k}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((sizes[k // 2 % len(sizes)], 8, 3), 9 * k, np.uint8)).save(file)
    config = DataConfig(source="folder", **settings)
    table = read_source("folder", tmp_path / "images")
    data = RunData(config, split_images(table, "", 0, test=0.3, validation=0.0), None, table=table)
    assert data.stored_side == side
    pixels = data.open_part("train").pixels.read(torch.zeros(1, dtype=torch.int64))
    assert pixels.shape[1:3] == ((side, side) if side else (8, 8))
