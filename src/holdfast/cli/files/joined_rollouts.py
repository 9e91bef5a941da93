"""Read the history of a Codex fork, which is spread over several rollouts, as one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Self

from holdfast.formats.codex.lineage import FileSpan, Rollout, find_history_spans, read_history_base
from holdfast.formats.codex.read import SESSION_META, HistoryBase
from holdfast.formats.common.lines import decode_raw_fields

MAX_HEADERS = 2_000
"""Files in the folder of a fork whose first line is read, if no file has the name of the rollout that it goes on from.

Chosen by judgement: a folder of one day has far fewer, and each costs about a millisecond.
"""
_SESSION_FOLDERS = ("sessions", "archived_sessions")
"""Folders of Codex with rollouts, side by side."""
_MAX_HEADER_BYTES = 1_000_000
"""Bytes of the first line that are read at most: it holds the instructions, some tens of kilobytes."""


class JoinedRollouts:
    """A fork with everything that it goes on from: its header, the lines of the other rollouts, its own lines.

    A context manager that keeps the files open. ``is_joined`` says whether there is more than one.
    """

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._path = path
        self._streams = [stream]
        self._open_files = ExitStack()
        self._spans: list[FileSpan] = []
        self._size = os.fstat(stream.fileno()).st_size

    def __enter__(self) -> Self:
        """Find the other rollouts."""
        stream = self._streams[0]
        stream.seek(0)
        header = stream.readline(_MAX_HEADER_BYTES)
        if read_history_base(header) is not None:
            spans = find_history_spans(Rollout(0, partial(self._iter_lines, 0)), self._find_rollout)
            if spans:
                own = [FileSpan(0, 0, len(header)), *spans, FileSpan(0, len(header), self._size)]
                self._spans = [span for span in own if span.end > span.start]
        stream.seek(0)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the other rollouts."""
        self._open_files.close()

    @property
    def is_joined(self) -> bool:
        """Whether lines of other rollouts were found."""
        return bool(self._spans)

    @property
    def size(self) -> int:
        """Bytes of everything together."""
        return sum(span.end - span.start for span in self._spans)

    def iter_lines(self, on_line: Callable[[int], None] = lambda _: None) -> Iterator[bytes]:
        """Yield all lines with their line ends; ``on_line`` gets the number of bytes so far."""
        position = 0
        for span in self._spans:
            stream = self._streams[span.file]
            offset = span.start
            while offset < span.end:
                stream.seek(offset)
                line = stream.readline(span.end - offset)
                if not line:
                    break
                offset += len(line)
                position += len(line)
                yield line
                on_line(position)

    def read_at(self, start: int, length: int) -> bytes:
        """Return bytes at an offset in everything together; a line lies in one file."""
        for span in self._spans:
            size = span.end - span.start
            if start < size:
                return os.pread(self._streams[span.file].fileno(), min(length, size - start), span.start + start)
            start -= size
        return b""

    def _iter_lines(self, file: int) -> Iterator[bytes]:
        stream = self._streams[file]
        stream.seek(0)
        # No ``yield from``: a generator that ends early would close the file with itself.
        for line in stream:  # noqa: UP028
            yield line

    def _find_rollout(self, base: HistoryBase) -> Rollout | None:
        path = find_rollout_file(self._path, base)
        if path is None:
            return None
        stream = self._open_files.enter_context(path.open("rb"))
        for number, opened in enumerate(self._streams):
            # A damaged header may lead back to a rollout that is open already.
            if os.path.sameopenfile(opened.fileno(), stream.fileno()):
                return Rollout(number, partial(self._iter_lines, number))
        self._streams.append(stream)
        number = len(self._streams) - 1
        return Rollout(number, partial(self._iter_lines, number))


def find_rollout_file(fork: Path, base: HistoryBase) -> Path | None:
    """Return the rollout of the thread that ``base`` names, looked for where the fork lies, or None.

    Its name ends with its id. A rollout whose name was changed is found only in the folder of the fork.
    """
    ids = [id_ for id_ in (base.rollout_id, base.thread_id) if _is_plain_id(id_)]
    for folder in _list_search_folders(fork):
        for id_ in ids:
            for path in sorted(folder.rglob(f"*{id_}.jsonl"), reverse=True):
                if path != fork and path.is_file() and _read_thread_id(path) in (base.thread_id, base.rollout_id):
                    return path
    siblings = [path for path in sorted(fork.parent.glob("*.jsonl")) if path != fork and path.is_file()]
    for path in siblings[:MAX_HEADERS]:
        if _read_thread_id(path) == base.thread_id:
            return path
    return None


def _is_plain_id(text: str) -> bool:
    """Return whether an id may stand in a pattern for file names: nothing of the file becomes a path."""
    return bool(text) and text.replace("-", "").isalnum()


def _list_search_folders(fork: Path) -> list[Path]:
    """Return the folders below which rollouts of the same Codex lie; without any, the fork's own folder."""
    for folder in fork.absolute().parents:
        if folder.name in _SESSION_FOLDERS:
            siblings = [folder.parent / name for name in _SESSION_FOLDERS]
            return [path for path in siblings if path.is_dir()]
    return [fork.absolute().parent]


def _read_thread_id(path: Path) -> str:
    """Return the id in the header of a rollout, or an empty string."""
    with suppress(OSError), path.open("rb") as file:
        payload = decode_raw_fields(file.readline(_MAX_HEADER_BYTES)).get("payload")
        if payload is not None:
            return SESSION_META.decode_or_default(payload).id or ""
    return ""
