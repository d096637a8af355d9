"""Every package says what is in it and in which order to read it, and names nothing that is not there."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import stablenet

ROOT = Path(stablenet.__file__).parent
TESTS = Path(__file__).parent
PACKAGES = sorted(path.parent for path in ROOT.rglob("__init__.py"))
ORDER = re.compile(r"In reading order: .*?(?=\n\n|\Z)", re.DOTALL)


def read_order(package: Path) -> list[str]:
    """The modules and packages that the docstring names, in its order."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    named = ORDER.search(text)
    return re.findall(r"`(\w+)`", named[0]) if named else []


def list_members(package: Path) -> list[str]:
    modules = [path.stem for path in package.glob("*.py") if not path.stem.startswith("_")]
    return sorted([*modules, *(path.parent.name for path in package.glob("*/__init__.py"))])


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: ".".join(path.relative_to(ROOT.parent).parts))
def test_a_package_names_all_it_holds_in_reading_order(package):
    assert sorted(read_order(package)) == list_members(package)


def test_no_two_modules_share_a_name():
    names = Counter(path.name for path in ROOT.rglob("*.py") if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_no_two_public_classes_share_a_name():
    places: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_module_begins_with_a_sentence():
    """One that ends in the first line, or in the first paragraph where it is long."""
    for path in sorted(ROOT.rglob("*.py")):
        if path.name == "_version.py":
            continue
        first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0].rstrip()
        assert first.endswith((".", "?", "`.", ":")), f"{path.relative_to(ROOT)}: {first!r}"


# Of no single module: what holds for all methods, for a whole run, or for what is shown together.
ACROSS = {
    "algorithms": {"averaging", "domains", "methods", "resume", "worst_group"},
    "bench": {"evidence", "probe", "published", "scale", "verbs_bench"},
    "cli": {"own_images"},
    "engine": {"decision", "gpu", "processes", "releases", "resume"},
    "integrations": {"examples", "processes", "same_training"},
    "models": {"own_networks"},
    "pages": {"browser_pages"},
    "weighting": {"purpose"},
}


@pytest.mark.parametrize("package", [path.relative_to(ROOT).as_posix() for path in PACKAGES if path != ROOT])
def test_tests_bear_the_names_of_what_they_test(package):
    """`test_dataset_whole_set.py` tests `dataset.py`; the others are listed above."""
    members = [*list_members(ROOT / package), Path(package).name, *ACROSS.get(package, ())]
    for path in sorted((TESTS / package).glob("test_*.py")):
        name = path.stem.removeprefix("test_")
        assert any(f"{name}_".startswith(f"{member}_") for member in members), path.relative_to(TESTS)


def test_test_modules_say_what_they_test():
    for path in sorted(TESTS.rglob("test_*.py")):
        first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
        assert first.endswith((".", "?", "`.")), path.name
