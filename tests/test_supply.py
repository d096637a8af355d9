"""The lock file, the list of components, the audit without a network, and wheels with the same bytes twice."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def supply():
    spec = importlib.util.spec_from_file_location("supply", ROOT / ".ci" / "supply.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_lock():
    lines = (ROOT / "requirements" / "ci.txt").read_text().split("\n")
    return {name: version for name, _, version in (line.partition("==") for line in lines if "==" in line)}


def test_the_lock_holds_what_development_needs_and_not_torch():
    locked = read_lock()
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        if name in ("torch", "torchvision"):
            assert name not in locked
        else:
            assert requirement.specifier.contains(locked[name]), requirement
    assert not any(re.match("torch$|torchvision|nvidia|cuda|triton|sympy", name) for name in locked)
    text = (ROOT / "requirements" / "ci.txt").read_text()
    assert not re.search(r"https?://|--hash|--index| @ |\+", text)


def test_the_lock_is_that_of_an_environment(supply):
    """A version for every package of development that is installed here, whichever it is."""
    written = {line.partition("==")[0] for line in supply.write_lock().split("\n") if "==" in line}
    assert written <= set(supply.find_closure(("dev", "docs")))
    assert {"numpy", "pytest", "ruff", "pillow"} <= written


def test_components_are_listed_the_same_twice(supply):
    text = supply.write_sbom()
    assert text == supply.write_sbom()
    listed = json.loads(text)
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.5")
    names = {component["name"] for component in listed["components"]}
    assert {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]} <= names
    assert not {"pytest", "ruff"} & names
    refs = {component["bom-ref"] for component in listed["components"]} | {listed["metadata"]["component"]["bom-ref"]}
    assert {ref for link in listed["dependencies"] for ref in (link["ref"], *link["dependsOn"])} == refs
    own = next(link for link in listed["dependencies"] if link["ref"].startswith("pkg:pypi/stablenet@"))
    assert len(own["dependsOn"]) == len(PROJECT["dependencies"])


@pytest.mark.parametrize(("version", "found"), [("10.2.0", 1), ("10.3.0", 0), ("10.10.0", 0)])
def test_the_audit_without_a_network_names_what_is_weak(supply, version, found):
    advisories = [{"package": "pillow", "id": "CVE-2024-28219", "fixed": "10.3.0", "what": "an overflow"}]
    weak = supply.find_weak({"pillow": version}, advisories)
    assert len(weak) == found
    assert all("CVE-2024-28219" in line and "mended in 10.3.0" in line for line in weak)


def test_the_lock_is_free_of_what_is_known(supply):
    listed = json.loads((ROOT / "requirements" / "advisories.json").read_text())["advisories"]
    assert all(set(each) == {"package", "id", "fixed", "what"} for each in listed)
    assert supply.find_weak(read_lock(), listed) == []


@pytest.mark.slow
def test_two_builds_of_the_same_source_have_the_same_bytes(tmp_path):
    """In two places, with files of other times and rights; needs a network for hatchling."""
    wheels = []
    for name in ("one", "two"):
        source = tmp_path / name
        shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "results", "dist", "site", "build"))
        for path in source.rglob("*"):
            os.utime(path, (1_500_000_000 + len(name + path.name),) * 2)
            path.chmod(0o755 if path.is_dir() else 0o644 if name == "one" else 0o664)
        words = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path / f"{name}-dist"), str(source)]
        done = subprocess.run(
            words, capture_output=True, text=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
        )
        assert done.returncode == 0, done.stderr[-2000:]
        (wheel,) = (tmp_path / f"{name}-dist").glob("*.whl")
        wheels.append(wheel.read_bytes())
    assert wheels[0] == wheels[1]
