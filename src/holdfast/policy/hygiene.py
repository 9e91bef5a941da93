"""Hygiene: repairs that make a projection valid for its API. Recomputed for each request, never stored.

Three passes over *items*, messages that remember which slots they stand for: clean each message, put every result
behind its call, join neighbours. The edits are what differs at the end.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.dialect import Dialect
from holdfast.model.edits import Edit, Span
from holdfast.model.messages import Message, placeholder
from holdfast.model.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.view.references import object_text

MISSING = "[No result was recorded for this call: it was interrupted or its output was lost.]"
"""Text of a synthetic result; it exists only in projections."""


class Item(Struct, frozen=True):
    """A message that stands for slots ``start`` to ``stop`` of the projection, and why it is not what stood there."""

    start: int
    stop: int
    message: Message
    rules: tuple[str, ...] = ()
    why: tuple[str, ...] = ()

    def changed(self, message: Message, rule: str, why: str) -> Item:
        """Return the item with another message, for one more reason."""
        return replace(self, message=message, rules=(*self.rules, rule), why=(*self.why, why))


def repairs(
    messages: Sequence[Message], dialect: Dialect, first: int = 0, loose: frozenset[int] = frozenset()
) -> tuple[Edit, ...]:
    """Return the edits that make ``messages`` valid, the last of which ends the request; spans count from ``first``.

    ``loose`` are positions whose thinking no longer fits what stands before it, on a model that checks.
    """
    if not loose and tidy(messages, dialect) and _ends_well(messages, dialect, first):
        return ()
    before = [Item(first + i, first + i + 1, message) for i, message in enumerate(messages)]
    unbound = [_without_thinking(item) if item.start in loose else item for item in before]
    items = [item for old in unbound if (item := clean(old, dialect)) is not None]
    items = pair(items, dialect)
    items = unique(items, dialect)
    items = place_system(items, dialect)
    items = join(items, dialect)
    items = _ends(items, dialect, first)
    return _edits(before, items)


def tidy(messages: Sequence[Message], dialect: Dialect) -> bool:
    """Return whether ``messages`` need no repair inside (their two ends aside)."""
    waiting: list[str] = []
    taken: set[str] = set()
    previous = ""
    for at, message in enumerate(messages):
        role, results = message.role, message.results
        if bool(waiting) != bool(results) or not message.parts:
            return False
        if results and not _answers(message, results, waiting, dialect):
            return False
        wire_role = _wire_role(role)
        if dialect.merge and wire_role == previous != "system":
            return False
        if clean_message(message, dialect) is not message:
            return False
        if role == "assistant":
            waiting = [call.id for call in message.calls]
            if len(set(waiting)) != len(waiting) or (dialect.unique_ids and not taken.isdisjoint(waiting)):
                return False
            taken.update(waiting)
        elif role == "system" and not _system_fits(messages, at, previous, dialect):
            return False
        previous = wire_role
    return not waiting


def _answers(message: Message, results: tuple[ToolResult, ...], waiting: list[str], dialect: Dialect) -> bool:
    """Take ``results`` off ``waiting``; False when one is not waited for, or they stand where they may not."""
    if message.role == "assistant" or any(type(part) is not ToolResult for part in message.parts[: len(results)]):
        return False
    for result in results:
        if result.call_id not in waiting:
            return False
        waiting.remove(result.call_id)
    return not (dialect.results_grouped and waiting)


def _system_fits(messages: Sequence[Message], at: int, previous: str, dialect: Dialect) -> bool:
    """Return whether the system message ``at`` may stand there, with role ``previous`` before it (empty = nothing)."""
    if dialect.system_place == "any":
        return True
    if dialect.system_place == "first" or previous in {"", "system"}:
        return all(message.role == "system" for message in messages[:at])
    return previous == "user" and (at + 1 == len(messages) or messages[at + 1].role == "assistant")


def _wire_role(role: str) -> str:
    return "user" if role == "tool" else role


def _without_thinking(item: Item) -> Item:
    parts = tuple(part for part in item.message.parts if not isinstance(part, Thinking))
    why = "it was signed over what stood before it, and that has changed"
    return item.changed(Message(item.message.role, parts), "thinking-binding", why)


# -- one message -------------------------------------------------------------------------------------------------------


def clean(item: Item, dialect: Dialect) -> Item | None:
    """Return the item with a message its API takes, or nothing when no part of it is left."""
    message = clean_message(item.message, dialect)
    if not message.parts:
        return None
    if message is item.message:
        return item
    rules = ", ".join(sorted({_reason(part, dialect) for part in item.message.parts} - {""})) or "role"
    return item.changed(message, rules, f"parts that {dialect.api} refuses were taken out or rewritten")


def clean_message(message: Message, dialect: Dialect) -> Message:
    """Return the message with refused parts gone or rewritten; the same object when nothing is wrong."""
    parts = [clean_part(part, dialect, message.role) for part in message.parts]
    role = message.role
    if role == "assistant" and not dialect.thinking_alone and _only_thinks(parts):
        return Message(role)
    if all(new is old for new, old in zip(parts, message.parts, strict=True)):
        return message
    return Message(role, tuple(part for part in parts if part is not None))


def _only_thinks(parts: Sequence[Part | None]) -> bool:
    return all(part is None or isinstance(part, Thinking) for part in parts)


def clean_part(part: Part, dialect: Dialect, role: str) -> Part | None:
    """Return the part as it may be sent: itself, a rewritten one, or nothing."""
    kind = type(part)
    if kind is Text:
        blank = not dialect.empty_text and not part.text.strip()  # type: ignore[union-attr]
        return None if blank else part
    if kind is ToolCall:
        return _call(part, dialect) if role == "assistant" else None  # type: ignore[arg-type]
    if kind is ToolResult:
        return _result(part, dialect) if role != "assistant" else None  # type: ignore[arg-type]
    if kind is Thinking:
        return part if _may_think(part, dialect) else None  # type: ignore[arg-type]
    if kind is Media:
        return part if _may_show(part, dialect, role) else Text(placeholder(part))  # type: ignore[arg-type]
    return part


def _may_show(part: Media, dialect: Dialect, role: str) -> bool:
    return role != "assistant" and (not dialect.media or part.mime in {"", *dialect.media})


def _call(call: ToolCall, dialect: Dialect) -> ToolCall | None:
    if not call.id or not call.name.strip():
        return None
    id_, name = wire_id(call.id, dialect), wire_name(call.name, dialect)
    said = call.arguments if not dialect.object_arguments else object_text(call)
    same = (id_, name, said) == (call.id, call.name, call.arguments)
    return call if same else replace(call, id=id_, name=name, arguments=said, raw=None)


def wire_name(name: str, dialect: Dialect) -> str:
    """Return a tool's name in the letters and length that every API takes."""
    if len(name) <= dialect.name_max and _NAME.fullmatch(name):
        return name
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[: dialect.name_max]


