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

from holdfast.messages.message import Message, collect_media_in_parts, format_part_placeholder, replace_media_with_text
from holdfast.messages.parts import Media, Part
from holdfast.messages.size.image_size import is_oversized_image
from holdfast.messages.size.tokens import estimate_media_tokens, estimate_text_tokens
from holdfast.normalize.media_limit import BODY_SIZE_SAFETY_FACTOR, estimate_part_bytes
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.shown_messages import sum_shown_messages
from holdfast.state.conversation_state import is_protected_part
from holdfast.state.dialect import NO_LIMIT, Dialect
from holdfast.state.edits import Edit, Span
from holdfast.state.turns import find_newest_answer_index, find_newest_user_index

MEDIA_RULE = "media"
"""Rule of the edits, and of the notice that tells of them."""
_SIZE_LABELS = {
    "attachments": "attachments",
    "images": "images",
    "bytes": "bytes",
    "images_with_large": "images where one is large",
}


class MediaSizes(NamedTuple):
    """What is limited of media: ``images_with_large`` are the images again, where one of them is large."""

    attachments: int
    images: int
    bytes: int
    images_with_large: int

    def describe_sizes(self, *, with_large: bool) -> str:
        """Return the numbers in words, those of no limit left out."""
        sizes = self if with_large else self._replace(images_with_large=NO_LIMIT)
        return ", ".join(f"{size:,} {_SIZE_LABELS[name]}" for name, size in sizes._asdict().items() if size < NO_LIMIT)


class MediaLoad(Struct, frozen=True):
    """Media of a request: how many, how many of them images, their bytes, and how many of the images are large."""

    attachments: int = 0
    images: int = 0
    bytes: int = 0
    large: int = 0

    def add_load(self, load: MediaLoad) -> MediaLoad:
        """Return both together."""
        return MediaLoad(*map(add, astuple(self), astuple(load)))

    def subtract_load(self, load: MediaLoad) -> MediaLoad:
        """Return what is left when ``load`` goes."""
        return MediaLoad(*map(sub, astuple(self), astuple(load)))

    @property
    def sizes(self) -> MediaSizes:
        """What of it is limited."""
        return MediaSizes(self.attachments, self.images, self.bytes, self.images if self.large else 0)

    def __str__(self) -> str:
        """Return its number, images and bytes in words."""
        return self.sizes.describe_sizes(with_large=False)


