"""Coloured digits: small or large? A quarter of the labels is wrong, and the colour is correlated with the label.

    python -m benchmarks.coloured DATA pictures      # DATA: a folder with MNIST's files
    stablenet bench run results/coloured/table.toml --methods erm,stablenet,stablenet-weights --seeds 8 --root pictures

Writes `train/` and `abroad/` with a folder for each class, 0 (digits 0 to 4) and 1 (5 to 9), as image files. In
training, red and green predict the label nine times in ten, the digit three times in four; abroad, the colours are
swapped. The idea is that of Arjovsky et al. (2019), with one training domain, so that no method can compare domains.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from stablenet.data.sources.digits import read_digit_rows, read_digits

TRAIN, ABROAD = 2500, 1000
WRONG = 0.25  # default share of wrong labels
AGREES = {"train": 0.9, "abroad": 0.1}  # share of images whose colour matches the label


def draw(data: Path, out: Path, *, wrong: float = WRONG, seed: int = 0) -> None:
    """The same images for the same seed."""
    rows, rng = read_digit_rows(data), np.random.default_rng(seed)
    digits, values = read_digits(data), rows["label"].to_numpy()
    chosen = rng.permutation(np.flatnonzero((rows["subset"] == "train").to_numpy()))[: TRAIN + ABROAD]
    for number, row in enumerate(chosen):
        domain = "train" if number < TRAIN else "abroad"
        label = int(values[row] >= 5) ^ int(rng.random() < wrong)
        colour = label if rng.random() < AGREES[domain] else 1 - label
        pixels = np.zeros((28, 28, 3), np.uint8)
        pixels[..., colour] = digits[row]
        file = out / domain / str(label) / f"{number:04d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--wrong", type=float, default=WRONG, help="share of wrong labels")
    parser.add_argument("--seed", type=int, default=0, help="of digits, labels and colours")
    arguments = parser.parse_args()
    draw(arguments.data, arguments.out, wrong=arguments.wrong, seed=arguments.seed)


if __name__ == "__main__":
    main()
