"""Sample weights on a two-dimensional toy problem: `python examples/toy.py [picture.png]`.

Two classes differ in shape (x-axis) and, in nine training samples of ten, in context (y-axis). Plain logistic
regression relies on the context, which is less noisy. The weights make the context, as an early layer of a network
would show it, independent of the label (preset `recommended`). They upweight the samples whose context disagrees with
their class, and the same model, fitted with weights, relies on the shape. Prints accuracies where the context is
uninformative and where it misleads, over ten seeds; and, for comparison, those of the paper's pairs, features against
each other.
"""

from __future__ import annotations

import statistics
import sys

import torch
from torch import Tensor

from stablenet.weighting import solve_dataset

SEEDS = range(10)
RATIO = 0.9  # share of training samples whose context agrees with their class


def draw(n: int, ratio: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features (n, 2): shape, then context.   labels (n,) of ±1.   agrees (n,): whether the context agrees."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (n,), generator=g) * 2 - 1
    agrees = torch.rand(n, generator=g) < ratio
    context = torch.where(agrees, labels, -labels)
    noise = torch.randn(n, 2, generator=g)
    return torch.stack([labels + 0.9 * noise[:, 0], context + 0.45 * noise[:, 1]], 1), labels, agrees


def fit_logistic(x: Tensor, labels: Tensor, w: Tensor) -> Tensor:
    """Weighted logistic regression with a small ridge; coefficients of both features, then the intercept."""
    rows = torch.cat([x, torch.ones(len(x), 1)], 1)
    beta = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.LBFGS([beta], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = (w * torch.nn.functional.softplus(-labels * (rows @ beta))).mean() + 1e-3 * beta[:2].square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return beta.detach()


def learn_weights(x: Tensor, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Weights that make context and label independent, and weights that make shape and context independent."""
    classes = labels.clamp_min(0)
    against_label = solve_dataset(x[:, 1:], classes, num_functions=5, seed=seed)
    against_each_other = solve_dataset(x, classes, pairs="features", num_functions=5, seed=seed)
    return against_label.weights, against_each_other.weights


def accuracy(beta: Tensor, x: Tensor, labels: Tensor) -> float:
    score = x @ beta[:2] + beta[2]
    return (score.sign() == labels).float().mean().item()


def main() -> None:
    figures: dict[str, list[float]] = {}
    for seed in SEEDS:
        x, labels, agrees = draw(600, RATIO, seed)
        against_label, against_each_other = learn_weights(x, labels, seed)
        figures.setdefault("weight where the context disagrees", []).append(against_label[~agrees].mean().item())
        ways = {"plain": torch.ones(600), "context–label": against_label, "shape–context": against_each_other}
        for name, weights in ways.items():
            beta = fit_logistic(x, labels, weights)
            for where, ratio in (("context without meaning", 0.5), ("context misleading", 1 - RATIO)):
                x_test, labels_test, _ = draw(5000, ratio, 1000 + seed)
                figures.setdefault(f"{name}, {where}", []).append(100 * accuracy(beta, x_test, labels_test))
    for name, values in figures.items():
        print(f"{name:44} {statistics.mean(values):6.2f} ± {statistics.stdev(values):.2f}  ({len(values)} seeds)")
    if len(sys.argv) > 1:
        plot(sys.argv[1])


def plot(path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    x, labels, _ = draw(600, RATIO, 0)
    weights, _ = learn_weights(x, labels, 0)
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), sharey=True, constrained_layout=True)
    for axis, w, title in zip(axes, (torch.ones(600), weights), ("unweighted", "weighted"), strict=True):
        beta = fit_logistic(x, labels, w)
        for label, colour in ((-1, "#3b6fb6"), (1, "#d1702f")):
            own = labels == label
            axis.scatter(x[own, 0], x[own, 1], s=12 * w[own], color=colour, alpha=0.6, lw=0)
        across = torch.linspace(-4, 4, 50)
        axis.plot(across, -(beta[0] * across + beta[2]) / beta[1], color="#222222", lw=2)
        x_test, labels_test, _ = draw(5000, 1 - RATIO, 1000)
        correct = 100 * accuracy(beta, x_test, labels_test)
        axis.set(xlim=(-3.6, 3.6), ylim=(-2.8, 2.8), xlabel="shape")
        axis.set_title(f"{title}: {correct:.0f} % correct where context misleads", fontsize=11)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("context")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
