"""The documentation's pictures, made by the code they explain: `python docs/make_pictures.py [name …] [--to FOLDER]`.

Names: fourier, context, trade, presets; all when left out. Data: drawn here, or the embedded digits; seeds are fixed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from stablenet import StableWeighting
from stablenet.data.loader import render_part
from stablenet.data.sources import read_source
from stablenet.data.splits import split_images
from stablenet.models import Network, build_network
from stablenet.weighting import effective_sample_size, recommended, solve_dataset
from stablenet.weighting.dependence import dependence_matrix
from stablenet.weighting.fourier import random_fourier_features, standardize

BLUE, ORANGE, GREY = "#3b6fb6", "#d1702f", "#777777"
PRESETS_OWN = recommended.WHOLE_SET["penalty"]
PENALTIES = sorted({0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, PRESETS_OWN}, reverse=True)
STANDARD = PENALTIES.index(PRESETS_OWN)


def draw_fourier() -> Figure:
    """Two features without correlation that depend on each other, before and after weighting."""
    g = torch.Generator().manual_seed(0)
    x = 3 * torch.rand(400, generator=g) - 1.5
    z = torch.stack([x, x.square() + 0.3 * torch.randn(400, generator=g)], 1)
    solution = solve_dataset(z, pairs="features")
    u = random_fourier_features(standardize(z), 200, generator=g) / 200**0.5  # others than the weights were solved with
    linear = standardize(z).unsqueeze(-1)
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, constrained_layout=True)
    for axis, w, title in zip(
        axes, (torch.ones(400), solution.weights), ("every sample alike", "weighted"), strict=True
    ):
        told = [float(dependence_matrix(features, w)[0, 1]) for features in (linear, u)]
        axis.scatter(z[:, 0], z[:, 1], s=10 * w, color=BLUE, alpha=0.6, lw=0)
        axis.set_title(f"{title}\nsquared covariance {told[0]:.3f}, of 200 functions {told[1]:.4f}", fontsize=10)
        axis.set_xlabel("feature A")
    axes[0].set_ylabel("feature B")
    return figure


@dataclass(frozen=True)
class Digits:
    """pixels: (n, 28, 28, 3).   images: (n, 3, 28, 28).   labels: (n,).   usual: (n,), the main background."""

    pixels: Tensor
    images: Tensor
    labels: Tensor
    usual: Tensor


def read_digits(ratio: float | str) -> Digits:
    """The training digits of the embedded data."""
    table = read_source("embedded", None)
    manifest = split_images(table, "adversarial", 0, ratio=ratio)
    samples = render_part(table, manifest, "train")
    pixels = samples.pixels.read(samples.row)
    labels, domains = (torch.tensor(manifest.part("train")[name].tolist()) for name in ("label", "domain"))
    main = torch.stack([domains[labels == label].mode().values for label in range(10)])
    images = (pixels.movedim(-1, 1).float() / 255 - 0.5) / 0.5
    return Digits(pixels, images, labels, domains == main[labels])


def make_network() -> Network:
    """The paper's network, untrained."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_network("paper-cnn", 10)


@torch.no_grad()
def read_features(network: Network, images: Tensor, *taps: str) -> Tensor:
    network.eval().tap(taps, detach=True)
    _, *features = network.forward_taps(images)
    return torch.cat(features, 1)


def read_shallow(digits: Digits) -> Tensor:
    """What `recommended` solves from: an untrained network's first two stages."""
    return read_features(make_network(), digits.images, "stage1", "stage2")


