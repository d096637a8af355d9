"""Machines in trouble: little memory, full and read-only disks, another user's files, clocks that jump.

Disks are mounted in a namespace of the trial, which is gone with it. Where this user may not mount, such a trial is
skipped and counted as such.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from campaign.parts.systems import WRITERS
from campaign.trial import Trial

NOBODY = 65534
_NEW_NAMESPACE, _READ_ONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 0x20000, 1, 32, 4096, 16384, 1 << 18
_NO_MOUNT = "this user may not mount: run the campaign as root, or in a namespace of its own"


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    shutil.copytree(workshop / "runs" / "weighted", folder / "run")
    for name in ("photos", "table.csv", "split.tsv"):
        (folder / name).symlink_to(workshop / name)
    return rng.choice(KINDS)(rng, folder)


def _choose(rng: Random, out: str) -> list[str]:
    return WRITERS[rng.choice(sorted(WRITERS))](out)


def _limit_memory(rng: Random, folder: Path) -> Trial:
    return Trial(words=_choose(rng, "out"), memory=rng.choice((0, 1, 4, 10, 16, 32, 64, 100, 200, 400)) << 20)


def _fill_disk(rng: Random, folder: Path) -> Trial:
    """A small disk below the results, or below what is kept between commands."""
    options = rng.choice((f"size={rng.choice((4, 16, 64, 200, 600, 2000))}k", f"nr_inodes={rng.choice((2, 3, 5, 8))}"))
    small = folder / "small"
    small.mkdir()
    if not mount("tmpfs", small, "tmpfs", 0, options):
        return Trial(skipped=_NO_MOUNT)
    if rng.random() < 0.25:
        return Trial(words=_choose(rng, "out"), environment={"STABLENET_CACHE": str(small), "TMPDIR": str(small)})
    return Trial(words=_choose(rng, "small/out"))


def _read_only(rng: Random, folder: Path) -> Trial:
    """Everything that is installed, or the folder of the results, or that of the run."""
    import stablenet

    installed = [Path(stablenet.__file__).parent, *(Path(p) for p in sys.path if p.endswith("site-packages"))]
    (folder / "there").mkdir()
    places = rng.choice((installed, [folder / "there"], [folder / "run"]))
    if not all(mount(str(place), place, "", _BIND) and mount("", place, "", _READ_ONLY_BIND) for place in places):
        return Trial(skipped=_NO_MOUNT)
    return Trial(words=_choose(rng, "there/out"))


def _become_another(rng: Random, folder: Path) -> Trial:
    """As a user who may not read one of the files, or may not write in one of the folders."""
    if os.geteuid() != 0:
        return Trial(skipped="this user cannot become another: run the campaign as root")
    closed = rng.choice([folder / "run", *(folder / "run").iterdir()])
    for path in (folder.parent, folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    closed.chmod(rng.choice((0, 0o200, 0o400, 0o500)))
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    return Trial(words=_choose(rng, "out"), environment={"HOME": str(folder)})


def _turn_clock(rng: Random, folder: Path) -> Trial:
    """Files from the future and from 1970, a clock that goes back, and a machine that slept for days."""
    for path in folder.rglob("*"):
        if rng.random() < 0.5:
            moment = rng.choice((0, 1, 2**31 + 5, 2**33, time.time() + 86_400))
            os.utime(path, (moment, moment), follow_symlinks=False)
    real, slept = time.time, time.monotonic
    jumps = Random(rng.random())
    time.time = lambda: real() + jumps.choice((0, -86_400, 86_400, -real()))  # type: ignore[assignment]
    time.monotonic = lambda: slept() + 86_400 * int(slept())  # type: ignore[assignment]
    return Trial(words=_choose(rng, "out"))


_READ_ONLY_BIND = _READ_ONLY | _REMOUNT | _BIND
KINDS: tuple[Callable[[Random, Path], Trial], ...] = (
    _limit_memory,
    _fill_disk,
    _fill_disk,
    _read_only,
    _become_another,
    _turn_clock,
)


def mount(source: str, place: Path, kind: str, flags: int, options: str = "") -> bool:
    """Mount for this process and its children alone; whether that was allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not _has_own_mounts() and (
        libc.unshare(_NEW_NAMESPACE) != 0 or libc.mount(b"none", b"/", None, _REC | _PRIVATE, None) != 0
    ):
        return False
    words = [os.fsencode(word) for word in (source, place, kind)]
    return bool(libc.mount(*words, flags, options.encode() or None) == 0)


def _has_own_mounts() -> bool:
    """Whether this process has left its parent's namespace of mounts."""
    return os.readlink("/proc/self/ns/mnt") != os.readlink(f"/proc/{os.getppid()}/ns/mnt")
