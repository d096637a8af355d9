"""Cut-outs and backgrounds: layouts, archives, subsets, choices of classes and contexts, and mistakes."""

import zipfile

import pytest
from PIL import Image
from tests.data.cutouts import CONTEXTS, pack, write_cutouts

from stablenet.data.sources import read_source
from stablenet.errors import UserError


@pytest.fixture
def root(tmp_path):
    return write_cutouts(tmp_path / "made", each=3, below=2)


def test_folders(root):
    table = read_source("composed", root)
    assert (table.classes, table.domains) == (("cat", "dog"), CONTEXTS)
    assert table.foregrounds.domains == ("husky", "lynx", "pug", "puma")
    assert len(table.rows) == 12
    assert len(table.backgrounds.rows) == 6
    assert "subset" not in table.rows
    assert "subset" not in table.backgrounds.rows
    assert table.rows["id"].iloc[0] == "cat/lynx/00.png"
    with Image.open(table.foregrounds.root / table.rows["path"].iloc[0]) as image:
        assert image.mode == "RGBA"


def test_archives_give_the_same_ids(root, tmp_path):
    plain = read_source("composed", root)
    pack(root, "backgrounds")
    mixed = read_source("composed", root)
    assert mixed.backgrounds.root.name == "backgrounds.zip"
    assert mixed.foregrounds.rows.equals(plain.foregrounds.rows)
    pack(root, "foregrounds")
    packed = read_source("composed", root)
    for layer in ("foregrounds", "backgrounds"):
        before, after = getattr(plain, layer), getattr(packed, layer)
        assert before.rows[["id", "label", "domain"]].equals(after.rows[["id", "label", "domain"]])
        assert after.open_bytes(after.rows["path"].iloc[-1])
    whole = tmp_path / "all.zip"
    with zipfile.ZipFile(whole, "w") as archive:
        for name in ("foregrounds", "backgrounds"):
            with zipfile.ZipFile(root / f"{name}.zip") as part:
                for member in part.namelist():
                    archive.writestr(member, part.read(member))
    assert read_source("composed", whole).rows["id"].equals(plain.rows["id"])


def test_published_subsets_and_classes_without_kinds(tmp_path):
    root = write_cutouts(tmp_path / "made", each=2, below=2, subsets=True)
    file = root / "foregrounds" / "cow" / "1.png"
    file.parent.mkdir()
    Image.new("RGBA", (5, 5), (1, 2, 3, 255)).save(file)
    table = read_source("composed", root)
    assert table.backgrounds.rows["subset"].value_counts().to_dict() == {"train": 6, "test": 6}
    assert table.domains == CONTEXTS
    row = table.rows[table.rows["id"] == "cow/1.png"].iloc[0]
    assert (table.classes[row["label"]], table.foregrounds.domains[row["domain"]]) == ("cow", "cow")


def test_kinds_of_one_name_are_told_apart(tmp_path):
    root = write_cutouts(tmp_path / "made", each=1)
    (root / "foregrounds" / "dog" / "pug").rename(root / "foregrounds" / "dog" / "lynx")
    assert read_source("composed", root).foregrounds.domains == ("cat/lynx", "cat/puma", "dog/husky", "dog/lynx")


def test_classes_and_contexts_are_chosen(root):
    table = read_source("composed", root)
    kinds = table.choose("kind", ["pug", "lynx"], ["snow", "lake"])
    assert (kinds.classes, kinds.domains) == (("pug", "lynx"), ("snow", "lake"))
    assert {(name.split("/")[1], label) for name, label in zip(kinds.rows["id"], kinds.rows["label"], strict=True)} == {
        ("pug", 0),
        ("lynx", 1),
    }
    assert {(n[:4], d) for n, d in kinds.backgrounds.rows[["id", "domain"]].itertuples(index=False)} == {
        ("snow", 0),
        ("lake", 1),
    }
    some = table.choose("", ["pug", "husky", "lynx"])
    assert (some.classes, len(some.rows)) == (("cat", "dog"), 9)
    joined = table.choose("class", (), ["snow+lake", "road"])
    assert joined.domains == ("snow+lake", "road")
    assert joined.backgrounds.rows["domain"].value_counts().to_dict() == {0: 4, 1: 2}
    assert table.choose("kind", ["dog"]).classes == ("husky", "pug")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (("species",), "unknown level of composed 'species'"),
        (("", ["cow"]), "unknown class of composed 'cow'"),
        (("", [], ["snow", "sand"]), "unknown context of composed 'sand'"),
        (("", [], ["snow", "lake+snow"]), "name snow more than once"),
    ],
)
def test_wrong_choices_are_named(root, choice, message):
    with pytest.raises(UserError, match=message):
        read_source("composed", root).choose(*choice)


def test_mistakes_of_the_tree(root, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="foregrounds was not found in"):
        read_source("composed", tmp_path / "empty")
    (root / "foregrounds" / "cat" / "lynx" / "00.png").rename(root / "foregrounds" / "stray.png")
    with pytest.raises(UserError, match=r"1 images in .* are not at \[train\|test/\]class/\[kind/\]image"):
        read_source("composed", root)
    (root / "foregrounds" / "stray.png").unlink()
    (root / "backgrounds" / "lake").rename(root / "backgrounds" / "lake+sea")
    with pytest.raises(UserError, match="contains '\\+', which joins contexts"):
        read_source("composed", root)


def test_pets_over_places(data_folder):
    if not (data_folder / "pet-cutouts.zip").exists():
        pytest.skip("pet-cutouts.zip is not in STABLENET_DATA")
    table = read_source("pets-places", data_folder)
    assert (len(table.rows), len(table.backgrounds.rows)) == (7295, 3900)
    assert table.classes == ("cat", "dog")
    assert len(table.choose("breed").classes) == 37
    assert table.backgrounds.rows.groupby(["subset", "domain"]).size().unique().tolist() == [150, 500]
