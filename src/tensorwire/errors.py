"""Errors for users. The message says what to do; the command line shows only the message."""

from __future__ import annotations


class TensorwireError(Exception):
    """Something failed for a reason that the user can act on.

    ``exit_code`` is the status with which a command that raises it ends.
    """

    def __init__(self, message: str, exit_code: int = 1, page: str = "") -> None:
        """`page` is a document to read, such as docs/lab.md; it is appended to the message."""
        super().__init__(f"{message} (see {page})" if page else message)
        self.exit_code = exit_code


class UsageError(TensorwireError, ValueError):
    """The request itself was wrong: flags, arguments or a file's content."""

    def __init__(self, message: str, page: str = "") -> None:
        super().__init__(message, exit_code=2, page=page)
