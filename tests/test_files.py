"""Whole files and folders, lines, locks, hashes."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import filelock
import pandas as pd
import pytest

from stablenet import files, frames
from stablenet.errors import UserError
from stablenet.files import (
    Lines,
    build_folder,
    hash_file,
    hold_lock,
    is_locked,
    lock,
    read_lines,
    remove_lock,
    write_bytes,
    write_json,
    write_text,
    write_whole,
)


def test_a_broken_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.json"
    write_json(path, {"a": 1})

    def break_off(partial):
        partial.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_whole(path, break_off)
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["file.json"]


def test_lines_go_on_from_a_length(tmp_path):
    lines = Lines(tmp_path / "a.jsonl", 0)
    lines.append({"a": 1, "b": float("nan"), "c": [float("inf")], "d": {"e": 0.1}})
    lines.sync()
    length = lines.length()
    lines.append({"a": 2})
    lines.close()
    lines = Lines(tmp_path / "a.jsonl", length)
    lines.append({"a": 3})
    lines.close()
    assert read_lines(tmp_path / "a.jsonl") == [{"a": 1, "b": None, "c": [None], "d": {"e": 0.1}}, {"a": 3}]
    with pytest.raises(UserError, match="the run folder was changed"):
        Lines(tmp_path / "a.jsonl", 10_000)


def test_half_a_line_is_passed_over(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": ')
    assert read_lines(tmp_path / "a.jsonl") == [{"a": 1}]
    assert read_lines(tmp_path / "none.jsonl") == []


def test_damage_inside_the_lines_is_named(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a"\n{"a": 3}\n')
    with pytest.raises(UserError, match="line 2 is not JSON"):
        read_lines(path)
    path.write_text('{"a": 1}\n5\n')
    with pytest.raises(UserError, match="line 2 is not a JSON object"):
        read_lines(path)


def test_a_text_may_hold_what_ends_a_line_elsewhere(tmp_path):
    lines = Lines(tmp_path / "x.jsonl")
    lines.append({"domain": "a\u2028b\x85c"})
    lines.close()
    assert read_lines(tmp_path / "x.jsonl") == [{"domain": "a\u2028b\x85c"}]


def test_lock_is_seen_and_goes(tmp_path):
    lock = tmp_path / ".lock"
    assert not is_locked(lock)
    with hold_lock(lock):
        assert is_locked(lock)
    assert not is_locked(lock)


HOLDER = """
import sys, time
from pathlib import Path
from stablenet.files import hold_lock
with hold_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of a run folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path / ".lock"], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_another_process_is_refused_until_the_holder_is_killed(tmp_path, holder):
    path = tmp_path / ".lock"
    assert is_locked(path)
    with pytest.raises(UserError, match=f"another process is training in {tmp_path}"), hold_lock(path):
        pass
    holder.kill()
    holder.wait()
    assert not is_locked(path)
    with hold_lock(path):
        assert is_locked(path)


