"""The features of a small network that was fitted to the outcome: what the paper balances, at a table's scale."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor

from stablenet.tables.encode import Array, Block, Encoding

FEWEST_ROWS_TO_STOP_EARLY = 100


def small_network(classification: bool, rows: int, seed: int, hidden: tuple[int, ...] = (32,)) -> Any:
    """An unfitted network of scikit-learn's with tanh units; stops early where there are rows to spare."""
    kind = MLPClassifier if classification else MLPRegressor
    return kind(
        hidden_layer_sizes=hidden,
        activation="tanh",
        random_state=seed,
        early_stopping=rows >= FEWEST_ROWS_TO_STOP_EARLY and not classification,
        max_iter=200,
    )


def network_features(
    design: Array, y: Array, base: Array, *, classification: bool, width: int, seed: int
) -> tuple[Array, Encoding]:
    """The hidden layer (n, width) of a network fitted to y, standardised, one block for each unit."""
    network = small_network(classification, len(design), seed, (width,))
    with warnings.catch_warnings():
        # The features need not be the optimum's; a network stopped after its epochs serves as well.
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(design, y if classification else (y - y.mean()) / (y.std() or 1.0), sample_weight=base)
    hidden = np.tanh(design @ network.coefs_[0] + network.intercepts_[0])
    share = base / base.sum()
    mean = share @ hidden
    spread = np.sqrt(share @ (hidden - mean) ** 2)
    features = np.where(spread > 1e-12, (hidden - mean) / np.where(spread > 1e-12, spread, 1.0), 0.0)
    blocks = tuple(Block(f"unit {i}", i, 1) for i in range(width))
    return features, Encoding(blocks, np.zeros(width), np.ones(width))
