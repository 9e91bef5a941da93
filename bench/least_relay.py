"""The least that a proxy can cost if it stores what it forwards: a bare relay and a table, nothing else.

Usage: python bench/least_relay.py URL FILE, which prints the port it listens on

``bench/proxy.py`` calls it *least*. It is the relay of ``child_processes.py`` that also writes each message and each
answer as a row to SQLite, in a thread: the request before it is sent, the answer after it. The part of a body that
repeats the last one is not parsed again. It has one session only, checks nothing, counts no tokens and plans nothing.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from asyncio import get_running_loop
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from os import urandom

from child_processes import Bare, listening
from msgspec import Raw
from msgspec.json import Decoder, decode

_FIELDS, _LIST = Decoder(dict[str, Raw]), Decoder(list[Raw])
_TABLE = (
    "CREATE TABLE log (seq INTEGER PRIMARY KEY, id TEXT UNIQUE, parent TEXT, at INT, kind TEXT, digest BLOB, body BLOB)"
)
_INSERT = "INSERT INTO log (id, parent, at, kind, digest, body) VALUES (?, ?, ?, ?, ?, ?)"
Row = tuple[str, str, int, str, bytes, bytes]


class Least(Bare):
    """A relay that stores requests before it forwards them, and answers after."""

    def __init__(self, base: str, file: str) -> None:
        super().__init__(base)
        self._writer, self._leaf, self._said = ThreadPoolExecutor(1), "", b""
        self._db = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(_TABLE)

    async def before(self, body: bytes) -> None:
        """Store the new messages of a request."""
        await self._written([*self._new(body), (b"{}", "request")])

    async def after(self, answer: Sequence[bytes]) -> None:
        """Parse the events of an answer and store it."""
        events = [line[6:] for line in b"".join(answer).split(b"\n") if line.startswith(b"data: {")]
        for event in events:
            decode(event)
        await self._written([(b",".join(events), "answer")])

    def _new(self, body: bytes) -> Iterator[tuple[bytes, str]]:
        said = bytes(_FIELDS.decode(body)["messages"])
        held = len(self._said) if self._said and said.startswith(self._said) else 0
        self._said = said[:-1]
        for one in _LIST.decode(b"[" + said[held + 1 :]):
            decode(one)
            yield bytes(one), "message"

    async def _written(self, said: Sequence[tuple[bytes, str]]) -> None:
        await get_running_loop().run_in_executor(self._writer, self._write, said)

    def _write(self, said: Sequence[tuple[bytes, str]]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(_INSERT, [*self._rows(said)])
        self._db.execute("COMMIT")

    def _rows(self, said: Sequence[tuple[bytes, str]]) -> Iterator[Row]:
        now = time.time_ns() // 1_000_000
        for body, kind in said:
            parent, self._leaf = self._leaf, urandom(16).hex()
            yield self._leaf, parent, now, kind, blake2b(body, digest_size=16).digest(), body


if __name__ == "__main__":
    listening(Least(sys.argv[1], sys.argv[2]))
