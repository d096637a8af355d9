"""The package works where what only Unix has is missing, as on Windows: modules, calls, waiting for several pipes."""

import os
import subprocess
import sys
import textwrap

import pytest

import stablenet

MODULES = ("fcntl", "grp", "pwd", "resource", "termios")
CALLS = {
    "os": (
        "fork",
        "forkpty",
        "getpgid",
        "getsid",
        "getuid",
        "killpg",
        "mkfifo",
        "O_NONBLOCK",
        "posix_fallocate",
        "pread",
        "preadv",
        "pwrite",
        "pwritev",
        "sched_getaffinity",
        "setsid",
        "statvfs",
        "sysconf",
    ),
    "select": ("poll", "epoll", "kqueue"),
    "signal": ("SIGALRM", "SIGHUP", "SIGUSR1", "alarm", "pthread_kill", "setitimer", "sigwait"),
}
# `select.select` is there, for sockets alone; `os.kill` ends a process without its handlers. `subprocess` is Unix's own
# and needs `os.kill` and SIGKILL.
BLOCK = f"""
import os, select, signal, sys, threading
for name in {MODULES}:
    sys.modules[name] = None  # an import of it fails
for module, names in {CALLS}.items():
    for name in names:
        vars(sys.modules[module]).pop(name, None)

def refuse(*words, **named):
    raise OSError(10038, "an operation was attempted on something that is not a socket")

def end(process, number, kill=os.kill):
    os._exit(number) if process == os.getpid() else kill(process, signal.SIGKILL)

select.select, os.kill = refuse, end
"""
# Written in Triton, which Windows and CPU builds of torch lack too; imported only where it is there.
KERNELS = {
    "data.kernels.augment_programs",
    "data.kernels.fused_augment",
    "weighting.kernels.fused_solve",
    "weighting.kernels.prepare_programs",
    "weighting.kernels.solve_program",
}
IMPORT_ALL = (
    """
import pkgutil
from importlib import import_module
# What others import is theirs: torch and its like choose by platform what they need.
import filelock, lightning_fabric, pandas, pyarrow, scipy.stats, sklearn, torch, torchvision, typer, PIL.Image
"""
    + BLOCK
    + """
LEFT_OUT = {names}
sys.modules["triton"] = None
import stablenet
names = [found.name for found in pkgutil.walk_packages(stablenet.__path__, "stablenet.")]
assert LEFT_OUT <= {{name.removeprefix("stablenet.") for name in names}}, "modules that are no longer there"
for name in names:
    if name.removeprefix("stablenet.") not in LEFT_OUT:
        import_module(name)
print(len(names))
""".format(names=KERNELS | {"__main__"})  # which runs the command
)


def run(code, **environment):
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=200)


def test_every_module_imports_without_what_only_unix_has():
    done = run(IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    found = sum(name.endswith(".py") for _, _, names in os.walk(stablenet.__path__[0]) for name in names)
    assert int(done.stdout) == found - 1, "all modules but the package itself"


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_blocked(name):
    assert "ModuleNotFoundError" in run(BLOCK + f"import {name}").stderr


@pytest.mark.parametrize("name", ["os.fork", "os.pread", "os.pwrite", "select.poll", "signal.pthread_kill"])
def test_calls_are_blocked(name):
    assert f"has no attribute '{name.split('.')[1]}'" in run(BLOCK + name).stderr


SERVING = """
    import signal, sys, time
    from stablenet.processes import Server

    def stop(number, frame):
        raise KeyboardInterrupt

    def perform(order, tell):
        if order == "work":
            signal.signal(signal.SIGTERM, stop)
            tell("at work")
            for _ in range(600):
                time.sleep(0.1)
        return {"did": order, "blocked": not hasattr(signal, "pthread_kill")}

    if __name__ == "__main__":
        sys.exit(Server(perform).run())
"""
PARENT = """
import sys
sys.path.insert(0, {folder!r})
from stablenet.processes import ChildProcess, INTERRUPTED, wait_for
one, other = ChildProcess("serving"), ChildProcess("serving")
other.send("work")
assert wait_for([one, other], 30) == [other]
assert other.receive() == "at work"
one.send("a")
assert wait_for([one, other], 30) == [one]
assert one.receive() == {{"did": "a", "blocked": True}}
assert wait_for([one, other], 0) == []
other.close()
assert wait_for([one, other], 30) == [other]
assert other.receive() is None
assert other.end(10) == INTERRUPTED, "its handler was asked"
assert one.end(10) == 0
print("done")
"""
DECODING = """
from pathlib import Path
from stablenet.data.decode import DecodeWorker, Task
place = Path({folder!r}) / "pixels"
place.write_bytes(bytes(3 * 12))
worker = DecodeWorker()
records = worker.run(Task(Path({folder!r}), ("b.png", "a.png"), (2, 2), False, place, 1))
worker.end()
assert [record.reason for record in records] == ["", ""]
print(*place.read_bytes())
"""


@pytest.fixture
def blocked(tmp_path):
    """Runs a script that, as its children, starts without what only Unix has."""
    (tmp_path / "sitecustomize.py").write_text("import subprocess, tempfile\n" + BLOCK)
    (tmp_path / "serving.py").write_text(textwrap.dedent(SERVING))

    def run_blocked(script):
        places = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        return run(script.format(folder=str(tmp_path)), PYTHONPATH=places)

    return run_blocked


def test_children_answer_and_stop_at_their_handlers(blocked):
    done = blocked(PARENT)
    assert done.stdout == "done\n", done.stderr


def test_images_are_decoded_in_other_processes(blocked, tmp_path):
    from PIL import Image

    for name, value in (("a.png", 10), ("b.png", 13)):  # 10 and 13 end lines of text
        Image.new("RGB", (2, 2), (value, value, value)).save(tmp_path / name)
    done = blocked(DECODING)
    assert list(map(int, done.stdout.split())) == [0] * 12 + [13] * 12 + [10] * 12, done.stderr
