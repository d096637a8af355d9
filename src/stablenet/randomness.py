"""Counter-based random numbers: pure functions of a seed and counters, with no generator state to save or share.

`combine` and `draw_uniform` produce numbers; `combine_seed`, `mix_seed` and `mix_process_seed` produce seeds for
torch's generators. A sample's numbers depend only on (seed, epoch, index), not on its batch, process or run, so
resuming and dividing batches among processes change nothing. The mixer is splitmix64 (Steele, Lea and Flood, Fast
Splittable Pseudorandom Number Generators, OOPSLA 2014), in wrapping int64 arithmetic on any device.

Depends on torch only, like `stablenet.weighting`. Splits are drawn by `stablenet.data.splits.counting` instead, which
orders names by their hashes, so that `stablenet data split` need not import torch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LARGE_PRIME = 1_000_000_007  # spreads (seed, rank, step) over the generator's 64 bits


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def mix(bits: Tensor) -> Tensor:
    """Scramble an int64 tensor of any shape: one step of splitmix64."""
    bits = bits + _GAMMA
    bits = (bits ^ _shift_right(bits, 30)) * _FIRST
    bits = (bits ^ _shift_right(bits, 27)) * _SECOND
    return bits ^ _shift_right(bits, 31)


def combine(seed: int, *counters: int | Tensor) -> Tensor:
    """64 random bits for a seed and counters; tensors among the counters broadcast."""
    bits = mix(torch.tensor(_signed(seed)))  # a CPU scalar combines with tensors on any device
    for counter in counters:
        bits = mix(bits ^ (counter if isinstance(counter, Tensor) else _signed(counter)))
    return bits


def combine_seed(seed: int, *counters: int) -> int:
    """`combine` as a seed for one of torch's generators."""
    return int(combine(seed, *counters))


def draw_uniform(key: Tensor, count: int) -> Tensor:
    """Draw `count` uniform numbers in [0, 1) for each key (b,) int64.   Returns (b, count) float32."""
    step = torch.arange(count, device=key.device) * _GAMMA
    bits = mix(key.unsqueeze(1) + step)
    return _shift_right(bits, 40).float() * 2.0**-24  # 24 bits: exact in float32


def _shift_right(bits: Tensor, places: int) -> Tensor:
    """Logical (unsigned) right shift."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


class StepDraws(nn.Module):
    """Random numbers per training step; calls are counted in a buffer, so that a checkpoint contains the step.

    No synchronization with the device. A sample's numbers do not depend on its batch or process.
    """

    seed: Tensor
    step: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.register_buffer("seed", combine(seed), persistent=False)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, index: Tensor, count: int) -> Tensor:
        """Draw `count` uniform numbers in [0, 1) for each sample: index (b,) int64 -> (b, count)."""
        key = mix(mix(self.seed ^ self.step) ^ index)
        self.step += 1
        uniform: Tensor = draw_uniform(key, count)
        return uniform


# The two functions below differ from each other and from `combine_seed`: published results depend on all three.


def mix_seed(seed: int, call: int) -> int:
    """A 63-bit seed from the user's seed and the call number, for the Fourier functions of a weighting."""
    mask = (1 << 64) - 1
    x = (seed * _GAMMA + call * _FIRST + _SECOND) & mask
    x = ((x ^ (x >> 30)) * _FIRST) & mask
    x = ((x ^ (x >> 27)) * _SECOND) & mask
    return (x ^ (x >> 31)) & ((1 << 63) - 1)


def mix_process_seed(seed: int, rank: int, step: int) -> int:
    """A 63-bit seed for a process's draws in a step: dropout, and at step −1 the initial weights."""
    return ((seed * _LARGE_PRIME + rank) * _LARGE_PRIME + step + 1) % (1 << 63)
