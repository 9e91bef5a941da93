"""The sessions that a file holds: one, or all of a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli.faults import Stopped
from holdfast.cli.files import content
from holdfast.errors import FormatError
from holdfast.formats import Recording, read


class Source(Struct, frozen=True):
    """A session before it is read: what messages call it, and how it is read."""

    name: str
    read: Callable[[], Recording]
    """Raises ``HoldfastError`` or ``OSError`` where it cannot be read."""


def sources(file: str, session: str = "", *, single: bool = False) -> Iterator[Source]:
    """Yield the sessions in ``file``; of a database all, or the one that ``session`` names by its beginning.

    Each is to be read before the next is asked for. Where only a ``single`` one will do, more of them are an error.
    """
    from holdfast.store import foreign

    path = Path(file)
    if not file or not foreign.is_database(path):
        if session:
            raise Stopped(f"--session names a session of opencode's database, and {file} is no database")
        yield Source(file, partial(_whole, file))
        return
    with foreign.opened(path) as there:
        found = there.roots(session)
        if not found:
            raise FormatError(f"{file} holds no session; give a database that opencode has used")
        if single and len(found) > 1:
            raise Stopped(f"one session is asked for, and {file} holds {len(found)}; name one with --session")
        for one in found:
            yield Source(f"{file}#{one.id}", partial(there.recording, one.id))


def _whole(file: str) -> Recording:
    """Return the recording in a file, under an id that is the same for the same file where it has none of its own."""
    data = content(file)
    found = read(data)
    return found if found.session else replace(found, session=f"{found.format}-{_digest(data)}")


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()
