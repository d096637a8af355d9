"""Data sets of Hugging Face's `datasets`, made here with pyarrow alone: as saved to disk, and as Parquet files."""

import io
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from stablenet.data.sources.own import open_own
from stablenet.errors import UserError

NAMES = ["cat", "dog"]
FEATURES = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STABLENET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def picture(shade, form="PNG"):
    file = io.BytesIO()
    Image.fromarray(np.full((9, 7, 3), shade, np.uint8)).save(file, form)
    return file.getvalue()


def table(count=6, **more):
    rows = [{"bytes": picture(20 * k, "PNG" if k % 2 else "JPEG"), "path": None} for k in range(count)]
    return pa.table({"image": rows, "label": [k % 2 for k in range(count)], **more})


def save_stream(place, rows):
    place.mkdir(parents=True)
    with pa.OSFile(str(place / "data-00000-of-00001.arrow"), "wb") as file, pa.ipc.new_stream(file, rows.schema) as out:
        out.write_table(rows)
    (place / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))


def save_dict(folder, **splits):
    for name, rows in splits.items():
        save_stream(folder / name, rows)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return folder


def test_a_saved_dictionary_has_its_parts_and_names(tmp_path, cache):
    folder = save_dict(tmp_path / "pets", train=table(6, domain=list("aabbaa")), test=table(4, domain=list("abab")))
    images = open_own(folder)
    assert images.classes == ("cat", "dog")
    assert images.domains == ("a", "b")
    assert images.given_parts == {"train": 6, "test": 4}
    assert images.known_as == "pets"
    with Image.open(io.BytesIO(images.open_bytes(images.rows["path"].iloc[3]))) as found:
        assert found.size == (7, 9)
        assert found.getpixel((0, 0)) == (60, 60, 60)
    before = {file: file.stat().st_mtime_ns for file in cache.rglob("*.png")}
    open_own(folder)
    assert {file: file.stat().st_mtime_ns for file in cache.rglob("*.png")} == before


def test_parquet_files_name_their_split_and_their_classes(tmp_path):
    (tmp_path / "hub" / "data").mkdir(parents=True)
    described = json.dumps({"info": {"features": FEATURES}})
    rows = table().replace_schema_metadata({"huggingface": described})
    for part in ("train", "validation"):
        parquet.write_table(rows, tmp_path / "hub" / "data" / f"{part}-00000-of-00001.parquet")
    images = open_own(tmp_path / "hub")
    assert images.given_parts == {"train": 6, "validation": 6}
    assert images.classes == ("cat", "dog")


def test_the_label_may_have_another_name(tmp_path):
    rows = table().rename_columns(["image", "species"])
    save_stream(tmp_path / "one", rows)
    with pytest.raises(UserError, match="columns image, species: expected pictures"):
        open_own(tmp_path / "one")
    assert open_own(tmp_path / "one", label="species").classes == ("0", "1")


def test_rows_without_pictures_and_broken_files_are_named(tmp_path):
    rows = pa.table({"image": [{"bytes": None, "path": "a.png"}], "label": [0]})
    picture = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = rows.cast(pa.schema([("image", picture), ("label", "int64")]))
    save_stream(tmp_path / "paths", rows)
    with pytest.raises(UserError, match=r"row 0 of .* holds no picture"):
        open_own(tmp_path / "paths")
    save_stream(tmp_path / "broken", table())
    (tmp_path / "broken" / "data-00000-of-00001.arrow").write_bytes(b"no arrow")
    with pytest.raises(UserError, match="cannot be read as a data set"):
        open_own(tmp_path / "broken")


def test_tables_without_pictures_are_left_to_others(tmp_path):
    (tmp_path / "plain").mkdir()
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "plain" / "rows.parquet")
    with pytest.raises(UserError, match="holds no images"):
        open_own(tmp_path / "plain")