class MediaLimits(Struct, frozen=True):
    """The most media that a request may hold; fewer images where one of them is large."""

    attachments: int
    images: int
    bytes: int
    images_with_large: int = NO_LIMIT

    @property
    def sizes(self) -> MediaSizes:
        """Its numbers."""
        return MediaSizes(*astuple(self))

    def can_hold(self, load: MediaLoad) -> bool:
        """Return whether ``load`` is within this."""
        return all(map(le, load.sizes, self.sizes))

    def tighten_by(self, limits: MediaLimits) -> MediaLimits:
        """Return this, or ``limits`` where that is less."""
        return MediaLimits(*map(min, self.sizes, limits.sizes))

    def extend_by(self, load: MediaLoad) -> MediaLimits:
        """Return this on top of ``load``."""
        return MediaLimits(*map(add, self.sizes, (load.attachments, load.images, load.bytes, load.images)))

    def halve_exceeded(self, load: MediaLoad) -> MediaLimits:
        """Return this, with half of what ``load`` has too much of."""
        return MediaLimits(
            *[limit // 2 if has > limit else limit for has, limit in zip(load.sizes, self.sizes, strict=True)]
        )

    def describe_limits(self, load: MediaLoad) -> str:
        """Return the numbers that ``load`` is held to, in words."""
        return self.sizes.describe_sizes(with_large=bool(load.large))


class ShownMedia(Struct, frozen=True):
    """A part that shows media, with its place."""

    message_index: int
    part_index: int
    part: Part
    load: MediaLoad


def limit_shown_media(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft with its oldest media replaced, if there are too many or they are too big.

    When over, half of the budget is made free in one step by media that were seen, so that the prefix does not break
    at each new image. What nobody answered goes only as far as it must, the user's newest message is left alone.
    What an undo brought back has no budget but the API's: it comes on top of the policy's.
    """
    builder = _drop_oversized_images(builder)
    state, limits = builder.state, compute_media_limits(builder)
    if limits.can_hold(
        MediaLoad(state.view.media_count, state.view.media_count, state.view.media_bytes, state.view.media_count)
    ):
        return builder
    holders, newest = list(_find_shown_media(builder)), find_newest_user_index(state, state.view.first_kept)
    total_load, back = (
        _sum_media_load(holders),
        _sum_media_load(
            holder for holder in holders if is_protected_part(state, holder.message_index, holder.part_index)
        ),
    )
    api = _get_api_media_limits(builder)
    limits = limits.extend_by(back).tighten_by(api)
    if limits.can_hold(total_load):
        return builder
    own = _sum_media_load(holder for holder in holders if holder.message_index == newest)
    if not api.can_hold(own):
        limit_text = f"{api.describe_limits(own)} are known to be taken"
        return builder.add_notice(MEDIA_RULE, f"the newest message shows {own}, and {limit_text}; it goes as it came")
    goal, why = (
        limits.halve_exceeded(total_load),
        f"{total_load} are shown; at most {limits.describe_limits(total_load)} are sent",
    )
    edits: list[Edit] = []

    answer = find_newest_answer_index(state, state.view.first_kept)

    def rank(holder: ShownMedia) -> tuple[bool, bool]:
        waits = holder.message_index >= state.last_request.seen_count or 0 <= answer < holder.message_index
        return waits, is_protected_part(state, holder.message_index, holder.part_index)

    for holder in sorted([holder for holder in holders if holder.message_index != newest], key=rank):
        if (limits if any(rank(holder)) else goal).can_hold(total_load):
            continue
        edits.append(_build_placeholder_edit(holder, why))
        total_load = total_load.subtract_load(holder.load)
    return (
        builder.add_edits(tuple(edits)).add_notice(MEDIA_RULE, f"{why}; {len(edits)} gave way to a line each")
        if edits
        else builder
    )


def _drop_oversized_images(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft without images of more pixels than the API takes, of those that its model was not shown yet."""
    state = builder.state
    first = state.last_request.seen_count if state.last_request.model == builder.target.model else state.view.first_kept
    edits = tuple(_build_oversized_edits(builder, first))
    return (
        builder.add_edits(edits).add_notice(MEDIA_RULE, f"{edits[0].why}; {len(edits)} gave way to a line each")
        if edits
        else builder
    )


def _build_oversized_edits(builder: PlanBuilder, first: int) -> Iterator[Edit]:
    """Yield the edits that put a line in place of images of too many pixels from slot ``first`` on."""
    max_pixels = builder.target.dialect.max_image_pixels
    for holder in _find_shown_media(builder, first) if max_pixels < NO_LIMIT else ():
        if any(is_oversized_image(media, max_pixels) for media in collect_media_in_parts(holder.part)):
            yield _build_placeholder_edit(
                holder, f"no image of more than {max_pixels:,} pixels a side is taken", max_pixels=max_pixels
            )


def drop_shown_media(builder: PlanBuilder) -> PlanBuilder:
    """Return the draft with all media given way to words but those that wait for an answer; if need be those too.

    The user's newest message waits, and what tools gave since the newest answer. There is need where it is still too
    big, or where no others gave way: then these were too much. Of more than the API is known to take only the oldest
    go, and where images have more pixels than it takes only these.
    """
    size_edits = tuple(_build_oversized_edits(builder, builder.state.view.first_kept))
    if size_edits:
        return builder.add_edits(size_edits)
    holders, state = list(_find_shown_media(builder)), builder.state
    newest, answer = (
        find_newest_user_index(state, state.view.first_kept),
        find_newest_answer_index(state, state.view.first_kept),
    )
    why = "the provider refused the request as too large"

    def waits(holder: ShownMedia) -> bool:
        return holder.message_index == newest or 0 <= answer < holder.message_index

    own = [holder for holder in holders if waits(holder)]
    without = builder.add_edits(tuple(_build_placeholder_edit(holder, why) for holder in holders if not waits(holder)))
    limits, total_load = compute_media_limits(without), _sum_media_load(own)
    if not limits.can_hold(total_load):
        return without.add_edits(
            tuple(_build_placeholder_edit(holder, why) for holder in _take_surplus_media(own, total_load, limits))
        )
    has_media_edits = any(edit.rule == MEDIA_RULE for edit in without.record)
    if not has_media_edits or without.upper_estimate > builder.budget.usable:
        return without.add_edits(tuple(_build_placeholder_edit(holder, why) for holder in own))
    return without


def build_media_edits(builder: PlanBuilder, message_index: int, why: str) -> tuple[Edit, ...]:
    """Return the edits that put a line in place of all media that slot ``message_index`` shows."""
    return tuple(
        _build_placeholder_edit(holder, why)
        for holder in _find_shown_media(builder, message_index)
        if holder.message_index == message_index
    )


def _take_surplus_media(holders: Iterable[ShownMedia], load: MediaLoad, limits: MediaLimits) -> Iterator[ShownMedia]:
    """Yield the oldest holders, as many as it takes until the rest is within ``limits``."""
    for holder in holders:
        if limits.can_hold(load):
            return
        yield holder
        load = load.subtract_load(holder.load)


def compute_media_limits(builder: PlanBuilder) -> MediaLimits:
    """Return the most media that a request may hold: the policy's numbers, or what the API is known to take if less."""
    settings = builder.settings
    own = MediaLimits(settings.media.max_count or NO_LIMIT, NO_LIMIT, settings.media.max_bytes or NO_LIMIT)
    return own.tighten_by(_get_api_media_limits(builder))


def _get_api_media_limits(builder: PlanBuilder) -> MediaLimits:
    """Return the most media that the API is known to take; base64 makes four bytes of three.

    What else is said takes its part of a body, which is looked at where media have any large part of it.
    """
    dialect, state = builder.target.dialect, builder.state
    room = dialect.max_bytes
    if state.view.media_bytes * BODY_SIZE_SAFETY_FACTOR > room:
        room = max(0, room - sum_shown_messages(state, _count_non_media_bytes)) * 3 // 4
    return MediaLimits(NO_LIMIT, dialect.max_images, room, dialect.max_images_with_large)


def _count_non_media_bytes(message: Message) -> int:
    """Return the bytes of all in a message but the media."""
    return sum(map(estimate_part_bytes, message.parts)) - sum(
        len(medium.source) for medium in collect_media_in_parts(*message.parts)
    )


def _sum_media_load(holders: Iterable[ShownMedia]) -> MediaLoad:
    return reduce(MediaLoad.add_load, [holder.load for holder in holders], MediaLoad())


def _find_shown_media(builder: PlanBuilder, first: int = 0) -> Iterator[ShownMedia]:
    """Yield what shows media from slot ``first`` on, oldest first, as it is shown now.

    What stands for whole messages is left alone.
    """
    state, dialect = builder.state, builder.target.dialect
    for index in state.view.media_indexes[bisect_left(state.view.media_indexes, first) :]:
        replacements = {edit.span.part: edit.replacement for edit in state.view.edits.get(index, ())}
        for place, original in enumerate(state.history.messages[index].parts if None not in replacements else ()):
            for part in replacements.get(place, (original,)):
                if not isinstance(part, Message) and (part_media := collect_media_in_parts(part)):
                    yield ShownMedia(index, place, part, _measure_media_load(part_media, dialect))


def _measure_media_load(media: Sequence[Media], dialect: Dialect) -> MediaLoad:
    images = [medium for medium in media if medium.kind == "image"]
    large = (
        sum(is_oversized_image(medium, dialect.large_image_pixels) for medium in images)
        if dialect.large_image_pixels < NO_LIMIT
        else 0
    )
    return MediaLoad(len(media), len(images), sum(medium.size for medium in media), large)


def _build_placeholder_edit(shown_media: ShownMedia, why: str, max_pixels: int = 0) -> Edit:
    """Return the edit that puts a line in place of each medium of a part, or of those ``max_pixels`` so many pixels."""

    def words(media: Media) -> str:
        return format_part_placeholder(media) if not max_pixels or is_oversized_image(media, max_pixels) else ""

    saves = sum(
        estimate_media_tokens(media) - estimate_text_tokens(line)
        for media in collect_media_in_parts(shown_media.part)
        if (line := words(media))
    )
    return Edit(
        Span(shown_media.message_index, shown_media.message_index + 1, shown_media.part_index),
        (replace_media_with_text(shown_media.part, words),),
        MEDIA_RULE,
        why,
        saves,
    )
