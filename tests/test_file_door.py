"""Files are read and written through `stablenet.files` and `stablenet.frames`, save for a few places that say why."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import stablenet

ROOT = Path(stablenet.__file__).parent
DOORS = ("files.py", "frames.py")
# What opens a file by itself: functions by name, and methods.
FUNCTIONS = {"open", "os.open", "os.fdopen", "np.load", "np.memmap", "np.fromfile", "np.save", "Image.open"}
FUNCTIONS |= {"torch.load", "torch.save", "torch.from_file", "pd.read_csv", "pd.read_parquet", "safe_open"}
FUNCTIONS |= {"zipfile.ZipFile"}
METHODS = {"read_bytes", "read_text", "write_bytes", "write_text", "open", "to_csv", "to_parquet", "savefig", "tofile"}
PACKAGED = ("files(", "_FOLDER.")  # files of this package, through importlib.resources
# file: what it opens, and why that is right there
ALLOWED = {
    "cli/last_net.py": ({"os.fdopen"}, "the report of an error, a new file in the folder for temporary files"),
    "cli/completion.py": ({"file.read_text"}, "the source of torchvision, which is installed"),
    "cli/verbs_models.py": ({"table.to_csv"}, "to the standard output"),
    "data/check.py": ({"zipfile.ZipFile"}, "an archive that was listed before"),
    "data/decode.py": (
        {"zipfile.ZipFile", "Image.open", "os.open", "open", "archive.open"},
        "errors are records of images; headers alone, after `check_file`; rows of a store",
    ),
    "data/prepare.py": ({"open", "(folder / HEADER).write_text"}, "inside `build_folder`"),
    "data/sources/folder.py": ({"zipfile.ZipFile"}, "the names of an archive, whose errors are said"),
    "data/sources/source.py": (
        {"part.open", "zipfile.ZipFile"},
        "a download, which gets its name once checked",
    ),
    "data/sources/own.py": ({"file.open"}, "one line; what is wrong with the file is said by the door"),
    "data/store.py": ({"np.memmap", "zipfile.ZipFile"}, "pixels whose size was checked; an archive listed before"),
    "engine/checkpoint.py": ({"safe_open"}, "after `check_file`"),
    "engine/feature_cache.py": (
        {"np.memmap", "(self._folder / name).open"},
        "sizes checked; inside `build_folder`",
    ),
    "models/build.py": ({"torch.load", "safe_open"}, "after `hash_file` or `check_file`, with tensors alone"),
    "processes.py": ({"log.open"}, "the error stream of a process"),
    "saliency/maps.py": ({"Image.open"}, "bytes that `read_bytes` gave"),
    "tryout/plan_tryout.py": ({"Image.open"}, "bytes that the list of images gave"),
    "tryout/run_tryout.py": ({"request.open"}, "images, by their own reader"),
    "weighting/chunks.py": ({"open"}, "what the system says of its memory"),
    "weighting/samples.py": ({"os.fdopen", "torch.from_file"}, "a map without a name, reserved as a whole"),
}


def list_openings(tree: ast.AST) -> set[str]:
    """Calls that open a file, as they are written; those to files of this package are left out."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name):
            continue
        text = ast.unparse(node)
        if text in FUNCTIONS or (isinstance(node, ast.Attribute) and node.attr in METHODS and _is_path(node)):
            found.add(text)
    return {text for text in found if not any(word in text for word in PACKAGED)}


def _is_path(node: ast.Attribute) -> bool:
    """Not a class of ours, such as `PixelStore.open`, nor a method of this object."""
    text = ast.unparse(node.value)
    return not text[0].isupper() and text not in ("self", "self._window", "tree")


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_go_through_the_door(path):
    name = path.relative_to(ROOT).as_posix()
    if name in DOORS:
        return
    allowed, _ = ALLOWED.get(name, (set(), ""))
    found = list_openings(ast.parse(path.read_text(encoding="utf-8")))
    assert found - allowed == set(), "read and write through stablenet.files, or say here why not"
    assert allowed - found == set(), "no longer there: take it off the list"


@pytest.mark.parametrize(
    ("code", "opens"),
    [
        ("path.read_bytes()", True),
        ("open(path)", True),
        ("np.memmap(path)", True),
        ("(folder / 'a').write_text('')", True),
        ("write = table.to_csv", True),
        ("read_bytes(path)", False),
        ("PixelStore.open(path)", False),
        ("files('stablenet').joinpath('a').read_text()", False),
    ],
)
def test_what_opens_a_file_is_found(code, opens):
    assert bool(list_openings(ast.parse(code))) == opens
