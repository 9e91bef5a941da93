"""Searches files by their lines or their names, as a program of its own: a search that never ends can then be ended.

It is started with ``[folder, pattern, glob, most, skipped]`` as one JSON argument, and prints ``PATH:LINE: TEXT``, or
without a pattern (null) the paths that the glob names, the last changed first.
It imports the standard library alone, so that it runs isolated from whatever lies in the folder that it searches.

ripgrep is faster, but it is not installed everywhere, and its expressions and ignore rules differ from Python's: what
the model finds would depend on the machine.
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
BINARY_CHECK_BYTES = 8_192
"""Bytes in which a zero byte tells that a file is no text."""
BAD_PATTERN_EXIT = 2
"""Exit code for a pattern that is none."""


def iter_files(folder: str, glob: str, ignored_folders: frozenset[str]) -> Iterator[str]:
    """Yield the files below ``folder`` that ``glob`` names, sorted, or ``folder`` if it is one; links do not count."""
    if os.path.isfile(folder):  # noqa: PTH113 -- as below
        yield folder
    is_named = compile_glob(glob)
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in ignored_folders)
        for name in sorted(names):
            path = os.path.join(place, name)  # noqa: PTH118 -- half the time of pathlib's
            if is_named(os.path.relpath(path, folder)) and not os.path.islink(path):  # noqa: PTH114
                yield path


def compile_glob(glob: str) -> Callable[[str], bool]:
    """Return whether ``glob`` names a path: without a slash in it its last part, with one all of it.

    ``**/`` is any folders, and none.
    """
    if not glob:
        return lambda _: True
    glob = glob.removeprefix("./")
    pieces = re.split(r"(?:(?<![^/])\*\*/)+", glob)
    regex = re.compile("(?:.*/)?".join(fnmatch.translate(piece)[: -len(r"\Z")] for piece in pieces), re.DOTALL)
    return lambda path: regex.fullmatch(path if "/" in glob else path.rpartition("/")[2]) is not None


def iter_matches(path: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the lines of a file that match, with their numbers; none of what is no text, or cannot be read."""
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            if b"\0" in file.peek(BINARY_CHECK_BYTES)[:BINARY_CHECK_BYTES]:
                return
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                if match := pattern.search(text):
                    yield f"{number}: {shorten_line_around_match(text, match.start(), match.end())}"
    except OSError:
        return


def shorten_line_around_match(text: str, start: int, end: int) -> str:
    """Return a line; of a long one its beginning, or what is around ``start`` to ``end`` where that lies behind it."""
    first = 0 if end <= LINE_CHARS else max(0, min(start, (start + end - LINE_CHARS) // 2))
    last = first + LINE_CHARS
    return f"{'…' if first else ''}{text[first:last]}{'…' if last < len(text) else ''}"


def _open_nonblocking(path: str, flags: int) -> int:
    """Open without waiting for the other end of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def main() -> int:
    """Print what is found; return 0, or ``BAD_PATTERN_EXIT``."""
    folder, text, glob, max_lines, ignored_folders = json.loads(sys.argv[1])
    paths = iter_files(folder, glob, frozenset(ignored_folders))
    if text is None:
        _print_paths(sorted(paths, key=_get_age_key), max_lines)
        return 0
    try:
        pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        _write_output(f"{error}")
        return BAD_PATTERN_EXIT
    _print_matches(paths, pattern, max_lines)
    return 0


def _print_paths(paths: Sequence[str], max_lines: int) -> None:
    for path in paths[:max_lines]:
        _write_output(f"{os.path.relpath(path)}\n")
    if len(paths) > max_lines:
        _write_output(f"[and {len(paths) - max_lines:,} more]\n")


def _get_age_key(path: str) -> tuple[float, str]:
    try:
        return -os.stat(path).st_mtime, path  # noqa: PTH116 -- as above
    except OSError:
        return 0.0, path


def _print_matches(paths: Iterator[str], pattern: re.Pattern[str], max_lines: int) -> None:
    lines = (f"{os.path.relpath(path)}:{line}\n" for path in paths for line in iter_matches(path, pattern))
    for line in islice(lines, max_lines):
        _write_output(line)
    if next(lines, None) is not None:
        _write_output(f"[more than {max_lines:,} lines match; give a narrower pattern, glob or folder]\n")


def _write_output(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))


if __name__ == "__main__":
    sys.exit(main())
