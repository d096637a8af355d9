"""What no verb expected ends in one sentence; names are printed as they are."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stablenet
from stablenet.cli.console import Console, TextColumn
from stablenet.cli.main import run

ROOT = Path(stablenet.__file__).parent
ODD = "a[/b][red]:smile:\udcff"


@pytest.fixture
def ending(monkeypatch, capsys, tmp_path):
    """Run the command with a verb that raises; gives exit status and what was printed to the error stream."""

    def end(error: BaseException) -> tuple[int, str]:
        def fail(*arguments: object, **options: object) -> None:
            raise error

        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setattr("stablenet.cli.verbs.app", fail)
        monkeypatch.setattr("stablenet.registry.own_folders", set())  # this file is not a user's
        monkeypatch.setattr(sys, "argv", ["stablenet", "train", "--set", "seed=1"])
        with pytest.raises(SystemExit) as ended:
            run()
        return int(ended.value.code or 0), capsys.readouterr().err

    return end


def test_an_unexpected_error_is_one_sentence_and_a_report(ending, tmp_path):
    secret = "what the data held"
    try:
        _raise(secret)
    except ZeroDivisionError as raised:
        error = raised
    status, told = ending(error)
    assert status == 70
    assert told.count("\n") == 1
    assert "Traceback" not in told
    (report,) = tmp_path.glob("stablenet-error-*.txt")
    assert str(report) in told
    text = report.read_text()
    assert "stablenet train --set seed=1" in text
    assert "torch 2" in text
    assert "in _raise" in text
    assert secret not in text


def _raise(value: str) -> None:
    raise ZeroDivisionError(len(value))


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EACCES, "may not be read"),
        (errno.ENAMETOOLONG, "too long a name"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EIO, "could not be read or written"),
    ],
)
def test_what_the_system_refuses_says_what_to_do(ending, number, told):
    status, text = ending(OSError(number, os.strerror(number), "there/a.csv"))
    assert status == 2
    assert "there/a.csv" in text
    assert told in text


def test_memory_and_interrupts(ending):
    assert ending(MemoryError())[0] == 2
    assert ending(KeyboardInterrupt()) == (130, "")


def test_brackets_and_broken_names_are_printed_as_they_are(capsys):
    from rich.table import Table

    table = Table(ODD[:-1], title=ODD[:-1])
    table.add_row(ODD[:-1])
    Console(width=100).print(table)
    assert capsys.readouterr().out.count(ODD[:-1]) == 3
    assert TextColumn("{task.description}").markup is False


def test_no_other_module_opens_a_console_or_writes_markup():
    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "console.py":
            assert not re.search(r"rich\.console import|rich\.markup|rich\.print\b", text), path
            assert not re.search(r"from rich\.progress import [^\n]*TextColumn", text), path


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5])
def test_an_interrupt_during_the_imports_ends_quietly(tmp_path, delay):
    started = subprocess.Popen(
        [sys.executable, "-m", "stablenet", "train", "--set", "train.epochs=1000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(0.1 + delay)  # Python itself takes a moment to start
    started.send_signal(signal.SIGINT)
    told = started.communicate(timeout=60)[1]
    assert started.returncode == 130, told
    assert "Traceback" not in told


def test_a_failed_training_names_its_config_in_the_report(monkeypatch):
    from stablenet.engine.config import RunConfig
    from stablenet.engine.train import _explained

    with pytest.raises(ZeroDivisionError) as raised, _explained(RunConfig(seed=7)):
        raise ZeroDivisionError
    (note,) = raised.value.__notes__
    assert json.loads(note.removeprefix("config: "))["seed"] == 7
