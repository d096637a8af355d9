"""Do weights and offsets find what is stable? Synthetic samples under selection bias, where the truth is known.

    python -m benchmarks.truth                 # results/truth/README.md and truth.json, ten minutes on one core
    python -m benchmarks.truth --seeds 1       # a quick look; write it elsewhere with --out

Five classes; ten stable features that predict the class poorly, ten context features that predict it well, ten of
noise. In training, a class is in its own context with the given strength; at test, any context occurs with any class.
Linear: the context shifts its features; non-linear: it scales them, so that their means do not reveal it. A small
network is trained plainly, with weights and offsets, and, to show what is achievable, without the context features.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from stablenet.weighting import effective_sample_size, solve_dataset, solve_offsets

CLASSES, WIDTH, TRAIN, TEST = 5, 10, 4000, 4000
KINDS = ("linear", "non-linear")
STRENGTHS = (0.2, 0.5, 0.7, 0.9, 0.95)  # 0.2 is chance
STABLE, CONTEXT, NOISE = (slice(k * WIDTH, (k + 1) * WIDTH) for k in range(3))
STABLE_NOISE, CONTEXT_NOISE, SCALE = 2.0, 0.7, 0.8
HIDDEN, STEPS, RATE, DECAY = 32, 200, 1e-2, 1e-3
PAGE = """# Do weights and offsets find what is stable?

`python -m benchmarks.truth`: synthetic samples, 4,000 for training and 4,000 at test, {seeds} seeds, mean ± sample
standard deviation. Ten stable features predict five classes poorly, ten context features predict them well as long as
each class is in its own context, and ten are noise. At test, any context occurs with any class. A network with one
hidden layer is trained plainly, with weights, with offsets or, as in `recommended`, with weights and half the offsets;
its accuracy without the context features shows what is achievable.

- Weights and offsets computed from features that show the context and not the class, like the shallow layers of a
  network, recover part of what plain training loses, more so the stronger the bias, and lose nothing without bias
  (0.2).
- If the context only scales its features, offsets and weights from the raw features find nothing; for
  weights, Fourier functions help. The pooled features of a network include standard deviations, so scale is visible.
- **Weights and offsets that see the stable features remove these as well**, because they cannot know which is which.
  That is why `recommended` uses shallow layers, before training.
- Making all features independent of each other (the paper's pairs) hardly raises the weights of samples in other
  contexts, and reduces the effective sample size.

{tables}"""


@dataclass(frozen=True)
class Samples:
    """x: (n, 3·WIDTH) stable, context and noise features.   y, context: (n,)."""

    x: Tensor
    y: Tensor
    context: Tensor


class World:
    """How classes and contexts look; the same in training and at test."""

    def __init__(self, kind: str, seed: int) -> None:
        self._kind = kind
        self._generator = torch.Generator().manual_seed(seed)
        self._looks = self._normal(2, CLASSES, WIDTH)

    def draw(self, count: int, strength: float) -> Samples:
        """strength: share of samples in their class's own context; the rest are in any other."""
        y = torch.randint(CLASSES, (count,), generator=self._generator)
        other = (y + torch.randint(1, CLASSES, (count,), generator=self._generator)) % CLASSES
        own = torch.rand(count, generator=self._generator) < strength
        context = torch.where(own, y, other)
        stable = self._looks[0][y] + STABLE_NOISE * self._normal(count, WIDTH)
        look, noise = self._looks[1][context], self._normal(count, WIDTH)
        shown = look + CONTEXT_NOISE * noise if self._kind == "linear" else torch.exp(SCALE * look) * noise
        return Samples(torch.cat([stable, shown, self._normal(count, WIDTH)], 1), y, context)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)


@dataclass(frozen=True)
class Way:
    """A way to train. first: weights and offsets look at the features from here on: at those of context and noise, like
    shallow layers of a network, or, with 0, also at the stable ones, like deep layers.
    functions: Fourier functions of the weights, None for equal weights.   offset: how much of the offsets is added.
    """

    first: int = WIDTH
    pairs: str = "labels"
    functions: int | None = 5
    offset: float = 0.0

    def weigh(self, samples: Samples) -> Tensor:
        """Weights (n,)."""
        if self.functions is None:
            return torch.ones(len(samples.y))
        seen = samples.x[:, self.first :]
        return solve_dataset(seen, samples.y, pairs=self.pairs, num_functions=self.functions).weights

    def offsets(self, samples: Samples) -> Tensor:
        """What is added to the logits (n, C) in training."""
        if not self.offset:
            return torch.zeros(len(samples.y), CLASSES)
        return self.offset * solve_offsets(samples.x[:, self.first :], samples.y, CLASSES).values


