"""Searches files by their lines or their names, as a program of its own: a search that never ends can then be ended.

It is started with ``[folder, pattern, glob, most, skipped]`` as one JSON argument, and prints ``PATH:LINE: TEXT``, or
without a pattern (null) the paths that the glob names, the last changed first.
It imports the standard library alone, so that it runs isolated from whatever lies in the folder that it searches.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

LINE_CHARS = 300
"""Characters of a line that are shown: its first ones, or those around what was found."""
LOOKED = 8_192
"""Bytes in which a zero byte tells that a file is no text."""
BAD = 2
"""Exit code for a pattern that is none."""


def files(folder: str, glob: str, skipped: frozenset[str]) -> Iterator[str]:
    """Yield the files below ``folder`` that ``glob`` names, sorted, or ``folder`` if it is one; links do not count."""
    if os.path.isfile(folder):  # noqa: PTH113 -- as below
        yield folder
    is_named = named(glob)
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in skipped)
        for name in sorted(names):
            path = os.path.join(place, name)  # noqa: PTH118 -- half the time of pathlib's
            if is_named(os.path.relpath(path, folder)) and not os.path.islink(path):  # noqa: PTH114
                yield path


def named(glob: str) -> Callable[[str], bool]:
    """Return whether ``glob`` names a path: without a slash in it its last part, with one all of it.

    ``**/`` is any folders, and none.
    """
    if not glob:
        return lambda _: True
    glob = glob.removeprefix("./")
    pieces = re.split(r"(?:(?<![^/])\*\*/)+", glob)
    found = re.compile("(?:.*/)?".join(fnmatch.translate(piece)[: -len(r"\Z")] for piece in pieces), re.DOTALL)
    return lambda path: found.fullmatch(path if "/" in glob else path.rpartition("/")[2]) is not None


def matches(path: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the lines of a file that match, with their numbers; none of what is no text, or cannot be read."""
    try:
        with open(path, "rb", opener=_opened) as file:
            if b"\0" in file.peek(LOOKED)[:LOOKED]:
                return
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                if found := pattern.search(text):
                    yield f"{number}: {shown(text, found.start(), found.end())}"
    except OSError:
        return


def shown(text: str, start: int, end: int) -> str:
    """Return a line; of a long one its beginning, or what is around ``start`` to ``end`` where that lies behind it."""
    first = 0 if end <= LINE_CHARS else max(0, min(start, (start + end - LINE_CHARS) // 2))
    last = first + LINE_CHARS
    return f"{'…' if first else ''}{text[first:last]}{'…' if last < len(text) else ''}"


def _opened(path: str, flags: int) -> int:
    """Open without waiting for the other end of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def main() -> int:
    """Print what is found; return 0, or ``BAD``."""
    folder, text, glob, most, skipped = json.loads(sys.argv[1])
    found = files(folder, glob, frozenset(skipped))
    if text is None:
        _list(sorted(found, key=_age), most)
        return 0
    try:
        pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        _say(f"{error}")
        return BAD
    _search(found, pattern, most)
    return 0


def _list(paths: Sequence[str], most: int) -> None:
    for path in paths[:most]:
        _say(f"{os.path.relpath(path)}\n")
    if len(paths) > most:
        _say(f"[and {len(paths) - most:,} more]\n")


def _age(path: str) -> tuple[float, str]:
    try:
        return -os.stat(path).st_mtime, path  # noqa: PTH116 -- as above
    except OSError:
        return 0.0, path


def _search(paths: Iterator[str], pattern: re.Pattern[str], most: int) -> None:
    lines = (f"{os.path.relpath(path)}:{line}\n" for path in paths for line in matches(path, pattern))
    for line in islice(lines, most):
        _say(line)
    if next(lines, None) is not None:
        _say(f"[more than {most:,} lines match; give a narrower pattern, glob or folder]\n")


def _say(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))


if __name__ == "__main__":
    sys.exit(main())
