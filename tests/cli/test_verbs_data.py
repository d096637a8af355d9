"""The verbs of `stablenet data`, used as a user would."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from stablenet.cli.verbs import app
from stablenet.data.manifest import Manifest
from stablenet.errors import UserError


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "images"
    for d, domain in enumerate(("north", "south", "west")):
        for c, name in enumerate(("cat", "dog")):
            for k in range(20):
                file = root / domain / name / f"{k:02d}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (80 * d, 100 * c, 10 * k)).save(file)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("STABLENET_DATA", raising=False)
    return root


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["data", *arguments])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def test_list_names_sources_and_settings() -> None:
    shown = run("list")
    for name in (
        "pacs",
        "vlcs",
        "nico",
        "mnist-m",
        "embedded",
        "folder",
        "image-list",
        "unbalanced+flexible",
        "adversarial",
    ):
        assert name in shown
    told = run("list", "pacs")
    for word in ("sketch 3,929", "ICCV 2017", "kfold", "licence", "https://"):
        assert word in told
    with pytest.raises(UserError, match="unknown data source 'pac': did you mean 'pacs'"):
        run("list", "pac")


def test_split_check_show(tree: Path) -> None:
    said = run("split", "folder", "classic", "--root", str(tree), "--target", "west", "--seed", "4")
    path = Path("splits/folder-classic-west-seed4.tsv")
    assert str(path) in said
    manifest = Manifest.load(path)
    assert f"train 72, validation 8, test 40; hash {manifest.hash[:16]}" in said
    assert "FAILS" not in run("check", str(path), "--root", str(tree))
    shown = run("show", str(path))
    assert "no contact sheet: give the source's folder" in shown
    for word in ("train: 72 images", "validation: 8 images", "test: 40 images", "north", "cat", "dog"):
        assert word in shown
    assert "test_rest" not in shown


def test_a_narrow_terminal_cuts_no_counts_off(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("split", "folder", "classic", "--root", str(tree), "--target", "west", "--out", "m.tsv")
    monkeypatch.setenv("COLUMNS", "12")
    result = CliRunner().invoke(app, ["data", "show", "m.tsv", "--no-sheet"])
    assert any(line.split() == ["domain", "cat", "dog", "all"] for line in result.output.splitlines())


def test_the_same_command_gives_the_same_file(tree: Path) -> None:
    for name in ("a.tsv", "b.tsv"):
        run("split", "folder", "unbalanced", "--root", str(tree), "--target", "west", "--ratio", "4:1", "--out", name)
    assert Path("a.tsv").read_bytes() == Path("b.tsv").read_bytes()


def test_options_reach_the_setting(tree: Path) -> None:
    run(
        *("split", "folder", "unbalanced+flexible", "--root", str(tree), "--out", "m.tsv", "--ratio", "4:1"),
        *("--target", "cat=west", "--dominant", "cat=south", "--validation", "0.2"),
    )
    manifest = Manifest.load(Path("m.tsv"))
    assert manifest.parameters["target"]["cat"] == ["west"]
    assert manifest.parameters["dominant"]["cat"] == "south"
    assert manifest.parameters["validation"] == 0.2
    run(
        "split",
        "embedded",
        "adversarial",
        "--out",
        "e.tsv",
        "--ratio",
        "0.5",
        "--train-size",
        "500",
        "--test-ratio",
        "0.7",
    )
    parameters = Manifest.load(Path("e.tsv")).parameters
    assert (parameters["ratio"], parameters["test_ratio"], parameters["train_size"]) == (0.5, 0.7, 500)
    shown = run("show", "e.tsv", "--no-sheet")
    assert "in training and at test" in shown
    assert str(parameters["dominant"]["7"]) in shown
    assert str(parameters["test_dominant"]["7"]) in shown


def test_the_data_folder_of_published_sets_is_not_taken_for_ones_own(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("split", "folder", "classic", "--root", str(tree), "--target", "west", "--out", "m.tsv")
    monkeypatch.setenv("STABLENET_DATA", str(tree.parent))
    assert "the source has these images" not in run("check", "m.tsv")
    with pytest.raises(UserError, match="the data source folder needs"):
        run("split", "folder", "classic", "--target", "west")
    with pytest.raises(UserError, match="pacs was not found in"):
        run("split", "pacs", "classic", "--target", "photo")


def test_check_fails_on_a_broken_promise(tree: Path) -> None:
    run("split", "folder", "classic", "--root", str(tree), "--target", "west", "--out", "m.tsv")
    manifest = Manifest.load(Path("m.tsv"))
    rows = manifest.rows.assign(part=manifest.rows["part"].where(manifest.rows["domain"] != 2, "train"))
    replace(manifest, rows=rows).save(Path("broken.tsv"))
    assert "FAILS" in run("check", "broken.tsv", code=1)


def test_check_says_what_it_cannot_know_of_ones_own_split(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("split", "folder", "classic", "--root", str(tree), "--target", "west", "--out", "m.tsv")
    own = replace(Manifest.load(Path("m.tsv")), split="mine", parameters={})
    own.save(Path("own.tsv"))
    told = run("check", "own.tsv", "--root", str(tree))
    assert "unknown" in told
    assert "the split's own rules" in told
    assert "not checked: mine is not one of classic" in told
    leaked = own.part("test").head(1).assign(part="train")
    replace(own, rows=pd.concat([own.rows, leaked])).save(Path("leaked.tsv"))
    assert "FAILS" in run("check", "leaked.tsv", code=1)
    replace(own, source="my-camera").save(Path("camera.tsv"))
    monkeypatch.setenv("STABLENET_DATA", str(tree.parent))
    assert "FAILS" not in run("check", "camera.tsv")
    with pytest.raises(UserError, match="unknown data source 'my-camera'"):
        run("check", "camera.tsv", "--root", str(tree))
    Path("camera.tsv").write_text(Path("camera.tsv").read_text().replace("\ttest", "\ttrain", 1))
    with pytest.raises(UserError, match="its hash does not match its rows"):
        run("check", "camera.tsv")


def test_nothing_is_written_into_the_source_folder(tree: Path) -> None:
    before = sorted(tree.rglob("*"))
    inside = tree / "splits" / "m.tsv"
    with pytest.raises(UserError, match="where StableNet never writes"):
        run("split", "folder", "classic", "--root", str(tree), "--target", "west", "--out", str(inside))
    run("split", "folder", "classic", "--root", str(tree), "--target", "west", "--out", "m.tsv")
    with pytest.raises(UserError, match="where StableNet never writes"):
        run("show", "m.tsv", "--root", str(tree), "--out", str(tree / "sheet.png"))
    assert sorted(tree.rglob("*")) == before


def test_contact_sheet(tree: Path) -> None:
    run("split", "folder", "classic", "--root", str(tree), "--target", "west", "--out", "m.tsv")
    run("show", "m.tsv", "--root", str(tree), "--no-sheet")
    assert not Path("m.png").exists()
    run("show", "m.tsv", "--root", str(tree))
    with Image.open("m.png") as sheet:
        assert min(sheet.size) > 50


def test_duplicates_are_warned_of_with_the_list(tree: Path) -> None:
    (tree / "south/dog/03.png").write_bytes((tree / "north/dog/05.png").read_bytes())
    said = run("split", "folder", "classic", "--root", str(tree), "--target", "west", "--out", "m.tsv")
    assert "1 files appear in several domains or classes" in said
    assert "north/dog/05.png = south/dog/03.png" in said


def test_mistakes_are_one_sentence(tree: Path) -> None:
    with pytest.raises(UserError, match="the data source folder needs"):
        run("split", "folder", "classic", "--target", "west")
    with pytest.raises(UserError, match="--target was given 2 times"):
        run("split", "folder", "classic", "--root", str(tree), "--target", "west", "--target", "north")
    with pytest.raises(UserError, match="'west' is not of the form dog=sketch"):
        run("split", "folder", "flexible", "--root", str(tree), "--target", "west")
    with pytest.raises(UserError, match="the split classic has no parameter train_size"):
        run("split", "folder", "classic", "--root", str(tree), "--target", "west", "--train-size", "5")
    with pytest.raises(UserError, match="unknown data source 'x'"):
        run("download", "x")
    done = subprocess.run(
        [sys.executable, "-m", "stablenet", "data", "check", "none.tsv"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: none.tsv does not exist")
    assert "Traceback" not in done.stderr


def test_the_command_line_starts_without_the_heavy_libraries() -> None:
    heavy = ("torch", "pandas", "numpy", "sklearn")
    code = f"import sys, stablenet.cli.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
