"""Proof that a store still holds what was decoded, and that its source is still what it was."""

from __future__ import annotations

from collections.abc import Callable

from stablenet.data.check import Finding
from stablenet.data.store import PixelStore
from stablenet.data.table import ImageTable
from stablenet.errors import UserError


def check_store(store: PixelStore, table: ImageTable | None = None) -> list[Finding]:
    """Every image against its checksum; with the source's table also that no file of it changed since."""
    header = store.header
    size = f"{header.count:,} images of {header.height} × {header.width}"
    findings = [_try(store.verify, "every image fits its checksum", size)]
    if table is not None:
        detail = f"{len(table.rows):,} images, {len(header.left_out)} of them left out"
        findings.append(_try(lambda: store.check_source(table), "the source is unchanged", detail))
    return findings


def _try(check: Callable[[], None], name: str, detail: str) -> Finding:
    try:
        check()
    except UserError as error:
        return Finding(name, False, str(error))
    return Finding(name, True, detail)
