"""Who speaks next to whom, and first and last: system messages, merging, the two ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Text, ToolResult
from holdfast.normalize.items import Item, inserted, joined, speaker
from holdfast.normalize.parts import clean_message
from holdfast.normalize.server_tools import is_paused
from holdfast.state.dialect import Dialect

OPENING = "(the conversation so far)"
"""What a user says where one must begin and none did."""
NOTED = "(noted)"
"""What the assistant says where it must and did not."""
GO_ON = "Continue."
"""What a user says where the assistant may not be the last."""


def place_system(items: list[Item], dialect: Dialect, *, lead: bool) -> list[Item]:
    """Return the items with system messages turned into user data where the API does not take them.

    ``lead`` is true where those at the start go into a field of their own.
    """
    out: list[Item] = []
    for at, item in enumerate(items):
        after = [one.message for one in items[at + 1 : at + 2]]
        if fits(item.message, [one.message for one in out[-1:]], after, dialect, lead=lead):
            out.append(item)
        elif (told := _as_user(item)) is not None:
            out.append(told)
        lead = lead and (not out or out[-1].message.role == "system")
    return out


def fits(
    message: Message, before: Sequence[Message], after: Sequence[Message], dialect: Dialect, *, lead: bool
) -> bool:
    """Return whether ``message`` is no system message, or one that may stand between its two neighbours.

    ``lead`` is true when nothing but system messages stands before it.
    """
    if message.role != "system":
        return True
    if not dialect.media_in_system and any(isinstance(part, Media) for part in message.parts):
        return False
    if dialect.system_place == "any" or _is_whole(message):
        return True
    if lead:
        return all(isinstance(part, Text) for part in message.parts)
    if dialect.system_place == "first" or not before:
        return False
    heard = speaker(before[0], dialect) == "user" or (is_paused(before[0]) and not _is_compaction(before[0]))
    return heard and (not after or after[0].role == "assistant")


def _is_whole(message: Message) -> bool:
    """Return whether a message is one that nobody could read: it stays as it is."""
    return any(isinstance(part, Opaque) and part.kind == "message" for part in message.parts)


def _is_compaction(message: Message) -> bool:
    last = message.parts[-1]
    return isinstance(last, Opaque) and last.kind == "compaction"


def _as_user(item: Item) -> Item | None:
    """Return a system message told by the user; what only the system may say (changes of tools) stays behind."""
    said = tuple(part for part in item.message.parts if not isinstance(part, Opaque))
    if not said:
        return None
    told = Message("user", (Text("[System message]"), *said))
    return item.changed(told, "system", "no system message stands here on this model")


def join(items: list[Item], dialect: Dialect, *, summary: int) -> list[Item]:
    """Return the items with neighbours of one role made one message, where the API wants that.

    ``summary`` is the slot of what stands for older turns, if there is one.
    """
    out: list[Item] = []
    for run in _runs(items, dialect):
        stop = 2 if dialect.merge_summary and run[0].start == summary else _stop(run, dialect)
        if stop > 1:
            one = joined(run[:stop], "neighbours of one role")
            out.append(replace(one, message=clean_message(one.message, dialect)))
        else:
            out += run[:stop]
        out += run[stop:]
    return out


def _runs(items: Sequence[Item], dialect: Dialect) -> Iterator[list[Item]]:
    """Yield neighbours of one role together."""
    for _, run in groupby(items, key=lambda item: speaker(item.message, dialect)):
        yield list(run)


def _stop(run: Sequence[Item], dialect: Dialect) -> int:
    """Return how many messages of a run must be one."""
    role = speaker(run[0].message, dialect)
    if dialect.merge and role in {"user", "assistant"}:
        return len(run)
    if dialect.calls_after_user and role == "assistant":
        return max((at + 1 for at, item in enumerate(run) if item.message.calls), default=0)
    return 0


def belong(first: Message, second: Message, dialect: Dialect) -> bool:
    """Return whether two neighbours must be one message."""
    if dialect.calls_after_user and first.role == "assistant" == second.role and second.calls:
        return True
    if not dialect.merge:
        return False
    role = speaker(first, dialect)
    return role == speaker(second, dialect) and role in {"user", "assistant"}


def joins_summary(messages: Sequence[Message], dialect: Dialect, summary: int) -> bool:
    """Return whether message ``summary``, which stands for older turns, and the one behind it must be one."""
    both = messages[summary : summary + 2] if summary >= 0 else []
    return dialect.merge_summary and [one.role for one in both] == ["user", "user"]


def answer_results(items: list[Item], dialect: Dialect) -> list[Item]:
    """Return the items with a word of the assistant's between results and a user, where the API wants that."""
    out: list[Item] = []
    for item in items:
        if out and not may_follow(out[-1].message, item.message, dialect):
            why = "no user speaks right behind results on this server"
            out.append(inserted(item.start, Message.of("assistant", NOTED), "answer", why))
        out.append(item)
    return out


