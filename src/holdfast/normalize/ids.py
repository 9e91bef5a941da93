"""Call ids in the alphabet and length of an API: one to one, and each mapped from itself and its message alone."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b

from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, ToolCall
from holdfast.state.dialect import Dialect

MINTED_ID = 40
"""No id is made longer than this: older deployments take no more (Chat Completions before 2026)."""
_LETTERS = string.digits + string.ascii_letters
_SHORT = 13
"""Under this length a minted id is nothing but a digest."""


def all_fit(ids: Iterable[str], dialect: Dialect) -> bool:
    """Return whether all of ``ids`` have the alphabet and length of the dialect."""
    return all(map(_whole(dialect.id_pattern, dialect.id_min, dialect.id_max).fullmatch, ids))


@lru_cache
def _whole(pattern: str, least: int, most: int) -> re.Pattern[str]:
    """Return what matches an id as a whole."""
    return re.compile(f"(?:{pattern}){{{max(1, least)},{most}}}")


def wire_id(id_: str, dialect: Dialect) -> str:
    """Return ``id_`` in the alphabet and length of the dialect; equal ids stay equal, different ones differ."""
    return _mapped(id_, dialect.id_pattern, dialect.id_min, dialect.id_max)


@lru_cache(maxsize=1 << 14)
def _mapped(id_: str, pattern: str, least: int, most: int) -> str:
    return id_ if _whole(pattern, least, most).fullmatch(id_) else _minted(id_, id_, pattern, least, most)


def minted_id(seed: str, dialect: Dialect) -> str:
    """Return an id for a call that has none, made of what tells it from others."""
    return _minted("", seed, dialect.id_pattern, dialect.id_min, dialect.id_max)


def _minted(id_: str, seed: str, pattern: str, least: int, most: int) -> str:
    """Return an id that shows the beginning of ``id_`` and is told from others by the digest of ``seed``."""
    room = min(MINTED_ID, most)
    digest = blake2b(seed.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    if room < _SHORT or not re.fullmatch(pattern, "_"):
        return _digits(int.from_bytes(digest, "big"), max(least, min(room, _SHORT - 2)))
    safe = "".join(char for char in id_ if re.fullmatch(pattern, char))
    return f"{safe[: room - _SHORT]}_{digest.hex()[: _SHORT - 1]}"


def _digits(number: int, length: int) -> str:
    """Return ``number`` in ``length`` letters and digits."""
    out = ""
    for _ in range(length):
        number, rest = divmod(number, len(_LETTERS))
        out += _LETTERS[rest]
    return out


NONE: frozenset[str] = frozenset()


def fresh_ids(messages: Sequence[Message], dialect: Dialect, before: frozenset[str] = NONE) -> list[tuple[str, ...]]:
    """Return the ids that the calls of each message are sent under: none twice, in the request or in its message.

    Those ``before`` are sent already, in front of ``messages``.

    The name of a second one is a digest of the id, of the message that holds it and of how often this pair came
    before: a message that is left out renames nobody else's calls.
    """
    wires = [tuple([wire_id(call.id, dialect) for call in calls_of(message)]) for message in messages]
    held = _Held(messages, wires, dialect, before)
    out: list[tuple[str, ...]] = []
    previous = ""
    for message, ids in zip(messages, wires, strict=True):
        if not (dialect.joined and message.role == previous):
            held.part()
        calls, said = calls_of(message), repr(message.text) if ids else ""
        out.append(tuple([held.free(id_, said + call.arguments) for call, id_ in zip(calls, ids, strict=True)]))
        held.take(out[-1])
        previous = message.role
    return out


def calls_of(message: Message) -> tuple[ToolCall, ...]:
    """Return the calls of an answer; others make none."""
    return message.calls if message.role == "assistant" else ()


class _Held:
    """The ids that are taken while those of one message after the other are looked for."""

    def __init__(
        self, messages: Sequence[Message], wires: Sequence[Sequence[str]], dialect: Dialect, before: frozenset[str]
    ) -> None:
        self.dialect = dialect
        self.before = before
        self.servers = {id_ for message in messages for id_ in server_ids(message)} if dialect.unique_ids else set()
        self.taken = set(self.servers)
        self.beside: set[str] = set()
        self.used = {id_ for ids in wires for id_ in ids} | self.servers
        self._reached: dict[tuple[str, str], tuple[str, str]] = {}
        """How far the ids are taken that are made from one: where none is used twice, those stay taken."""
        self._near: dict[tuple[str, str], tuple[str, str]] = {}
        """The same of those that are taken in one message alone."""

    def part(self) -> None:
        """Begin a message that is read apart from the one before it."""
        self.beside.clear()
        self._near.clear()

    def take(self, ids: Iterable[str]) -> None:
        """Remember ``ids`` where none may occur in two messages."""
        if self.dialect.unique_ids:
            self.taken.update(id_ for id_ in ids if is_sent(id_, self.dialect))

    def free(self, id_: str, said: str) -> str:
        """Return ``id_``, or the first id made from it, and from what is ``said`` with its call, that nobody has."""
        begun = id_, said
        new, seed = self._near.get(begun) or self._reached.get(begun, begun)
        while new in self.taken or new in self.before or new in self.beside or (new != id_ and new in self.used):
            seed = blake2b(f"{id_} {seed}".encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
            new = _minted(id_, f"{id_} {seed}", self.dialect.id_pattern, self.dialect.id_min, self.dialect.id_max)
        self.beside.add(new)
        lasting = self.dialect.unique_ids and is_sent(new, self.dialect)
        (self._reached if lasting else self._near)[begun] = new, seed
        return new


def is_sent(id_: str, dialect: Dialect) -> bool:
    """Return whether ``id_`` stands on the wire, not for pairing alone."""
    return not (dialect.id_unsent and re.fullmatch(dialect.id_unsent, id_))


def server_ids(message: Message) -> list[str]:
    """Return the ids of calls that a server answers, which share their names with all others."""
    return [
        part.seal.data for part in message.parts if isinstance(part, Opaque) and is_use(part) and part.seal is not None
    ]


def is_use(part: Opaque) -> bool:
    """Return whether a part is a call of a server's tool."""
    return part.kind.endswith("_tool_use")
