"""Read a trajectory in ATIF with the files that it goes on in, which lie beside it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from holdfast.cli.files.input_files import STDIN
from holdfast.formats import Recording
from holdfast.formats.atif.read import read_atif_segments
from holdfast.formats.atif.segments import collect_segments


def read_following_files(file: str, data: bytes, recording: Recording) -> Recording:
    """Return a trajectory with what the files that it goes on in add; ``recording`` itself if there are none.

    A file name that a trajectory holds is never a path: only files of its own folder are opened.
    """
    if file in ("", STDIN):
        return recording
    path = Path(file)
    segments = collect_segments(path.name, data, lambda name: _read_sibling(path.parent, name))
    return recording if len(segments) == 1 else read_atif_segments(segments)


def _read_sibling(folder: Path, name: str) -> bytes | None:
    """Return the bytes of a file in a folder, or None if it is not there, or leads out of the folder."""
    path = folder / name
    with suppress(OSError, ValueError):
        # A symbolic link may lead anywhere, and whoever wrote the trajectory may have made it.
        is_inside = path.resolve().parent == folder.resolve()
        if is_inside and path.is_file():
            return path.read_bytes()
    return None