def train_plainly(digits: Digits, epochs: int = 8) -> Network:
    """Cross-entropy, every sample alike."""
    network = make_network().train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9)
    g = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # of the dropout
        for _ in range(epochs):
            for rows in torch.randperm(len(digits.labels), generator=g).split(64):
                loss = torch.nn.functional.cross_entropy(network(digits.images[rows]), digits.labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return network


def draw_context() -> Figure:
    """The threes whose weights rise and fall most."""
    digits = read_digits(0.9)
    weights = solve_dataset(read_shallow(digits), digits.labels).weights
    figure, axes = plt.subplots(2, 12, figsize=(9, 2.4), constrained_layout=True)
    own = (digits.labels == 3).nonzero().squeeze(1)
    for row, (name, falling) in zip(axes, (("raised", True), ("lowered", False)), strict=True):
        chosen = own[weights[own].argsort(descending=falling)[: len(row)]]
        for axis, number in zip(row, chosen.tolist(), strict=True):
            axis.imshow(digits.pixels[number].numpy())
            axis.set_title(f"{weights[number]:.2f}", fontsize=8)
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(name)
    figure.suptitle(f"All classes: {describe_means(weights, digits.usual)}", fontsize=10)
    return figure


def describe_means(weights: Tensor, usual: Tensor) -> str:
    means = weights[usual].mean(), weights[~usual].mean()
    return f"mean weight on the main background {means[0]:.2f}, on others {means[1]:.2f}"


def draw_trade() -> Figure:
    """What is left of the dependence against the samples that stay effective, with and without context to remove."""
    figure, axis = plt.subplots(figsize=(6, 4), constrained_layout=True)
    cases = ((0.9, ORANGE, "nine in ten on one background"), ("random", BLUE, "backgrounds at random"))
    for ratio, colour, name in cases:
        digits = read_digits(ratio)
        features = read_shallow(digits)
        solved = [solve_dataset(features, digits.labels, penalty=penalty, min_ess=0.0) for penalty in PENALTIES]
        ess = [float(effective_sample_size(s.weights)) / len(s.weights) for s in solved]
        left = [float(s.dependence[1]) for s in solved]
        axis.plot(ess, left, "o-", color=colour, label=name)
        axis.plot(ess[STANDARD], left[STANDARD], "o", ms=11, mfc="none", color=colour)
        axis.axhline(float(solved[0].dependence[0]), color=colour, lw=0.8, ls=":")
    axis.set(xlim=(0, 1.02), ylim=(0, None), xlabel="effective samples, share of all")
    axis.set_ylabel("share of the features explained by the label")
    axis.set_title("dotted: without weights; ring: the preset's penalty", fontsize=10)
    axis.legend(frameon=False)
    return figure


def draw_presets() -> Figure:
    """The training set's weights by each preset: batch by batch from a trained last layer, or all at once."""
    digits = read_digits(0.9)
    last = read_features(train_plainly(digits), digits.images, "last")
    order = torch.randperm(len(last), generator=torch.Generator().manual_seed(0))
    weights = {preset: weigh_batches(preset, last, digits.labels, order) for preset in ("paper", "published")}
    weights["recommended"] = solve_dataset(read_shallow(digits), digits.labels).weights
    figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True, constrained_layout=True)
    for axis, (preset, w) in zip(axes, weights.items(), strict=True):
        edges = np.linspace(0, max(2.0, float(w.max())), 41)
        for own, colour, name in ((digits.usual, GREY, "main background"), (~digits.usual, ORANGE, "others")):
            axis.hist(w[own].numpy(), edges, color=colour, alpha=0.7, label=name)
        axis.set(yscale="log", xlabel="weight")
        means = w[digits.usual].mean(), w[~digits.usual].mean()
        axis.set_title(f"{preset}\nmean: main {means[0]:.2f}, others {means[1]:.2f}", fontsize=10)
    axes[0].set_ylabel("samples")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def weigh_batches(preset: str, features: Tensor, labels: Tensor, order: Tensor, passes: int = 3) -> Tensor:
    """Weights (n,) of the last of several passes over the set, in batches of 128 with the preset's memory."""
    weighting = StableWeighting(preset, seed=0)
    weights = torch.ones(len(features))
    for _ in range(passes):
        for rows in order.split(128):
            weights[rows] = weighting(features[rows], labels=labels[rows])
    return weights


PICTURES: dict[str, Callable[[], Figure]] = {
    "fourier": draw_fourier,
    "context": draw_context,
    "trade": draw_trade,
    "presets": draw_presets,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(PICTURES)}")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "pictures", help="folder to write into")
    given = parser.parse_args()
    if unknown := set(given.names) - set(PICTURES):
        parser.error(f"there is no picture {unknown.pop()!r}: known are {', '.join(PICTURES)}")
    given.to.mkdir(parents=True, exist_ok=True)
    for name in given.names or PICTURES:
        figure = PICTURES[name]()
        for axis in figure.axes:
            axis.spines[["top", "right"]].set_visible(False)
        figure.savefig(given.to / f"{name}.png", dpi=110)
        plt.close(figure)


if __name__ == "__main__":
    main()
