"""Media: images and documents over what the API is known to take, or over a policy's budget, give way to a line.

The oldest go first. What the user's newest message shows is never touched before the provider refused it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from holdfast.model.branch import Branch, is_spared
from holdfast.model.dialect import NO_LIMIT
from holdfast.model.edits import Edit, Span
from holdfast.model.messages import Message, media_in, placeholder, with_words
from holdfast.model.parts import Part
from holdfast.model.projected import project, slot_after
from holdfast.policy.draft import Draft
from holdfast.policy.hygiene.budget import NEAR, weight
from holdfast.view.tokens import count, media_tokens
from holdfast.view.turns import newest_words

RULE = "media"
"""Rule of the edits, and of the notice that tells of them."""


class Load(Struct, frozen=True):
    """Media of a request, or the most it may hold: how many, how many of them images, and their bytes."""

    number: int
    images: int
    bytes: int

    def fits(self, most: Load) -> bool:
        """Return whether this is within ``most``."""
        return self.number <= most.number and self.images <= most.images and self.bytes <= most.bytes

    def within(self, most: Load) -> Load:
        """Return this, or ``most`` where that is less."""
        return Load(min(self.number, most.number), min(self.images, most.images), min(self.bytes, most.bytes))

    def plus(self, other: Load) -> Load:
        """Return both together."""
        return Load(self.number + other.number, self.images + other.images, self.bytes + other.bytes)

    def without(self, other: Load) -> Load:
        """Return what is left when ``other`` goes."""
        return Load(self.number - other.number, self.images - other.images, self.bytes - other.bytes)

    def halved_for(self, held: Load) -> Load:
        """Return this, with half of what ``held`` has too much of."""
        return Load(*[most // 2 if has > most else most for has, most in zip(held.sizes, self.sizes, strict=True)])

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Its three numbers."""
        return self.number, self.images, self.bytes

    def __str__(self) -> str:
        """Return the numbers that are any, in words."""
        names = ("attachments", "images", "bytes")
        return ", ".join(f"{size:,} {name}" for size, name in zip(self.sizes, names, strict=True) if size < NO_LIMIT)


class Holder(Struct, frozen=True):
    """A part that shows media, with its place."""

    slot: int
    place: int
    part: Part
    load: Load


def limit_media(draft: Draft) -> Draft:
    """Return the draft with its oldest media replaced, if there are too many or they are too big.

    When over, half of the budget is made free in one step by media that were seen, so that the prefix does not break
    at each new image. What no request has shown goes only as far as it must, the user's newest message is left alone.
    What an undo brought back has no budget but the API's: it comes on top of the policy's.
    """
    branch, most = draft.branch, budget(draft)
    if Load(branch.media, branch.media, branch.media_bytes).fits(most):
        return draft
    found, newest = list(_media(branch)), newest_words(branch, branch.keep)
    held, back = _total(found), _total(one for one in found if is_spared(branch, one.slot, one.place))
    api = _taken(draft)
    most = most.plus(back).within(api)
    if held.fits(most):
        return draft
    if not _total(one for one in found if one.slot == newest).fits(api):
        return draft.note(RULE, f"the newest message shows {held}, and {api} are known to be taken; it goes as it came")
    goal, why = most.halved_for(held), f"{held} are shown; at most {most} are sent"
    edits: list[Edit] = []

    def rank(one: Holder) -> tuple[bool, bool]:
        return one.slot >= branch.seen, is_spared(branch, one.slot, one.place)

    for one in sorted([one for one in found if one.slot != newest], key=rank):
        if held.fits(most if any(rank(one)) else goal):
            continue
        edits.append(_edit(one, why))
        held = held.without(one.load)
    return draft.decide(tuple(edits)).note(RULE, f"{why}; {len(edits)} gave way to a line each") if edits else draft


def drop_media(draft: Draft) -> Draft:
    """Return the draft with all media given way to words but those of the user's newest message; if need be those too.

    There is need where it is still too big, or where no others were shown: then these were too much. Of more than the
    API is known to take only the oldest go.
    """
    found, newest = list(_media(draft.branch)), newest_words(draft.branch, draft.branch.keep)
    why = "the provider refused the request as too large"
    own = [one for one in found if one.slot == newest]
    without = draft.decide(tuple(_edit(one, why) for one in found if one.slot != newest))
    most, held = budget(without), _total(own)
    if not held.fits(most):
        return without.decide(tuple(_edit(one, why) for one in _surplus(own, held, most)))
    if without is draft or without.at_most > draft.room.usable:
        return without.decide(tuple(_edit(one, why) for one in own))
    return without


def _surplus(holders: Iterable[Holder], held: Load, most: Load) -> Iterator[Holder]:
    """Yield the oldest holders, as many as it takes until the rest is within ``most``."""
    for one in holders:
        if held.fits(most):
            return
        yield one
        held = held.without(one.load)


def budget(draft: Draft) -> Load:
    """Return the most media that a request may hold: the policy's numbers, or what the API is known to take if less."""
    settings = draft.settings
    own = Load(settings.media_most or NO_LIMIT, NO_LIMIT, settings.media_bytes or NO_LIMIT)
    return own.within(_taken(draft))


def _taken(draft: Draft) -> Load:
    """Return the most media that the API is known to take; base64 makes four bytes of three.

    What else is said takes its part of a body, which is looked at where media have any large part of it.
    """
    dialect, branch = draft.target.dialect, draft.branch
    room = dialect.max_bytes
    if branch.media_bytes * NEAR > room:
        parts = [part for slot in project(branch) for part in slot.message.parts]
        words = sum(map(weight, parts)) - sum(len(one.source) for one in media_in(*parts))
        room = max(0, room - words) * 3 // 4
    return Load(NO_LIMIT, dialect.max_images, room)


def _total(holders: Iterable[Holder]) -> Load:
    found = [one.load.sizes for one in holders]
    return Load(*map(sum, zip(*found, strict=True))) if found else Load(0, 0, 0)


def _media(branch: Branch) -> Iterator[Holder]:
    """Yield what shows media, oldest first, as it is shown now; what stands for whole messages is left alone."""
    index = branch.keep
    while index < len(branch.slots):
        put = {edit.span.part: edit.put for edit in branch.edits.get(index, ())}
        for place, said in enumerate(branch.messages[index].parts if None not in put else ()):
            for part in put.get(place, (said,)):
                if not isinstance(part, Message) and (held := media_in(part)):
                    images = sum(one.kind == "image" for one in held)
                    yield Holder(index, place, part, Load(len(held), images, sum(one.size for one in held)))
        index = slot_after(branch, index)


def _edit(one: Holder, why: str) -> Edit:
    saves = sum(media_tokens(media) - count(placeholder(media)) for media in media_in(one.part))
    return Edit(Span(one.slot, one.slot + 1, one.place), (with_words(one.part, placeholder),), RULE, why, saves)
