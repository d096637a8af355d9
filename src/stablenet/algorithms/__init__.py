"""The methods, registered by name below: each has a class and a paper of its own.

In reading order: `algorithm` (the interface between a method and the engine), `erm` (the simplest method, with Focal
loss and Mixup), `strategy` and `stablenet`. The methods it is compared with: `other_weights` (HSIC weighting and CNBB),
`harder_tasks` (JiGen and RSC), `dg_mmld`, `m_ada`; and those that learn from domain labels, `domain_losses` (GroupDRO,
IRM, CORAL, and balancing by known contexts), `d_sam`, `episodes` (Epi-FCR and MetaReg), `far`. Against spurious
correlations without group labels: `two_stage` (JTT, SPARE and EIIL), `biased_model` (uLA, LfF and Logit Correction),
and `last_layer` (AFR, and DFR, which uses group labels).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stablenet.algorithms.algorithm import (
    DOMAINS,
    GROUPS,
    MARKS,
    SELECTION,
    Algorithm,
    Context,
    EpochJudge,
    Judgement,
    StepOutput,
    Stepper,
    TrainingSet,
    explain_marks,
)
from stablenet.algorithms.biased_model import LC, ULA, LfF
from stablenet.algorithms.d_sam import DSAM
from stablenet.algorithms.dg_mmld import DGMMLD
from stablenet.algorithms.domain_losses import CORAL, IRM, GroupDRO, KnownContexts
from stablenet.algorithms.episodes import EpiFCR, MetaReg
from stablenet.algorithms.erm import ERM, Focal, Mixup
from stablenet.algorithms.far import FAR
from stablenet.algorithms.harder_tasks import RSC, JiGen
from stablenet.algorithms.last_layer import AFR, DFR
from stablenet.algorithms.m_ada import MADA
from stablenet.algorithms.other_weights import CNBB, HSIC
from stablenet.algorithms.stablenet import StableNet
from stablenet.algorithms.two_stage import EIIL, JTT, SPARE
from stablenet.errors import UserError
from stablenet.models import Network, build_network
from stablenet.registry import Registry

ALGORITHMS: Registry[type[Algorithm[Any]]] = Registry("method")
ALGORITHMS.add("erm", ERM)
ALGORITHMS.add("stablenet", StableNet)
ALGORITHMS.add("focal", Focal)
ALGORITHMS.add("jigen", JiGen)
ALGORITHMS.add("rsc", RSC)
ALGORITHMS.add("dg-mmld", DGMMLD)
ALGORITHMS.add("m-ada", MADA)
ALGORITHMS.add("hsic", HSIC)
ALGORITHMS.add("cnbb", CNBB)
ALGORITHMS.add("mixup", Mixup)
ALGORITHMS.add("group-dro", GroupDRO)
ALGORITHMS.add("irm", IRM)
ALGORITHMS.add("coral", CORAL)
ALGORITHMS.add("d-sam", DSAM)
ALGORITHMS.add("epi-fcr", EpiFCR)
ALGORITHMS.add("metareg", MetaReg)
ALGORITHMS.add("far", FAR)
ALGORITHMS.add("jtt", JTT)
ALGORITHMS.add("afr", AFR)
ALGORITHMS.add("ula", ULA)
ALGORITHMS.add("lc", LC)
ALGORITHMS.add("lff", LfF)
ALGORITHMS.add("spare", SPARE)
ALGORITHMS.add("eiil", EIIL)
ALGORITHMS.add("dfr", DFR)
ALGORITHMS.add("known-contexts", KnownContexts)


def build_algorithm(name: str, parameters: Mapping[str, Any], network: Network, context: Context) -> Algorithm[Any]:
    """A method around a network; its parameters are checked against its own settings."""
    kind = ALGORITHMS[name]
    marks = kind.marks(parameters)
    if (DOMAINS in marks or GROUPS in marks) and len(context.training_domains) < 2:
        raise UserError(
            f"{name} learns from domain labels, and the training samples come from {len(context.training_domains)} "
            f"domain: choose data with at least two, or a method without {DOMAINS} or {GROUPS} in `stablenet list "
            "methods`"
        )
    return kind(network, read_settings(name, parameters), context)


def read_settings(name: str, parameters: Mapping[str, Any]) -> Any:
    """A method's own settings from a config's values; wrong ones are named as the config names them."""
    return ALGORITHMS[name].read_settings(parameters)


def build_predictor(
    backbone: str,
    backbone_parameters: Mapping[str, Any],
    adaptation: Mapping[str, Any],
    method: str,
    method_parameters: Mapping[str, Any],
    context: Context,
) -> Network:
    """What a method predicts with, built as for training, before trained weights are loaded.

    adaptation: of the trained network, from its `Network.adaptation`.
    """
    network = build_network(backbone, context.num_classes, parameters=backbone_parameters, adaptation=adaptation)
    predictor = build_algorithm(method, method_parameters, network, context).predictor()
    predictor.tap(())  # taps are for training
    return predictor


__all__ = [
    "ALGORITHMS",
    "DGMMLD",
    "DOMAINS",
    "DSAM",
    "ERM",
    "GROUPS",
    "MADA",
    "MARKS",
    "RSC",
    "SELECTION",
    "Algorithm",
    "Context",
    "EpiFCR",
    "EpochJudge",
    "Focal",
    "JiGen",
    "Judgement",
    "StableNet",
    "StepOutput",
    "Stepper",
    "TrainingSet",
    "build_algorithm",
    "build_predictor",
    "explain_marks",
    "read_settings",
]
