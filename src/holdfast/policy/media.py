"""Media: images and documents have a budget of their own, in number and in bytes; the oldest give way to a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from holdfast.model.branch import Branch, is_spared
from holdfast.model.dialect import Dialect
from holdfast.model.edits import Edit, Span
from holdfast.model.messages import Message, media_in, placeholder, with_words
from holdfast.model.parts import Part
from holdfast.model.projected import slot_after
from holdfast.policy.draft import Draft
from holdfast.view.tokens import count, media_tokens
from holdfast.view.turns import newest_words


class Load(Struct, frozen=True):
    """Media of a request, or the most it may hold: how many, and their bytes."""

    number: int
    bytes: int

    def fits(self, most: Load) -> bool:
        """Return whether this is within ``most``."""
        return self.number <= most.number and self.bytes <= most.bytes

    def within(self, most: Load) -> Load:
        """Return this, or ``most`` where that is less."""
        return Load(min(self.number, most.number), min(self.bytes, most.bytes))

    def plus(self, other: Load) -> Load:
        """Return both together."""
        return Load(self.number + other.number, self.bytes + other.bytes)

    def without(self, other: Load) -> Load:
        """Return what is left when ``other`` goes."""
        return Load(self.number - other.number, self.bytes - other.bytes)

    @property
    def half(self) -> Load:
        """Half of it, rounded down."""
        return Load(self.number // 2, self.bytes // 2)


class Holder(Struct, frozen=True):
    """A part that shows media, with its place."""

    slot: int
    place: int
    part: Part
    load: Load


def limit_media(draft: Draft) -> Draft:
    """Return the draft with its oldest media replaced, if there are too many or they are too big.

    When over, half of the budget is made free in one step by media that were seen, so that the prefix does not break
    at each new image. What no request has shown goes only as far as it must, what the user said last after all else.
    What an undo brought back has no budget but the API's: it comes on top of the policy's.
    """
    branch, most = draft.branch, budget(draft)
    if Load(branch.media, branch.media_bytes).fits(most):
        return draft
    found = list(_media(branch))
    held, back = _total(found), _total(one for one in found if is_spared(branch, one.slot, one.place))
    api = _taken(draft.target.dialect)
    most, goal = most.plus(back).within(api), most.half.plus(back).within(api)
    if held.fits(most):
        return draft
    why = f"{held.number} media of {held.bytes:,} bytes; at most {most.number} of {most.bytes:,} are sent"
    newest = newest_words(branch, branch.keep)
    edits: list[Edit] = []

    def rank(one: Holder) -> tuple[bool, bool, bool]:
        return one.slot == newest, one.slot >= branch.seen, is_spared(branch, one.slot, one.place)

    for one in sorted(found, key=rank):
        if held.fits(most if any(rank(one)) else goal):
            continue
        edits.append(_edit(one, why))
        held = held.without(one.load)
    return draft.decide(tuple(edits))


def drop_media(draft: Draft) -> Draft:
    """Return the draft with all media given way to words but those of the user's newest message; if need be those too.

    There is need where it is still too big, or where no others were shown: then these were too much.
    """
    found, newest = list(_media(draft.branch)), newest_words(draft.branch, draft.branch.keep)
    why = "the provider refused the request as too large"
    own = [one for one in found if one.slot == newest]
    without = draft.decide(tuple(_edit(one, why) for one in found if one.slot != newest))
    if without is draft or without.at_most > draft.room.usable or not _total(own).fits(budget(draft)):
        return without.decide(tuple(_edit(one, why) for one in own))
    return without


def budget(draft: Draft) -> Load:
    """Return the most media that a request may hold: the policy's numbers, or the API's where they are lower.

    Base64 makes four bytes of three and a body holds more than media: half of its bytes are for them.
    """
    settings, api = draft.settings, _taken(draft.target.dialect)
    return Load(settings.media_most or api.number, settings.media_bytes or api.bytes).within(api)


def _taken(dialect: Dialect) -> Load:
    """Return the most media that the API takes."""
    return Load(dialect.max_images, dialect.max_bytes // 2)


def _total(holders: Iterable[Holder]) -> Load:
    found = list(holders)
    return Load(sum(one.load.number for one in found), sum(one.load.bytes for one in found))


def _media(branch: Branch) -> Iterator[Holder]:
    """Yield what shows media, oldest first, as it is shown now; what stands for whole messages is left alone."""
    index = branch.keep
    while index < len(branch.slots):
        put = {edit.span.part: edit.put for edit in branch.edits.get(index, ())}
        for place, said in enumerate(branch.messages[index].parts if None not in put else ()):
            for part in put.get(place, (said,)):
                if not isinstance(part, Message) and (held := media_in(part)):
                    yield Holder(index, place, part, Load(len(held), sum(one.size for one in held)))
        index = slot_after(branch, index)


def _edit(one: Holder, why: str) -> Edit:
    saves = sum(media_tokens(media) - count(placeholder(media)) for media in media_in(one.part))
    return Edit(Span(one.slot, one.slot + 1, one.place), (with_words(one.part, placeholder),), "media", why, saves)
