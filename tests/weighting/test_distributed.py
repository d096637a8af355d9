"""Two real processes over gloo, with unequal batches, against one process on the joined batch."""

import os
import socket
import subprocess
import sys
import textwrap

import torch

from stablenet.weighting import DatasetWeighting, StableWeighting

WORKER = textwrap.dedent(
    """
    import sys
    import torch
    from torch import distributed as dist
    from stablenet.weighting import DatasetWeighting, StableWeighting

    rank, folder = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", rank=rank, world_size=2)
    given = torch.load(folder + "/given.pt", weights_only=True)
    out = []
    for preset in ("paper", "recommended"):
        weighting = StableWeighting(preset, seed=3, pairs="both", num_classes=3)
        for z, y, cut in given["batches"]:
            own = slice(0, cut) if rank == 0 else slice(cut, None)
            out.append(weighting(z[own], labels=y[own]))
    store = DatasetWeighting(40, storage=torch.float32)
    z, y, _ = given["batches"][0]
    own = slice(0, 25) if rank == 0 else slice(15, 40)  # ten samples are seen by both
    store.collect(torch.arange(40)[own], z[own], y[own])
    empty = slice(0, 3) if rank == 0 else slice(0, 0)  # a short batch leaves the second process nothing
    store.collect(torch.arange(40)[empty], z[empty], y[empty])
    store.solve()
    out.append(store.weights.clone())
    torch.save(out, f"{folder}/out{rank}.pt")
    dist.destroy_process_group()
    """
)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_two_processes_with_unequal_batches_equal_one(tmp_path):
    g = torch.Generator().manual_seed(0)
    batches = []
    for size, cut in ((40, 17), (40, 30), (33, 32)):
        x = torch.randn(size, 1, generator=g)
        batches.append((x + 0.5 * torch.randn(size, 6, generator=g), (x[:, 0] > 0).long(), cut))
    torch.save({"batches": batches}, tmp_path / "given.pt")
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script)]
    workers = [subprocess.Popen([*command, str(rank), str(tmp_path)], env=env) for rank in (0, 1)]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    first, second = (torch.load(tmp_path / f"out{rank}.pt", weights_only=True) for rank in (0, 1))

    expected = []
    for preset in ("paper", "recommended"):
        weighting = StableWeighting(preset, seed=3, pairs="both", num_classes=3)
        expected += [weighting(z, labels=y) for z, y, _ in batches]
    for ours, a, b in zip(expected, first[:-1], second[:-1], strict=True):
        torch.testing.assert_close(torch.cat([a, b]), ours, atol=1e-6, rtol=1e-6)

    store = DatasetWeighting(40, storage=torch.float32)
    store.collect(torch.arange(40), *batches[0][:2])
    store.solve()
    torch.testing.assert_close(first[-1], store.weights, atol=1e-5, rtol=1e-5)
    assert torch.equal(first[-1], second[-1])
