"""From docstrings to Markdown: examples as code, `name: meaning` lines as lists, formulas as they stand."""

from __future__ import annotations

import re

_ENTRY = re.compile(r"^[a-z_]\w*((?:, | / )[a-z_]\w*)*: \S")
_SEVERAL = re.compile(r" {3,}(?=[a-zA-Z_]\w*(?:, \w+)*[: ])")  # `u: (n, m).   w: (n,).` is two entries
_CODE = re.compile(r"(`[^`]*`)")
_SPECIAL = re.compile(r"([\\*_\[\]#])")


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
    rendered = [_render_entry(entry) for entry in _split_entries(lines)]
    return "".join(_part(before, text) + text for before, text in zip(["", *rendered], rendered, strict=False))


def _part(before: str, text: str) -> str:
    """What goes between two entries: those of a list follow each other, all else stands apart."""
    if not before:
        return ""
    return "\n" if before.startswith("- ") and text.startswith("- ") else "\n\n"


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
        return escape(entry)
    names, _, meaning = entry.partition(": ")
    shown = re.sub(r"[a-z_]\w*", r"`\g<0>`", names)
    return f"- {shown}: {escape(meaning)}"
