"""The exception raised for user errors: what was found, what was expected, what to do; and the exit statuses."""

MISTAKE, OUR_MISTAKE, INTERRUPTED = 2, 70, 130  # of the command: 70 is EX_SOFTWARE of sysexits.h, 130 that after Ctrl-C


class UserError(ValueError):
    """An error in the user's input or files; the command line prints it without a traceback."""
