"""The command `stablenet`: runs a verb, and turns every failure into one sentence.

It imports little, so that Ctrl-C works from the first moment: the verbs are imported when they are run.
"""

from __future__ import annotations

import atexit
import re
import signal
import sys

from stablenet.errors import INTERRUPTED, MISTAKE, UserError


def run() -> None:
    """Entry point. Exit status 2 for a user's mistake, 130 for an interrupt, 70 for an error in StableNet."""
    try:
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # the work is done: nothing left to interrupt
        _print_all_names()
        from stablenet.cli.verbs import app

        app()
    except UserError as error:
        _fail(str(error), MISTAKE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        from stablenet.cli.last_net import explain

        _fail(*explain(error))


def _fail(message: str, status: int) -> None:
    import typer

    shown = re.sub(r"\S{400,}", lambda word: f"{word[0][:300]}…", message)  # a word that was given may be endless
    typer.secho(f"error: {shown}", fg=typer.colors.RED, err=True)
    sys.exit(status)


def _print_all_names() -> None:
    """File names that are not valid text are printed with escapes, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
