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

MAX_MINTED_ID_CHARS = 40
"""No id is made longer than this: older deployments take no more (Chat Completions before 2026)."""
_ID_ALPHABET = string.digits + string.ascii_letters
_MIN_READABLE_ID_CHARS = 13
"""Under this length a minted id is nothing but a digest."""


def has_only_valid_ids(ids: Iterable[str], dialect: Dialect) -> bool:
    """Return whether all of ``ids`` have the alphabet and length of the dialect."""
    return all(map(_compile_id_pattern(dialect.id_pattern, dialect.id_min, dialect.id_max).fullmatch, ids))


@lru_cache
def _compile_id_pattern(pattern: str, min_chars: int, max_chars: int) -> re.Pattern[str]:
    """Return what matches an id as a whole."""
    return re.compile(f"(?:{pattern}){{{max(1, min_chars)},{max_chars}}}")


def encode_wire_id(id_: str, dialect: Dialect) -> str:
    """Return ``id_`` in the alphabet and length of the dialect; equal ids stay equal, different ones differ."""
    return _map_id(id_, dialect.id_pattern, dialect.id_min, dialect.id_max)


@lru_cache(maxsize=1 << 14)
def _map_id(id_: str, pattern: str, min_chars: int, max_chars: int) -> str:
    return (
        id_
        if _compile_id_pattern(pattern, min_chars, max_chars).fullmatch(id_)
        else _mint_id(id_, id_, pattern, min_chars, max_chars)
    )


def mint_call_id(seed: str, dialect: Dialect) -> str:
    """Return an id for a call that has none, made of what tells it from others."""
    return _mint_id("", seed, dialect.id_pattern, dialect.id_min, dialect.id_max)


def _mint_id(id_: str, seed: str, pattern: str, min_chars: int, max_chars: int) -> str:
    """Return an id that shows the beginning of ``id_`` and is told from others by the digest of ``seed``."""
    room = min(MAX_MINTED_ID_CHARS, max_chars)
    digest = blake2b(seed.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    if room < _MIN_READABLE_ID_CHARS or not re.fullmatch(pattern, "_"):
        return _encode_base62(int.from_bytes(digest, "big"), max(min_chars, min(room, _MIN_READABLE_ID_CHARS - 2)))
    safe = "".join(char for char in id_ if re.fullmatch(pattern, char))
    return f"{safe[: room - _MIN_READABLE_ID_CHARS]}_{digest.hex()[: _MIN_READABLE_ID_CHARS - 1]}"


def _encode_base62(number: int, length: int) -> str:
    """Return ``number`` in ``length`` letters and digits."""
    out = ""
    for _ in range(length):
        number, digit = divmod(number, len(_ID_ALPHABET))
        out += _ID_ALPHABET[digit]
    return out


NO_CALL_IDS: frozenset[str] = frozenset()


def assign_wire_ids(
    messages: Sequence[Message], dialect: Dialect, earlier_ids: frozenset[str] = NO_CALL_IDS
) -> list[tuple[str, ...]]:
    """Return the ids that the calls of each message are sent under: none twice, in the request or in its message.

    Those ``earlier_ids`` are sent already, in front of ``messages``.

    The name of a second one is a digest of the id, of the message that holds it and of how often this pair came
    before: a message that is left out renames nobody else's calls.
    """
    wires = [tuple([encode_wire_id(call.id, dialect) for call in get_assistant_calls(message)]) for message in messages]
    allocator = _IdAllocator(messages, wires, dialect, earlier_ids)
    out: list[tuple[str, ...]] = []
    previous = ""
    for message, ids in zip(messages, wires, strict=True):
        if not (dialect.server_joins_same_role and message.role == previous):
            allocator.start_message()
        calls, message_text = get_assistant_calls(message), repr(message.text) if ids else ""
        out.append(
            tuple(
                [
                    allocator.allocate_id(id_, message_text + call.arguments)
                    for call, id_ in zip(calls, ids, strict=True)
                ]
            )
        )
        allocator.mark_taken(out[-1])
        previous = message.role
    return out


def get_assistant_calls(message: Message) -> tuple[ToolCall, ...]:
    """Return the calls of an answer; others make none."""
    return message.calls if message.role == "assistant" else ()


class _IdAllocator:
    """The ids that are taken while those of one message after the other are looked for."""

    def __init__(
        self, messages: Sequence[Message], wires: Sequence[Sequence[str]], dialect: Dialect, before: frozenset[str]
    ) -> None:
        self.dialect = dialect
        self.earlier_ids = before
        self.server_call_ids = (
            {id_ for message in messages for id_ in list_server_call_ids(message)} if dialect.unique_ids else set()
        )
        self.taken = set(self.server_call_ids)
        self.taken_in_message: set[str] = set()
        self.original_ids = {id_ for ids in wires for id_ in ids} | self.server_call_ids
        self._last_minted: dict[tuple[str, str], tuple[str, str]] = {}
        """How far the ids are taken that are made from one: where none is used twice, those stay taken."""
        self._last_minted_in_message: dict[tuple[str, str], tuple[str, str]] = {}
        """The same of those that are taken in one message alone."""

    def start_message(self) -> None:
        """Begin a message that is read apart from the one before it."""
        self.taken_in_message.clear()
        self._last_minted_in_message.clear()

    def mark_taken(self, ids: Iterable[str]) -> None:
        """Remember ``ids`` where none may occur in two messages."""
        if self.dialect.unique_ids:
            self.taken.update(id_ for id_ in ids if is_wire_id(id_, self.dialect))

    def allocate_id(self, id_: str, context: str) -> str:
        """Return ``id_``, or the first id made from it, and from what is ``context`` with its call, that nobody has."""
        key = id_, context
        new, seed = self._last_minted_in_message.get(key) or self._last_minted.get(key, key)
        while (
            new in self.taken
            or new in self.earlier_ids
            or new in self.taken_in_message
            or (new != id_ and new in self.original_ids)
        ):
            seed = blake2b(f"{id_} {seed}".encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
            new = _mint_id(id_, f"{id_} {seed}", self.dialect.id_pattern, self.dialect.id_min, self.dialect.id_max)
        self.taken_in_message.add(new)
        lasting = self.dialect.unique_ids and is_wire_id(new, self.dialect)
        (self._last_minted if lasting else self._last_minted_in_message)[key] = new, seed
        return new


def is_wire_id(id_: str, dialect: Dialect) -> bool:
    """Return whether ``id_`` stands on the wire, not for pairing alone."""
    return not (dialect.unsent_id_pattern and re.fullmatch(dialect.unsent_id_pattern, id_))


def list_server_call_ids(message: Message) -> list[str]:
    """Return the ids of calls that a server answers, which share their names with all others."""
    return [
        part.signature.data
        for part in message.parts
        if isinstance(part, Opaque) and is_server_tool_call(part) and part.signature is not None
    ]


def is_server_tool_call(part: Opaque) -> bool:
    """Return whether a part is a call of a server's tool."""
    return part.kind.endswith("_tool_use")
