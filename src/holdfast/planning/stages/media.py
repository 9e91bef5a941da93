"""Media: images and documents over the limits of the API or the policy are replaced by a line each, the oldest first.

Media that the user's newest message shows are not touched before the provider has refused them: the user may be asking
about them. The exception is an image with more pixels or bytes than the API takes, which would be refused whatever
stands beside it. It is scaled down where Pillow is installed. The smaller image is recorded in the edit, so that every
later request shows the same bytes, whichever version of Pillow is installed then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.inline_data import inspect_base64
from holdfast.messages.message import Message, collect_media_in_parts, format_part_placeholder, replace_media_with_text
from holdfast.messages.parts import Media, Opaque, Part, Text, ToolResult
from holdfast.messages.size.image_size import is_oversized_image
from holdfast.messages.size.scale_image import can_scale_images, scale_down_image
from holdfast.messages.size.tokens import estimate_media_tokens, estimate_text_tokens
from holdfast.normalize.correct_media import (
    MEDIA_BYTES_RULE,
    explain_media_correction,
    rewrite_media_raw,
    rewrite_result_raw,
)
from holdfast.normalize.media_limit import BODY_SIZE_SAFETY_FACTOR, estimate_part_bytes
from holdfast.planning.builder import PlanBuilder, build_part_edit
from holdfast.planning.shown_messages import sum_shown_messages
from holdfast.state.conversation_state import is_protected_part
from holdfast.state.dialect import NO_LIMIT, Dialect
from holdfast.state.edits import Edit
from holdfast.state.turns import find_newest_answer_index, find_newest_user_index

MEDIA_RULE = "media"
"""Rule of the edits, and of the notice about them."""
_SIZE_LABELS = {
    "attachments": "attachments",
    "images": "images",
    "bytes": "bytes",
    "images_with_large": "images where one is large",
}


class MediaSizes(NamedTuple):
    """The four sizes that limits exist for. ``images_with_large`` is the number of images if one of them is large."""

    attachments: int
    images: int
    bytes: int
    images_with_large: int

    def describe_sizes(self, *, with_large: bool) -> str:
        """Return the sizes in words, leaving out those without a limit."""
        sizes = self if with_large else self._replace(images_with_large=NO_LIMIT)
        phrases: list[str] = []
        for name, size in sizes._asdict().items():
            if size < NO_LIMIT:
                phrases.append(f"{size:,} {_SIZE_LABELS[name]}")
        return ", ".join(phrases)


class MediaLoad(Struct, frozen=True):
    """How many media there are, how many of them are images, their bytes, and how many of the images are large."""

    attachments: int = 0
    images: int = 0
    bytes: int = 0
    large: int = 0

    def add_load(self, load: MediaLoad) -> MediaLoad:
        """Return the sum of both loads."""
        return MediaLoad(
            self.attachments + load.attachments,
            self.images + load.images,
            self.bytes + load.bytes,
            self.large + load.large,
        )

    def subtract_load(self, load: MediaLoad) -> MediaLoad:
        """Return this load without ``load``."""
        return MediaLoad(
            self.attachments - load.attachments,
            self.images - load.images,
            self.bytes - load.bytes,
            self.large - load.large,
        )

    @property
    def sizes(self) -> MediaSizes:
        """The sizes to compare with limits."""
        return MediaSizes(self.attachments, self.images, self.bytes, self.images if self.large else 0)

    def __str__(self) -> str:
        """Return number, images and bytes in words."""
        return self.sizes.describe_sizes(with_large=False)


class MediaLimits(Struct, frozen=True):
    """The most media that a request may hold. Some APIs take fewer images if one of them is large."""

    attachments: int
    images: int
    bytes: int
    images_with_large: int = NO_LIMIT

    @property
    def sizes(self) -> MediaSizes:
        """The limits as sizes."""
        return MediaSizes(self.attachments, self.images, self.bytes, self.images_with_large)

    def can_hold(self, load: MediaLoad) -> bool:
        """Return whether no size of ``load`` is over its limit."""
        return all(size <= limit for size, limit in zip(load.sizes, self.sizes, strict=True))

    def tighten_by(self, limits: MediaLimits) -> MediaLimits:
        """Return the lower of both limits for each size."""
        return MediaLimits(*map(min, self.sizes, limits.sizes))

    def extend_by(self, load: MediaLoad) -> MediaLimits:
        """Return limits with room for ``load`` on top of these."""
        return MediaLimits(
            self.attachments + load.attachments,
            self.images + load.images,
            self.bytes + load.bytes,
            self.images_with_large + load.images,
        )

    def halve_exceeded(self, load: MediaLoad) -> MediaLimits:
        """Return these limits with half of each that ``load`` exceeds."""
        new_limits: list[int] = []
        for size, limit in zip(load.sizes, self.sizes, strict=True):
            new_limits.append(limit // 2 if size > limit else limit)
        return MediaLimits(*new_limits)

    def describe_limits(self, load: MediaLoad) -> str:
        """Return in words the limits that count for ``load``."""
        return self.sizes.describe_sizes(with_large=bool(load.large))


class ShownMedia(Struct, frozen=True):
    """A part that shows media: where it is, and how much it holds."""

    message_index: int
    part_index: int
    part: Part
    load: MediaLoad


def limit_shown_media(builder: PlanBuilder) -> PlanBuilder:
    """Replace the oldest media by a line each if there are too many or they are too large.

    Media that an undo restored do not count for the policy's limits, only for those of the API.
    """
    builder = _report_media_corrections(builder)
    builder = _reduce_oversized_images(builder)
    builder = _scale_large_images(builder)
    state = builder.state
    limits = compute_media_limits(builder)
    # The view knows how many media there are, but not of which kind. Most requests are within their limits even if
    # every attachment counts as a large image, and end here without a look at the messages.
    count, media_bytes = state.view.media_count, state.view.media_bytes
    if limits.can_hold(MediaLoad(count, count, media_bytes, count)):
        return builder
    shown_media = list(_find_shown_media(builder))
    newest_user = find_newest_user_index(state, state.view.first_kept)
    total_load = restored_load = newest_load = MediaLoad()
    for media in shown_media:
        total_load = total_load.add_load(media.load)
        if _is_restored(builder, media):
            restored_load = restored_load.add_load(media.load)
        if media.message_index == newest_user:
            newest_load = newest_load.add_load(media.load)
    api_limits = _get_api_media_limits(builder)
    limits = limits.extend_by(restored_load).tighten_by(api_limits)
    if limits.can_hold(total_load):
        return builder
    if not api_limits.can_hold(newest_load):
        # Replacing older media would not help. Only the provider knows whether it takes this message.
        limit_text = f"the API is known to accept {api_limits.describe_limits(newest_load)}"
        return builder.add_notice(
            MEDIA_RULE, f"the newest message has {newest_load}, but {limit_text}; it is sent unchanged"
        )

    why = f"the request has {total_load}; at most {limits.describe_limits(total_load)} are sent"
    replaceable_media = [media for media in shown_media if media.message_index != newest_user]
    edits = _build_limit_edits(builder, replaceable_media, total_load, limits, why)
    if not edits:
        return builder
    return builder.add_edits(tuple(edits)).add_notice(MEDIA_RULE, f"{why}; replaced {len(edits)} by a line each")


def _build_limit_edits(
    builder: PlanBuilder,
    shown_media: Iterable[ShownMedia],
    total_load: MediaLoad,
    limits: MediaLimits,
    why: str,
) -> list[Edit]:
    """Return the edits that replace the oldest of ``shown_media`` until ``total_load`` is within ``limits``.

    Media that the model has answered go first, then unanswered ones, and among each the restored ones last.
    """
    state = builder.state
    # Half of the limit is freed in one step, so that the prompt prefix does not break again at every new image. Only
    # media that the model has answered give that much; others go only until the request is within its limits.
    goal = limits.halve_exceeded(total_load)
    newest_answer = find_newest_answer_index(state, state.view.first_kept)

    def rank(media: ShownMedia) -> tuple[bool, bool]:
        is_unseen = media.message_index >= state.last_request.seen_count
        is_unanswered = is_unseen or 0 <= newest_answer < media.message_index
        return is_unanswered, _is_restored(builder, media)

    edits: list[Edit] = []
    for media in sorted(shown_media, key=rank):
        is_spared = any(rank(media))
        applicable_limits = limits if is_spared else goal
        if not applicable_limits.can_hold(total_load):
            edits.append(_build_placeholder_edit(media, why))
            total_load = total_load.subtract_load(media.load)
    return edits


def _is_restored(builder: PlanBuilder, media: ShownMedia) -> bool:
    """Return whether an undo brought these media back."""
    return is_protected_part(builder.state, media.message_index, media.part_index)


def _report_media_corrections(builder: PlanBuilder) -> PlanBuilder:
    """Add a notice for each new medium that normalization will correct, or replace by a line, for what its bytes are.

    The change itself is not recorded: it depends on the part alone, so that every request makes it in the same way.
    """
    dialect = builder.target.dialect
    if dialect.keeps_client_content:
        return builder
    for shown_media in _find_shown_media(builder, builder.state.last_request.seen_count):
        for media in collect_media_in_parts(shown_media.part):
            why = explain_media_correction(media, dialect)
            if why:
                builder = builder.add_notice(MEDIA_BYTES_RULE, f"{why} (message {shown_media.message_index + 1})")
    return builder


def _reduce_oversized_images(builder: PlanBuilder) -> PlanBuilder:
    """Reduce the images that have more pixels or bytes than the API takes, if this model has not been shown them yet.

    One that the model has seen was taken by its API, and replacing it now would break the cached prefix.
    """
    state = builder.state
    is_same_model = state.last_request.model == builder.target.model
    if is_same_model:
        first = state.last_request.seen_count
    else:
        first = state.view.first_kept
    edits = tuple(_build_oversized_edits(builder, first))
    if not edits:
        return builder
    return builder.add_edits(edits).add_notice(MEDIA_RULE, _describe_reduction(edits))


def _describe_reduction(edits: Sequence[Edit]) -> str:
    """Return the reason of edits that reduce images, with the number of those scaled and of those replaced."""
    scaled_count = sum(bool(collect_media_in_parts(*_list_parts(edit))) for edit in edits)
    outcomes: list[str] = []
    if scaled_count:
        outcomes.append(f"scaled {scaled_count} down")
    if scaled_count < len(edits):
        outcomes.append(f"replaced {len(edits) - scaled_count} by a line each")
        if not can_scale_images():
            outcomes.append("install the extra `images` to have them scaled down")
    return f"{edits[0].why}; {', '.join(outcomes)}"


def _list_parts(edit: Edit) -> list[Part]:
    return [part for part in edit.replacement if not isinstance(part, Message)]


def _build_oversized_edits(builder: PlanBuilder, first: int) -> Iterator[Edit]:
    """Yield the edits that reduce images with too many pixels or bytes, in the messages from index ``first`` on."""
    dialect = builder.target.dialect
    max_pixels, max_bytes = dialect.max_image_pixels, dialect.max_image_bytes
    limits: list[str] = []
    if max_pixels < NO_LIMIT:
        limits.append(f"{max_pixels:,} pixels a side")
    if max_bytes < NO_LIMIT:
        limits.append(f"{max_bytes:,} bytes of base64")
    if not limits:
        return
    why = f"the API accepts no image of more than {' or '.join(limits)}"

    def is_oversized(media: Media) -> bool:
        has_too_many_bytes = media.kind == "image" and media.form == "base64" and len(media.source) > max_bytes
        return has_too_many_bytes or is_oversized_image(media, max_pixels)

    for shown_media in _find_shown_media(builder, first):
        if any(map(is_oversized, collect_media_in_parts(shown_media.part))):
            yield _build_scaling_edit(shown_media, why, is_oversized, dialect)


def _scale_large_images(builder: PlanBuilder) -> PlanBuilder:
    """Scale large images down where there are more images than the API takes beside a large one.

    Nothing is replaced by a line here: what cannot be scaled is counted afterwards.
    """
    dialect = builder.target.dialect
    if builder.state.view.media_count <= dialect.max_images_with_large or not can_scale_images():
        return builder
    all_media = list(_find_shown_media(builder))
    if sum(media.load.images for media in all_media) <= dialect.max_images_with_large:
        return builder

    def is_large(media: Media) -> bool:
        return is_oversized_image(media, dialect.large_image_pixels)

    why = (
        f"the API accepts at most {dialect.max_images_with_large} images if one has more than"
        f" {dialect.large_image_pixels:,} pixels a side"
    )
    edits: list[Edit] = []
    for shown_media in all_media:
        if shown_media.load.large:
            edit = _build_scaling_edit(shown_media, why, is_large, dialect)
            if len(collect_media_in_parts(*_list_parts(edit))) == shown_media.load.attachments:
                edits.append(edit)
    if not edits:
        return builder
    return builder.add_edits(tuple(edits)).add_notice(MEDIA_RULE, _describe_reduction(edits))


def _build_scaling_edit(
    shown_media: ShownMedia, why: str, is_affected: Callable[[Media], bool], dialect: Dialect
) -> Edit:
    """Return the edit that scales the affected images of a part down, or replaces those by a line that cannot be."""
    max_pixels = min(dialect.max_image_pixels, dialect.large_image_pixels)
    saves = 0
    content: list[Text | Media | Opaque] = []
    part = shown_media.part
    for inner in part.content if isinstance(part, ToolResult) else (part,):
        reduced = inner
        if isinstance(inner, Media) and is_affected(inner):
            reduced = _scale_or_describe(inner, max_pixels, dialect.max_image_bytes)
            new_tokens = estimate_media_tokens(reduced) if isinstance(reduced, Media) else 0
            saves += max(0, estimate_media_tokens(inner) - new_tokens)
        if isinstance(reduced, Text | Media | Opaque):
            content.append(reduced)
    if isinstance(part, ToolResult):
        replacement: Part = replace(part, content=tuple(content), raw=rewrite_result_raw(part, content))
    else:
        replacement = content[0]
    return build_part_edit(shown_media.message_index, shown_media.part_index, replacement, MEDIA_RULE, why, saves)


def _scale_or_describe(media: Media, max_pixels: int, max_bytes: int) -> Media | Text:
    """Return an image scaled down, or its placeholder if it cannot be scaled or stays too large."""
    scaled = scale_down_image(media.source, max_pixels) if media.form == "base64" else None
    if scaled is None or len(scaled.data) > max_bytes:
        return Text(format_part_placeholder(media))
    raw = None if media.raw is None else rewrite_media_raw(media.raw, media, scaled.mime, scaled.data)
    size = len(scaled.data) // 4 * 3
    return replace(media, mime=scaled.mime, size=size, source=scaled.data, raw=raw)


def drop_shown_media(builder: PlanBuilder) -> PlanBuilder:
    """Replace media by a line each after the provider refused the request: the overflow step ``media``.

    Images with more pixels than the API takes go alone, as they are the likely reason. Otherwise all media go that the
    model has answered. Those that wait for an answer (in the user's newest message, and in results since the newest
    answer) go too if the request is still too large, or if no others were there: then these were too much. If they are
    over a known limit of the API, only the oldest of them go, as many as it takes.
    """
    state = builder.state
    if builder.inputs.refused_media is not None:
        return _drop_refused_media(builder, builder.inputs.refused_media)
    oversized_edits = tuple(_build_oversized_edits(builder, state.view.first_kept))
    if oversized_edits:
        return builder.add_edits(oversized_edits)
    newest_user = find_newest_user_index(state, state.view.first_kept)
    newest_answer = find_newest_answer_index(state, state.view.first_kept)
    why = "the provider refused the request as too large"

    waiting: list[ShownMedia] = []
    answered: list[ShownMedia] = []
    for media in _find_shown_media(builder):
        is_waiting = media.message_index == newest_user or 0 <= newest_answer < media.message_index
        if is_waiting:
            waiting.append(media)
        else:
            answered.append(media)

    reduced = _replace_media(builder, answered, why)
    limits = compute_media_limits(reduced)
    waiting_load = _sum_media_load(waiting)
    if not limits.can_hold(waiting_load):
        surplus = _take_surplus_media(waiting, waiting_load, limits)
        return _replace_media(reduced, surplus, why)
    has_media_edits = any(edit.rule == MEDIA_RULE for edit in reduced.record)
    if not has_media_edits or reduced.upper_estimate > builder.budget.usable:
        return _replace_media(reduced, waiting, why)
    return reduced


def _drop_refused_media(builder: PlanBuilder, sources: Sequence[str]) -> PlanBuilder:
    """Replace the media with these sources, or without any the newest part that the provider has not taken before.

    All other media stay: a server that cannot read one picture can read the others.
    """
    wanted = frozenset(sources)
    all_media = list(_find_shown_media(builder))
    refused = [shown for shown in all_media if wanted and _find_sources(shown.part, wanted)]
    if not refused:
        new_media = [shown for shown in all_media if shown.message_index >= builder.state.last_request.seen_count]
        refused = new_media[-1:] or all_media[-1:]
        wanted = frozenset()
    if not refused:
        return builder
    why = "the provider refused this image or document"
    edits = [_build_placeholder_edit(shown, why, sources=wanted) for shown in refused]
    numbers = ", ".join(str(shown.message_index + 1) for shown in refused)
    notice = f"{why} (message {numbers}); a line stands for it. Attach it again in another form if it is needed"
    return builder.add_edits(tuple(edits)).add_notice(MEDIA_RULE, notice)


def _find_sources(part: Part, sources: AbstractSet[str]) -> list[Media]:
    """Return the media of a part that were sent with one of ``sources``."""
    return [media for media in collect_media_in_parts(part) if _is_sent_as(media, sources)]


def _is_sent_as(media: Media, sources: AbstractSet[str]) -> bool:
    # Base64 may have been corrected on its way.
    return media.source in sources or (media.form == "base64" and inspect_base64(media.source).data in sources)


def _replace_media(builder: PlanBuilder, shown_media: Iterable[ShownMedia], why: str) -> PlanBuilder:
    return builder.add_edits(tuple([_build_placeholder_edit(media, why) for media in shown_media]))


def build_media_edits(builder: PlanBuilder, message_index: int, why: str) -> tuple[Edit, ...]:
    """Return the edits that replace all media of one message by a line each."""
    edits: list[Edit] = []
    for media in _find_shown_media(builder, message_index):
        if media.message_index != message_index:
            break
        edits.append(_build_placeholder_edit(media, why))
    return tuple(edits)


def _take_surplus_media(
    shown_media: Iterable[ShownMedia], load: MediaLoad, limits: MediaLimits
) -> Iterator[ShownMedia]:
    """Yield the oldest media, as many as must go so that the rest of ``load`` is within ``limits``."""
    for media in shown_media:
        if limits.can_hold(load):
            return
        yield media
        load = load.subtract_load(media.load)


def compute_media_limits(builder: PlanBuilder) -> MediaLimits:
    """Return the most media that a request may hold: the lower of the policy's limits and those known of the API."""
    settings = builder.settings.media
    policy_limits = MediaLimits(
        settings.max_count or NO_LIMIT,
        NO_LIMIT,
        settings.max_bytes or NO_LIMIT,
    )
    return policy_limits.tighten_by(_get_api_media_limits(builder))