_NAME = re.compile(r"[a-zA-Z0-9_-]+")


def _result(result: ToolResult, dialect: Dialect) -> ToolResult:
    id_ = wire_id(result.call_id, dialect)
    content = result.content
    plain = result.is_error or not dialect.media_in_results
    if any(isinstance(part, Media) and (plain or not _may_show(part, dialect, "tool")) for part in content):
        content = tuple(Text(placeholder(part)) if isinstance(part, Media) else part for part in content)
    if not dialect.empty_text and any(isinstance(part, Text) and not part.text.strip() for part in content):
        content = tuple(part for part in content if not isinstance(part, Text) or part.text.strip())
    if id_ == result.call_id and content is result.content:
        return result
    return replace(result, call_id=id_, content=content, raw=None)


def _may_think(part: Thinking, dialect: Dialect) -> bool:
    seal = part.seal
    return seal is not None and seal.api == dialect.api and seal.model in {"", dialect.model}


MINTED_ID = 40
"""No id is made longer than this: older deployments take no more (Chat Completions before 2026)."""


def wire_id(id_: str, dialect: Dialect) -> str:
    """Return ``id_`` in the alphabet and length of the dialect; equal ids stay equal, different ones differ."""
    if len(id_) <= dialect.id_max and re.fullmatch(f"(?:{dialect.id_pattern})+", id_):
        return id_
    most = min(MINTED_ID, dialect.id_max)
    safe = "".join(char for char in id_ if re.fullmatch(dialect.id_pattern, char))
    digest = blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{safe[: max(0, most - 13)]}_{digest}"[-most:]


def _reason(part: Part, dialect: Dialect) -> str:
    if isinstance(part, Text):
        return "" if part.text.strip() else "empty-text"
    if isinstance(part, Thinking):
        return "" if _may_think(part, dialect) else "thinking"
    if isinstance(part, ToolCall):
        return "" if _call(part, dialect) is part else "call-id"
    if isinstance(part, ToolResult):
        return "" if _result(part, dialect) is part else "result"
    return ""


# -- calls and results -------------------------------------------------------------------------------------------------


def pair(items: list[Item], dialect: Dialect) -> list[Item]:
    """Return the items with each call's result right behind it, in call order, and no result without its call.

    Matching is by occurrence. A displaced result moves, a second one for the same call goes, an orphan goes, a
    missing one is made up.
    """
    owners = _owners(items)
    out: list[Item] = []
    whole: set[int] = set()
    for index, item in enumerate(items):
        if index in whole:
            continue
        if item.message.role != "assistant":
            left = _without_results(item)
            out += [left] if left is not None else []
            continue
        out.append(item)
        if item.message.calls:
            homes = _in_place(items, index, owners[index], dialect)
            whole.update(homes)
            out += [items[home] for home in homes] or _moved(items, index, owners[index], dialect)
    return out


