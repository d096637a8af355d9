"""The exception raised for user errors: what was found, what was expected, what to do; and the exit statuses.

What the system refuses, about a file or the disk, is such an error too.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

MISTAKE, OUR_MISTAKE, INTERRUPTED = 2, 70, 130  # of the command: 70 is EX_SOFTWARE of sysexits.h, 130 that after Ctrl-C

_LONGEST = 300  # characters of a path in a message
_FULL = "the disk is full: {path} could not be written; free some space and try again (continue a run with --resume)"
# By the number of the system's error; {path} is the file or folder, {reason} what the system says of it.
_REFUSALS = {
    errno.ENOENT: "{path} does not exist: check the path",
    errno.EACCES: "{path} may not be read or written by this user: change its permissions, or choose another place",
    errno.EPERM: "{path} may not be read or written by this user: change its permissions, or choose another place",
    errno.EISDIR: "{path} is a folder, but a file is needed: choose another path",
    errno.ENOTDIR: "{path} cannot be reached: a part of its path is a file, not a folder; choose another path",
    errno.EEXIST: "{path} exists already and is in the way: choose another path",
    errno.ENOTEMPTY: "{path} exists already and is in the way: choose another path",
    errno.ENAMETOOLONG: "{path} is too long a name for this file system: choose a shorter one",
    errno.ENXIO: "{path} is a pipe that nobody reads: start its reader first, or give a file",
    errno.ELOOP: "{path} cannot be reached: its links form a loop; choose another path",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "{path} may not grow any larger: raise the limit on the size of files (`ulimit -f`)",
    errno.EROFS: "{path} is on a read-only file system: choose another place",
    errno.EMFILE: "{path} could not be opened, too many files are open: raise the limit (`ulimit -n`)",
    errno.ENFILE: "{path} could not be opened, too many files are open on this machine: close some programs",
    errno.ENOMEM: "out of memory at {path}: use less data, or a machine with more memory",
    errno.EAGAIN: "{path} could not be started or read ({reason}): the machine is at its limits; try again later",
}


class UserError(ValueError):
    """An error in the user's input or files; the command line prints it without a traceback."""


def write_count(number: int, what: str) -> str:
    """For a message: "1 seed", "3 seeds", "2 classes"."""
    ending = "" if number == 1 else "es" if what.endswith("s") else "s"
    return f"{number:,} {what}{ending}"


def explain_os_error(error: OSError, path: Path | str | None = None) -> UserError:
    """An operating system's error in one sentence, with the file and what to do.   path: instead of the error's."""
    place = error.filename if path is None else path
    if isinstance(place, bytes):
        place = os.fsdecode(place)
    reason = error.strerror or str(error) or type(error).__name__
    text = _REFUSALS.get(error.errno or 0, "{path} could not be read or written: {reason}; check the disk and the path")
    return UserError(text.format(path="a file" if place is None else shorten_path(place), reason=reason))


def shorten_path(path: object) -> str:
    """A path for a message, on one line and shortened if it is very long."""
    text = "".join(letter if letter.isprintable() else "?" for letter in str(path))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 :]}"
