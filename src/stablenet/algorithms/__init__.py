"""The methods by name; one class, one paper each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stablenet.algorithms.base import Algorithm, Context, StepOutput, Stepper, TrainingSet
from stablenet.algorithms.erm import ERM
from stablenet.algorithms.stablenet import StableNet
from stablenet.errors import UserError
from stablenet.fields import read_fields
from stablenet.models import Network
from stablenet.registry import Registry

ALGORITHMS: Registry[type[Algorithm[Any]]] = Registry("method")
ALGORITHMS.add("erm", ERM)
ALGORITHMS.add("stablenet", StableNet)


def build_algorithm(name: str, parameters: Mapping[str, Any], network: Network, context: Context) -> Algorithm[Any]:
    """A method around a network; its parameters are checked against its own settings."""
    kind = ALGORITHMS[name]
    if kind.uses_domains and len(context.training_domains) < 2:
        raise UserError(
            f"{name} learns from domain labels, and the training samples come from {len(context.training_domains)} "
            "domain: choose data with at least two, or a method without an asterisk in `stablenet list methods`"
        )
    settings = read_fields(kind.settings_type, parameters, "method.parameters")
    return kind(network, settings, context)


__all__ = [
    "ALGORITHMS",
    "ERM",
    "Algorithm",
    "Context",
    "StableNet",
    "StepOutput",
    "Stepper",
    "TrainingSet",
    "build_algorithm",
]
