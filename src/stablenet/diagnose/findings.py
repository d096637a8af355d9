"""Everything a diagnosis found: the page and the command line show it, nothing is computed there."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from stablenet.diagnose.context import ContextFindings
from stablenet.diagnose.telling import Telling
from stablenet.diagnose.verdict import HAND_MADE, Bars, Verdict
from stablenet.diagnose.weigh import Trade


@dataclass(frozen=True)
class Column:
    """A column of a table: how strongly it depends on the label (0 to 1), and the adjusted p-value."""

    name: str
    strength: float
    p_value: float


@dataclass(frozen=True)
class Pair:
    """Two columns that depend on each other."""

    first: str
    second: str
    strength: float
    p_value: float


@dataclass(frozen=True)
class Diagnosis:
    """name: of the data.   classes: that occur, in the order of the tellings.   y: (n,) positions in classes.
    features: what was looked at, in words.   whole: what the features tell of the label; for images also border.
    trades: gentle to firm.   weights: (n,) of the firmest.   thumbnails: (n, t, t, 3), images only.
    columns, pairs: tables only, strongest first.   notes: what the reader must know.
    """

    name: str
    classes: tuple[str, ...]
    y: Tensor
    features: str
    whole: Telling
    trades: tuple[Trade, ...]
    weights: Tensor
    verdict: Verdict
    border: Telling | None = None
    bars: Bars = HAND_MADE
    context: ContextFindings | None = None
    thumbnails: Tensor | None = None
    columns: tuple[Column, ...] = ()
    pairs: tuple[Pair, ...] = ()
    rows: tuple[str, ...] = field(default=(), repr=False)  # tables: a short text for every row
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)
