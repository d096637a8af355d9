"""StableNet: sample weights that make features independent.

The public names load on first use, so that `import stablenet` and the command line start without torch.

In reading order: `weighting`, the method itself, and `independence`, its statistic as a test; `tabular` and
`integrations`, the method for tabular data and for other training loops. Then the packages that train on images:
`data`, `models`, `algorithms`, `engine`, `evaluation`, `export`, and `datasets` for your own loops. Then those that
show results: `saliency`, `bench`, `report`, `demo`, `tryout`, `diagnose`, with `pages` for their charts and HTML, and
`cli` for the command line. Shared by all of them are the modules `errors`, `registry`, `values`, `files`, `frames`,
`randomness`, `metrics`, `processes`, `long_work` and `replay`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from stablenet._version import __version__
from stablenet.errors import UserError

if TYPE_CHECKING:
    from stablenet import datasets
    from stablenet.export import load_model
    from stablenet.independence import independence_test, pairwise_independence_test, plot_dependence
    from stablenet.tabular import StableClassifier, StableRegressor
    from stablenet.weighting import StableWeighting

_HOMES = {
    "StableClassifier": "stablenet.tabular",
    "StableRegressor": "stablenet.tabular",
    "StableWeighting": "stablenet.weighting",
    "independence_test": "stablenet.independence",
    "load_model": "stablenet.export",
    "pairwise_independence_test": "stablenet.independence",
    "plot_dependence": "stablenet.independence",
}

__all__ = [
    "StableClassifier",
    "StableRegressor",
    "StableWeighting",
    "UserError",
    "__version__",
    "datasets",
    "independence_test",
    "load_model",
    "pairwise_independence_test",
    "plot_dependence",
]


def __getattr__(name: str) -> object:
    if name == "datasets":
        return import_module("stablenet.datasets")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'stablenet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
