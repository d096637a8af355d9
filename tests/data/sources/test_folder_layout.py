"""A dry check of a folder: every difference to the layout at once, and none where the reader reads it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.data.sources.test_photos_nico import layout as nico_paths
from typer.testing import CliRunner

from stablenet.cli.verbs import app
from stablenet.data.sources import SOURCES, read_source
from stablenet.data.sources.source import check_layout

CLASSES = ("bird", "car", "chair", "dog", "person")
WriteFiles = Callable[..., Path]


def vlcs_paths(below: str = "") -> list[str]:
    return [f"VLCS/{d}/{below}{c}/1.jpg" for d in ("Caltech101", "LabelMe", "SUN09", "VOC2007") for c in CLASSES]


def pacs_paths() -> list[str]:
    from stablenet.data.sources.photos import PACS_CLASSES, PACS_DOMAINS

    return [f"PACS/{domain}/{name}/1.jpg" for domain in PACS_DOMAINS for name in PACS_CLASSES]


@pytest.mark.parametrize(
    ("name", "paths"),
    [("vlcs", vlcs_paths()), ("vlcs", vlcs_paths("full/")), ("pacs", pacs_paths()), ("nico", nico_paths())],
)
def test_nothing_differs_where_the_reader_reads(name: str, paths: list[str], write_files: WriteFiles) -> None:
    root = write_files(paths)
    differences, remarks = check_layout(name, root)
    assert differences == ()
    assert remarks[0] == f"{len(read_source(name, root).rows):,} images"
    assert any("instead of the published" in remark for remark in remarks)


def test_all_differences_are_named_at_once(write_files: WriteFiles, zip_folder: Callable[..., Path]) -> None:
    kept = [p for p in vlcs_paths() if "SUN09" not in p and p != "VLCS/VOC2007/dog/1.jpg"]
    root = write_files([*kept, "VLCS/VOC2007/cat/1.jpg", "VLCS/ImageNet/car/1.jpg", "VLCS/Caltech101/bird/x.txt"])
    (root / "VLCS/LabelMe/car/1.jpg").unlink()
    for place in (root, zip_folder(root)):
        found, _ = check_layout("vlcs", place)
        empty = [] if place != root else ["LabelMe/car contains no images"]
        expected = [
            "lacks the domains sun (or SUN09)",
            "contains the unknown domains ImageNet",
            "VOC2007 lacks the classes dog (or 3)",
            "VOC2007 contains the unknown classes cat",
            *empty,
        ]
        for text in expected:
            assert sum(text in line for line in found) == 1, text
    (root / "VLCS.tar.gz").touch()
    assert check_layout("vlcs", root)[0][0] == "VLCS.tar.gz is not read: unpack it, or pack its folders as .zip"


def test_subsets_need_all_three(write_files: WriteFiles) -> None:
    root = write_files(vlcs_paths("train/") + vlcs_paths("test/"))
    found = check_layout("vlcs", root)[0]
    assert len(found) == 4
    assert all("lacks the subsets crossval" in line for line in found)


def test_a_class_of_nico(write_files: WriteFiles) -> None:
    root = write_files([path for path in nico_paths() if "/cow/" not in path and "/boat/" not in path])
    found = check_layout("nico", root)[0]
    assert [line.partition("lacks the classes ")[2] for line in found] == ["cow (or cows)", "boat (or boats)"]
    assert check_layout("nico-animal", root)[0] == found[:1]


def test_differences_below_a_wrong_top_level_are_named_with_it(
    write_files: WriteFiles, zip_folder: Callable[..., Path]
) -> None:
    paths = [path for path in nico_paths("Tiere", "Wheels") if "/cow/" not in path and "/boat/" not in path]
    root = write_files(paths)
    for place in (root, zip_folder(root)):
        found = check_layout("nico", place)[0]
        assert [line.partition(" NICO")[0].rpartition("NICO")[2].lstrip("/ ") for line in found] == [
            "lacks the trees animal (or animals), vehicle (or vehicles)",
            "Tiere holds what belongs into animal: rename it",
            "Tiere lacks the classes cow (or cows)",
            "Wheels holds what belongs into vehicle: rename it",
            "Wheels lacks the classes boat (or boats)",
        ]
    found = check_layout("nico-animal", root)[0]
    assert [line.endswith(("(or animals)", "rename it", "(or cows)")) for line in found] == [True] * 3


def test_a_folder_that_may_be_several_is_not_given_a_name(write_files: WriteFiles) -> None:
    kept = [p.replace("SUN09", "Sonne") for p in vlcs_paths()]
    found = check_layout("vlcs", write_files(kept))[0]
    assert [line.partition("VLCS ")[2] for line in found] == [
        "lacks the domains sun (or SUN09)",
        "contains the unknown domains Sonne: move or rename them",
    ]


def test_what_is_nowhere_is_said_with_what_is_there(write_files: WriteFiles) -> None:
    found = check_layout("vlcs", write_files(["a/b.jpg"]))[0]
    assert len(found) == 1
    assert "contains a: expected DomainBed: Caltech101|LabelMe" in found[0]


def test_the_verb_prints_each_and_fails(write_files: WriteFiles) -> None:
    root = write_files([path for path in vlcs_paths() if "/dog/" not in path])
    result = CliRunner().invoke(app, ["data", "list", "vlcs", "--check", str(root)])
    assert result.exit_code == 1
    assert result.stdout.count("differs: ") == 4
    assert "4 differences" in result.stdout
    good = CliRunner().invoke(app, ["data", "list", "nico", "--check", str(write_files(nico_paths()))])
    assert good.exit_code == 0
    shown = CliRunner().invoke(app, ["data", "list", "vlcs"]).stdout
    assert "--check FOLDER" in shown


def test_every_set_that_is_fetched_by_hand_can_be_checked() -> None:
    for name in SOURCES:
        if SOURCES[name].by_hand and not SOURCES[name].downloads:
            assert SOURCES[name].differences is not None
