"""Lets mkdocstrings show docstrings that follow no markup but their own plain habits."""

from __future__ import annotations

from typing import Any

import griffe
from docs.machinery.docstrings import render


class PlainDocstrings(griffe.Extension):
    """Called by Griffe for every object it has read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = render(obj.docstring.value)