def _get_api_media_limits(builder: PlanBuilder) -> MediaLimits:
    """Return the most media that the API is known to take."""
    dialect, state = builder.target.dialect, builder.state
    max_bytes = dialect.max_bytes
    if state.view.media_bytes * BODY_SIZE_SAFETY_FACTOR > max_bytes:
        # Media have a large part of the body, so it pays to measure what else is in it. Of the rest three quarters can
        # be media, since base64 makes four bytes of three.
        other_bytes = sum_shown_messages(state, _count_non_media_bytes)
        max_bytes = max(0, max_bytes - other_bytes) * 3 // 4
    return MediaLimits(NO_LIMIT, dialect.max_images, max_bytes, dialect.max_images_with_large)


def _count_non_media_bytes(message: Message) -> int:
    """Return the estimated bytes of a message in a request body, without its media."""
    total_bytes = sum(map(estimate_part_bytes, message.parts))
    media_bytes = sum(len(medium.source) for medium in collect_media_in_parts(*message.parts))
    return total_bytes - media_bytes


def _sum_media_load(shown_media: Iterable[ShownMedia]) -> MediaLoad:
    total_load = MediaLoad()
    for media in shown_media:
        total_load = total_load.add_load(media.load)
    return total_load


def _find_shown_media(builder: PlanBuilder, first: int = 0) -> Iterator[ShownMedia]:
    """Yield the parts that show media in the messages from index ``first`` on, oldest first, as they are shown now.

    A replacement of whole messages, which only a custom stage makes, is left alone.
    """
    state, dialect = builder.state, builder.target.dialect
    first_position = bisect_left(state.view.media_indexes, first)
    for index in state.view.media_indexes[first_position:]:
        replacements = {edit.span.part: edit.replacement for edit in state.view.edits.get(index, ())}
        if None in replacements:
            continue
        for part_index, original in enumerate(state.history.messages[index].parts):
            for part in replacements.get(part_index, (original,)):
                if isinstance(part, Message):
                    continue
                media = collect_media_in_parts(part)
                if media:
                    yield ShownMedia(index, part_index, part, _measure_media_load(media, dialect))


