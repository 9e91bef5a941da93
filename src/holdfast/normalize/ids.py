"""Map call ids into the alphabet and length of an API.

The mapping is one to one, and each id is mapped from itself and its message alone: an id that depended on what stands
before it would change when that is compacted, and break the prompt cache after it.
"""

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
"""Characters of a minted id at most: Chat Completions took no more before 2026, and older deployments still do not."""
_ID_ALPHABET = string.digits + string.ascii_letters
# A minted id ends in "_" and 12 digits of a digest (48 bits). Where an API takes no longer id there is no room for the
# readable beginning, and the id is a digest alone.
_MIN_READABLE_ID_CHARS = 13


def has_only_valid_ids(ids: Iterable[str], dialect: Dialect) -> bool:
    """Return whether all of ``ids`` have the alphabet and length of the dialect."""
    pattern = _compile_id_pattern(dialect.id_character_pattern, dialect.id_min, dialect.id_max)
    return all(map(pattern.fullmatch, ids))


@lru_cache
def _compile_id_pattern(pattern: str, min_chars: int, max_chars: int) -> re.Pattern[str]:
    """Compile the pattern of a whole id; ``pattern`` matches one character of it."""
    return re.compile(f"(?:{pattern}){{{max(1, min_chars)},{max_chars}}}")


def encode_wire_id(id_: str, dialect: Dialect) -> str:
    """Return ``id_`` in the alphabet and length of the dialect; equal ids stay equal, different ones differ."""
    return _map_id(id_, dialect.id_character_pattern, dialect.id_min, dialect.id_max)


@lru_cache(maxsize=1 << 14)
def _map_id(id_: str, pattern: str, min_chars: int, max_chars: int) -> str:
    if _compile_id_pattern(pattern, min_chars, max_chars).fullmatch(id_):
        return id_
    return _mint_id(id_, id_, pattern, min_chars, max_chars)


def mint_call_id(seed: str, dialect: Dialect) -> str:
    """Return an id for a call that has none; ``seed`` is a text that distinguishes the call from others."""
    return _mint_id("", seed, dialect.id_character_pattern, dialect.id_min, dialect.id_max)


