"""The exception raised for user errors: what was found, what was expected, what to do."""


class UserError(ValueError):
    """An error in the user's input or files; the command line prints it without a traceback."""
