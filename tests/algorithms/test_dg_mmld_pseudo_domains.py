"""Pseudo-domains: planted ones are found, names are kept, sizes are balanced."""

from itertools import permutations

import numpy as np
import pytest
import torch

from stablenet.algorithms.dg_mmld import cluster_styles, count_different, match_labels, weigh_domains
from stablenet.errors import UserError


def plant(seed=0, sizes=(30, 20, 10), width=12):
    """Three clouds of styles (n, width), and which cloud a row is of; the rows in random order."""
    generator = np.random.default_rng(seed)
    cloud = generator.permutation(np.repeat(np.arange(3), sizes))
    centres = 6 * generator.standard_normal((3, width))
    return centres[cloud] + generator.standard_normal((len(cloud), width)), cloud


def agree(found, planted):
    """The share of rows that agree under the best renaming of three labels, tried one by one."""
    return max(float((np.array(names)[found] == planted).mean()) for names in permutations(range(3)))


@pytest.mark.parametrize("components", [2, 256])
def test_planted_domains_are_recovered(components):
    styles, cloud = plant()
    assert agree(cluster_styles(styles, 3, components, seed=0), cloud) == 1.0


def test_components_are_the_directions_of_most_variance():
    """Clusters lie along one column, and wide noise that two components leave out lies along none of them."""
    generator = np.random.default_rng(0)
    cloud = np.arange(90) % 3
    styles = np.zeros((90, 40))
    styles[:, 0], styles[:, 1:] = 20 * cloud, 4 * generator.standard_normal((90, 39))
    assert agree(cluster_styles(styles, 3, 1, seed=0), cloud) == 1.0


def test_same_seed_same_clusters():
    styles = np.random.default_rng(0).standard_normal((80, 5))  # no clusters to be found: restarts differ
    first = cluster_styles(styles, 3, 256, seed=4)
    assert (first == cluster_styles(styles, 3, 256, seed=4)).all()
    assert any((first != cluster_styles(styles, 3, 256, seed=seed)).any() for seed in range(5, 9))


@pytest.mark.parametrize("seed", range(4))
def test_names_are_the_best_of_all_renamings(seed):
    generator = np.random.default_rng(seed)
    before = generator.integers(0, 3, 50)
    found = np.where(generator.random(50) < 0.6, (before + 1) % 3, generator.integers(0, 3, 50))
    matched = match_labels(found, before, 3)
    assert (matched == before).mean() == agree(found, before)
    for cluster in range(3):  # a renaming, no new clusters
        assert len(set(matched[found == cluster].tolist())) == 1


@pytest.mark.parametrize("names", list(permutations(range(3))))
def test_renamed_clusters_get_their_old_names_back(names):
    before = np.array([0, 0, 1, 1, 1, 2])
    assert (match_labels(np.array(names)[before], before, 3) == before).all()


def test_a_domain_weighs_one_over_its_size():
    weights = weigh_domains(torch.tensor([0, 0, 0, 0, 1, 1]), 2)
    torch.testing.assert_close(weights, torch.tensor([2 / 3, 4 / 3]))
    assert torch.isfinite(weigh_domains(torch.tensor([0, 0]), 3)).all()


@pytest.mark.parametrize("enough", [1, 3, 4, 9])
def test_different_rows_are_counted_as_far_as_asked(enough):
    rows = np.random.default_rng(0).integers(0, 2, (40, 2)).astype(float)
    assert count_different(rows, enough) == min(enough, len(np.unique(rows, axis=0)))


def test_too_few_styles_are_refused():
    with pytest.raises(UserError, match=r"3 pseudo-domains .* 5 training images of 2 different styles: lower"):
        cluster_styles(np.array([[0.0], [0.0], [1.0], [1.0], [1.0]]), 3, 256, seed=0)


def test_features_that_ran_away_are_named():
    with pytest.raises(UserError, match=r"not finite: lower train\.learning_rate"):
        cluster_styles(np.array([[0.0], [np.inf], [1.0], [2.0]]), 2, 256, seed=0)
