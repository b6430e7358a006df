"""The one kind of error that is shown to people without a traceback."""


class UsageError(ValueError):
    """A mistake made on the command line or in a configuration file.

    `yamame.runs.hydra.main` prints its message as one line and exits with status 2.
    """
