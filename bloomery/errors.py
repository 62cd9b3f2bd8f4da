"""The one base of errors that a user is meant to read: what was found, what was expected, and the remedy."""

from __future__ import annotations


class BloomeryError(Exception):
    """An error with a remedy. The command line prints it without a traceback.

    Retrying does not heal it (wrong config, refused input, failed verdict), unless a subclass says so.
    """

    retry = False

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}\nRemedy: {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy


class TransientError(BloomeryError):
    """The same call may succeed later: an engine restarts, a store does not answer."""

    retry = True
