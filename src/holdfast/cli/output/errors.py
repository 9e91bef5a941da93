"""What went wrong, in words: the one place where errors become messages and exit codes."""

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
"""128 + SIGINT, as shells have it."""
BROKEN_PIPE = 141
"""128 + SIGPIPE: who read what was printed ended before all of it was there."""
EXPECTED_ERRORS = (HoldfastError, OSError, UnicodeError, RecursionError, MemoryError)
"""What input, disks and terminals can cause. Anything else is a fault of this program and keeps its traceback."""

_LONG_WORD = re.compile(r"""(\S{80})\S{320,}?(?=['"):;,.]{0,3}(?:\s|$))""")
"""A word that nobody wrote to be read, and what is told of it: no path that a disk takes has a longer name in it."""
_ERRNO_PREFIX = re.compile(r"\[Errno \d+\] (.)")
"""How an error of the system begins inside of another."""
_ADVICE_FOR_ERRNO = {
    errno.ENOENT: "check the path",
    errno.EACCES: "give yourself access to it, or choose another path",
    errno.EPERM: "give yourself access to it, or choose another path",
    errno.EROFS: "choose a path on a disk that can be written",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EISDIR: "give a file",
    errno.ENOTDIR: "check the path: one of its folders is a file",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ELOOP: "check the links in the path",
    errno.EIO: "check the disk, or give another file",
}


class CommandError(click.ClickException):
    """The command cannot go on: wrong use, or input, disk and the like that do not let it."""

    exit_code = WRONG_USE


class CommandInterrupted(click.ClickException):
    """The user ended the command."""

    exit_code = INTERRUPTED


class OutputClosed(click.ClickException):
    """Nobody reads what is printed any more, as behind ``| head -1``: the command ends, and says nothing of it."""

    exit_code = BROKEN_PIPE

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002
        """Let what is not printed yet go nowhere."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


def translate_error(error: BaseException) -> BaseException:
    """Return what is to be raised for ``error``: a message for what can be expected, else the error itself."""
    if isinstance(error, KeyboardInterrupt):
        return CommandInterrupted("interrupted; nothing was left half-written")
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return OutputClosed("")
    return CommandError(describe_error(error)) if isinstance(error, EXPECTED_ERRORS) else error


def cut_long_words(message: str) -> str:
    """Return ``message`` with its endless words cut: whatever was given, an error is one that can be read."""
    return _LONG_WORD.sub(r"\1…", message)


def describe_error(error: BaseException) -> str:
    """Return what happened and one thing to do, in one line."""
    return cut_long_words(_describe_error_fully(error))


def _describe_error_fully(error: BaseException) -> str:
    if isinstance(error, HoldfastError):
        return _ERRNO_PREFIX.sub(lambda match: match[1].lower(), str(error))
    if isinstance(error, OSError):
        return _describe_os_error(error)
    if isinstance(error, RecursionError):
        return "the input is nested too deeply to be read; give one with fewer levels"
    if isinstance(error, MemoryError):
        return "there is not enough memory for this input; give a smaller one"
    return f"the text cannot be read or shown as it is: {error}; convert it to UTF-8"


def prefix_file_name(file: str, message: str) -> str:
    """Return ``message`` with ``file`` before it, once; one without a name has none."""
    file = cut_long_words(file)
    return message if not file or message.startswith((f"{file}: ", f"{file} ")) else f"{file}: {message}"


def _describe_os_error(error: OSError) -> str:
    if error.errno == errno.ENOENT and error.filename is None:  # so it is where the working folder is asked for
        return "the working folder is not there any more; change to one that is"
    description = error.strerror or str(error)
    where = f"{error.filename}: " if error.filename is not None else ""
    advice = _ADVICE_FOR_ERRNO.get(error.errno or 0)
    return f"{where}{description[:1].lower()}{description[1:]}" + (f"; {advice}" if advice else "")
