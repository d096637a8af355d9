"""Versions of the preset `recommended`, so that a run is never taken for one of another version.

A version is raised when a default or a rule of the preset changes what a training computes; it enters the hash of every
run of the preset. What an earlier version left to itself is stated here in today's parameters: under them such a run is
compared, planned and continued.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stablenet.models.taps import LAST
from stablenet.weighting import recommended

FIRST = "1"  # release 0.1; its runs do not state a version
CURRENT = "2"
CHANGES = {
    FIRST: "release 0.1: it always acts; a pretrained network gets the offsets of its first two stages, as they are",
    CURRENT: "it decides from the training data whether to act; offsets of a pretrained network as in `recommended.py`",
}


def restate(parameters: Mapping[str, Any], version: str, pretrained: bool) -> dict[str, Any]:
    """`method.parameters` of a whole-set run of `recommended` of a version, with what was its default then.

    >>> restate({"components": 8}, FIRST, pretrained=True)
    {'act': 'always', 'components': 8, 'taps': ['stage1', 'stage2'], 'offset': 1.0}
    """
    stated = dict(parameters)
    if version == FIRST:
        taps = {"taps": list(recommended.TAPS)} if pretrained and parameters.get("taps") is None else {}
        stated = {"act": "always", **stated, **taps}
        shallow = (parameters.get("taps") or recommended.TAPS)[0] != LAST
        if pretrained and shallow and parameters.get("offset") is None:
            stated["offset"] = 1.0 - recommended.BESIDE_WEIGHTS * (parameters.get("strength") or 0.0)
    return stated
