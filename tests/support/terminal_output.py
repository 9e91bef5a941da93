"""What a program writes to a terminal, read from its other end."""

from __future__ import annotations

import os
import time


def read_until(master: int, output: bytes, words: bytes | None) -> bytes:
    """Return ``output`` and what the terminal shows more, up to ``words``, or to the end of the program."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (words is None or words not in output):
        try:
            piece = os.read(master, 65_536)
        except OSError:  # the program closed the terminal
            piece = b""
        if not piece:
            break
        output += piece
    assert words is None or words in output
    return output
