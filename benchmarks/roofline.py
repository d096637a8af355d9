"""What a step with weights costs at least: counted operations of the network and of the solve, nothing measured.

    python -m benchmarks.roofline               # results/weighting/roofline.md and roofline.json

The network is ResNet-18 at 224 pixels with batches of 128, the solve that of the preset `paper` with 512 features and
q = 5, over a memory of 128 rows and the batch. Both run on shapes alone (the meta device; the solve, which looks at
numbers, on the processor), and every operation is counted: multiplications and additions of matrix products and
convolutions, and bytes of its inputs and outputs. Bytes are those of operations one after the other, so that fused ones
need fewer. The least time of a part is the larger of operations ÷ peak and bytes ÷ bandwidth of an H200 by its data
sheet.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from stablenet.weighting import random_fourier_features
from stablenet.weighting.settings import settings_of
from stablenet.weighting.solver import solve_weights
from stablenet.weighting.statistic import GramPairs

BATCH, MEMORY, FEATURES, FUNCTIONS, SIDE = 128, 128, 512, 5, 224
# NVIDIA's data sheet of the H200 SXM: dense products a second in bfloat16, and in float64 by its tensor cores; bytes.
PEAKS = {torch.bfloat16: 989e12, torch.float64: 67e12}
BANDWIDTH = 4.8e12
MEASURED_STEP, MEASURED_CALL = 10.9e-3, 0.624e-3  # seconds, results/weighting/gpu.md
BAR = 1.03
EVALUATIONS = settings_of("paper", {}).steps + 1
VIEWS = (
    "view",
    "detach",
    "expand",
    "permute",
    "transpose",
    "slice",
    "select",
    "unsqueeze",
    "squeeze",
    "as_strided",
    "t",
)

# Products that the counter of torch leaves out, by the shapes of what they multiply.
ALSO_COUNTED = {
    torch.ops.aten.addmm_: lambda total, one, other, **_: 2 * one[0] * one[1] * other[1],
    torch.ops.aten.mv: lambda matrix, vector, **_: 2 * matrix[0] * matrix[1],
    torch.ops.aten.addmv_: lambda total, matrix, vector, **_: 2 * matrix[0] * matrix[1],
    torch.ops.aten.dot: lambda one, other, **_: 2 * one[0],
}


@dataclass(frozen=True)
class Count:
    """operations: of products and convolutions.   moved: bytes in and out of all operations.   seconds: at least."""

    part: str
    operations: float
    moved: float
    seconds: float


class ByteCounter(TorchDispatchMode):
    """Adds up the bytes of all operations' inputs and outputs; views move none."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__.strip("_") not in VIEWS:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
            self.moved += sum(tensor.numel() * tensor.itemsize for tensor in tensors)
        return result


def count(part: str, work: Callable[[], object], dtype: torch.dtype) -> Count:
    with FlopCounterMode(display=False, custom_mapping=ALSO_COUNTED) as operations, ByteCounter() as moved:
        work()
    total = float(operations.get_total_flops())
    return Count(part, total, moved.moved, max(total / PEAKS[dtype], moved.moved / BANDWIDTH))


def count_network() -> list[Count]:
    """Forward and backward pass in bfloat16."""
    import torchvision

    with torch.device("meta"):
        model = torchvision.models.resnet18(num_classes=7).to(torch.bfloat16)
        x = torch.empty(BATCH, 3, SIDE, SIDE, dtype=torch.bfloat16)
        y = torch.empty(BATCH, dtype=torch.int64)
    losses: list[Tensor] = []

    def forward() -> None:
        losses.append(functional.cross_entropy(model(x), y))

    return [
        count("forward pass", forward, torch.bfloat16),
        count("backward pass", lambda: losses[0].backward(), torch.bfloat16),
    ]


def count_solve() -> list[Count]:
    """Its preparation, and the inner steps; in float64, as the preset has it."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(MEMORY + BATCH, FEATURES, generator=generator)
    u = random_fourier_features(z, FUNCTIONS, generator=generator)
    settings, found = settings_of("paper", {}), []

    def prepare() -> None:
        found.append(GramPairs(u, settings.form, torch.float64))

    def descend() -> None:
        solve_weights(lambda step: found, torch.ones(MEMORY, dtype=torch.float64), BATCH, settings)

    return [
        count("solve: products of samples, once", prepare, torch.float64),
        count(f"solve: {EVALUATIONS} evaluations and steps", descend, torch.float64),
    ]


def write_page(counts: list[Count]) -> str:
    lines = ["# A step with weights at least", ""]
    lines += ["Calculated by `python -m benchmarks.roofline` from counted operations; only the figures called measured"]
    lines += [
        "were. ResNet-18 at 224 pixels, batches of 128, bfloat16; the solve of the preset `paper` with 512 features"
    ]
    lines += ["and q = 5, float64; an H200 by its data sheet.", ""]
    lines += ["| part | operations | bytes | least time |", "|---|---|---|---|"]
    for each in counts:
        cells = f"{each.operations / 1e9:,.3g} G | {each.moved / 1e9:,.3g} GB | {1e3 * each.seconds:.3f} ms"
        lines.append(f"| {each.part} | {cells} |")
    step, solve = sum(each.seconds for each in counts[:2]), sum(each.seconds for each in counts[2:])
    return "\n".join([*lines, "", *conclude(step, solve)]) + "\n"


def conclude(step: float, solve: float) -> list[str]:
    found = (
        f"The network's passes take at least {tell(step)}; a step without weights measured {tell(MEASURED_STEP)} "
        f"([GPU](gpu.md)). The solve takes at least {tell(solve)}, {solve / MEASURED_STEP:.1%} of that step; a call "
        f"measured {tell(MEASURED_CALL)}, {MEASURED_CALL / MEASURED_STEP:.1%}. The bar of {BAR} allows "
        f"{tell((BAR - 1) * MEASURED_STEP)}."
    )
    meaning = (
        f"So neither arithmetic nor bandwidth stand against {BAR}. A call is {EVALUATIONS} evaluations of which each "
        f"needs the one before, {tell(share_of(MEASURED_CALL))} each as measured, {tell(share_of(solve))} at least; in "
        "each, the whole device waits twice for its slowest part. To hide the solve is not possible within a step: it "
        "begins with the last layer's features, at the end of the forward pass, and the backward pass begins with its "
        "weights. With features one step late it could run beside the next step, which would be another method; there "
        "is no such option, and its accuracy was not measured."
    )
    return [*wrap(found, 118), "", *wrap(meaning, 118)]


def tell(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds > 1e-4 else f"{1e6 * seconds:.0f} µs"


def share_of(seconds: float) -> float:
    """Of an evaluation."""
    return seconds / EVALUATIONS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/weighting"))
    options = parser.parse_args()
    counts = [*count_network(), *count_solve()]
    (options.out / "roofline.json").write_text(json.dumps([asdict(each) for each in counts], indent=1) + "\n")
    page = write_page(counts)
    (options.out / "roofline.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
