"""Everything about a config that can be wrong without a look at the data: found before a file is written."""

from __future__ import annotations

from stablenet.algorithms import read_settings
from stablenet.data.augment import AugmentSettings
from stablenet.data.settings import read_parameters
from stablenet.data.sources import SOURCES
from stablenet.engine.config import RunConfig
from stablenet.models.build import check_backbone
from stablenet.values import read_fields


def check_config(config: RunConfig) -> None:
    """Refuse wrong names and values of method, split, augmentation and model in one sentence."""
    read_settings(config.method.name, config.method.parameters)
    if not config.data.manifest:
        SOURCES[config.data.source]  # an unknown one is named here
        read_parameters(config.data.setting, config.data.parameters, "data.parameters")
    read_fields(AugmentSettings, config.data.augmentation, "data.augmentation")
    check_backbone(config.model.name, config.model.parameters)