def _mint_id(
    id_: str,
    seed: str,
    pattern: str,
    min_chars: int,
    max_chars: int,
) -> str:
    """Return an id that begins like ``id_``, if there is room, and ends in a digest of ``seed``."""
    length = min(MAX_MINTED_ID_CHARS, max_chars)
    digest = blake2b(seed.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    has_separator = re.fullmatch(pattern, "_") is not None
    if length < _MIN_READABLE_ID_CHARS or not has_separator:
        digest_chars = max(min_chars, min(length, _MIN_READABLE_ID_CHARS - 2))
        return _encode_base62(int.from_bytes(digest, "big"), digest_chars)
    valid_chars = "".join(char for char in id_ if re.fullmatch(pattern, char))
    beginning = valid_chars[: length - _MIN_READABLE_ID_CHARS]
    return f"{beginning}_{digest.hex()[: _MIN_READABLE_ID_CHARS - 1]}"


def _encode_base62(number: int, length: int) -> str:
    """Write the lowest ``length`` base-62 digits of ``number``, the lowest first."""
    digits = ""
    for _ in range(length):
        number, digit = divmod(number, len(_ID_ALPHABET))
        digits += _ID_ALPHABET[digit]
    return digits


NO_CALL_IDS: frozenset[str] = frozenset()


def assign_wire_ids(
    messages: Sequence[Message], dialect: Dialect, earlier_ids: frozenset[str] = NO_CALL_IDS
) -> list[tuple[str, ...]]:
    """Return for each message the ids under which its calls are sent.

    No id occurs twice in the request or, where the dialect only wants that, in its answer. ``earlier_ids`` are sent in
    front of ``messages`` and taken already.

    A repeated id is replaced by a digest of the id, the text of its message, the call's arguments, and how often these
    came before. So a message that is left out of a later request renames no other message's calls.
    """
    wire_ids_by_message: list[tuple[str, ...]] = []
    for message in messages:
        calls = get_assistant_calls(message)
        wire_ids_by_message.append(tuple([encode_wire_id(call.id, dialect) for call in calls]))

    allocator = _IdAllocator(messages, wire_ids_by_message, dialect, earlier_ids)
    assigned_by_message: list[tuple[str, ...]] = []
    previous_role = ""
    for message, wire_ids in zip(messages, wire_ids_by_message, strict=True):
        is_joined = dialect.server_joins_same_role and message.role == previous_role
        if not is_joined:
            allocator.start_message()
        # The text makes the digest of a repeated id; it is not needed, and can be long, where there are no calls.
        message_text = repr(message.text) if wire_ids else ""
        assigned_ids: list[str] = []
        for call, wire_id in zip(get_assistant_calls(message), wire_ids, strict=True):
            assigned_ids.append(allocator.allocate_id(wire_id, message_text + call.arguments))
        assigned_by_message.append(tuple(assigned_ids))
        allocator.mark_taken(assigned_ids)
        previous_role = message.role
    return assigned_by_message


def get_assistant_calls(message: Message) -> tuple[ToolCall, ...]:
    """Return the calls of an answer; a call in another role's message is not one."""
    return message.calls if message.role == "assistant" else ()


_MintedId = tuple[str, str]
"""An id and the seed that it was made from."""


class _IdAllocator:
    """Find free ids for the calls of one message after the other."""

    def __init__(
        self,
        messages: Sequence[Message],
        wire_ids: Sequence[Sequence[str]],
        dialect: Dialect,
        earlier_ids: frozenset[str],
    ) -> None:
        self.dialect = dialect
        self.earlier_ids = earlier_ids
        self.server_call_ids: set[str] = set()
        if dialect.unique_ids:
            for message in messages:
                self.server_call_ids.update(list_server_call_ids(message))
        self.taken = set(self.server_call_ids)
        self.taken_in_message: set[str] = set()
        # A minted id must not be the original id of any other call, also of a later one, which then keeps its id.
        self.original_ids = self.server_call_ids.union(*wire_ids)
        # The last id minted for each (id, context): the search for the next one goes on from there, so that n repeats
        # of an id cost n steps and not n². Ids that are unique in a message only are forgotten with it.
        self._last_minted: dict[tuple[str, str], _MintedId] = {}
        self._last_minted_in_message: dict[tuple[str, str], _MintedId] = {}

    def start_message(self) -> None:
        """Begin a message that the API does not join with the one before it."""
        self.taken_in_message.clear()
        self._last_minted_in_message.clear()

    def mark_taken(self, ids: Iterable[str]) -> None:
        """Reserve ``ids`` for the whole request if the dialect wants each once."""
        if not self.dialect.unique_ids:
            return
        for id_ in ids:
            if is_wire_id(id_, self.dialect):
                self.taken.add(id_)

    def allocate_id(self, id_: str, context: str) -> str:
        """Return ``id_`` if it is free, else the first free id that is minted from it and ``context``."""
        key = id_, context
        dialect = self.dialect
        candidate, seed = self._last_minted_in_message.get(key) or self._last_minted.get(key, key)
        while self._is_taken(candidate) or (candidate != id_ and candidate in self.original_ids):
            previous_seed = f"{id_} {seed}".encode("utf-8", "surrogatepass")
            seed = blake2b(previous_seed, digest_size=6).hexdigest()
            candidate = _mint_id(
                id_,
                f"{id_} {seed}",
                dialect.id_character_pattern,
                dialect.id_min,
                dialect.id_max,
            )
        self.taken_in_message.add(candidate)
        is_unique_in_request = dialect.unique_ids and is_wire_id(candidate, dialect)
        if is_unique_in_request:
            last_minted = self._last_minted
        else:
            last_minted = self._last_minted_in_message
        last_minted[key] = candidate, seed
        return candidate

    def _is_taken(self, id_: str) -> bool:
        return id_ in self.taken or id_ in self.earlier_ids or id_ in self.taken_in_message


def is_wire_id(id_: str, dialect: Dialect) -> bool:
    """Return whether ``id_`` is sent; some APIs have no ids, and ours serve pairing alone."""
    return not (dialect.unsent_id_pattern and re.fullmatch(dialect.unsent_id_pattern, id_))


def list_server_call_ids(message: Message) -> list[str]:
    """Return the ids of server calls in ``message``; they must differ from the ids of the client's calls."""
    server_call_ids: list[str] = []
    for part in message.parts:
        if isinstance(part, Opaque) and is_server_tool_call(part) and part.signature is not None:
            server_call_ids.append(part.signature.data)
    return server_call_ids


def is_server_tool_call(part: Opaque) -> bool:
    """Return whether a part is a call that the provider's servers execute."""
    return part.kind.endswith("_tool_use")