def may_follow(first: Message, second: Message, dialect: Dialect) -> bool:
    """Return whether ``second`` may stand right behind ``first``, results aside."""
    if not (dialect.results_answered and first.results):
        return True
    return speaker(second, dialect) != "user" and all(isinstance(part, ToolResult) for part in first.parts)


def ends_well(messages: Sequence[Message], dialect: Dialect, first: int) -> bool:
    """Return whether the right ones speak first and last; ``first`` is not 0 where something stands before."""
    opening = next((message for message in messages if message.role != "system"), None)
    if first == 0 and opening is not None and not _opens(opening, dialect):
        return False
    last = messages[-1] if messages else None
    return last is None or last.role != "assistant" or not (_must_go_on(last, dialect) or _trails(last, dialect))


def _opens(message: Message, dialect: Dialect) -> bool:
    """Return whether a conversation may begin with ``message``."""
    if message.role != "assistant":
        return speaker(message, dialect) == "user" or not dialect.start_user
    if dialect.calls_after_user and message.calls:
        return False
    first = message.parts[0] if message.parts else None
    return not dialect.start_user or (isinstance(first, Opaque) and first.kind == "compaction")


def _must_go_on(last: Message, dialect: Dialect) -> bool:
    return dialect.end_user and not is_paused(last)


def _trails(last: Message, dialect: Dialect) -> bool:
    """Whether an answer to be gone on with ends in white space, where that is refused."""
    part = last.parts[-1] if last.parts else None
    return not dialect.trailing_space and isinstance(part, Text) and part.text != part.text.rstrip()


def close_ends(items: list[Item], dialect: Dialect, *, first: int, told: bool) -> list[Item]:
    """Return the items with a user first and not the assistant last, where the API wants that.

    ``told`` is true where something was said: then a request remains, though nothing of it may be sent.
    """
    opening = next((at for at, item in enumerate(items) if item.message.role != "system"), None)
    if first == 0 and opening is None and told:
        at = items[-1].stop if items else 0
        return [*items, inserted(at, Message.of("user", GO_ON), "start", "nothing else is left to send")]
    if first == 0 and opening is not None and not _opens(items[opening].message, dialect):
        begin = inserted(items[opening].start, Message.of("user", OPENING), "start", "a user starts")
        items = [*items[:opening], begin, *items[opening:]]
    last = items[-1].message if items else Message("user")
    if last.role != "assistant":
        return items
    if _must_go_on(last, dialect):
        return [*items, inserted(items[-1].stop, Message.of("user", GO_ON), "end", "no prefill on this model")]
    return [*items[:-1], *_trimmed(items[-1])] if _trails(last, dialect) else items


def _trimmed(item: Item) -> list[Item]:
    last = item.message.parts[-1]
    words = last.text.rstrip() if isinstance(last, Text) else ""
    parts = (*item.message.parts[:-1], *([Text(words)] if words else []))
    return [item.changed(Message("assistant", parts), "end", "it ended in white space")] if parts else []
