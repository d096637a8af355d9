"""The last safety net: an error that no verb expected ends in one sentence, and in a report file for the developers.

The file holds the command, the versions, the traceback and the config of a run; no data.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
import traceback
from importlib.metadata import PackageNotFoundError, version

from stablenet.errors import MISTAKE, OUR_MISTAKE, explain_os_error
from stablenet.registry import describe_error, find_own_line

_OUT_OF_MEMORY = (
    "can't start new thread",
    "failed to map segment",
    "annot allocate memory",
    "bad_alloc",
    "DefaultCPUAllocator",
    "out of memory",
    "could not create a primitive",  # oneDNN
)
_PACKAGES = ("torch", "torchvision", "numpy", "pandas", "pyarrow", "pillow", "scikit-learn", "rich", "typer")


def explain(error: Exception) -> tuple[str, int]:
    """A sentence about an unexpected error, and the exit status.

    If the operating system refuses something, StableNet is not at fault: the sentence says what to do, and there is no
    report. Nor is it when the error comes from a user's own module.
    """
    if isinstance(error, OSError):
        return str(explain_os_error(error)), MISTAKE
    if _is_out_of_memory(error):
        return (
            "out of memory: use less data, a smaller batch or model, or a machine with more memory",
            MISTAKE,
        )
    if find_own_line(error):
        return f"a module of yours failed with {describe_error(error)}: correct it; {_report(error)}", MISTAKE
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"StableNet failed unexpectedly ({what[:200]}); please report it: {_report(error)}", OUR_MISTAKE


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, which each library reports in its own way."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY)


def _report(error: Exception) -> str:
    try:
        path = _write_report(error)
    except OSError as refused:
        return f"the report could not be written: {refused.strerror}"
    return f"the traceback is in {path}"


def _write_report(error: Exception) -> str:
    number, path = tempfile.mkstemp(prefix="stablenet-error-", suffix=".txt")
    with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(_describe(error))
    return path


def _describe(error: Exception) -> str:
    command = shlex.join(["stablenet", *sys.argv[1:]])
    system = f"Python {platform.python_version()} on {platform.platform()}"
    versions = "\n".join(f"{name} {_version(name)}" for name in ("stablenet", *_PACKAGES))
    return f"{command}\n\n{system}\n{versions}\n\n{''.join(traceback.format_exception(error))}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