def _owners(items: list[Item]) -> dict[int, list[tuple[int, ToolResult] | None]]:
    """Return, for each assistant item, where the result of each of its calls stands, or nothing."""
    found: dict[int, list[tuple[int, ToolResult] | None]] = {}
    waiting: dict[str, deque[tuple[int, int]]] = defaultdict(deque)
    for index, item in enumerate(items):
        if item.message.role == "assistant":
            calls = item.message.calls
            found[index] = [None] * len(calls)
            for place in reversed(range(len(calls))):  # newest first: an id may be used again over an old gap
                waiting[calls[place].id].appendleft((index, place))
            continue
        for result in item.message.results:
            queue = waiting.get(result.call_id)
            if queue:
                owner, place = queue.popleft()
                found[owner][place] = (index, result)
    return found


def _in_place(
    items: list[Item], index: int, results: list[tuple[int, ToolResult] | None], dialect: Dialect
) -> list[int]:
    """Return where the results of item ``index`` stand, if they stand as the API wants them; else nothing."""
    if None in results:
        return []
    homes = sorted({found[0] for found in results if found is not None})
    if homes != list(range(index + 1, index + 1 + len(homes))) or (dialect.results_grouped and len(homes) > 1):
        return []
    held = sum(len(items[home].message.results) for home in homes)
    first = all(
        type(part) is ToolResult
        for home in homes
        for part in items[home].message.parts[: len(items[home].message.results)]
    )
    return homes if held == len(results) and first else []


def _moved(items: list[Item], index: int, results: list[tuple[int, ToolResult] | None], dialect: Dialect) -> list[Item]:
    """Return new items that answer the calls of item ``index``, in call order."""
    calls = items[index].message.calls
    answers = tuple(found[1] if found else _synthetic(call) for call, found in zip(calls, results, strict=True))
    why = f"results of {len(calls)} call(s) put behind them, {results.count(None)} made up"
    at = items[index].stop
    if dialect.results_grouped:
        return [Item(at, at, Message("tool", answers), ("pairing",), (why,))]
    return [Item(at, at, Message("tool", (answer,)), ("pairing",), (why,)) for answer in answers]


def _without_results(item: Item) -> Item | None:
    """Return the item without its results (they go behind their calls, or nowhere)."""
    if not item.message.results:
        return item
    parts = tuple(part for part in item.message.parts if not isinstance(part, ToolResult))
    if not parts:
        return None
    return item.changed(Message(item.message.role, parts), "pairing", "its results stand behind their calls")


def _synthetic(call: ToolCall) -> ToolResult:
    return ToolResult(call.id, call.name, (Text(MISSING),), is_error=True)


def unique(items: list[Item], dialect: Dialect) -> list[Item]:
    """Return the items with call ids that occur once, in the request or (where that is enough) in their message.

    The name is a digest of the id, of the message that holds it and of how often this pair came before: a message
    that is left out renames nobody else's calls.
    """
    used = {call.id for item in items for call in item.message.calls}
    taken: set[str] = set()
    out: list[Item] = []
    renamed: dict[str, deque[str]] = {}
    for item in items:
        if item.message.role == "assistant":
            if not dialect.unique_ids:
                taken, used = set(), {call.id for call in item.message.calls}
            renamed = defaultdict(deque)
            parts = tuple(_fresh(part, item.message, dialect, taken, used, renamed) for part in item.message.parts)
        else:
            parts = tuple(_follow(part, renamed) for part in item.message.parts)
        same = all(new is old for new, old in zip(parts, item.message.parts, strict=True))
        why = "the id was used before in this request"
        out.append(item if same else item.changed(Message(item.message.role, parts), "call-id", why))
    return out


