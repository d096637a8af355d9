"""What StableNet is made of: `python .ci/supply.py lock|sbom|audit`, all from what is installed here.

lock: exact versions for CI, as constraints of pip. torch and what it alone brings along are left out: which build fits
depends on the machine, any from the minimum on will do, and some ask for one version of theirs.
sbom: a list of components in CycloneDX (JSON), the same bytes every time.
audit: known weaknesses, by pip-audit where it is installed and has a network; else by `requirements/advisories.json`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LOCK, ADVISORIES, SBOM = "requirements/ci.txt", "requirements/advisories.json", "dist/sbom.json"
PACKAGE = "stablenet"
UNLOCKED = re.compile(
    r"stablenet|torch|torchvision|triton|(nvidia|cuda)-.*|sympy|mpmath|networkx|fsspec|pip|setuptools"
)
HEAD = """# Exact versions for CI and development: what `make install` puts beside torch. Written by `make lock`.
# torch and torchvision are not among them: any build from the minimum in pyproject.toml on will do.
"""
_FAILED = 2  # pip-audit's status where it could not ask


def find_closure(extras: Sequence[str]) -> dict[str, Distribution]:
    """What is installed for the package with these extras, by name; itself included."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(f"{PACKAGE}[{','.join(extras)}]")]
    seen = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if (name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((name, frozenset(wanted.extras)))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # for another platform, or not installed
            continue
        waiting += list_requirements(found[name], wanted.extras)
    return dict(sorted(found.items()))


def list_requirements(found: Distribution, extras: Iterable[str]) -> list[Requirement]:
    """What a distribution asks for here, with these extras."""
    wanted = [Requirement(text) for text in found.requires or ()]
    names = ["", *extras]
    return [one for one in wanted if one.marker is None or any(one.marker.evaluate({"extra": name}) for name in names)]


def write_lock() -> str:
    closure = find_closure(("dev", "docs"))
    lines = [f"{name}=={found.version}" for name, found in closure.items() if not UNLOCKED.fullmatch(name)]
    return HEAD + "".join(f"{re.sub(r'[+].*', '', line)}\n" for line in lines)


def describe_component(name: str, found: Distribution) -> dict[str, Any]:
    told: dict[str, Any] = {
        "type": "library",
        "bom-ref": name_component(name, found),
        "name": name,
        "version": found.version,
        "purl": name_component(name, found),
    }
    licence = found.metadata.get("License-Expression") or found.metadata.get("License") or ""
    if licence and len(licence) < 100:  # some hold its whole text
        told["licenses"] = [{"license": {"name": licence}}]
    return told


def name_component(name: str, found: Distribution) -> str:
    return f"pkg:pypi/{name}@{found.version}"


def write_sbom(extras: Sequence[str] = ()) -> str:
    """CycloneDX 1.5; without times and with a serial number of its contents, so that it is the same twice."""
    closure = find_closure(extras)
    own = closure.pop(PACKAGE)
    components = [describe_component(name, found) for name, found in closure.items()]
    everything = {PACKAGE: own, **closure}
    links = [
        {"ref": name_component(name, one), "dependsOn": _list_links(one, everything)}
        for name, one in everything.items()
    ]
    whole = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**describe_component(PACKAGE, own), "type": "application"}},
        "components": components,
        "dependencies": links,
    }
    return json.dumps({**whole, "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, json.dumps(whole))}"}, indent=1) + "\n"


def _list_links(found: Distribution, known: Mapping[str, Distribution]) -> list[str]:
    names = {canonicalize_name(wanted.name) for wanted in list_requirements(found, ())}
    return [name_component(name, known[name]) for name in sorted(names & set(known))]


def find_weak(installed: Mapping[str, str], advisories: Iterable[Mapping[str, str]]) -> list[str]:
    """A line for every weakness of an installed version.   installed: version by name."""
    return [
        f"{each['package']} {installed[each['package']]}: {each['id']}, {each['what']}; mended in {each['fixed']}"
        for each in advisories
        if each["package"] in installed and Version(installed[each["package"]]) < Version(each["fixed"])
    ]


def audit() -> int:
    if find_spec("pip_audit") is not None:
        status = subprocess.run([sys.executable, "-m", "pip_audit", "--local", "--progress-spinner=off"]).returncode
        if status < _FAILED:
            return status
    listed = json.loads((ROOT / ADVISORIES).read_text(encoding="utf-8"))
    installed = {canonicalize_name(one.metadata["Name"]): one.version for one in distributions()}
    weak = find_weak(installed, listed["advisories"])
    print("\n".join(weak) or "nothing found")
    print(
        f"by the list of {listed['date']}, without a network or pip-audit; {len(listed['advisories'])} weaknesses known"
    )
    return 1 if weak else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("lock", "sbom", "audit"))
    what = parser.parse_args().what
    if what == "audit":
        return audit()
    path = ROOT / (LOCK if what == "lock" else SBOM)
    path.parent.mkdir(exist_ok=True)
    path.write_text(write_lock() if what == "lock" else write_sbom(), encoding="utf-8")
    print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
