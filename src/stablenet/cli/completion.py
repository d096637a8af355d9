"""Names that a shell completes, read from the package's files without importing torch.

Everything else is left to the shell, which completes file names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

PRESETS = ("paper", "paper-covariance", "published", "recommended")
RULES = ("source-validation", "last", "worst-group", "worst-pseudo-group", "averaged", "oracle")
FORMATS = ("safetensors", "onnx", "torch")
LOGGERS = ("tensorboard", "csv", "wandb", "mlflow")
_OWN_BACKBONES = ("paper-cnn",)
_LEFT_OUT = re.compile(r"googlenet|inception_v3|squeezenet.*")  # of torchvision's networks, as `list_torchvision` does
_NETWORK = re.compile(r"^@register_model\((?:name=\"(\w+)\")?\)\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)
_FAMILIES = "models"  # the folder of torchvision's networks


def list_methods() -> Iterable[str]:
    """Read from the text of the package, which imports torch."""
    text = files("stablenet").joinpath("algorithms", "__init__.py").read_text(encoding="utf-8")
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return [ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) == "ALGORITHMS.add"]


def list_splits() -> Iterable[str]:
    from stablenet.data.splits import SPLITS

    return SPLITS


def list_sources() -> Iterable[str]:
    from stablenet.data.sources import SOURCES

    return SOURCES


def list_recipe_names() -> Iterable[str]:
    from stablenet.engine.config import list_recipes

    return list_recipes()


def list_tables() -> Iterable[str]:
    folder = files("stablenet").joinpath("bench", "paper")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def list_backbones() -> Iterator[str]:
    """Our own networks and torchvision's, from its files: to import it takes seconds."""
    yield from _OWN_BACKBONES
    found = find_spec("torchvision")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        for file in sorted(Path(folder, _FAMILIES).glob("*.py")):
            for given, called in _NETWORK.findall(file.read_text(encoding="utf-8")):
                name = given or called
                if not _LEFT_OUT.fullmatch(name):
                    yield name


def _complete(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What typer asks with what was typed so far."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


complete_method = _complete(list_methods)
complete_split = _complete(list_splits)
complete_source = _complete(list_sources)
complete_recipe = _complete(list_recipe_names)
complete_table = _complete(list_tables)
complete_backbone = _complete(list_backbones)
complete_rule = _complete(lambda: RULES)
complete_format = _complete(lambda: FORMATS)
complete_logger = _complete(lambda: LOGGERS)


def complete_run(incomplete: str) -> list[str]:
    """Run folders below the folder that was typed, or else below `runs`."""
    typed = incomplete.rpartition("/")[0]
    runs = sorted(path.parent for path in Path(typed or "runs").glob("*/records.jsonl"))
    return [str(run) for run in runs if str(run).startswith(incomplete)]


def complete_data(incomplete: str) -> list[str]:
    """What `diagnose` looks at by name: a source, or a run."""
    return complete_source(incomplete) + complete_run(incomplete)


_VALUES: dict[str, Callable[[], Iterable[str]]] = {
    "method.name": list_methods,
    "method.parameters.preset": lambda: PRESETS,
    "model.name": list_backbones,
    "data.source": list_sources,
    "data.split": list_splits,
}


def complete_setting(incomplete: str) -> list[str]:
    """The names of settings for `--set`; the values of those that are names themselves."""
    from stablenet.engine.config import RunConfig, walk_values

    name, equals, typed = incomplete.partition("=")
    if equals:
        return [f"{name}={value}" for value in _VALUES.get(name, lambda: ())() if value.startswith(typed)]
    known = [".".join(names) for names, _ in walk_values(RunConfig().plain())]
    return [f"{setting}=" for setting in dict.fromkeys([*known, *_VALUES]) if setting.startswith(incomplete)]
