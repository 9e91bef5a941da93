"""Media: images and documents over what the API is known to take, or over a policy's budget, give way to a line.

The oldest go first. What the user's newest message shows is never touched before the provider refused it, but for an
image that no API of this kind takes, whatever stands beside it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import add, le, sub
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import astuple

from holdfast.messages.message import Message, media_in, placeholder, with_words
from holdfast.messages.parts import Media, Part
from holdfast.messages.size.image_size import is_over
from holdfast.messages.size.tokens import count, media_tokens
from holdfast.normalize.media_limit import NEAR, weight
from holdfast.planning.builder import Draft
from holdfast.planning.presets.measures import total_shown
from holdfast.state.branch.branch import is_spared
from holdfast.state.branch.turns import newest_answer, newest_words
from holdfast.state.dialect import NO_LIMIT, Dialect
from holdfast.state.edits import Edit, Span

RULE = "media"
"""Rule of the edits, and of the notice that tells of them."""
_NAMES = {
    "number": "attachments",
    "images": "images",
    "bytes": "bytes",
    "images_with_large": "images where one is large",
}


class Sizes(NamedTuple):
    """What is limited of media: ``images_with_large`` are the images again, where one of them is large."""

    number: int
    images: int
    bytes: int
    images_with_large: int

    def told(self, *, with_large: bool) -> str:
        """Return the numbers in words, those of no limit left out."""
        shown = self if with_large else self._replace(images_with_large=NO_LIMIT)
        return ", ".join(f"{size:,} {_NAMES[name]}" for name, size in shown._asdict().items() if size < NO_LIMIT)


class Load(Struct, frozen=True):
    """Media of a request: how many, how many of them images, their bytes, and how many of the images are large."""

    number: int = 0
    images: int = 0
    bytes: int = 0
    large: int = 0

    def plus(self, other: Load) -> Load:
        """Return both together."""
        return Load(*map(add, astuple(self), astuple(other)))

    def without(self, other: Load) -> Load:
        """Return what is left when ``other`` goes."""
        return Load(*map(sub, astuple(self), astuple(other)))

    @property
    def sizes(self) -> Sizes:
        """What of it is limited."""
        return Sizes(self.number, self.images, self.bytes, self.images if self.large else 0)

    def __str__(self) -> str:
        """Return its number, images and bytes in words."""
        return self.sizes.told(with_large=False)


class Most(Struct, frozen=True):
    """The most media that a request may hold; fewer images where one of them is large."""

    number: int
    images: int
    bytes: int
    images_with_large: int = NO_LIMIT

    @property
    def sizes(self) -> Sizes:
        """Its numbers."""
        return Sizes(*astuple(self))

    def holds(self, load: Load) -> bool:
        """Return whether ``load`` is within this."""
        return all(map(le, load.sizes, self.sizes))

    def within(self, other: Most) -> Most:
        """Return this, or ``other`` where that is less."""
        return Most(*map(min, self.sizes, other.sizes))

    def beside(self, load: Load) -> Most:
        """Return this on top of ``load``."""
        return Most(*map(add, self.sizes, (load.number, load.images, load.bytes, load.images)))

    def halved_for(self, load: Load) -> Most:
        """Return this, with half of what ``load`` has too much of."""
        return Most(*[most // 2 if has > most else most for has, most in zip(load.sizes, self.sizes, strict=True)])

    def told(self, load: Load) -> str:
        """Return the numbers that ``load`` is held to, in words."""
        return self.sizes.told(with_large=bool(load.large))


class Holder(Struct, frozen=True):
    """A part that shows media, with its place."""

    slot: int
    place: int
    part: Part
    load: Load


def limit_media(draft: Draft) -> Draft:
    """Return the draft with its oldest media replaced, if there are too many or they are too big.

    When over, half of the budget is made free in one step by media that were seen, so that the prefix does not break
    at each new image. What nobody answered goes only as far as it must, the user's newest message is left alone.
    What an undo brought back has no budget but the API's: it comes on top of the policy's.
    """
    draft = _within_pixels(draft)
    branch, most = draft.branch, budget(draft)
    if most.holds(Load(branch.media, branch.media, branch.media_bytes, branch.media)):
        return draft
    found, newest = list(_media(draft)), newest_words(branch, branch.keep)
    held, back = _total(found), _total(one for one in found if is_spared(branch, one.slot, one.place))
    api = _taken(draft)
    most = most.beside(back).within(api)
    if most.holds(held):
        return draft
    own = _total(one for one in found if one.slot == newest)
    if not api.holds(own):
        known = f"{api.told(own)} are known to be taken"
        return draft.note(RULE, f"the newest message shows {own}, and {known}; it goes as it came")
    goal, why = most.halved_for(held), f"{held} are shown; at most {most.told(held)} are sent"
    edits: list[Edit] = []

    answer = newest_answer(branch, branch.keep)

    def rank(one: Holder) -> tuple[bool, bool]:
        waits = one.slot >= branch.seen or 0 <= answer < one.slot
        return waits, is_spared(branch, one.slot, one.place)

    for one in sorted([one for one in found if one.slot != newest], key=rank):
        if (most if any(rank(one)) else goal).holds(held):
            continue
        edits.append(_edit(one, why))
        held = held.without(one.load)
    return draft.decide(tuple(edits)).note(RULE, f"{why}; {len(edits)} gave way to a line each") if edits else draft


def _within_pixels(draft: Draft) -> Draft:
    """Return the draft without images of more pixels than the API takes, of those that its model was not shown yet."""
    branch = draft.branch
    first = branch.seen if branch.model == draft.target.model else branch.keep
    edits = tuple(_oversized(draft, first))
    return draft.decide(edits).note(RULE, f"{edits[0].why}; {len(edits)} gave way to a line each") if edits else draft


def _oversized(draft: Draft, first: int) -> Iterator[Edit]:
    """Yield the edits that put a line in place of images of too many pixels from slot ``first`` on."""
    most = draft.target.dialect.most_pixels
    for one in _media(draft, first) if most < NO_LIMIT else ():
        if any(is_over(media, most) for media in media_in(one.part)):
            yield _edit(one, f"no image of more than {most:,} pixels a side is taken", over=most)


def drop_media(draft: Draft) -> Draft:
    """Return the draft with all media given way to words but those that wait for an answer; if need be those too.

    The user's newest message waits, and what tools gave since the newest answer. There is need where it is still too
    big, or where no others gave way: then these were too much. Of more than the API is known to take only the oldest
    go, and where images have more pixels than it takes only these.
    """
    oversized = tuple(_oversized(draft, draft.branch.keep))
    if oversized:
        return draft.decide(oversized)
    found, branch = list(_media(draft)), draft.branch
    newest, answer = newest_words(branch, branch.keep), newest_answer(branch, branch.keep)
    why = "the provider refused the request as too large"

    def waits(one: Holder) -> bool:
        return one.slot == newest or 0 <= answer < one.slot

    own = [one for one in found if waits(one)]
    without = draft.decide(tuple(_edit(one, why) for one in found if not waits(one)))
    most, held = budget(without), _total(own)
    if not most.holds(held):
        return without.decide(tuple(_edit(one, why) for one in _surplus(own, held, most)))
    others = any(edit.rule == RULE for edit in without.record)
    if not others or without.at_most > draft.room.usable:
        return without.decide(tuple(_edit(one, why) for one in own))
    return without


def media_edits(draft: Draft, slot: int, why: str) -> tuple[Edit, ...]:
    """Return the edits that put a line in place of all media that slot ``slot`` shows."""
    return tuple(_edit(one, why) for one in _media(draft, slot) if one.slot == slot)


def _surplus(holders: Iterable[Holder], held: Load, most: Most) -> Iterator[Holder]:
    """Yield the oldest holders, as many as it takes until the rest is within ``most``."""
    for one in holders:
        if most.holds(held):
            return
        yield one
        held = held.without(one.load)


def budget(draft: Draft) -> Most:
    """Return the most media that a request may hold: the policy's numbers, or what the API is known to take if less."""
    settings = draft.settings
    own = Most(settings.media_most or NO_LIMIT, NO_LIMIT, settings.media_bytes or NO_LIMIT)
    return own.within(_taken(draft))


