"""Signals during training: after the step, in the middle of one that does not end, and in spite of a library."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from stablenet.engine import interrupts
from stablenet.engine.interrupts import Interrupted, watch_signals
from stablenet.engine.monitor import Watcher
from stablenet.engine.run import load_run
from tests.engine.tiny import tiny_run

ENDLESS = ("stablenet", "method.parameters.preset=paper", "method.parameters.overrides.steps=123456789")


class StopWhenTold(Watcher):
    """Asks for a stop as soon as it is told what will take long."""

    def __init__(self, number):
        self._number, self.said = number, []

    def tell(self, text):
        self.said.append(text)
        if "expected" in text:
            signal.raise_signal(self._number)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(interrupts, "PATIENCE", 0.1)
    monkeypatch.setattr("stablenet.long_work._SAMPLE", 0.1)


@pytest.fixture(autouse=True)
def _default_handler():
    """Of a foreground process; one in the background of a shell ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# An exception raised in the callback of a weak reference is lost, and raised again by the guard's next attempt.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_step_without_end_is_announced_and_broken_off(tmp_path, number):
    watcher = StopWhenTold(number)
    start = time.monotonic()
    with pytest.raises(Interrupted):
        tiny_run(tmp_path / "run", *ENDLESS, watcher=watcher)
    assert time.monotonic() - start < 30
    (said,) = [text for text in watcher.said if "expected" in text]
    assert "123,456,790 steps are expected to take up to" in said
    assert load_run(tmp_path / "run").status["state"] == "interrupted"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_work_that_may_not_be_broken_off_is_not():
    with watch_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.5)
        assert stop.asked


def test_several_processes_wait_for_each_other():
    with watch_signals(processes=2) as stop, stop.breakable():
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.5)


def test_a_step_that_takes_its_usual_time_is_not_broken_off():
    with watch_signals() as stop:
        with stop.breakable():
            time.sleep(0.3)
        with stop.breakable():
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.3)
        assert stop.asked


def test_a_second_signal_breaks_off_whatever_is_at_work():
    with watch_signals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)


def test_no_thread_and_no_file_is_left():
    import threading
    from pathlib import Path

    def count():
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0

    before = count()
    for _ in range(5):
        with watch_signals():
            pass
    assert count() == before


BUSY = """
import hashlib
from stablenet.engine import interrupts
interrupts._LAST = 0.2
with interrupts.watch_signals():
    print("at work", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # many minutes, which let no handler through
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no signals to processes")
def test_a_second_signal_ends_a_process_in_which_a_library_is_at_work():
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "at work\n"
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        assert process.wait(20) == 130
    finally:
        process.kill()
        process.stdout.close()
