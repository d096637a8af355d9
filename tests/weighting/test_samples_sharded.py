"""A set held by two processes together, over gloo: the bits of one process, half the features each, lost partners."""

import errno
import os
import subprocess
import sys
import textwrap

import pytest
import torch

from stablenet.errors import UserError
from stablenet.weighting import DatasetWeighting, WholeSet, WholeSetPlan, dataset, offsets, samples
from stablenet.weighting.samples import own_range, pass_range
from tests.weighting.test_dataset import contexts
from tests.weighting.test_distributed import free_port

CHUNK = 128
SOLVE = textwrap.dedent(
    """
    import torch
    from stablenet.weighting import WholeSet, WholeSetPlan, dataset, offsets, samples

    for module in (dataset, offsets, samples):
        module.CHUNK_ROWS = 128
    dataset.whole_need = offsets.whole_need = lambda *sizes: 2**50


    def solve(batches, components=3):
        plan = WholeSetPlan(strength=1.0, offset=0.5, components=components)
        whole_set = WholeSet(
            plan, 600, 4, preset="recommended", fold_seed=0, overrides={"seed": 0}, memory="2GiB", storage=torch.float32
        )
        for index, z, y in batches:
            whole_set.collect(index, {"first": z[:, :8], "second": z[:, 8:]}, y)
        held = whole_set.weighting
        held = len(held.features if held._shelf is None else held._shelf.features)
        found = whole_set.solve()
        return held, found, *whole_set(torch.arange(600))
    """
)
WORKER = SOLVE + textwrap.dedent(
    """
    import os, sys
    from datetime import timedelta
    from torch import distributed as dist
    from stablenet.errors import UserError
    from stablenet.weighting import distributed

    rank, folder, leaves = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=30))
    z, y = torch.load(folder + "/given.pt", weights_only=True)
    original, calls = distributed.sum_in_place, 0


    def leave(values):
        global calls
        calls += 1
        if rank == 1 and calls == leaves:
            os._exit(7)
        original(values)


    distributed.sum_in_place = leave
    mixed = [(part, z[part], y[part]) for part in torch.arange(rank, 600, 2).split(50)]
    own = torch.arange(*samples.own_range(600, rank, 2))
    try:
        found = [solve(mixed), solve([(own, z[own], y[own])]), solve(mixed, components=0)]
    except UserError as error:
        print(error)
        os._exit(3)
    torch.save(found, f"{folder}/out{rank}.pt")
    dist.destroy_process_group()
    """
)


