"""Which file a trajectory goes on in.

A tool that compacts may end a file there and write the rest into another one in the same folder, whose name the first
one holds (``continued_trajectory_ref``, such as ``trajectory.cont-1.json``). That name comes out of a file, so only a
plain one counts: no path, no address, nothing that leads out of the folder.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.formats.atif.document import ATIF_DOCUMENT
from holdfast.formats.common.lines import BOM, decode_document

MAX_SEGMENTS = 1_000
"""Files that are followed. Chosen by judgement: a run compacts a few times, and damaged files may lead round."""


def get_continuation_name(data: bytes) -> str:
    """Return the name of the file that a trajectory goes on in; empty without one, and if it is no plain name."""
    document = decode_document(data.removeprefix(BOM).strip(), ATIF_DOCUMENT).value
    reference = "" if document is None else document.continued_trajectory_ref or ""
    return reference if is_plain_file_name(reference) else ""


def is_plain_file_name(text: str) -> bool:
    """Return whether a text names a file of the same folder and nothing else, on any system."""
    has_separator = any(character in text for character in '/\\:*?"<>|') or not text.isprintable()
    return bool(text) and not has_separator and text == text.strip() and not text.startswith(".")


def collect_segments(name: str, data: bytes, read_sibling: Callable[[str], bytes | None]) -> list[bytes]:
    """Return a trajectory and those that it goes on in, in order.

    ``name`` is the name of its own file. ``read_sibling`` returns the bytes of a file in the same folder, or None.
    """
    segments = [data]
    seen = {name}
    while len(segments) < MAX_SEGMENTS:
        reference = get_continuation_name(segments[-1])
        if not reference or reference in seen:
            break
        seen.add(reference)
        following = read_sibling(reference)
        if following is None:
            break
        segments.append(following)
    return segments
