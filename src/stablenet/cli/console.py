"""Prints everything that is formatted: names are shown literally, never interpreted as markup.

Colours and styles are set by `rich.text.Text` and by `style=`; a test checks that no other module opens a console.
"""

from __future__ import annotations

from typing import Any

import rich.console
import rich.progress


class Console(rich.console.Console):
    """A console to which `[/b]` and `:smile:` are text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})


class TextColumn(rich.progress.TextColumn):
    """A column of a progress bar, such as `{task.description}`, without markup."""

    def __init__(self, text_format: str) -> None:
        super().__init__(text_format, markup=False)
