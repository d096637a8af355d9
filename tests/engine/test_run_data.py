"""The data of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stablenet.data.image_list import ImageList
from stablenet.data.prepare import default_store_path, prepare
from stablenet.data.sources import read_source
from stablenet.data.splits import split_table
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
    manifest = split_table(table, "classic", 0, target="t", validation=0.0)

    def open_training() -> int:
        config = DataConfig(source="folder", split="classic", store_size=16)
        return len(RunData(config, manifest, tmp_path / "images").open_part("train"))

    with pytest.raises(UserError, match=r"p/a/1\.png: not an image") as caught:
        open_training()
    assert "`stablenet data prepare folder --size 16 --skip-bad`" in str(caught.value)
    prepare(table, default_store_path(table, 16), size=16, skip_bad=True)
    assert open_training() == 11
