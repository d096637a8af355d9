import torch
from torch import nn

from stablenet.engine.checkpoint import flatten_optimizer, load_tensors, restore_optimizer, save_tensors


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