def _taken(draft: Draft) -> Most:
    """Return the most media that the API is known to take; base64 makes four bytes of three.

    What else is said takes its part of a body, which is looked at where media have any large part of it.
    """
    dialect, branch = draft.target.dialect, draft.branch
    room = dialect.max_bytes
    if branch.media_bytes * NEAR > room:
        room = max(0, room - total_shown(branch, _words)) * 3 // 4
    return Most(NO_LIMIT, dialect.max_images, room, dialect.images_with_large)


def _words(message: Message) -> int:
    """Return the bytes of all in a message but the media."""
    return sum(map(weight, message.parts)) - sum(len(one.source) for one in media_in(*message.parts))


def _total(holders: Iterable[Holder]) -> Load:
    return reduce(Load.plus, [one.load for one in holders], Load())


def _media(draft: Draft, first: int = 0) -> Iterator[Holder]:
    """Yield what shows media from slot ``first`` on, oldest first, as it is shown now.

    What stands for whole messages is left alone.
    """
    branch, dialect = draft.branch, draft.target.dialect
    for index in branch.pictures[bisect_left(branch.pictures, first) :]:
        put = {edit.span.part: edit.put for edit in branch.edits.get(index, ())}
        for place, said in enumerate(branch.messages[index].parts if None not in put else ()):
            for part in put.get(place, (said,)):
                if not isinstance(part, Message) and (held := media_in(part)):
                    yield Holder(index, place, part, _load(held, dialect))


def _load(media: Sequence[Media], dialect: Dialect) -> Load:
    images = [one for one in media if one.kind == "image"]
    large = sum(is_over(one, dialect.large_pixels) for one in images) if dialect.large_pixels < NO_LIMIT else 0
    return Load(len(media), len(images), sum(one.size for one in media), large)


def _edit(one: Holder, why: str, over: int = 0) -> Edit:
    """Return the edit that puts a line in place of each medium of a part, or of those ``over`` so many pixels."""

    def words(media: Media) -> str:
        return placeholder(media) if not over or is_over(media, over) else ""

    saves = sum(media_tokens(media) - count(line) for media in media_in(one.part) if (line := words(media)))
    return Edit(Span(one.slot, one.slot + 1, one.place), (with_words(one.part, words),), RULE, why, saves)
