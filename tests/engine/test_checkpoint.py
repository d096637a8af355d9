"""Checkpoint files: written by a thread in their order, read back as they were, damage and a full disk named."""

import errno
import os
import threading

import pytest
import torch
from torch import nn

from stablenet.engine.checkpoint import Writer, flatten_optimizer, load_tensors, restore_optimizer, save_tensors
from stablenet.errors import UserError


@pytest.fixture
def writer():
    return Writer(torch.device("cpu"))


def test_tensors_come_back_as_they_were(tmp_path):
    shared = torch.rand(3)
    tensors = {
        "a": shared,
        "b": shared,  # the same memory twice
        "empty": torch.empty(0, 4),
        "bool": torch.tensor([True, False]),
        "last": torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    }
    save_tensors(tmp_path / "c.safetensors", tensors, {"x": [1, 2.5]})
    found, meta = load_tensors(tmp_path / "c.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert meta["x"] == [1, 2.5]


def test_damaged_and_missing_files_are_named(tmp_path):
    (tmp_path / "c.safetensors").write_bytes(b"no tensors at all")
    with pytest.raises(UserError, match="is damaged"):
        load_tensors(tmp_path / "c.safetensors")
    with pytest.raises(UserError, match="does not exist"):
        load_tensors(tmp_path / "none.safetensors")
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="has format None"):
        load_tensors(tmp_path / "other.safetensors")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_optimizer_goes_on_as_if_nothing_had_happened(tmp_path, kind):
    def make():
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        extra = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        return model, kind([{"params": model.parameters(), "rate_scale": 2.0}], lr=0.1, **extra)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()

    (model, optimizer), (other, fresh) = make(), make()
    step(model, optimizer)
    tensors, meta = flatten_optimizer(optimizer, "o")
    save_tensors(tmp_path / "o.safetensors", tensors, meta)
    restore_optimizer(fresh, "o", *load_tensors(tmp_path / "o.safetensors"))
    other.load_state_dict(model.state_dict())
    step(model, optimizer)
    step(other, fresh)
    assert torch.equal(model.weight, other.weight)
    assert fresh.param_groups[0]["rate_scale"] == 2.0


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


def stepped(seed):
    torch.manual_seed(seed)
    layer = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    layer(torch.randn(2, 3, 5, 5)).sum().backward()
    optimizer.step()
    return layer, optimizer


def test_an_optimisers_state_comes_back_in_its_parameters_layout(tmp_path):
    _, optimizer = stepped(0)
    tensors, meta = flatten_optimizer(optimizer, "o")
    save_tensors(tmp_path / "c.safetensors", tensors, {"optimizer": meta})
    layer, other = stepped(1)
    loaded, read = load_tensors(tmp_path / "c.safetensors")
    restore_optimizer(other, "o", loaded, read["optimizer"])
    momentum = other.state[layer.weight]["momentum_buffer"]
    assert momentum.stride() == layer.weight.stride() != torch.empty(4, 3, 3, 3).stride()
    assert torch.equal(momentum, tensors["o/0/momentum_buffer"])


def test_fused_is_a_matter_of_the_device_a_run_goes_on_with():
    """Saved by an optimiser that counted on the host, read by one that counts beside its parameters."""
    layer = nn.Linear(2, 2)
    slow, fused = (torch.optim.Adam(layer.parameters(), fused=fused) for fused in (None, True))
    layer(torch.ones(1, 2)).sum().backward()
    slow.step()
    restore_optimizer(fused, "o", *flatten_optimizer(slow, "o"))
    assert fused.param_groups[0]["fused"] is True
    fused.step()
    assert float(fused.state[layer.weight]["step"]) == 2


def test_a_changed_byte_is_found(tmp_path):
    path = tmp_path / "c.safetensors"
    tensors = {"a": torch.arange(4.0), "b": torch.ones((), dtype=torch.bfloat16), "c": torch.tensor([True])}
    save_tensors(path, tensors, {"step": 1})
    loaded, meta = load_tensors(path)
    assert all(torch.equal(tensors[name], loaded[name]) for name in tensors)
    assert meta["step"] == 1
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match="checksum does not match"):
        load_tensors(path)


@pytest.mark.parametrize(
    ("number", "told"), [(errno.ENOSPC, "the disk is full"), (errno.EACCES, "may not be read or written")]
)
def test_what_the_disk_refuses_leaves_nothing(tmp_path, monkeypatch, number, told):
    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=told):
        save_tensors(tmp_path / "c.safetensors", {"a": torch.zeros(1)}, {})
    assert not list(tmp_path.iterdir())
