"""Searches files for a pattern, as a program of its own: a pattern that never ends can then be ended.

It is started with ``[folder, pattern, glob, most, skipped]`` as one JSON argument, and prints ``PATH:LINE: TEXT``.
It imports the standard library alone, so that it runs isolated from whatever lies in the folder that it searches.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import sys
from collections.abc import Iterator

LINE_CHARS = 300
"""Characters of a line that are shown."""
LONGEST = 20_000
"""Characters of a line that are searched."""
LOOKED = 8_192
"""Bytes in which a zero byte tells that a file is no text."""
BAD = 2
"""Exit code for a pattern that is none."""


def files(folder: str, glob: str, skipped: frozenset[str]) -> Iterator[str]:
    """Yield the files below ``folder`` that ``glob`` names, sorted, or ``folder`` if it is one; links do not count."""
    if os.path.isfile(folder):  # noqa: PTH113 -- as below
        yield folder
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in skipped)
        for name in sorted(names):
            path = os.path.join(place, name)  # noqa: PTH118 -- half the time of pathlib's
            if is_named(os.path.relpath(path, folder), glob) and not os.path.islink(path):  # noqa: PTH114
                yield path


def is_named(path: str, glob: str) -> bool:
    """Return whether ``glob`` names ``path``: without a slash in it its last part, with one all of it."""
    if not glob:
        return True
    path = path.replace(os.sep, "/")
    if "/" not in glob:
        path = path.rpartition("/")[2]
    return fnmatch.fnmatchcase(path, glob) or (glob.startswith("**/") and fnmatch.fnmatchcase(path, glob[3:]))


def matches(path: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the lines of a file that match, with their numbers; none of what is no text, or cannot be read."""
    try:
        with open(path, "rb", opener=_opened) as file:
            if b"\0" in file.peek(LOOKED)[:LOOKED]:
                return
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                if pattern.search(text[:LONGEST]):
                    yield f"{number}: {text[:LINE_CHARS]}{'…' if len(text) > LINE_CHARS else ''}"
    except OSError:
        return


def _opened(path: str, flags: int) -> int:
    """Open without waiting for the other end of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def main() -> int:
    """Print what is found; return 0, or ``BAD``."""
    folder, text, glob, most, skipped = json.loads(sys.argv[1])
    out = sys.stdout.buffer
    try:
        pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        out.write(f"{error}".encode())
        return BAD
    found = 0
    for path in files(folder, glob, frozenset(skipped)):
        name = os.path.relpath(path)
        for line in matches(path, pattern):
            found += 1
            if found > most:
                out.write(f"[more than {most:,} lines match; give a narrower pattern, glob or folder]\n".encode())
                return 0
            out.write(f"{name}:{line}\n".encode("utf-8", "replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