def _measure_media_load(media: Sequence[Media], dialect: Dialect) -> MediaLoad:
    # To tell the size of an image its beginning must be decoded, so only an API with such a limit makes us look.
    has_large_limit = dialect.large_image_pixels < NO_LIMIT
    images = large = media_bytes = 0
    for medium in media:
        media_bytes += medium.size
        if medium.kind == "image":
            images += 1
            if has_large_limit and is_oversized_image(medium, dialect.large_image_pixels):
                large += 1
    return MediaLoad(len(media), images, media_bytes, large)


def _build_placeholder_edit(shown_media: ShownMedia, why: str, sources: AbstractSet[str] = frozenset()) -> Edit:
    """Return the edit that replaces the media of a part by a line each.

    With ``sources`` only media that were sent with one of them are replaced.
    """

    def get_placeholder(media: Media) -> str:
        """Return the line for one medium; empty if it stays."""
        if sources and not _is_sent_as(media, sources):
            return ""
        return format_part_placeholder(media)

    saves = 0
    for media in collect_media_in_parts(shown_media.part):
        placeholder = get_placeholder(media)
        if placeholder:
            saves += estimate_media_tokens(media) - estimate_text_tokens(placeholder)
    replacement = replace_media_with_text(shown_media.part, get_placeholder)
    return build_part_edit(
        shown_media.message_index,
        shown_media.part_index,
        replacement,
        MEDIA_RULE,
        why,
        saves,
    )
