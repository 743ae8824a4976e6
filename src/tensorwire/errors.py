"""Errors that are for people: their message says what to do, and the command line shows only it."""

from __future__ import annotations


class TensorwireError(Exception):
    """Something failed for a reason that the user can act on.

    ``exit_code`` is the status with which a command that raises it ends.
    """

    def __init__(self, message: str, exit_code: int = 1, page: str = "") -> None:
        """`page` is the document that helps, such as docs/lab.md; the message then ends with it."""
        super().__init__(f"{message} (see {page})" if page else message)
        self.exit_code = exit_code


class UsageError(TensorwireError):
    """The request itself was wrong: flags, arguments or a file's content."""

    def __init__(self, message: str, page: str = "") -> None:
        super().__init__(message, exit_code=2, page=page)
