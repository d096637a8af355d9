import threading

import pytest
import torch

from stablenet.engine.checkpoint import load_tensors
from stablenet.engine.writer import Writer
from stablenet.errors import UserError


@pytest.fixture
def writer():
    return Writer(torch.device("cpu"))


def test_files_hold_the_values_of_the_moment_they_were_given(tmp_path, writer):
    gate, value = threading.Event(), torch.zeros(3)
    writer.do(gate.wait)  # the thread is busy while the tensor changes
    writer.save(tmp_path / "a.safetensors", {"x": value}, {"step": 1})
    value += 5
    assert not (tmp_path / "a.safetensors").exists()
    gate.set()
    writer.wait()
    tensors, meta = load_tensors(tmp_path / "a.safetensors")
    assert torch.equal(tensors["x"], torch.zeros(3))
    assert meta["step"] == 1
    writer.close()


def test_tasks_are_done_in_their_order(writer):
    done = []
    for number in range(20):
        writer.do(lambda number=number: done.append(number))
    writer.close()
    assert done == list(range(20))


def test_an_error_is_raised_and_what_waited_behind_it_is_not_done(writer):
    gate, done = threading.Event(), []

    def fail():
        gate.wait()
        raise UserError("the disk is full")

    writer.do(fail)
    writer.do(lambda: done.append("after"))
    gate.set()
    with pytest.raises(UserError, match="disk is full"):
        writer.wait()
    assert done == []
    writer.close()
