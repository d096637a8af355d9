"""What the weighting does to a run's features: weights of training samples, dependence before and after.

Solved for the whole training set at once, with the run's own settings. A run that solved once, before training, is
weighed with the network it began with; any other with the network its rule chose: batch by batch it had other weights
in every batch, and these are the ones it was after.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from stablenet.algorithms.stablenet import StableNetSettings, choose_taps
from stablenet.data.order import BatchSettings
from stablenet.data.pipeline import Loader, Samples
from stablenet.engine.checkpoint import load_tensors, save_tensors
from stablenet.engine.runs import Run
from stablenet.engine.session import begin_again
from stablenet.evaluation.evaluate import load_chosen
from stablenet.evaluation.selection import DEFAULT_RULE, select_epoch
from stablenet.independence import independence_test, pairwise_independence_test
from stablenet.models import Network
from stablenet.values import read_fields
from stablenet.weighting import effective_sample_size, solve_dataset
from stablenet.weighting.dataset import dataset_settings
from stablenet.weighting.inputs import join_layers

METHOD = "stablenet"
MOST_FEATURES = 24  # on a side of a heat map: those that depend most
MOST_SAMPLES = 2000  # training samples that are weighed; more are thinned out evenly
_ROUGH, _FINE = 5, 20  # Fourier functions: to find those features, and to measure them
_BATCH = 256


@dataclass(frozen=True)
class Weighed:
    """weights: (n,), mean one.   position: (n,) of the samples in the training part.
    before, after: strength of dependence, 0 to 1, with equal weights and with these: (m, m) among features, or
    (m, classes) of features on the label.   features: (m,) their numbers among all tapped ones.
    total: the statistic that is minimised, before and after.   ess: effective share of the samples.
    """

    run: Run
    weights: Tensor
    position: Tensor
    before: Tensor
    after: Tensor
    features: Tensor
    total: tuple[float, float]
    ess: float
    on_label: bool


def can_weigh(run: Run) -> bool:
    """Whether the run had weights: on a pretrained body `recommended` has offsets in their place."""
    return run.config.method.name == METHOD and _read_method(run).choose_strength(bool(run.config.model.pretrained)) > 0


def weigh_run(run: Run, root: Path | None = None, rule: str = DEFAULT_RULE) -> Weighed:
    """Solve, or read what was solved before: the result is kept in the run folder."""
    epoch = select_epoch(rule, run.records, run.oracle).epoch
    path = run.path / f"weighed-{rule}-{epoch:04d}.safetensors"
    if not path.exists():
        _solve(run, run.open_part("train", root), _choose_network(run, rule, root), path)
    tensors, meta = load_tensors(path)
    named = {name: tensors[name] for name in ("weights", "position", "before", "after", "features")}
    first, last = meta["total"]
    return Weighed(run=run, **named, total=(first, last), ess=meta["ess"], on_label=meta["on_label"])


def _solve(run: Run, samples: Samples, network: Network, path: Path) -> None:
    method = _read_method(run)
    position = torch.linspace(0, len(samples) - 1, min(len(samples), MOST_SAMPLES)).round().long()
    features, labels = _collect_features(run, _take(samples, position), network, method)
    overrides = _drop_memory(method.choose_overrides(run.config.seed, bool(run.config.model.pretrained)))
    solution = solve_dataset(features, labels, preset=method.preset, **overrides)
    on_label = dataset_settings(method.preset, overrides).pairs != "features"
    before, after, chosen = _compare(join_layers(features)[0], labels, solution.weights, on_label)
    tensors = {
        "weights": solution.weights,
        "position": position,
        "before": before,
        "after": after,
        "features": chosen,
    }
    weights = solution.weights
    meta = {
        "total": solution.dependence.tolist(),
        "ess": float(effective_sample_size(weights)) / len(weights),
        "on_label": on_label,
    }
    save_tensors(path, tensors, meta)


def _choose_network(run: Run, rule: str, root: Path | None) -> Network:
    method = _read_method(run)
    if method.solves_whole_set and not method.every:
        return begin_again(run.config, run.manifest, root).network.eval()
    return load_chosen(run, rule)[0]


def _read_method(run: Run) -> StableNetSettings:
    return read_fields(StableNetSettings, run.config.method.parameters, "method.parameters")


def _drop_memory(overrides: dict[str, object]) -> dict[str, object]:
    """What a batch-wise solve sets for its memory means nothing to a solve of the whole set."""
    return {name: value for name, value in overrides.items() if name != "groups"}


def _take(samples: Samples, position: Tensor) -> Samples:
    row, y, domain, index = (column[position] for column in (samples.row, samples.y, samples.domain, samples.index))
    return Samples(samples.pixels, row, y, domain, index, samples.size)


@torch.no_grad()
def _collect_features(
    run: Run, samples: Samples, network: Network, method: StableNetSettings
) -> tuple[dict[str, Tensor], Tensor]:
    """Tapped features by name, and labels (n,), in the order of the samples."""
    network.tap(method.taps or choose_taps(method.preset, network), detach=True)
    loader = Loader(samples, BatchSettings(batch_size=_BATCH, shuffle=False), run.transform)
    found: dict[str, list[Tensor]] = {str(tap): [] for tap in network.taps}
    for batch in loader.epoch(0):
        for caught, feature in zip(found.values(), network.forward_taps(batch.x)[1:], strict=True):
            caught.append(feature)
    return {name: torch.cat(caught) for name, caught in found.items()}, samples.y


def _compare(z: Tensor, labels: Tensor, weights: Tensor, on_label: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Strengths before and after, of the features that depend most before; features that never vary are left out."""
    varying = (z.std(0) > 1e-6 * z.abs().amax(0).clamp_min(1e-12)).nonzero().squeeze(1)
    columns = functional.one_hot(labels).double()
    label = columns[:, columns.sum(0) > 0] if on_label else None
    rough = _measure(z[:, varying], label, None, _ROUGH)
    chosen = varying[rough.square().sum(1).argsort(descending=True)[:MOST_FEATURES]]
    before, after = (_measure(z[:, chosen], label, share, _FINE) for share in (None, weights))
    return before, after, chosen


def _measure(z: Tensor, label: Tensor | None, weights: Tensor | None, functions: int) -> Tensor:
    """Strength of dependence of the features on the label's columns, or among themselves."""
    if label is not None:
        test = independence_test(z, label, weights=weights, method="asymptotic", num_functions=functions)
        return test.strength
    return pairwise_independence_test(z, weights=weights, num_functions=functions).strength.fill_diagonal_(0)
