"""Configuration of a run: data, model, method, training. Two runs with equal configs give equal records.

In order: the config's fields; the recipes (`recipes.toml`: every experiment of the paper by name); and how a recipe, a
TOML file and single settings are combined into one config, each overriding the one before.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Literal

from stablenet.data.columns import Columns
from stablenet.errors import UserError
from stablenet.files import read_text
from stablenet.registry import OLD_SPLIT, SPLIT, old_field, rename_data, unknown_name
from stablenet.values import (
    Count,
    NonNegative,
    PlainName,
    Positive,
    Seed,
    ShareBelowOne,
    Whole,
    check_fields,
    convert,
    is_text,
    read_fields,
    require,
    show,
)

HeadStart = Literal["default", "xavier-0.1"]
Rate = Literal["constant", "steps", "cosine", "quarter-cosine"]
Optimizer = Literal["sgd", "adam", "adamw"]
Precision = Literal["auto", "32", "bf16"]
Averages = Literal["none", "swad"]
_SIZED = ("paper-cnn",)  # networks that are built for images of one size
_MOST_DOTS = 5000  # of a line of TOML
_BARE = re.compile(r"[A-Za-z0-9_-]+")  # a name that TOML takes without quotes
HASH_DIGITS = 12  # of the hash in the name of a run folder


@old_field(OLD_SPLIT, SPLIT)
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """source, split, parameters: as in `stablenet data split`; without a split, the one that fits the source.
    split_seed: None for the run's seed.
    columns: names of those of your own image list, see `Columns`.   image_list: the list, if it is not --root but its
    relative paths begin there.
    manifest: a file made by `stablenet data split`, instead of source, split, parameters and split_seed.
    store_size: side of the stored square images; None keeps their size, or takes the size that the network needs where
    they have several.   image_size: input size of the network.
    augment: crop, flip and colour jitter for training images.   augmentation: overrides for `AugmentSettings`.
    mean, std: channel statistics for normalization.
    """

    source: PlainName = "embedded"
    split: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    split_seed: Seed | None = None
    columns: Columns = field(default_factory=Columns)
    image_list: str = ""
    manifest: str = ""
    store_size: Count | None = None
    image_size: Count = 28
    augment: bool = False
    augmentation: dict[str, Any] = field(default_factory=dict)
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """name, pretrained, head, parameters: as in `stablenet.models.build_network`.

    statistics: of BatchNorm layers; "frozen" uses and keeps those of the pretrained weights in training. Under shifted
        contexts this preserves more of the pretrained features, for every method; it needs a learning rate of about
        0.002, and at 0.01 training may fail (results/natural).
    """

    name: str = "paper-cnn"
    pretrained: str = ""
    head: HeadStart = "default"
    parameters: dict[str, Any] = field(default_factory=dict)
    statistics: Literal["batch", "frozen"] = "batch"

    def __post_init__(self) -> None:
        check_fields(self)
        there = self.statistics == "batch" or bool(self.pretrained)
        require(there, "statistics", "batch without pretrained weights, which bring statistics", self.statistics)


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """name: see `stablenet list`.   parameters: the method's settings."""

    name: PlainName = "erm"
    parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class SwadConfig:
    """Used with averaging="swad".   every: steps between evaluations of the source validation loss.
    n_converge: evaluations without a smaller loss after which the window opens.   n_tolerance: evaluations above the
    threshold that end it.   tolerance_ratio: how far the threshold is above the loss at the start, relative to it.
    """

    every: Count = 100  # its paper, for PACS; 50 for VLCS
    n_converge: Count = 3
    n_tolerance: Count = 6
    tolerance_ratio: NonNegative = 0.3  # its paper; 0.2 for VLCS

    def __post_init__(self) -> None:
        check_fields(self)
        least = f"at least n_converge, {self.n_converge}"
        require(self.n_tolerance >= self.n_converge, "n_tolerance", least, self.n_tolerance)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """batch_size: over all processes.   max_steps: stop there, even within an epoch.
    epoch_steps: end an epoch after so many batches, of images drawn anew each time; None takes all images.
    schedule: constant; steps (times `decay` at the `milestones`, epochs from 0); cosine (to zero, over all steps);
        quarter-cosine (to nearly zero, slowly at first, changed at epochs, as in the authors' published code).
    precision: auto is bf16 on a GPU, else 32.   balance_domains: equally many samples of every domain in a batch.
    drop_last: drop an incomplete last batch, so that shapes stay the same, as required for graphed network passes.
    log_every: steps between step records.   sync_batchnorm: share statistics between GPUs.
    averaging: swad additionally keeps a model with averaged weights, for any method.   swad: its settings.
    """

    epochs: Count = 30
    max_steps: Count | None = None
    epoch_steps: Count | None = None
    batch_size: Count = 128  # the authors' published code; the paper gives none
    optimizer: Optimizer = "sgd"
    learning_rate: Positive = 0.01
    momentum: ShareBelowOne = 0.9  # the paper gives none; usual in this field
    nesterov: bool = False
    weight_decay: NonNegative = 5e-4
    schedule: Rate = "steps"
    milestones: tuple[Whole, ...] = (24,)
    decay: Positive = 0.1
    precision: Precision = "auto"
    balance_domains: bool = False
    drop_last: bool = True
    log_every: Count = 50
    sync_batchnorm: bool = True
    averaging: Averages = "none"
    swad: SwadConfig = field(default_factory=SwadConfig)

    def __post_init__(self) -> None:
        check_fields(self)
        require(list(self.milestones) == sorted(self.milestones), "milestones", "increasing", self.milestones)
        require(not self.nesterov or self.momentum > 0, "nesterov", "false without momentum", True)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Configuration of one run. label: a readable name; not part of the hash."""

    label: PlainName = ""
    seed: Seed = 0
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def name(self) -> str:
        """The readable part of the run folder's name."""
        return f"{self.label or self.data.source}-{self.method.name}-seed{self.seed}"

    def name_folder(self, digest: str) -> str:
        """The name of the run folder.   digest: the config's hash."""
        return f"{self.name}-{digest[:HASH_DIGITS]}"

    @property
    def network_parameters(self) -> dict[str, Any]:
        """model.parameters; with the image size, for a network that is built for one."""
        sized = self.model.name in _SIZED
        return {"image_size": self.data.image_size, **self.model.parameters} if sized else self.model.parameters

    def plain(self) -> dict[str, Any]:
        """The config as JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


def read_config(values: Mapping[str, Any]) -> RunConfig:
    """Build a config from plain values; unknown names and wrong types raise errors that name them."""
    return read_fields(RunConfig, rename_data(values))


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested values, with precedence for `over`; tables are merged, everything else is replaced."""
    joined = dict(base)
    for name, value in over.items():
        old = joined.get(name)
        joined[name] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return joined


