"""The tutorial as a notebook: prose as it is, Python and commands as cells, files written by a cell.

python -m docs.machinery.notebook
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TUTORIAL, NOTEBOOK = ROOT / "docs" / "tutorial.md", ROOT / "examples" / "tutorial.ipynb"
WRITE, SHELL = "%%writefile ", "!"  # how a cell begins that writes a file, and a line that is a command
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s]+)(?=\))")


def convert(page: str) -> str:
    """A page in Markdown as a notebook's JSON."""
    cells = [_make_cell(number, kind, text) for number, (kind, text) in enumerate(_cut(page))]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _cut(page: str) -> Iterator[tuple[str, str]]:
    """("markdown" or "code", text) in order. Blocks that are only shown, or not to be run, stay in the prose."""
    prose, end = "", 0
    for match in _BLOCK.finditer(page):
        code = _write_code(*match.groups())
        prose += page[end : match.start()] + ("" if code else match[0])
        end = match.end()
        if code:
            yield from [("markdown", prose)] if prose.strip() else []
            yield "code", code
            prose = ""
    yield "markdown", prose + page[end:]


def _write_code(language: str, title: str | None, text: str) -> str:
    """A cell's code, "" where the block is none."""
    if language == "python":
        return text
    if language == "bash" and not text.startswith("#"):
        return "".join(f"{SHELL}{line}\n" for line in text.splitlines())
    return f"{WRITE}{title}\n{text}" if title and language == "toml" else ""


def _make_cell(number: int, kind: str, text: str) -> dict[str, object]:
    if kind == "markdown":
        text = _LINK.sub(lambda match: _move(match[0]), text)
    lines = text.strip("\n").splitlines(keepends=True)
    cell: dict[str, object] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": lines}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _move(target: str) -> str:
    """A link of the page as one of the notebook, which lies in another folder."""
    return Path(os.path.relpath(TUTORIAL.parent / target, NOTEBOOK.parent)).as_posix()


if __name__ == "__main__":
    NOTEBOOK.write_text(convert(TUTORIAL.read_text(encoding="utf-8")), encoding="utf-8")
