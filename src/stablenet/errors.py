"""The one exception a user's mistake raises: what was found, what was expected, what to do."""


class UserError(ValueError):
    """A mistake in what the user passed or has on disk; the command line prints it without a traceback."""
