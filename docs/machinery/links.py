"""Links are written for the checkout, where every file is; on the site they lead to the page made from that file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from stablenet.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[2]
METHODS, COMMANDS = ROOT / "src" / "stablenet" / "algorithms", ROOT / "src" / "stablenet" / "cli"
PAGES = {ROOT / "CHANGELOG.md": "changelog.md", METHODS: "methods/index.md", COMMANDS: "reference/command-line.md"}
PICTURES = "results/files"  # of the results' pages, on the site
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def find_page(path: Path, root: Path = ROOT) -> str | None:
    """The site's page of a file or folder of the checkout; None if it has none."""
    if path in PAGES:
        return PAGES[path]
    if path.suffix == ".md" and path.is_relative_to(root / "docs"):
        return path.relative_to(root / "docs").as_posix()
    if path.parent == METHODS:
        name = path.stem.replace("_", "-")
        return f"methods/{name}.md" if name in ALGORITHMS else PAGES[METHODS]
    folder = path if path.is_dir() else path.parent
    if path.name not in ("README.md", folder.name) or not (folder / "README.md").is_file():
        return None
    if not folder.is_relative_to(root / "results"):
        return None
    place = folder.relative_to(root / "results").as_posix()
    return "results/index.md" if place == "." else f"results/{place}.md"


def adapt_links(file: Path, page: str, text: str, root: Path = ROOT) -> tuple[str, list[Path]]:
    """The text of a file of the checkout as that page of the site, and the pictures it shows from outside docs.

    A link to a file that is no page becomes the file's name.
    """
    shown: list[Path] = []

    def adapt(match: re.Match[str]) -> str:
        bang, label, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        name, mark, section = target.partition("#")
        path = Path(os.path.normpath(file.parent / name))
        if bang and path.is_relative_to(root / "docs"):
            return f"![{label}]({_go(page, path.relative_to(root / 'docs').as_posix())})"
        if bang:
            shown.append(path)
            return f"![{label}]({_go(page, f'{PICTURES}/{path.name}')})"
        found = find_page(path, root)
        if found:
            return f"[{label}]({_go(page, found)}{mark}{section})"
        return f"{label} (`{target}`)" if label.strip("`") != target else f"`{target}`"

    return _LINK.sub(adapt, text), shown


def _go(page: str, target: str) -> str:
    return Path(os.path.relpath(target, Path(page).parent)).as_posix()