def hash_values(values: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of plain values."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def compare(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """One line per setting that differs: `train.epochs: 30 → 60`."""
    lines = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += compare(before, after, f"{prefix}{name}.")
        elif before != after:
            lines.append(f"{prefix}{name}: {_show(old, name)} → {_show(new, name)}")
    return lines


def _show(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name]) if name in values else "(nothing)"


@dataclass(frozen=True)
class Recipe:
    """values: of the config.   methods: method -> values that differ in its own paper or code.
    notes: choices made where the paper is silent.
    """

    name: str
    title: str
    values: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...]


def find_recipe(name: str) -> Recipe:
    recipes = list_recipes()
    if name not in recipes:
        raise UserError(unknown_name("recipe", name, recipes))
    return recipes[name]


@cache
def list_recipes() -> dict[str, Recipe]:
    """All recipes by name, in the order of the file."""
    table = tomllib.loads(files("stablenet.engine").joinpath("recipes.toml").read_text(encoding="utf-8"))
    recipes: dict[str, Recipe] = {}
    for family in table["family"]:
        for recipe in _expand(family, table["base"][family["base"]]):
            if recipe.name in recipes:
                raise ValueError(f"the recipe {recipe.name} is defined twice")
            recipes[recipe.name] = recipe
    return recipes


def _expand(family: Mapping[str, Any], base: Mapping[str, Any]) -> list[Recipe]:
    """One recipe for every combination of the family's choices."""
    choices: Mapping[str, list[Any]] = family.get("choices", {})
    recipes = []
    for combination in product(*choices.values()):
        chosen = dict(zip(choices, combination, strict=True))
        values = merge(base["values"], _fill(family.get("values", {}), chosen))
        name, title = family["name"].format(**chosen), family["title"].format(**chosen)
        recipes.append(Recipe(name, title, values, base.get("methods", {}), tuple(base.get("notes", ()))))
    return recipes


def _fill(value: Any, chosen: Mapping[str, Any]) -> Any:
    """Substitute the choices in texts; a text that is a single choice becomes its value, with its type."""
    if isinstance(value, Mapping):
        return {name: _fill(item, chosen) for name, item in value.items()}
    if isinstance(value, str):
        alone = value[1:-1] if value.startswith("{") and value.endswith("}") else ""
        return chosen[alone] if alone in chosen else value.format(**chosen)
    return value


Values = dict[str, Any]


def assemble_config(recipe: str | None = None, file: Path | None = None, settings: Iterable[str] = ()) -> RunConfig:
    """Combine the recipe's values, then the file's, then `key=value` settings; the file may name a recipe.

    A recipe's values for single methods override the recipe, and are overridden by the user's values.
    """
    own = rename_data(read_toml(file), note=True) if file is not None else {}
    for setting in settings:
        further = rename_data(parse_setting(setting), note=True)
        _refuse_conflict(own, further)
        own = merge(own, further)
    recipe = recipe or own.pop("recipe", None)
    own.pop("recipe", None)
    if recipe is None:
        return read_config(own)
    found = find_recipe(convert(recipe, str, "recipe"))
    values = merge({"label": recipe}, found.values)
    chosen = merge(values, own)
    given = chosen.get("method")
    method = str(given.get("name", "erm")) if isinstance(given, Mapping) else "erm"
    return read_config(merge(merge(values, found.methods.get(method, {})), own))


def _refuse_conflict(old: Mapping[str, Any], new: Mapping[str, Any], table: str = "") -> None:
    """A later value replaces an earlier one, but never a table as a whole, nor a table a value: one would be lost."""
    for name in old.keys() & new.keys():
        tables = [isinstance(values[name], Mapping) for values in (old, new)]
        if all(tables):
            _refuse_conflict(old[name], new[name], f"{table}{name}.")
        elif any(tables):
            raise UserError(f"{table}{name} is given as a table and as a single value: give one of them")


def read_toml(path: Path) -> Values:
    return parse_toml(read_text(path), str(path))


def parse_toml(text: str, name: str) -> Values:
    """name: of the file, for messages."""
    if any(line.count(".") > _MOST_DOTS for line in text.split("\n")):  # which takes time with its square
        raise UserError(f"{name} is not TOML for a config: one of its lines has more than {_MOST_DOTS:,} dots")
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))  # the mark of some editors on Windows
    except (ValueError, RecursionError) as error:  # also raised for very long numbers and deeply nested lists
        raise UserError(f"{name} is not TOML: {error}") from error


def walk_values(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every single value with the names that lead to it; empty tables are skipped."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from walk_values(value, (*above, name))
        else:
            yield (*above, name), value


def format_config(config: RunConfig) -> str:
    """The whole config as TOML, a line per setting by its name in `--set`; what is None is left out."""
    values = ((names, value) for names, value in walk_values(config.plain()) if value is not None)
    lines = (f"{'.'.join(map(_quote, names))} = {json.dumps(value, ensure_ascii=False)}" for names, value in values)
    return "\n".join(lines) + "\n"


def _quote(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def parse_setting(text: str) -> Values:
    """Parse `train.epochs=3` into nested values; the value is TOML, or else text."""
    key, equals, value = text.partition("=")
    names = key.strip().split(".")
    if not is_text(text):
        raise UserError(f"the setting {show(text)} is not valid UTF-8: write it as text")
    if not equals or not all(names):
        raise UserError(f"the setting {show(text)} is not of the form name=value, such as train.epochs=3")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):  # not TOML, or a very long number, or deeply nested lists
        parsed = value
    for name in reversed(names):
        parsed = {name: parsed}
    nested: Values = parsed
    return nested
