"""Changes that keep a rule better than to take out what breaks it: the smallest value that is taken, or what was meant.

Each gives new values by their places, nothing where it knows none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from msgspec import Raw

from holdfast.model.messages import placeholder
from holdfast.model.parts import Media
from holdfast.wire.mending.work import Work
from holdfast.wire.models import traits
from holdfast.wire.pieces import Steps, Tree, listed, text_of
from holdfast.wire.rules.blocks import BLOCK_KEYS
from holdfast.wire.splice import write

Places: TypeAlias = Mapping[Steps, bytes | None]
_MARKERS = 4
"""Cache breakpoints that a request of the Messages API may have."""
_LEAST = 1024
"""Tokens of the smallest budget for thinking."""


def instead(rule: str, tree: Tree, work: Work, steps: Steps) -> Places:
    """Return what keeps ``rule``, broken at ``steps``, better than nothing there; empty where nothing does."""
    known = _INSTEAD.get(rule)
    found = {} if known is None else known(tree, work, steps)
    return {place: value for place, value in found.items() if tree.at(place) is not None}


def _budget(tree: Tree, _work: Work, _steps: Steps) -> Places:
    """Return thinking with a budget under ``max_tokens``, if there is room for one."""
    most = number(tree.at(("max_tokens",)))
    return {("thinking", "budget_tokens"): str(max(_LEAST, most - _LEAST)).encode()} if most > _LEAST else {}


def number(raw: Raw | None) -> int:
    """Return a JSON value as a whole number, 0 for what is none."""
    data = b"" if raw is None else bytes(raw)
    return int(data) if data.isdigit() and len(data) < 16 else 0


def _mode(_tree: Tree, work: Work, _steps: Steps) -> Places:
    """Return the kind of thinking that a model takes instead, if it takes the adaptive one."""
    known = traits(work.model)
    return {("thinking",): b'{"type":"adaptive"}'} if known is not None and known.adaptive else {}


def _first_edit(tree: Tree, _work: Work, steps: Steps) -> Places:
    """Return the context edits with the one at ``steps`` in front."""
    raws = listed(tree.at(steps[:2]) or Raw(b"[]"))
    place = steps[2] if len(steps) > 2 else None
    if not isinstance(place, int) or place >= len(raws):
        return {}
    return {steps[:2]: write([raws[place], *raws[:place], *raws[place + 1 :]])}


def _known_fields(tree: Tree, _work: Work, steps: Steps) -> Places:
    """Return a block without the fields that no block of its kind has."""
    held = tree.held(steps)
    allowed = BLOCK_KEYS.get(text_of(held.get("type")))
    return {(*steps, key): None for key in held if key not in allowed} if allowed is not None else {}


def _said_twice(tree: Tree, _work: Work, steps: Steps) -> Places:
    """Return the tools without one that stands there, just the same, before."""
    tool = steps[:-1]
    place = tool[-1] if tool else None
    mine = tree.at(tool)
    before = [tree.at((*tool[:-1], index)) for index in range(place)] if isinstance(place, int) else []
    return {tool: None} if mine is not None and mine in before else {}


def _surplus(tree: Tree, _work: Work, _steps: Steps) -> Places:
    """Return the request without the cache breakpoints that are too many: the oldest in the messages first."""
    found = [*_markers(tree, "messages"), *_markers(tree, "system"), *_markers(tree, "tools")]
    most = _MARKERS - (tree.at(("cache_control",)) is not None)
    return dict.fromkeys(found[: max(0, len(found) - most)])


def _markers(tree: Tree, name: str) -> Iterator[Steps]:
    """Yield where breakpoints stand in one field, in the order of the prompt."""
    for index in tree.held((name,)):
        if name != "messages":
            yield from _mark(tree, (name, index))
            continue
        content: Steps = (name, index, "content")
        for block in tree.held(content):
            for inner in tree.held((*content, block, "content")):
                yield from _mark(tree, (*content, block, "content", inner))
            yield from _mark(tree, (*content, block))


def _mark(tree: Tree, block: Steps) -> Iterator[Steps]:
    mark = tree.held(block).get("cache_control")
    if mark is not None and bytes(mark) != b"null":
        yield (*block, "cache_control")


def _named(tree: Tree, _work: Work, steps: Steps) -> Places:
    """Return the line that stands for the image at ``steps``, which is too large to be sent."""
    mime = text_of(tree.at((*steps, "source", "media_type")))
    return {steps: write({"type": "text", "text": placeholder(Media("image", mime))})}


_INSTEAD: Mapping[str, Callable[[Tree, Work, Steps], Places]] = {
    "thinking-budget": _budget,
    "thinking-mode": _mode,
    "thinking-first": lambda _tree, _work, _steps: {("thinking",): None},
    "edit-order": _first_edit,
    "edit-trigger": lambda _tree, _work, steps: {steps: b"50000"},
    "context-management": lambda _tree, _work, steps: {steps: b"1000"},
    "limit": lambda _tree, _work, steps: {steps: b"16"} if steps == ("max_output_tokens",) else {},
    "unknown-field": _known_fields,
    "tool-names": _said_twice,
    "cache-count": _surplus,
    "image-size": _named,
}
"""What is done for a rule, by its name."""
