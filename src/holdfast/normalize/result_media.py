"""Media in tool results, for an API whose results hold words alone: a user shows them behind the results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from holdfast.messages.message import Message, media_of, placeholder, with_parts
from holdfast.messages.parts import Media, Part, Text, ToolResult
from holdfast.normalize.items import Item, inserted
from holdfast.normalize.pairing import matched, strays
from holdfast.normalize.parts import Places, may_show
from holdfast.state.dialect import Dialect

Shows: TypeAlias = Callable[[Media], bool]
Moving: TypeAlias = Sequence[Sequence[Media]]
"""What moves out of each result of a message."""
RULE = "result-media"
_WHY = "a result holds words alone here: a user shows its media behind the results"


def show_media(items: list[Item], dialect: Dialect) -> list[Item]:
    """Return the items with the media of results behind these, where the API takes none in them.

    Those of a result that answers no call are told with its words.
    """
    if dialect.media_in_results or not any(media_of(item.message) for item in items if item.message.results):
        return items
    messages = [item.message for item in items]
    return shown_behind(items, lambda part: may_show(part, dialect, "user"), strays(messages, matched(messages)))


def shown_behind(items: Sequence[Item], shows: Shows, stray: Places) -> list[Item]:
    """Return the items with what ``shows`` takes of their results' media behind each batch of results.

    A batch is all results up to the next answer; nothing stands between them. A line in the result names what moved.
    Results at the places ``stray`` keep theirs.
    """
    out: list[Item] = []
    batch: list[tuple[Item, Moving]] = []
    names: dict[str, str] = {}
    for at, item in enumerate(items):
        if item.message.role != "assistant":
            batch.append((item, _moving(item.message, shows, stray.get(at, ()))))
            continue
        out += [*_shown(batch, names), item]
        batch = []
        names |= {call.id: call.name for call in item.message.calls}
    return [*out, *_shown(batch, names)]


def _moving(message: Message, shows: Shows, stray: Collection[int]) -> list[list[Media]]:
    return [
        [part for part in result.content if place not in stray and isinstance(part, Media) and shows(part)]
        for place, result in enumerate(message.results)
    ]


def _shown(batch: Sequence[tuple[Item, Moving]], names: Mapping[str, str]) -> Iterator[Item]:
    """Yield the items between two answers, with their media behind the last result."""
    shown: list[Part] = []
    for item, moving in batch:
        for result, media in zip(item.message.results, moving, strict=True):
            tool = result.name or names.get(result.call_id) or "a tool"
            shown += [Text(f"(from the result of {tool})"), *media] if media else []
    last = max((at for at, (item, _) in enumerate(batch) if item.message.results), default=-1) if shown else -1
    for at, (item, moving) in enumerate(batch):
        worded = _worded(item, moving) if shown else item
        if at == last:
            rest = [part for part in worded.message.parts if not isinstance(part, ToolResult)]
            yield worded.changed(Message("tool", worded.message.results), RULE, _WHY) if rest else worded
            yield inserted(item.stop, Message("user", (*shown, *rest)), RULE, _WHY)
        else:
            yield worded


def _worded(item: Item, moving: Moving) -> Item:
    """Return the item with a line in its results for each of their media that moves."""
    media = iter(moving)
    parts = [_named(part, next(media)) if isinstance(part, ToolResult) else part for part in item.message.parts]
    message = with_parts(item.message, parts)
    return item if message is item.message else item.changed(message, RULE, _WHY)


def _named(part: ToolResult, media: Sequence[Media]) -> ToolResult:
    content = tuple(
        [Text(placeholder(one)) if isinstance(one, Media) and one in media else one for one in part.content]
    )
    return replace(part, content=content, raw=None) if media else part
