"""From docstrings to Markdown: examples as code, `name: meaning` lines as lists, formulas as they stand."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ENTRY = re.compile(r"^[a-z_]\w*(, [a-z_]\w*)*: \S")
_SEVERAL = re.compile(r" {3,}(?=[a-zA-Z_]\w*(?:, \w+)*[: ])")  # `u: (n, m).   w: (n,).` is two entries
_CODE = re.compile(r"(`[^`]*`)")
_SPECIAL = re.compile(r"([\\*_\[\]#])")


class PlainDocstrings(griffe.Extension):
    """Lets mkdocstrings show docstrings that follow no markup but their own plain habits."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = render(obj.docstring.value)


def render(text: str) -> str:
    """A docstring, dedented, as Markdown."""
    return "\n\n".join(_render_paragraph(part.split("\n")) for part in re.split(r"\n\s*\n", text.strip("\n")))


def escape(text: str) -> str:
    """Formulas are no markup: the signs of Markdown and HTML outside code are taken literally."""
    parts = _CODE.split(text)
    return "".join(part if n % 2 else _SPECIAL.sub(r"\\\1", part).replace("<", "&lt;") for n, part in enumerate(parts))


def _render_paragraph(lines: list[str]) -> str:
    if lines[0].startswith(">>>"):
        return "\n".join(["```pycon", *lines, "```"])
    if all(line.startswith(("    ", "|")) for line in lines):
        return "\n".join(lines)
    return "\n".join(_render_entry(entry) for entry in _split_entries(lines))


def _split_entries(lines: list[str]) -> list[str]:
    """Lines that belong together joined into one; an entry or a sentence on what is returned begins anew."""
    entries: list[str] = []
    for line in lines:
        begins = _ENTRY.match(line) or line.startswith(("Returns ", "- "))
        if begins or not entries:
            entries.append(line.strip())
        else:
            entries[-1] += " " + line.strip()
    return [part for entry in entries for part in _SEVERAL.split(entry)]


def _render_entry(entry: str) -> str:
    if entry.startswith("- "):
        return f"- {escape(entry[2:])}"
    if not _ENTRY.match(entry):
        return escape(entry) if not entry.startswith("Returns ") else f"\n{escape(entry)}"
    names, _, meaning = entry.partition(": ")
    shown = ", ".join(f"`{name}`" for name in names.split(", "))
    return f"- {shown}: {escape(meaning)}"