def _fresh(
    part: Part, message: Message, dialect: Dialect, taken: set[str], used: set[str], renamed: dict[str, deque[str]]
) -> Part:
    """Return a call with an id that none before it has, and remember what its result must be called."""
    if not isinstance(part, ToolCall):
        return part
    new, seed = part.id, repr(message.text) + part.arguments
    while new in taken or (new != part.id and new in used):
        seed = blake2b(f"{part.id} {seed}".encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        new = wire_id(f"{part.id[: MINTED_ID - 13]}_{seed}", dialect)
    taken.add(new)
    renamed[part.id].append(new)
    return part if new == part.id else replace(part, id=new, raw=None)


def _follow(part: Part, renamed: dict[str, deque[str]]) -> Part:
    """Return a result under the id that its call has now."""
    if not isinstance(part, ToolResult) or not renamed.get(part.call_id):
        return part
    new = renamed[part.call_id].popleft()
    return part if new == part.call_id else replace(part, call_id=new, raw=None)


# -- neighbours and ends -----------------------------------------------------------------------------------------------


def place_system(items: list[Item], dialect: Dialect) -> list[Item]:
    """Return the items with system messages turned into user data where the API does not take them."""
    messages = [item.message for item in items]
    out: list[Item] = []
    previous = ""
    for at, item in enumerate(items):
        told = item.message.role == "system" and not _system_fits(messages, at, previous, dialect)
        out.append(_as_user(item) if told else item)
        previous = _wire_role(out[-1].message.role)
    return out


def _as_user(item: Item) -> Item:
    if any(isinstance(part, Opaque) for part in item.message.parts):
        return item
    parts = (Text("[System message]"), *item.message.parts)
    return item.changed(Message("user", parts), "system", "no system message stands here on this model")


def join(items: list[Item], dialect: Dialect) -> list[Item]:
    """Return the items with neighbours of one role made one message, where the API wants that."""
    if not dialect.merge:
        return items
    out: list[Item] = []
    for item in items:
        if out and _wire_role(out[-1].message.role) == _wire_role(item.message.role) != "system":
            out[-1] = _joined(out[-1], item)
        else:
            out.append(item)
    return out


def _joined(first: Item, second: Item) -> Item:
    parts = first.message.parts + second.message.parts
    role = first.message.role if first.message.role == second.message.role else "user"
    rules = (*first.rules, *second.rules, "merge")
    why = (*first.why, *second.why, "neighbours of one role")
    return Item(min(first.start, second.start), max(first.stop, second.stop), Message(role, parts), rules, why)


def _ends_well(messages: Sequence[Message], dialect: Dialect, first: int) -> bool:
    opening = next((message.role for message in messages if message.role != "system"), "user")
    if first == 0 and dialect.start_user and _wire_role(opening) != "user":
        return False
    if messages and not (dialect.end_user or dialect.trailing_space) and _trails(messages[-1]):
        return False
    return not (dialect.end_user and messages and messages[-1].role == "assistant")


def _trails(message: Message) -> bool:
    """Whether an answer to be gone on with ends in white space."""
    last = message.parts[-1] if message.role == "assistant" and message.parts else None
    return isinstance(last, Text) and last.text != last.text.rstrip()


def _trimmed(item: Item) -> list[Item]:
    last = item.message.parts[-1]
    words = last.text.rstrip() if isinstance(last, Text) else ""
    parts = (*item.message.parts[:-1], *([Text(words)] if words else []))
    return [item.changed(Message("assistant", parts), "end", "it ended in white space")] if parts else []


def _ends(items: list[Item], dialect: Dialect, first: int) -> list[Item]:
    """Return the items with a user first and not the assistant last, where the API wants that."""
    body = [item for item in items if item.message.role != "system"]
    if first == 0 and dialect.start_user and body and _wire_role(body[0].message.role) != "user":
        at = body[0].start
        opening = Item(at, at, Message.of("user", "(the conversation so far)"), ("start",), ("a user starts",))
        items = [*items[: items.index(body[0])], opening, *items[items.index(body[0]) :]]
    if not (dialect.end_user or dialect.trailing_space) and items and _trails(items[-1].message):
        items = [*items[:-1], *_trimmed(items[-1])]
    if dialect.end_user and items and items[-1].message.role == "assistant":
        at = items[-1].stop
        items = [*items, Item(at, at, Message.of("user", "Continue."), ("end",), ("no prefill on this model",))]
    return items


def _edits(before: list[Item], after: list[Item]) -> tuple[Edit, ...]:
    """Return the edits, in order and apart, one for each place where ``after`` differs from ``before``."""
    kept = {id(item) for item in before} & {id(item) for item in after}
    edits: list[Edit] = []
    cursor = before[0].start if before else 0
    end = before[-1].stop if before else 0
    for item in after:
        if item.start > cursor:
            edits.append(_edit(cursor, item.start, ()))
        if id(item) not in kept:
            edits.append(_edit(item.start, item.stop, (item,)))
        cursor = item.stop
    return (*edits, _edit(cursor, end, ())) if end > cursor else tuple(edits)


def _edit(start: int, stop: int, items: Iterable[Item]) -> Edit:
    found = list(items)
    rules = dict.fromkeys(rule for item in found for rule in item.rules)
    why = dict.fromkeys(reason for item in found for reason in item.why)
    put = tuple(item.message for item in found)
    return Edit(Span(start, stop), put, ", ".join(rules) or "drop", "; ".join(why) or "nothing is left to send")
