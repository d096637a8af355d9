"""What the launches share with those who decide on them, who have to do without Triton."""

from __future__ import annotations

Triple = tuple[float, float, float]  # one number per channel


def count_taps(source: int, target: int) -> int:
    """How many of `source` pixels can touch one of `target`, rounded up so that few programs are compiled.

    The triangle around a pixel's centre reaches as far as the larger of the two pixels, on both sides.
    """
    taps = -(-2 * max(source, target) // target)
    return taps if taps <= 4 else 1 << (taps - 1).bit_length()
