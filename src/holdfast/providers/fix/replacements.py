"""Changes that keep a rule better than to take out what breaks it: the smallest value that is taken, or what was meant.

Each gives new values by their places, nothing where it knows none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from msgspec import Raw, Struct

from holdfast.messages.message import placeholder
from holdfast.messages.parts import Media
from holdfast.messages.size.image_size import pixels
from holdfast.normalize.parts import wire_name
from holdfast.providers.anthropic.rules.block_kinds import BLOCK_KEYS
from holdfast.providers.common.json.json_path import Step, Steps, Tree, opens, replaced
from holdfast.providers.common.json.lenient_json import items_of, text_of
from holdfast.providers.common.json.raw_json import write
from holdfast.providers.common.tool_names import fitting
from holdfast.providers.fix.work import Work
from holdfast.providers.models import PIXELS, traits

Places: TypeAlias = Mapping[Steps, bytes | None]
_MARKERS = 4
"""Cache breakpoints that a request of the Messages API may have."""
_LEAST = 1024
"""Tokens of the smallest budget for thinking."""


class Instead(Struct, frozen=True):
    """A change that keeps a rule, and what is told of it where its values do not tell themselves."""

    places: Callable[[Tree, Work, Steps], Places]
    done: str = ""
    rank: Callable[[Tree, Steps], int] | None = None
    """Where not all that breaks the rule must go, which goes first: the least, and of these the first."""


def ranks(rule: str) -> Callable[[Tree, Steps], int] | None:
    """Return what tells which of the places that break ``rule`` go first; nothing where all of them must."""
    known = _INSTEAD.get(rule)
    return None if known is None else known.rank


def instead(rule: str, tree: Tree, work: Work, steps: Steps) -> tuple[Places, str]:
    """Return what keeps ``rule``, broken at ``steps``, better than nothing there, and how it is told; maybe nothing."""
    known = _INSTEAD.get(rule)
    found = {} if known is None else known.places(tree, work, steps)
    there = {place: value for place, value in found.items() if tree.at(place) is not None}
    return there, "" if known is None else known.done


def _budget(tree: Tree, _work: Work, steps: Steps) -> Places:
    """Return thinking with the least budget, or with one that leaves as much under ``max_tokens``, if there is room."""
    most = number(tree.at(("max_tokens",)))
    budget = _LEAST if number(tree.at(steps)) < _LEAST else max(_LEAST, most - _LEAST)
    return {("thinking", "budget_tokens"): str(budget).encode()} if most > _LEAST else {}


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
    raws = items_of(tree.at(steps[:2]))
    place = steps[2] if len(steps) > 2 else None
    if not isinstance(place, int) or place >= len(raws):
        return {}
    return {steps[:2]: write([raws[place], *raws[:place], *raws[place + 1 :]])}


def _known_fields(tree: Tree, _work: Work, steps: Steps) -> Places:
    """Return a block without the fields that no block of its kind has."""
    held = tree.held(steps)
    allowed = BLOCK_KEYS.get(text_of(held.get("type")))
    return {(*steps, key): None for key in held if key not in allowed} if allowed is not None else {}


def _fitting_name(tree: Tree, work: Work, steps: Steps) -> Places:
    """Return a tool, and the choice of it, under the name that its calls get here, unless another tool has that."""
    name = text_of(tree.at(steps)) if steps[-1] == "name" else ""
    new = fitting((text_of(tree.at(place)) for place in _offered(tree)), work.dialect).get(name, "")
    if not name.strip() or new != wire_name(name, work.dialect):
        return {}
    return {place: write(new) for place in (steps, *_chosen(tree)) if text_of(tree.at(place)) == name}


def _offered(tree: Tree) -> Iterator[Steps]:
    """Yield where some API names the tools that it is offered."""
    for index in tree.held(("tools",)):
        yield ("tools", index, "name")
        yield ("tools", index, "function", "name")
        for key in ("functionDeclarations", "function_declarations"):
            for place in tree.held(("tools", index, key)):
                yield ("tools", index, key, place, "name")


def _chosen(tree: Tree) -> Iterator[Steps]:
    """Yield where some API names the tools that may or must be called."""
    yield ("tool_choice", "name")
    yield ("tool_choice", "function", "name")
    for config in (("toolConfig", "functionCallingConfig"), ("tool_config", "function_calling_config")):
        for key in ("allowedFunctionNames", "allowed_function_names"):
            for index in tree.held((*config, key)):
                yield (*config, key, index)


def _name_or_nothing(tree: Tree, work: Work, steps: Steps) -> Places:
    """Return the tools without a list that is empty, or with a name that fits."""
    return {steps: None} if bytes(tree.at(steps) or b"") == b"[]" else _fitting_name(tree, work, steps)


def _once_or_fitting(tree: Tree, work: Work, steps: Steps) -> Places:
    """Return the tools without one that stands there twice, or with a name that fits."""
    return _said_twice(tree, work, steps) or _fitting_name(tree, work, steps)


def _said_twice(tree: Tree, _work: Work, steps: Steps) -> Places:
    """Return the tools without one that stands there, just the same, before."""
    tool = steps[:-1]
    place = tool[-1] if tool else None
    mine = tree.at(tool)
    before = [tree.at((*tool[:-1], index)) for index in range(place)] if isinstance(place, int) else []
    return {tool: None} if mine is not None and mine in before else {}


def _newest_first(tree: Tree, _work: Work, _steps: Steps) -> Places:
    """Return the messages with the newest block that stands for older ones before all else, and no older such block."""
    spots: list[Steps] = []
    for at in tree.held(("messages",)):
        content: Steps = ("messages", at, "content")
        spots += [(*content, place) for place in tree.held(content) if _sums_up(tree.held((*content, place)))]
    newest = tree.at(spots[-1]) if spots else None
    if newest is None:
        return {}
    emptied = {spot[:2] for spot in spots if all((*spot[:3], place) in spots for place in tree.held(spot[:3]))}
    rest = replaced(tree.raw, dict.fromkeys([*spots, *emptied]))
    messages = Tree(Raw(rest)).held(("messages",)).values()
    return {("messages",): write([{"role": "assistant", "content": [newest]}, *messages])}


def _sums_up(held: Mapping[Step, Raw]) -> bool:
    return text_of(held.get("type")) == "compaction" and opens(held.get("content")) == '"'


def _without_compacting(tree: Tree, _work: Work, _steps: Steps) -> Places:
    """Return the request without the edits that compact; without all that stands around them where that is all."""
    place: Steps = ("context_management", "edits")
    edits = tree.held(place)
    gone = [index for index in edits if text_of(tree.held((*place, index)).get("type")).startswith("compact_")]
    if len(gone) < len(edits):
        return {(*place, index): None for index in gone}
    return {place if len(tree.held(place[:1])) > 1 else place[:1]: None}


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


def _alone(tree: Tree, steps: Steps) -> int:
    """Return 0 for an image that is too large even among few, 1 for one that is too large among many."""
    size = pixels(text_of(tree.at((*steps, "source", "data"))))
    return 0 if size is not None and max(size) > PIXELS else 1


_INSTEAD: Mapping[str, Instead] = {
    "thinking-budget": Instead(_budget),
    "thinking-mode": Instead(_mode),
    "thinking-first": Instead(lambda _tree, _work, _steps: {("thinking",): None}),
    "edit-order": Instead(_first_edit, "it is the first one now"),
    "edit-trigger": Instead(lambda _tree, _work, steps: {steps: b"50000"}),
    "context-management": Instead(lambda _tree, _work, steps: {steps: b"1000"}),
    "compaction-first": Instead(_newest_first, "it stands before all else now"),
    "compaction-single": Instead(_newest_first, "the newest is the first block now, older ones are left out"),
    "compaction-or-edit": Instead(_without_compacting),
    "limit": Instead(lambda _tree, _work, steps: {steps: b"16"} if steps == ("max_output_tokens",) else {}),
    "unknown-field": Instead(_known_fields),
    "tools": Instead(_name_or_nothing),
    "tool-shape": Instead(_fitting_name),
    "tool-names": Instead(_once_or_fitting),
    "cache-count": Instead(_surplus),
    "image-size": Instead(_named, "a line stands for it", _alone),
}
"""What is done for a rule, by its name."""
