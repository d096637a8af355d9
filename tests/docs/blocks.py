"""What the README and the documentation ask a reader to type."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from docs.machinery.notebook import SHELL, WRITE

ROOT = Path(__file__).parents[2]
WRITTEN = sorted(path for path in (ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *WRITTEN]
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_REASON = re.compile(r"# not run by the tests: (.+)")


@dataclass(frozen=True)
class Block:
    """language: python, bash, toml, text …   title: the file it is, if it is one.   line: in its page."""

    page: str
    line: int
    language: str
    title: str
    excerpt: bool
    text: str

    @property
    def reason(self) -> str:
        """Why it is not run, where it says so in its first line."""
        found = _REASON.match(self.text)
        return found[1] if found else ""

    @property
    def commands(self) -> list[str]:
        """The commands of a bash block, continued lines joined, comments left out."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def name_page(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def read_blocks(page: str, markdown: str) -> list[Block]:
    blocks = []
    for match in FENCE.finditer(markdown):
        language, _, rest = match["info"].strip().partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        text = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        line = markdown.count("\n", 0, match.start()) + 1
        blocks.append(Block(page, line, language, title[1] if title else "", "file=" in rest, text))
    return blocks


def read_inline_commands(markdown: str) -> list[str]:
    """Commands inside sentences: `stablenet …` and the like in code quotes."""
    plain = FENCE.sub("", markdown)
    # A quoted command may be broken by the end of a line.
    quoted = (" ".join(text.split()) for text in re.findall(r"(?<!`)`([^`]+)`(?!`)", plain))
    return [text for text in quoted if re.match(r"(stablenet|python|make|torchrun) \S", text)]


def split_words(command: str) -> list[str]:
    """Words of a command without assignments before it, quotes taken away."""
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    return words


def read_cells(page: str, notebook: str) -> list[Block]:
    """The blocks of a notebook, as those of the page that it was made from."""
    blocks: list[Block] = []
    for number, cell in enumerate(json.loads(notebook)["cells"]):
        text = "".join(cell["source"]) + "\n"
        if cell["cell_type"] == "markdown":
            blocks += read_blocks(page, text)
        elif text.startswith(WRITE):
            name, _, content = text.removeprefix(WRITE).partition("\n")
            blocks.append(Block(page, number, "toml", name, False, content))
        elif text.startswith(SHELL):
            commands = "".join(line.removeprefix(SHELL) for line in text.splitlines(keepends=True))
            blocks.append(Block(page, number, "bash", "", False, commands))
        else:
            blocks.append(Block(page, number, "python", "", False, text))
    return blocks