def run_two(folder, leaves=0):
    """Exit codes and output of two processes of which the second may leave at a certain sum."""
    z, y, _ = contexts()
    torch.save((z, y), folder / "given.pt")
    script = folder / "worker.py"
    script.write_text(WORKER)
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script)]
    workers = [
        subprocess.Popen([*command, str(rank), str(folder), str(leaves)], env=env, stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    printed = [worker.communicate(timeout=200)[0] for worker in workers]
    return [worker.returncode for worker in workers], printed


@pytest.fixture
def in_chunks(monkeypatch):
    """Every set is in chunks of 128."""
    for module in (dataset, offsets, samples):
        monkeypatch.setattr(module, "CHUNK_ROWS", CHUNK)
    for module in (dataset, offsets):
        monkeypatch.setattr(module, "whole_need", lambda *sizes: 2**50)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_two_processes_find_the_bits_of_one_and_hold_half_the_features_each(tmp_path, in_chunks):
    assert run_two(tmp_path)[0] == [0, 0]
    names = {}
    exec(SOLVE, names)
    z, y, _ = contexts()
    whole = [(part, z[part], y[part]) for part in torch.arange(600).split(64)]
    alone = {components: names["solve"](whole, components) for components in (3, 0)}
    first, second = (torch.load(tmp_path / f"out{rank}.pt", weights_only=True) for rank in (0, 1))
    for ours, others in ((alone[3], (0, 1)), (alone[0], (2,))):
        held, found, weights, added = ours
        assert held == 600
        assert weights.std() > 0.5
        assert added.abs().max() > 0.1
        for number in others:
            for process, rows in ((first, 3 * CHUNK), (second, 600 - 3 * CHUNK)):
                assert process[number][0] == rows
                assert process[number][1] == found
                assert torch.equal(process[number][2], weights)
                assert torch.equal(process[number][3], added)


def test_a_process_that_is_left_alone_ends_with_a_sentence(tmp_path):
    codes, printed = run_two(tmp_path, leaves=30)
    assert codes == [3, 7]
    assert "another process of this run ended" in printed[0]
    assert "--resume" in printed[0]


@pytest.mark.parametrize("samples", [1, CHUNK, CHUNK + 1, 1000, 1024])
@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_ranges_are_whole_chunks_and_cover_all_samples(samples, processes, in_chunks):
    ranges = [own_range(samples, rank, processes) for rank in range(processes)]
    assert [first for first, _ in ranges[1:]] == [last for _, last in ranges[:-1]]
    assert (ranges[0][0], ranges[-1][1]) == (0, samples)
    assert all(first % CHUNK == 0 or first == samples for first, _ in ranges)
    counts = [-(-(last - first) // CHUNK) for first, last in ranges]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("samples", [1, 2, CHUNK, 4 * CHUNK * 3, 4 * CHUNK * 3 + 1, 100 * CHUNK + 5])
@pytest.mark.parametrize("processes", [1, 3])
def test_a_pass_is_divided_about_evenly_and_by_whole_chunks_where_there_are_many(samples, processes, in_chunks):
    ranges = [pass_range(samples, rank, processes) for rank in range(processes)]
    assert (ranges[0][0], ranges[-1][1]) == (0, samples)
    assert [first for first, _ in ranges[1:]] == [last for _, last in ranges[:-1]]
    assert max(last - first for first, last in ranges) <= 1.25 * samples / processes + 1
    if samples > 4 * processes * CHUNK:
        assert ranges == [own_range(samples, rank, processes) for rank in range(processes)]


@pytest.mark.parametrize("where", ["host", "file"])
@pytest.mark.parametrize("divided", [False, True])
def test_features_elsewhere_give_the_same_weights(where, divided, tmp_path, request):
    if divided:
        request.getfixturevalue("in_chunks")
    z, labels, _ = contexts()
    seen = torch.arange(0, 600, 3) if not divided else torch.arange(600)[torch.arange(600) % 7 > 0]
    place = tmp_path / "features" if where == "file" else where
    stores = [DatasetWeighting(600, memory="2GiB", place=each) for each in ("device", place)]
    for store in stores:
        for part in seen.split(50):
            store.collect(part, z[part], labels[part])
        assert store.features.numel() == (600 * 20 if store.place == "device" else 0)
    assert torch.equal(*(store.solve().weights for store in stores))
    assert torch.equal(*(store.handed for store in stores))
    if where == "file":
        assert list(place.iterdir()) == []


def test_features_that_were_lost_with_a_process_are_missed():
    z, labels, _ = contexts()
    store, other = (DatasetWeighting(600, place="host") for _ in range(2))
    store.collect(torch.arange(300), z[:300], labels[:300])
    other.load_state_dict(store.state_dict())
    other.collect(torch.arange(200, 600), z[200:], labels[200:])
    with pytest.raises(UserError, match="features of 200 samples were collected before the interruption"):
        other.solve()
    other.collect(torch.arange(200), z[:200], labels[:200])
    store.collect(torch.arange(300, 600), z[300:], labels[300:])
    assert torch.equal(other.solve().weights, store.solve().weights)


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    z, labels, _ = contexts()
    store = DatasetWeighting(600, place=tmp_path)
    with pytest.raises(UserError, match=r"the disk is full: .*features-.*could not be written"):
        store.collect(torch.arange(600), z, labels)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write features to .*choose another folder"):
        DatasetWeighting(600, place=tmp_path / "file").collect(torch.arange(600), z, labels)


def test_a_disk_that_cannot_reserve_space_is_written(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    z, labels, _ = contexts()
    stores = [DatasetWeighting(600, place=each) for each in ("device", tmp_path)]
    for store in stores:
        store.collect(torch.arange(600), z, labels)
    assert torch.equal(*(store.solve().weights for store in stores))


def test_the_plan_reaches_the_whole_set():
    plan = WholeSetPlan(strength=1.0, offset=0.5)
    whole_set = WholeSet(plan, 5, 2, preset="recommended", fold_seed=0, overrides={}, memory="3GiB", place="host")
    for store in (whole_set.weighting, whole_set.offsets):
        assert (store.memory, store.place) == ("3GiB", "host")
