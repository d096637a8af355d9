"""Every method with averaged weights beside it: another model of the same form, loaded as the others are."""

import pytest
import torch

from stablenet.algorithms import ALGORITHMS
from stablenet.engine.session import Runtime
from stablenet.engine.train import train
from tests.algorithms.cases import PLAIN, method_config

SWAD = (
    "train.averaging=swad",
    "train.swad.every=2",
    "train.swad.n_converge=1",
    "train.swad.tolerance_ratio=99.0",
    "train.max_steps=10",
)


ALSO_BY_DEFAULT = ("afr", "jtt", "lc")  # of the plain ones: a fitted layer, two stages, two networks


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in PLAIN and name not in ALSO_BY_DEFAULT))
        for name in ALGORITHMS
    ],
)
def test_every_method_can_be_averaged(tmp_path, method):
    run = train(method_config(method, *SWAD), Runtime(folder=tmp_path / "run", device="cpu"))
    told = next(record for record in run.records if record["kind"] == "averaged")
    assert told["converged"]
    assert told["last_step"] == 10
    averaged, last = (dict(run.load_model(which).named_parameters()) for which in ("averaged", "last"))
    assert list(averaged) == list(last)
    assert any(not torch.equal(averaged[name], last[name]) for name in last)
    assert all(torch.isfinite(parameter).all() for parameter in averaged.values())
