"""A run that fails is named, and keeps others from starting."""

from concurrent.futures import Future

import pytest

from stablenet.demo.train import _raise_failure, train_all
from stablenet.engine.assemble import assemble_config
from stablenet.engine.interrupts import Interrupted
from stablenet.errors import UserError


def test_a_failing_run_stops_the_others(tmp_path):
    said = ["train.epochs=1", "method.name=stablenet"]
    broken = assemble_config("embedded-dr0.9", None, [*said, 'method.parameters.taps=["nowhere"]'])
    waiting = assemble_config("embedded-dr0.9", None, [*said, "seed=5"])
    with pytest.raises(UserError, match="unknown tap 'nowhere'"):
        train_all([broken, waiting], tmp_path, 1, lambda name, epoch: None)
    assert not list(tmp_path.glob("*seed5*"))


def test_the_cause_is_told_and_not_its_consequences():
    stopped, failed = Future(), Future()
    stopped.set_exception(Interrupted())
    failed.set_exception(UserError("the disk is full"))
    with pytest.raises(UserError, match="the disk is full"):
        _raise_failure([stopped, failed, Future()])
    _raise_failure([stopped])