def test_a_lock_of_the_first_release_is_seen_and_sees_ours(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / ".lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert is_locked(path)
        with pytest.raises(UserError, match="another process is training"), hold_lock(path):
            pass
    with hold_lock(path), path.open("w") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_look_at_the_lock_keeps_nobody_out(tmp_path, monkeypatch):
    path = tmp_path / ".lock"
    answers = iter([False, False, True])  # another process looks, and is gone at the third try
    monkeypatch.setattr(filelock, "lock_descriptor", lambda descriptor, blocking: next(answers))
    with hold_lock(path):
        assert next(answers, None) is None


def test_a_lock_that_may_not_be_written_is_read(tmp_path, holder, monkeypatch):
    path, opened = tmp_path / ".lock", os.open

    def refuse(file, flags, *mode):
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(file, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    assert is_locked(path)
    holder.kill()
    holder.wait()
    assert not is_locked(path)
    with pytest.raises(UserError, match=r"cannot write to .*Permission denied.*choose another"), hold_lock(path):
        pass
    with pytest.raises(UserError, match="cannot write to"), lock(tmp_path / "store"):
        pass


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def refuse(descriptor, **options):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(filelock, "lock_descriptor", refuse)
    for held in (hold_lock(tmp_path / ".lock"), lock(tmp_path / "store")):
        with pytest.raises(UserError, match=r"lock cannot be locked \(Function not implemented\)"), held:
            pass
    assert is_locked(tmp_path / ".lock")  # nobody can tell: what is recorded stands


def test_builders_wait_for_each_other(tmp_path):
    script = f"""
import time
from pathlib import Path
from stablenet.files import lock
with lock(Path({str(tmp_path / "deep" / "store")!r})):
    start = time.time(); time.sleep(0.3); print(start, time.time())
"""
    both = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    (_, end), (start, _) = sorted([float(x) for x in child.communicate(timeout=60)[0].split()] for child in both)
    assert end <= start
    assert (tmp_path / "deep" / ".store.lock").exists()


def test_a_held_lock_can_be_taken_away(tmp_path, monkeypatch):
    path = tmp_path / ".lock"
    with hold_lock(path):
        remove_lock(path)
    assert not path.exists()
    remove_lock(path)

    def refuse(path, missing_ok):
        raise PermissionError

    monkeypatch.setattr(type(path), "unlink", refuse)
    with pytest.raises(PermissionError):
        remove_lock(path)
    with monkeypatch.context() as windows:
        windows.setattr(files.os, "name", "nt")
        remove_lock(path)


def test_a_folder_is_whole_or_not_there(tmp_path):
    path = tmp_path / "store"
    (tmp_path / ".store.partial-left").mkdir()
    with build_folder(path) as folder:
        (folder / "a").write_text("1")
        assert not path.exists()
    with pytest.raises(FileExistsError), build_folder(path) as folder:
        folder.mkdir()
    with pytest.raises(UserError, match=r"the disk is full: .*store could not be written"), build_folder(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert (path / "a").read_text() == "1"
    assert [file.name for file in tmp_path.iterdir()] == ["store"]


def test_texts_are_the_same_bytes_on_every_system(tmp_path):
    write_text(tmp_path / "a", "é\nb\r\n")
    assert (tmp_path / "a").read_bytes() == b"\xc3\xa9\nb\r\n"
    write_bytes(tmp_path / "a", b"\x00\n", sync=False)
    assert (tmp_path / "a").read_bytes() == b"\x00\n"


def test_what_is_no_text_is_refused_in_one_sentence(tmp_path):
    lines = files.Lines(tmp_path / "lines.jsonl")
    for write in (lambda: write_text(tmp_path / "a.txt", "x\udcff"), lambda: lines.append({"id": "x\udcff"})):
        with pytest.raises(UserError, match=r"cannot hold .*udcff.*, which is not valid UTF-8"):
            write()
    lines.close()
    assert not (tmp_path / "a.txt").exists()
    assert (tmp_path / "lines.jsonl").read_bytes() == b""


def test_hashes_are_those_of_hashlib(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    assert hash_file(tmp_path / "a") == hashlib.sha256(b"content").hexdigest()
    assert hash_file(tmp_path / "a", "md5") == hashlib.md5(b"content").hexdigest()


@pytest.mark.skipif(os.name == "nt", reason="named pipes are files of POSIX systems")
def test_a_pipe_is_written_if_somebody_reads_it(tmp_path):
    """Without a reader, to open it would wait without end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="a pipe that nobody reads: start its reader first"):
        write_text(pipe, "text")
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    descriptor = os.open(pipe, os.O_WRONLY)  # waits for the reader
    write_text(pipe, "text")
    os.close(descriptor)
    assert reader.communicate(timeout=10)[0] == b"text"
    assert pipe.is_fifo()


def test_links_that_go_in_a_circle_are_a_place_like_any_other(tmp_path):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert files.resolve(tmp_path / "circle").name == "circle"
    assert files.resolve(tmp_path / "link") == files.resolve(tmp_path / "file")


def test_a_table_is_written_where_the_folder_is_not_utf_8(tmp_path):
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.parquet"))
    frames.write_parquet(pd.DataFrame({"a": [1, 2]}), file)
    assert frames.read_frame(file)["a"].tolist() == [1, 2]
