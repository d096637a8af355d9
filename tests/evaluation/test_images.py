"""Files, folders and tables as the user names them."""

from pathlib import Path

import pandas as pd
import pytest

from stablenet.errors import UserError
from stablenet.evaluation.images import gather_images


@pytest.fixture
def folder(tmp_path):
    for name in ("b.png", "a.JPG", "deep/er/c.webp", "notes.txt", "deep/.hidden"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).touch()
    return tmp_path / "images"


def names(table, folder):
    return [Path(path).relative_to(folder).as_posix() for path in table["path"]]


def test_a_folder_gives_its_images_sorted_and_nothing_else(folder):
    assert names(gather_images([folder]), folder) == ["a.JPG", "b.png", "deep/er/c.webp"]


def test_files_keep_the_order_they_are_given_in(folder):
    assert names(gather_images([folder / "b.png", folder / "a.JPG"]), folder) == ["b.png", "a.JPG"]


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_a_table_starts_at_its_folder_and_keeps_its_columns(folder, ending):
    rows = pd.DataFrame({"path": ["deep/er/c.webp", "b.png"], "patient": ["007", "008"]})
    table = folder / f"list.{ending}"
    if ending == "parquet":
        rows.to_parquet(table)
    else:
        rows.to_csv(table, index=False, sep="\t" if ending == "tsv" else ",")
    gathered = gather_images([table])
    assert names(gathered, folder) == ["deep/er/c.webp", "b.png"]
    assert list(gathered["patient"]) == ["007", "008"]


def test_each_mistake_is_named(folder, tmp_path):
    (folder / "empty.csv").write_text("path\n")
    (folder / "other.csv").write_text("file,label\nb.png,1\n")
    (folder / "gone.csv").write_text("path\nb.png\nz.png\n")
    (tmp_path / "nothing").mkdir()
    cases = {
        folder / "z.png": "does not exist",
        folder / "notes.txt": "neither an image nor a table",
        folder / "empty.csv": "has no rows",
        folder / "other.csv": "no column 'path': it has file, label",
        folder / "gone.csv": r"1 of 2 images are not there, for example .*z\.png",
        tmp_path / "nothing": "holds no images",
    }
    for place, message in cases.items():
        with pytest.raises(UserError, match=message):
            gather_images([place])
    with pytest.raises(UserError, match="no images were named"):
        gather_images([])
