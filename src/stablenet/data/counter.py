"""Random numbers by position: pure functions of a seed and counters, with no stream to save or to share.

What happens to a sample depends on (seed, epoch, index) alone, not on the batch, process or run that meets it:
resuming, and dividing batches among processes, change nothing. The mixer is splitmix64's (Steele, Lea and
Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014), in wrapping int64 arithmetic on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def mix(bits: Tensor) -> Tensor:
    """Scramble int64 of any shape: one step of splitmix64."""
    bits = bits + _GAMMA
    bits = (bits ^ _shift_right(bits, 30)) * _FIRST
    bits = (bits ^ _shift_right(bits, 27)) * _SECOND
    return bits ^ _shift_right(bits, 31)


def combine(seed: int, *counters: int | Tensor) -> Tensor:
    """64 random bits for a seed and counters; tensors among the counters broadcast."""
    bits = mix(torch.tensor(_signed(seed)))  # on the processor until it meets a tensor that is not: a scalar goes along
    for counter in counters:
        bits = mix(bits ^ (counter if isinstance(counter, Tensor) else _signed(counter)))
    return bits


def draw_uniform(key: Tensor, count: int) -> Tensor:
    """`count` uniform numbers in [0, 1) for every key (b,) int64.   Returns (b, count) float32."""
    step = torch.arange(count, device=key.device) * _GAMMA
    bits = mix(key.unsqueeze(1) + step)
    return _shift_right(bits, 40).float() * 2.0**-24  # 24 bits: exact in float32


def _shift_right(bits: Tensor, places: int) -> Tensor:
    """Shift without the sign."""
    return (bits >> places) & ((1 << (64 - places)) - 1)
