"""Random choices that are the same on every machine: items are ordered by their hashes.

NumPy does not guarantee equal streams across versions. Ordering by SHA-256 of (seed, purpose, item) needs no stream,
and adding or removing an image does not change the order of the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def shuffle(items: Iterable[str], seed: int, *purpose: str) -> list[str]:
    """The items in random order, which depends on seed and purpose."""
    return sorted(items, key=lambda item: _digest(item, seed, purpose))


def shuffle_rows(rows: pd.DataFrame, seed: int, *purpose: str) -> pd.DataFrame:
    """The rows in the random order of their ids, which must be unique."""
    order = {item: place for place, item in enumerate(shuffle(rows["id"], seed, *purpose))}
    return rows.iloc[np.argsort(rows["id"].map(order).to_numpy(), kind="stable")].reset_index(drop=True)


def draw_places(items: Iterable[str], seed: int, *purpose: str) -> NDArray[np.int64]:
    """Two independent uniform integers in 0..65535 for each item, shape (n, 2)."""
    raw = b"".join(_digest(item, seed, purpose)[:4] for item in items)
    return np.frombuffer(raw, ">u2").astype(np.int64).reshape(-1, 2)


def _digest(item: str, seed: int, purpose: tuple[str, ...]) -> bytes:
    return hashlib.sha256("\x1f".join((str(seed), *purpose, item)).encode()).digest()
