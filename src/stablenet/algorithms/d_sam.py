"""D-SAM: one module per source domain that gathers the blocks of a shared ResNet in its own way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.algorithms.base import Algorithm, Context, StepOutput, classify
from stablenet.algorithms.d_sam_network import AggregatedNetwork
from stablenet.data.pipeline import Batch
from stablenet.models import Network
from stablenet.values import Count, ShareBelowOne, check_fields


@dataclass(frozen=True, kw_only=True)
class DSAMSettings:
    """growth: channels of an aggregation for each channel of its block.
    dropout: before every aggregation, whole channels at a time, and before the classifiers.
    """

    growth: Count = 2  # published code
    dropout: ShareBelowOne = 0.5  # published code

    def __post_init__(self) -> None:
        check_fields(self)


class DSAM(Algorithm[DSAMSettings]):
    r"""min 1/n Σ_i CE(g_{d(i)}(b_1(x_i), …, b_B(x_i)), y_i) (D'Innocente & Caputo, GCPR 2018).

    b_k are the maps of the residual blocks of one network, and g_d the aggregation module of domain d:
    a_1 = b_1, a_k = ReLU(conv_1×1(dropout(a_{k−1} ⊕ b_k))), with a_{k−1} shrunk by a strided 1×1 convolution and ReLU
    where b_k is smaller, then a mean over positions, dropout and a linear classifier. A sample trains the backbone and
    the module of its own domain. A sample of a target gets the mean of all modules' logits; in source validation a
    sample's own module is left out, so that it is met as a target would be.

    Departures: the loss is the mean over the batch, which with balanced domains is the mean over domains. A validation
    sample from a domain without training samples gets all modules, as a target does.
    """

    title = "a module per source domain over the blocks of a ResNet"
    settings_type = DSAMSettings
    uses_domains = True
    one_plain_pass = False
    several_processes = False  # a process whose share lacks a domain would leave its module without a gradient

    network: AggregatedNetwork

    def __init__(self, network: Network, settings: DSAMSettings, context: Context) -> None:
        domains = len(context.training_domains)
        super().__init__(AggregatedNetwork(network, domains, settings.growth, settings.dropout), settings, context)

    def loss(self, batch: Batch) -> StepOutput:
        logits = self.network.forward_own(batch.x, self.split_rows(batch.domain))
        per_sample, accuracy = classify(logits, batch.y)
        return StepOutput(per_sample, None, {"accuracy": accuracy})

    def validator(self) -> Callable[[Batch], Tensor]:
        return self._predict_by_others

    def _predict_by_others(self, batch: Batch) -> Tensor:
        each = self.network.forward_each(self.network.forward_features(batch.x))
        return average_others(each, self.place_domains(batch.domain))


def average_others(logits: Tensor, place: Tensor) -> Tensor:
    """Mean over all modules but a sample's own.   logits: (b, domains, classes).   place: (b,), -1 leaves none out."""
    others = torch.arange(logits.shape[1], device=place.device) != place[:, None]
    weights = others.to(logits.dtype) / others.sum(1, keepdim=True)
    return (weights[:, :, None] * logits).sum(1)
