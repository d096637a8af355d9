import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from stablenet.engine.checkpoint import flatten_optimizer, load_tensors, restore_optimizer, save_tensors
from stablenet.errors import UserError


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


def test_a_full_disk_as_safetensors_tells_it_is_one_sentence(tmp_path, monkeypatch):
    def fail(tensors, path, metadata):
        path.write_bytes(b"half")
        raise SafetensorError(told)

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    told = "Error while serializing: I/O error: No space left on device (os error 28)"
    with pytest.raises(UserError, match=r"the disk is full: .*c\.safetensors could not be written"):
        save_tensors(tmp_path / "c.safetensors", {"a": torch.zeros(1)}, {})
    told = "Error while serializing: I/O error: Permission denied (os error 13)"
    with pytest.raises(PermissionError):
        save_tensors(tmp_path / "c.safetensors", {"a": torch.zeros(1)}, {})
    told = "anything else"
    with pytest.raises(SafetensorError):
        save_tensors(tmp_path / "c.safetensors", {"a": torch.zeros(1)}, {})
    assert not list(tmp_path.iterdir())
