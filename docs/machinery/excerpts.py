"""Lines of the code shown in a page: found again at every build, so that their numbers are right or the build fails.

    ```python file=weighting/fourier.py function=apply_fourier_functions
    return math.sqrt(2) * angle.cos()
    ```

The lines must stand in that function (or `Class.method`) as they are written, but for their indentation.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "stablenet"
_BLOCK = re.compile(r"^```python file=(\S+) function=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class LostExcerpt(Exception):
    """The code no longer reads as a page says."""


@dataclass(frozen=True)
class Excerpt:
    """file: inside the package.   function: its name, or `Class.method`.   lines: dedented."""

    file: str
    function: str
    lines: tuple[str, ...]

    def find(self) -> int:
        """The number of its first line in the file."""
        path = PACKAGE / self.file
        if not path.is_file():
            raise LostExcerpt(f"there is no file {self.file} in the package")
        text = path.read_text(encoding="utf-8")
        first, last = find_function(text, self.function, self.file)
        source = text.splitlines()
        for start in range(first, last - len(self.lines) + 2):
            found = textwrap.dedent("\n".join(source[start - 1 : start - 1 + len(self.lines)])).splitlines()
            if tuple(found) == self.lines:
                return start
        raise LostExcerpt(f"{self.function} in {self.file} no longer holds {self.lines[0]!r}")


def find_function(text: str, name: str, file: str) -> tuple[int, int]:
    """The first and last line of a function, class or `Class.method`."""
    body: list[ast.stmt] = ast.parse(text).body
    for part in name.split("."):
        named = (node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part)
        node = next(named, None)
        if node is None:
            raise LostExcerpt(f"there is no {name} in {file}")
        body = node.body
    assert node.end_lineno is not None
    return node.lineno, node.end_lineno


def find_excerpts(markdown: str) -> Iterator[Excerpt]:
    for match in _BLOCK.finditer(markdown):
        yield Excerpt(match[1], match[2], tuple(match[3].rstrip("\n").splitlines()))


def number_excerpts(markdown: str) -> str:
    """The page with the place of every excerpt above it and its line numbers beside it."""

    def number(match: re.Match[str]) -> str:
        (excerpt,) = find_excerpts(match[0])
        line = excerpt.find()
        return f'```python title="src/stablenet/{match[1]}: {match[2]}" linenums="{line}"\n{match[3]}```'

    return _BLOCK.sub(number, markdown)
