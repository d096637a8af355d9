"""The manifest: a hash that is the same everywhere, a file that proves itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pandas as pd
import pytest

from stablenet.data.manifest import PARTS, Manifest
from stablenet.errors import UserError

IDS = ["NA", "a b", 'say "hi"', "é/1", "10", "9"]


def make(**changes: object) -> Manifest:
    rows = pd.DataFrame(
        {
            "id": IDS,
            "label": [0, 1, 0, 1, 0, 1],
            "domain": [0, 0, 1, 1, 1, 0],
            "part": ["train", "train", "test", "test_rest", "validation", "train"],
        }
    )
    fields = {
        "source": "s",
        "split": "classic",
        "parameters": {"b": [1, None], "a": 0.1},
        "seed": 3,
        "classes": ("A", "B"),
        "domains": ("p", "q"),
        "rows": rows,
        "notes": ("n",),
    }
    return Manifest(**(fields | changes))  # type: ignore[arg-type]


def test_hash_is_that_of_the_canonical_bytes() -> None:
    header = (
        '{"classes":["A","B"],"domains":["p","q"],"format":1,"parameters":{"a":0.1,"b":[1,null]},'
        '"seed":3,"setting":"classic","source":"s"}'
    )
    body = (
        "id\tlabel\tdomain\tpart\n9\t1\t0\ttrain\nNA\t0\t0\ttrain\na b\t1\t0\ttrain\n10\t0\t1\tvalidation\n"
        'say "hi"\t0\t1\ttest\né/1\t1\t1\ttest_rest\n'
    )
    manifest = make()
    assert manifest.hash == hashlib.sha256((header + body).encode()).hexdigest()
    assert manifest.hash == "c55723dd950ab8dd1315e06e341e7fec1715484a8a7c68981020fa860865b110"


def test_hash_ignores_row_order_and_notes_and_nothing_else() -> None:
    manifest = make()
    assert make(rows=manifest.rows.sample(frac=1, random_state=1)).hash == manifest.hash
    assert make(notes=()).hash == manifest.hash
    other_rows = manifest.rows.assign(part=["train"] * 6)
    changes: list[dict[str, object]] = [
        {"source": "t"},
        {"split": "flexible"},
        {"parameters": {}},
        {"seed": 4},
        {"classes": ("A", "C")},
        {"domains": ("q", "p")},
        {"rows": other_rows},
    ]
    hashes = {make(**change).hash for change in changes}
    assert len(hashes) == len(changes)
    assert manifest.hash not in hashes


def test_file_round_trip(tmp_path: Path) -> None:
    manifest = make()
    path = tmp_path / "new" / "m.tsv"
    manifest.save(path)
    loaded = Manifest.load(path)
    assert loaded.hash == manifest.hash
    assert loaded.notes == ("n",)
    pd.testing.assert_frame_equal(loaded.rows, manifest.rows)
    assert [file.name for file in path.parent.iterdir()] == ["m.tsv"]


def test_crops_survive_the_file(tmp_path: Path) -> None:
    rows = make().rows.assign(u=[0, 1, 2, 3, 4, 65535], v=5)
    manifest = make(rows=rows)
    manifest.save(tmp_path / "m.tsv")
    loaded = Manifest.load(tmp_path / "m.tsv")
    assert loaded.composed
    assert not make().composed
    pd.testing.assert_frame_equal(loaded.rows, manifest.rows)
    assert loaded.hash != make().hash


def test_parts_and_counts_by_hand() -> None:
    manifest = make()
    assert list(manifest.part("train")["id"]) == ["9", "NA", "a b"]
    assert list(manifest.part("train").index) == [0, 1, 2]
    assert manifest.counts("train").to_numpy().tolist() == [[1, 2], [0, 0]]
    assert list(manifest.counts("train").index) == ["p", "q"]
    assert sum(len(manifest.part(part)) for part in PARTS) == len(IDS)
    with pytest.raises(UserError, match="did you mean 'test'"):
        manifest.part("tests")
    with pytest.raises(UserError, match="unknown part 'dev'"):
        make(rows=manifest.rows.assign(part="dev"))


def test_a_changed_file_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "m.tsv"
    make().save(path)
    text = path.read_text()
    for old, new in (("a b\t1", "a b\t0"), ('"seed":3', '"seed":4'), ("9\t1\t0\ttrain\n", "")):
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(UserError, match="changed after it was written"):
            Manifest.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("id\tlabel\n", "not JSON"),
        ("[1]\n", "not a manifest of format 1"),
        ('{"format":2}\n', "not a manifest of format 1"),
        ('{"format":1}\nid\tlabel\tdomain\tpart\n', "it lacks 'source'"),
        ('{"format":1}\n', "its columns are"),
        ('{"format":1}\nid\tlabel\nx\t1\n', "its columns are"),
        ('{"format":1}\nid\tlabel\tdomain\tpart\nx\t1\n', "line 3 of the manifest"),
        ('{"format":1}\nid\tlabel\tdomain\tpart\nx\tone\t0\ttrain\n', "not a whole number"),
    ],
)
def test_files_that_are_no_manifest(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "m.tsv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        Manifest.load(path)


def test_missing_and_unwritable_places(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        Manifest.load(tmp_path / "none.tsv")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the manifest"):
        make().save(tmp_path / "file" / "m.tsv")


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(UserError, match="the disk is full"):
        make().save(tmp_path / "m.tsv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("image", ["a\tb", "a\nb", "a\rb"])
def test_ids_that_would_break_the_file_are_refused(image: str) -> None:
    rows = make().rows
    rows.loc[0, "id"] = image
    with pytest.raises(UserError, match="tab or a line break"):
        make(rows=rows).hash  # noqa: B018


def test_header_is_one_line_of_json(tmp_path: Path) -> None:
    make().save(tmp_path / "m.tsv")
    header = json.loads((tmp_path / "m.tsv").read_text().splitlines()[0])
    assert header["notes"] == ["n"]
    assert header["hash"] == make().hash