WAYS = {
    "plain training": Way(functions=None),
    "`recommended`": Way(offset=0.5),
    "the same, stable features seen too": Way(0, offset=0.5),
    "weights": Way(),
    "weights, linear": Way(functions=0),
    "weights, stable features seen too": Way(0),
    "weights, features against each other (the paper's pairs)": Way(0, "features"),
    "offsets": Way(functions=None, offset=1.0),
    "offsets, stable features seen too": Way(0, functions=None, offset=1.0),
}
WEIGHTINGS = [name for name in WAYS if name.startswith("weights")]


def fit(x: Tensor, y: Tensor, weights: Tensor, offsets: Tensor, seed: int) -> nn.Module:
    """A network of one hidden layer on the weighted loss, with offsets on its logits."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    optimizer = torch.optim.Adam(network.parameters(), RATE, weight_decay=DECAY)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (weights * nn.functional.cross_entropy(network(x) + offsets, y, reduction="none")).mean().backward()
        optimizer.step()
    return network


@torch.no_grad()
def score(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """Accuracy in per cent."""
    return 100 * float((network(x).argmax(1) == y).float().mean())


@dataclass(frozen=True)
class Found:
    """accuracy: at test, %.   own: weighted share of training samples in their class's own context.
    minority: mean weight of the others.   ess: effective sample size, as a share.
    """

    accuracy: float
    own: float
    minority: float
    ess: float


def run(kind: str, strength: float, seed: int) -> dict[str, Found]:
    """Every way to train on one synthetic set."""
    world = World(kind, seed)
    train, test = world.draw(TRAIN, strength), world.draw(TEST, 1 / CLASSES)
    scale = train.x.std(0)
    found = {}
    for name, way in WAYS.items():
        w = way.weigh(train)
        accuracy = score(fit(train.x / scale, train.y, w, way.offsets(train), seed), test.x / scale, test.y)
        off = train.context != train.y
        own, ess = float(w[~off].sum() / w.sum()), float(effective_sample_size(w)) / len(w)
        found[name] = Found(accuracy, own, float(w[off].mean()), ess)
    hidden = (train.x / scale).clone(), (test.x / scale).clone()
    for x in hidden:
        x[:, CONTEXT] = 0
    plain = WAYS["plain training"]
    reached = score(fit(hidden[0], train.y, plain.weigh(train), plain.offsets(train), seed), hidden[1], test.y)
    found["without the context (not known in practice)"] = replace(found["plain training"], accuracy=reached)
    return found


def show(results: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """Accuracies, and what the weights did, as Markdown; mean ± sample standard deviation over seeds."""
    lines = []
    for kind in KINDS:
        lines += [f"## {kind.capitalize()} context", "", "Accuracy at test, in per cent:", "", *_head()]
        for name in results[f"{kind} {STRENGTHS[0]}"]:
            cells = [_spread([each["accuracy"] for each in results[f"{kind} {s}"][name]]) for s in STRENGTHS]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines += ["", "Weighted share of a class in its own context · mean weight of the others · effective samples:"]
        lines += ["", *_head()]
        for name in WEIGHTINGS:
            cells = [_describe(results[f"{kind} {s}"][name]) for s in STRENGTHS]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _head() -> list[str]:
    return ["| strength | " + " | ".join(f"{s:g}" for s in STRENGTHS) + " |", "|---" * (len(STRENGTHS) + 1) + "|"]


def _spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def _describe(each: list[dict[str, float]]) -> str:
    own, minority, ess = (statistics.mean(found[name] for found in each) for name in ("own", "minority", "ess"))
    return f"{own:.2f} · {minority:.1f} · {100 * ess:.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/truth"))
    arguments = parser.parse_args()
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for kind in KINDS:
        for strength in STRENGTHS:
            cell = results.setdefault(f"{kind} {strength}", {})
            for seed in range(arguments.seeds):
                for name, found in run(kind, strength, seed).items():
                    cell.setdefault(name, []).append(asdict(found))
            print(
                kind,
                strength,
                {name: _spread([f["accuracy"] for f in each]) for name, each in cell.items()},
                flush=True,
            )
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "truth.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "README.md").write_text(PAGE.format(seeds=arguments.seeds, tables=show(results)))


if __name__ == "__main__":
    main()
