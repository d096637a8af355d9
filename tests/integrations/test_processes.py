"""DatasetCriterion in two processes that share the samples: wrapped in DDP, sharded by fully_shard, and misused."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from stablenet.integrations import DatasetCriterion, Indexed
from tests.weighting.test_distributed import free_port

SAMPLES, EPOCHS, BATCH = 42, 3, 6
WORKER = textwrap.dedent(
    """
    import sys
    import torch
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DistributedSampler
    from stablenet.errors import UserError
    from stablenet.integrations import DatasetCriterion
    from tests.integrations.test_processes import make_model, make_samples, train_three_epochs

    rank, folder = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", rank=rank, world_size=2)


    def shard(model):
        mesh = init_device_mesh("cpu", (2,))
        fully_shard(model[0], mesh=mesh)
        return fully_shard(model, mesh=mesh)


    found = {}
    for name, wrap in (("ddp", DistributedDataParallel), ("sharded", shard)):
        model, seen = wrap(make_model()), []
        inner = model.module if name == "ddp" else model
        hook = inner[0].register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
        samples = make_samples()
        sampler = DistributedSampler(samples, seed=0)
        found[name] = train_three_epochs(model, samples, sampler, 3)
        found[f"{name} read"] = sum(seen[: -(-21 // 4)])
    odd, read = torch.utils.data.Subset(samples, range(41)), []


    class Noted(torch.utils.data.Dataset):
        def __len__(self):
            return 41

        def __getitem__(self, place):
            read.append(place)
            return odd[place]


    criterion = DatasetCriterion(make_model(), ["0"], Noted(), num_classes=2, epochs=1)
    found["odd read"], found["odd"] = read, criterion.diagnostics
    try:
        torch.manual_seed(rank)
        DatasetCriterion(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)), ["0"], samples, num_classes=2, epochs=2)
    except UserError as error:
        found["refused"] = str(error)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()
    """
)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


def make_samples():
    g = torch.Generator().manual_seed(1)
    y = torch.arange(SAMPLES) % 2
    return TensorDataset(torch.randn(SAMPLES, 3, 6, 6, generator=g) + 0.7 * y[:, None, None, None], y)


class Rounds:
    """The batches that two processes see between them, as one process sees them."""

    def __init__(self, samples, seed):
        self._samplers = [
            torch.utils.data.DistributedSampler(samples, num_replicas=2, rank=rank, seed=seed) for rank in (0, 1)
        ]

    def __iter__(self):
        places = [list(sampler) for sampler in self._samplers]
        half = BATCH // 2
        for start in range(0, len(places[0]), half):
            yield from places[0][start : start + half] + places[1][start : start + half]

    def __len__(self):
        return SAMPLES

    def set_epoch(self, epoch):
        for sampler in self._samplers:
            sampler.set_epoch(epoch)


def train_three_epochs(model, samples, sampler, batch_size):
    """What DatasetCriterion found, and the network's answers at the end."""
    criterion = DatasetCriterion(model, ["0"], samples, num_classes=2, epochs=EPOCHS, batch_size=4, act="always")
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for index, x, y in DataLoader(Indexed(samples), batch_size=batch_size, sampler=sampler):
            optimizer.zero_grad()
            criterion(model(x), y, index).backward()
            optimizer.step()
    with torch.no_grad():
        answers = model(samples.tensors[0])
    return {"weights": criterion.weighting.weights, "offsets": criterion.offsets.offsets, "answers": answers}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Of both processes."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "worker.py").write_text(WORKER)
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-W", "ignore", str(folder / "worker.py")]
    workers = [subprocess.Popen([*command, str(rank), str(folder)], env=env) for rank in (0, 1)]
    assert [worker.wait(timeout=200) for worker in workers] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone():
    samples = make_samples()
    return train_three_epochs(make_model(), samples, Rounds(samples, 0), BATCH)


@pytest.mark.parametrize("how", ["ddp", "sharded"])
def test_two_processes_train_as_one(found, alone, how):
    for process in found:
        for name, expected in alone.items():
            torch.testing.assert_close(process[how][name], expected, rtol=1e-3, atol=1e-4)
    assert alone["weights"].std() > 0.01


@pytest.mark.parametrize("how", ["ddp", "sharded"])
def test_each_reads_its_half(found, how):
    assert [process[f"{how} read"] for process in found] == [21, 21]


def test_samples_read_twice_to_be_as_many_are_evidence_once(found):
    """Of 41 samples the first process has 20, and reads one of them again."""
    first, second = (process["odd read"] for process in found)
    assert (first, second) == ([*range(20), 0], [*range(20, 41)])
    alone = DatasetCriterion(make_model(), ["0"], Subset(make_samples(), range(41)), num_classes=2, epochs=1)
    expected = {name: value for name, value in alone.diagnostics.items() if name != "decision"}
    for process in found:
        assert {name: process["odd"][name] for name in expected} == pytest.approx(expected, rel=1e-4)


def test_models_that_differ_are_refused_in_all_processes(found):
    for process in found:
        assert process["refused"].startswith("the processes' models differ")
