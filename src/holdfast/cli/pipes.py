"""Named pipes that a command is given: read to their end, where anybody writes into them."""

from __future__ import annotations

import os
import select
from pathlib import Path

from holdfast.errors import FormatError

PATIENCE = 3.0
"""Seconds in which somebody must have opened a pipe for writing. [H] A shell that made it has, long before."""


def piped(path: Path, patience: float = PATIENCE) -> bytes:
    """Return what is written into the pipe at ``path``; ``FormatError`` where nobody does."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as pipe:
        select.select([pipe], [], [], patience)
        begun = pipe.read(1)  # nothing yet where somebody is about to write, b"" where nobody is
        if begun == b"":
            raise FormatError(f"{path} is a pipe into which nobody writes; start who writes, or give a file")
        os.set_blocking(descriptor, True)
        return (begun or b"") + pipe.read()
