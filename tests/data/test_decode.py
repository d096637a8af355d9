"""Decoding in worker processes: the same records as in this process, and no process left behind."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stablenet.data import decode
from stablenet.data.decode import DecodeWorker, OtherSize, Task, read_task, run_tasks, write_task
from stablenet.errors import UserError

SHAPE = (6, 5)


@pytest.fixture
def tasks(tmp_path):
    """Twelve images of noise in four tasks, the sixth of which is broken."""
    root, rng = tmp_path / "images", np.random.default_rng(0)
    root.mkdir()
    for k in range(12):
        Image.fromarray(rng.integers(0, 256, (*SHAPE, 3), np.uint8)).save(root / f"{k:02d}.png")
    (root / "05.png").write_bytes(b"no image")
    (tmp_path / "pixels").touch()
    paths = [f"{k:02d}.png" for k in range(12)]
    return [Task(root, tuple(paths[k : k + 3]), SHAPE, False, tmp_path / "pixels", k) for k in range(0, 12, 3)]


def _children():
    """Processes that this one started and that still run."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in listed if "stablenet.data.decode" in Path(f"/proc/{pid}/cmdline").read_text()]


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("worth", [0.0, 100.0])
def test_processes_write_the_pixels_and_tell_of_them(tasks, monkeypatch, worth):
    monkeypatch.setattr(decode, "_WORTH", worth)
    records = [record for part in run_tasks(tasks, 3) for record in part]
    pixels = np.fromfile(tasks[0].file, np.uint8).reshape(12, *SHAPE, 3)
    for k, record in enumerate(records):
        path = tasks[0].root / f"{k:02d}.png"
        if k == 5:
            assert record.reason == "not an image, or unknown format"
            continue
        with Image.open(path) as image:
            np.testing.assert_array_equal(pixels[k], np.asarray(image))
        assert record.content == hashlib.sha256(path.read_bytes()).hexdigest()
        assert (record.crc, record.reason) == (zlib.crc32(pixels[k]), "")


def test_a_task_travels_as_json(tasks):
    strange = replace(tasks[0], paths=("schön/ü.png", os.fsdecode(b"\xff.png"), 'line\n"quoted".png'))
    assert read_task(json.loads(json.dumps(write_task(strange)))) == strange


def test_a_small_set_starts_no_process(tasks, monkeypatch):
    monkeypatch.setattr(decode, "DecodeWorker", None)
    assert len(list(run_tasks(tasks, 8))) == 4


def test_stopping_early_leaves_no_process(tasks, monkeypatch):
    monkeypatch.setattr(decode, "_WORTH", 0.0)
    running = run_tasks(tasks, 2)
    next(running), next(running)
    assert len(_children()) == 2
    running.close()
    assert _children() == []


@pytest.mark.parametrize(
    ("change", "error"),
    [({"file": Path("/dev/full")}, OSError), ({"shape": (9, 9)}, OtherSize)],
)
def test_a_full_disk_and_another_size_are_errors_here(tasks, monkeypatch, change, error):
    monkeypatch.setattr(decode, "_WORTH", 0.0)
    broken = Task(**{**vars(tasks[2]), **change})
    with pytest.raises(error) as caught:
        list(run_tasks([*tasks[:2], broken, tasks[3]], 2))
    assert error is OtherSize or caught.value.errno == errno.ENOSPC
    assert _children() == []


def test_a_worker_that_is_killed_is_named(tasks):
    worker = DecodeWorker()
    worker.run(tasks[0])
    worker.kill()
    with pytest.raises(UserError, match=r"died \(killed by SIGKILL\).*--workers"):
        worker.run(tasks[1])
    worker.end()


_UNGUARDED = """
    import signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests started in the background inherit a deaf one
    sys.path.insert(0, {tests!r})
    print("started", flush=True)
    from pathlib import Path
    from stablenet.data import decode, prepare
    from test_prepare import _read_table
    decode._WORTH = 0.0

    def wait(done, total):
        if done > 16:
            print("decoding", flush=True)
            time.sleep({sleep})

    prepare.prepare(_read_table(Path({tree!r})), Path({place!r}), workers=2, progress=wait)
    print("made", flush=True)
"""


def _start_script(tmp_path, sleep):
    from tests.data.test_prepare import _write_tree

    _write_tree(tmp_path / "tree", 40)
    script = tmp_path / "script.py"
    names = {"tests": str(Path(__file__).parent), "tree": str(tmp_path / "tree"), "place": str(tmp_path / "c" / "s")}
    script.write_text(textwrap.dedent(_UNGUARDED.format(sleep=sleep, **names)))
    return subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_script_without_a_main_guard_runs_once(tmp_path):
    out, err = _start_script(tmp_path, 0).communicate(timeout=120)
    assert out.splitlines() == ["started", "decoding", "decoding", "made"], err


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_leaves_neither_store_nor_process(tmp_path, how):
    run = _start_script(tmp_path, 60)
    assert [run.stdout.readline() for _ in range(2)] == ["started\n", "decoding\n"]
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    assert len(children) == 2
    run.send_signal(how)
    _, err = run.communicate(timeout=60)
    assert how == signal.SIGINT or err == ""  # the workers end without a word
    assert list((tmp_path / "c").glob("[!.]*")) == []
    assert how == signal.SIGKILL or list((tmp_path / "c").glob(".s.partial-*")) == []
    for _ in range(100):
        if not any(_runs(child) for child in children):
            return
        time.sleep(0.1)
    raise AssertionError("a worker outlived its parent")
