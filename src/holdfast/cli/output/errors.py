"""Errors in words: the one place where exceptions become messages and exit codes."""

from __future__ import annotations

import errno
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import click

from holdfast.errors import HoldfastError

WRONG_USE = 2
INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""
BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader of our output ended before all of it was written."""
EXPECTED_ERRORS = (HoldfastError, OSError, UnicodeError, RecursionError, MemoryError)
"""Errors that input, disks and terminals can cause. Anything else is a fault of this program and keeps its traceback.
"""

_LONG_WORD = re.compile(r"""(\S{80})\S{320,}?(?=['"):;,.]{0,3}(?:\s|$))""")
"""A word too long to be read, such as base64 data. The longest name that file systems allow has 255 characters, so that
no path is cut."""
_ERRNO_PREFIX = re.compile(r"\[Errno \d+\] (.)")
"""The prefix of an operating system error inside another message."""
_ADVICE_FOR_ERRNO = {
    errno.ENOENT: "check the path",
    errno.EACCES: "give yourself access to it, or choose another path",
    errno.EPERM: "give yourself access to it, or choose another path",
    errno.EROFS: "choose a path on a writable disk",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EISDIR: "give a file",
    errno.ENOTDIR: "check the path: one of its folders is a file",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ELOOP: "check the links in the path",
    errno.EIO: "check the disk, or give another file",
}


class CommandError(click.ClickException):
    """The command cannot continue: wrong use, or a problem with input, disk and the like."""

    exit_code = WRONG_USE


class CommandInterrupted(click.ClickException):
    """The user ended the command."""

    exit_code = INTERRUPTED


class OutputClosed(click.ClickException):
    """The reader of our output is gone, as with ``| head -1``: the command ends without a message."""

    exit_code = BROKEN_PIPE

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002
        """Redirect the streams to the null device, so that flushing them at exit does not fail again."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


def translate_error(error: BaseException) -> BaseException:
    """Return the exception to raise for ``error``: a message for expected errors, else the error itself."""
    if isinstance(error, KeyboardInterrupt):
        return CommandInterrupted("interrupted; nothing was left half-written")
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return OutputClosed("")
    return CommandError(describe_error(error)) if isinstance(error, EXPECTED_ERRORS) else error


def cut_long_words(message: str) -> str:
    """Cut words that nobody could read, so that an error stays readable whatever input it quotes."""
    return _LONG_WORD.sub(r"\1…", message)


def describe_error(error: BaseException) -> str:
    """Describe an error and one thing to do, on one line."""
    return cut_long_words(_describe_error_fully(error))


def _describe_error_fully(error: BaseException) -> str:
    if isinstance(error, HoldfastError):
        return _ERRNO_PREFIX.sub(lambda match: match[1].lower(), str(error))
    if isinstance(error, OSError):
        return _describe_os_error(error)
    if isinstance(error, RecursionError):
        return "the input is nested too deeply; give one with fewer levels"
    if isinstance(error, MemoryError):
        return "not enough memory for this input; give a smaller one"
    return f"the text is not valid UTF-8: {error}; convert it to UTF-8"


def prefix_file_name(file: str, message: str) -> str:
    """Put ``file`` before ``message`` unless it is there already, or empty."""
    file = cut_long_words(file)
    if not file or message.startswith((f"{file}: ", f"{file} ")):
        return message
    return f"{file}: {message}"


def _describe_os_error(error: OSError) -> str:
    if error.errno == errno.ENOENT and error.filename is None:  # raised by os.getcwd()
        return "the working folder no longer exists; change to another one"
    description = error.strerror or str(error)
    message = f"{description[:1].lower()}{description[1:]}"
    if error.filename is not None:
        message = f"{error.filename}: {message}"
    advice = _ADVICE_FOR_ERRNO.get(error.errno or 0)
    return f"{message}; {advice}" if advice else message
