"""SPARE: clusters within classes of what a network says early in training, drawn evenly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from stablenet.algorithms.algorithm import Context
from stablenet.algorithms.two_stage import Outputs, TwoDraws
from stablenet.models import Network
from stablenet.randomness import combine_seed
from stablenet.values import LARGEST_COUNT, AtLeast, AtMost, NonNegative, ShareBelowOne, check_fields

RESTARTS = 10  # of k-means; the best one counts
JUDGED = 2000  # samples of a class that the silhouette is measured on, which takes their number squared


@dataclass(frozen=True, kw_only=True)
class SPARESettings:
    """share: of the epochs, rounded up, that train the network whose outputs are clustered; 0 is ERM.
    clusters: at most, within a class; how many of them is chosen by the silhouette.
    power: λ, samples are drawn by one over the size of their cluster to this power; 0 is ERM in the epochs left.
    """

    share: ShareBelowOne = 0.05  # ours: one or two epochs of a usual run
    clusters: Annotated[int, AtLeast(2), AtMost(LARGEST_COUNT)] = 4
    power: NonNegative = 1.0  # even clusters

    def __post_init__(self) -> None:
        check_fields(self)


class SPARE(TwoDraws[SPARESettings]):
    r"""min_θ Σ_i w_i·CE_i(θ) by sampling, w_i ∝ 1/|V_i|^λ, V_i the cluster of sample i within its class.

    Identifying Spurious Biases Early in Training through the Lens of Simplicity Bias (Yang, Gan, Dziugaite and
    Mirzasoleiman, AISTATS 2024): early in training a network's outputs on most samples of a class are determined by
    what is spuriously correlated with it, so that clusters of outputs within a class separate the groups. Clusters are
    those of k-means on the class probabilities; their number is the one with the best silhouette.

    Departures: λ is a setting, and so is the time of the separation, which the paper determines from the clusters; the
    network trained under sampling starts anew, with the epochs that are left; the silhouette is measured on up to
    2,000 samples of a class; an epoch keeps its length.
    """

    title = "clusters of early outputs within classes, drawn evenly"
    approximation = "written from SPARE's published description: its code was not available"
    settings_type = SPARESettings
    selects_by_groups = True

    def __init__(self, network: Network, settings: SPARESettings, context: Context) -> None:
        super().__init__(network, settings, context, settings.share)

    def look(self, outputs: Outputs) -> dict[str, float]:
        told = outputs.logits.double().softmax(1).cpu().numpy()
        found = 0
        for label in outputs.y.unique().tolist():
            members = (outputs.y == label).cpu().numpy()
            seed = combine_seed(self.context.seed, label) % 2**32  # what scikit-learn takes
            cluster = torch.from_numpy(find_clusters(told[members], self.settings.clusters, seed))
            size = torch.bincount(cluster)[cluster].to(self.draws)
            self.draws[outputs.index[outputs.y == label]] = size**-self.settings.power
            found += len(cluster.unique())
        self.draws /= self.draws.mean()
        return {"clusters": float(found), "largest_draw": float(self.draws.max())}


def find_clusters(rows: NDArray[np.float64], most: int, seed: int) -> NDArray[np.int64]:
    """Clusters (n,) of rows (n, m): as many, from 2 to `most`, as have the best silhouette; one where no two differ."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    different = len(np.unique(rows, axis=0))
    best: tuple[float, Any] = (-np.inf, np.zeros(len(rows), np.int64))
    for number in range(2, min(most, different, len(rows) - 1) + 1):
        found = KMeans(number, n_init=RESTARTS, random_state=seed).fit_predict(rows)
        size = JUDGED if len(rows) > JUDGED else None
        score = silhouette_score(rows, found, sample_size=size, random_state=seed)
        if score > best[0]:
            best = score, found
    return np.asarray(best[1], np.int64)
