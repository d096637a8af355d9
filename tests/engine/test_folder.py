"""Checkpoints, records, status."""

import pytest
import torch
from torch import nn

from stablenet.engine.checkpoint import flatten_optimizer, load_tensors, restore_optimizer, save_tensors
from stablenet.engine.folder import RunFolder, open_folder
from stablenet.engine.records import find_best, validation_rank
from stablenet.engine.runs import list_runs, load_run
from stablenet.errors import UserError


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
    with pytest.raises(UserError, match="there is no"):
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


def record(epoch, accuracy, loss):
    return {"kind": "epoch", "epoch": epoch, "validation": {"accuracy": accuracy, "loss": loss}}


def test_epochs_are_ranked_by_accuracy_then_loss_then_earliness():
    records = [record(1, 0.5, 1.0), record(2, 0.8, 0.9), record(3, 0.8, 0.7), record(4, 0.8, 0.7), record(5, 0.7, 0.1)]
    assert find_best(records)["epoch"] == 3
    assert find_best([{"kind": "start"}]) is None
    without = {"kind": "epoch", "epoch": 4, "validation": None}
    assert validation_rank(without) > validation_rank({**without, "epoch": 3})


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is no run folder: choose another one"):
        open_folder(RunFolder(tmp_path), {"hash": "x"}, None, resume=True)
    with pytest.raises(UserError, match=r"it has no config\.json"):
        load_run(tmp_path)
    assert list(list_runs(tmp_path)) == []
