"""Children that serve orders: what travels, and how both sides end."""

import os
import signal
import sys
import textwrap
import time

import pytest

from stablenet.processes import INTERRUPTED, ChildProcess, name_end, wait_for

MODULE = """
    import os, signal, sys, time
    from stablenet.processes import Server

    def stop(number, frame):
        raise KeyboardInterrupt

    def perform(order, tell):
        if order == "where":
            return {"path": sys.path, "threads": os.environ.get("OMP_NUM_THREADS")}
        if order == "print":
            print("a word")
            os.system("echo another")
        if order == "count":
            for k in range(3):
                tell(k)
        if order in ("sleep", "sleep deaf"):
            signal.signal(signal.SIGTERM, stop if order == "sleep" else signal.SIG_IGN)
            tell("asleep")
            time.sleep(60)
        if order == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return {"did": order}

    if __name__ == "__main__":
        sys.exit(Server(perform).run())
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts children of the module above, which lies in a folder that only `sys.path` names."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "serving.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "own"), *sys.path])
    children = []

    def start_one(**words):
        children.append(ChildProcess("serving", **words))
        return children[-1]

    yield start_one
    for child in children:
        child.end()


def test_orders_are_answered_one_after_the_other(start):
    child = start()
    for order in ("a", "schön\n", "b" * 200_000):
        child.send(order)
    assert [child.receive() for _ in range(3)] == [{"did": "a"}, {"did": "schön\n"}, {"did": "b" * 200_000}]
    assert child.end(10) == 0


def test_what_is_told_in_between_comes_first_and_is_not_lost(start):
    """All lines may arrive at once: those that are read already need no `select`."""
    child = start()
    child.send("count")
    time.sleep(1)
    told = []
    while len(told) < 4:
        assert wait_for([child], 10) == [child]
        told.append(child.receive())
    assert told == [0, 1, 2, {"did": "count"}]
    assert wait_for([child], 0) == []


def test_prints_go_to_the_log(start, tmp_path):
    child = start(log=tmp_path / "log")
    child.send("print")
    assert child.receive() == {"did": "print"}
    child.end(10)
    assert (tmp_path / "log").read_text().split() in (["a", "word", "another"], ["another", "a", "word"])


def test_an_empty_log_does_not_stay(start, tmp_path):
    start(log=tmp_path / "log").end(10)
    assert not (tmp_path / "log").exists()


def test_a_child_finds_modules_where_its_parent_does(start, tmp_path, monkeypatch):
    """And not in the current folder, where a file may have the name of a module of Python's own."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    child, other = start(), start(threads=3)
    child.send("where")
    other.send("where")
    places = list(dict.fromkeys(map(os.path.abspath, sys.path)))
    assert (told := child.receive())["path"][: len(places)] == places
    assert (told["threads"], other.receive()["threads"]) == ("7", "3")


def test_a_closed_input_stops_an_order_under_way(start):
    child = start()
    child.send("sleep")
    assert child.receive() == "asleep"
    child.close()
    assert child.receive() is None
    assert child.end(10) == INTERRUPTED


def test_an_order_that_nobody_waits_for_is_not_begun(start, tmp_path):
    child = start(log=tmp_path / "log")
    child.send("sleep")
    child.close()
    assert child.end(10) in (INTERRUPTED, -signal.SIGTERM)


def test_a_child_that_does_not_end_in_time_is_killed(start):
    child = start()
    child.send("sleep deaf")
    child.receive()
    assert child.end(0.1) == -signal.SIGKILL


def test_a_child_that_dies_answers_nothing(start):
    child, other = start(), start()
    child.send("die")
    assert wait_for([child, other], 10) == [child]
    assert child.receive() is None
    child.send("again")
    assert child.receive() is None
    assert name_end(child.end(10)) == "killed by SIGKILL"
    assert name_end(3) == "exit status 3"
    other.send("a")
    assert other.receive() == {"did": "a"}


def test_ctrl_c_in_a_terminal_is_for_the_parent(start):
    assert os.getsid(start().pid) != os.getsid(0)
