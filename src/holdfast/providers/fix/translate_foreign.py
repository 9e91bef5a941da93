"""Translate message content in another API's form: read by that API's reader, written by this one's writer.

A message without anything foreign keeps its bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Raw

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.content_kinds import THINKING_KIND
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.lenient_json import read_json_items
from holdfast.providers.common.json.raw_json import decode_json_value, encode_json, replace_json_fields
from holdfast.providers.fix.fix_context import FixContext, RequestFix
from holdfast.providers.fix.mixed_messages import TranslatedMessage, split_results_from_answer, translate_message
from holdfast.providers.foreign.convert_request import describe_unshown_media, move_result_media
from holdfast.providers.foreign.foreign_blocks import BlockOrigin, ForeignBlock, find_foreign_blocks
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.requests.request_body import encode_sized_messages
from holdfast.providers.rules.rule import Finding

_RULE_NAME = "foreign-form"


def translate_foreign_messages(
    body: bytes, context: FixContext, _errors: Sequence[Finding]
) -> tuple[bytes, list[RequestFix]]:
    """Translate the parts of messages that are in another API's form to that of this one.

    Media in tool results move after the results if this API's results cannot hold any.
    """
    spec = context.spec
    fields = parse_body_fields(body)
    raws = read_json_items(fields.get(spec.messages_field))
    blocks_by_message = [_list_foreign_blocks(raw, spec) for raw in raws]
    if not any(blocks_by_message) and spec.shape.results_hold_media:
        return body, []
    translations: list[TranslatedMessage] = []
    for raw, foreign_blocks in zip(raws, blocks_by_message, strict=True):
        translations += split_results_from_answer(translate_message(raw, spec, foreign_blocks))
    sized_messages, move_notes = _build_sized_messages(translations, spec)
    has_changes = any(blocks_by_message) or bool(move_notes)
    if not sized_messages or not has_changes:
        return body, []
    elements = [Raw(element) for group in encode_sized_messages(spec, sized_messages) for element in group]
    fixes = [
        *_describe_translations(blocks_by_message, spec),
        *_describe_losses(translations, sized_messages, move_notes, spec),
    ]
    return replace_json_fields(body, fields, {spec.messages_field: encode_json(elements)}), fixes


def _list_foreign_blocks(raw: Raw, spec: ApiSpec) -> list[ForeignBlock]:
    """List the foreign blocks of a message, or none if it cannot be read."""
    try:
        return list(find_foreign_blocks(decode_json_value(raw), spec.api))
    except FormatError:
        return []


def _build_sized_messages(
    translations: Sequence[TranslatedMessage], spec: ApiSpec
) -> tuple[list[SizedMessage], list[str]]:
    """Build the messages to send, with results tied to calls, and notes on media that were moved out of results.

    Messages that are empty after the translation are left out.
    """
    linked_messages = gemini.link_results_to_calls([translation.message for translation in translations])
    messages: list[Message] = []
    translations_by_id: dict[int, TranslatedMessage] = {}
    for translation, linked_message in zip(translations, linked_messages, strict=True):
        # A message that keeps its bytes keeps its ids too.
        if translation.raw is not None:
            message = translation.message
        else:
            message = linked_message
        messages.append(message)
        translations_by_id[id(message)] = translation
    # By identity: messages that `move_result_media` leaves alone are the same objects; new ones have no translation.
    sendable_messages, move_notes = move_result_media(messages, spec)
    sized_messages = []
    for message in sendable_messages:
        translation = translations_by_id.get(id(message), TranslatedMessage(message))
        if translation.raw is not None or message.parts:
            sized_messages.append(
                SizedMessage(
                    message,
                    api=spec.api,
                    raw=translation.raw,
                    base_raw=translation.base,
                )
            )
    return sized_messages, move_notes


# -- reports -----------------------------------------------------------------------------------------------------------


def _describe_translations(foreign_blocks: Sequence[Sequence[ForeignBlock]], spec: ApiSpec) -> Iterator[RequestFix]:
    """Yield one report for each kind of foreign block, with their number and the path of the first.

    Thinking is left out: it cannot be translated, and is reported as a loss.
    """
    counts: Counter[BlockOrigin] = Counter()
    first_paths: dict[BlockOrigin, str] = {}
    for index, message_blocks in enumerate(foreign_blocks):
        for path, origin in message_blocks:
            if origin.content_kind != THINKING_KIND:
                counts[origin] += 1
                first_paths.setdefault(origin, f"$.{spec.messages_field}[{index}]{path}")
    for origin, count in counts.items():
        reason = f"{count} × {origin.description}: rewritten in the form of {spec.display_name}"
        yield RequestFix(_RULE_NAME, reason, first_paths[origin])


def _describe_losses(
    translations: Sequence[TranslatedMessage],
    sized_messages: Sequence[SizedMessage],
    move_notes: Sequence[str],
    spec: ApiSpec,
) -> Iterator[RequestFix]:
    """Yield one report for each kind of content that was moved, or that has no place in this API."""
    path = f"$.{spec.messages_field}"
    for note in move_notes:
        yield RequestFix(_RULE_NAME, note, path)
    loss_counts = Counter(note for translation in translations for note in translation.losses)
    new_messages = []
    for sized_message in sized_messages:
        if sized_message.raw is None:
            new_messages.append(sized_message.message)
    losses = [f"{count} × {note}" for note, count in loss_counts.items()]
    losses += describe_unshown_media(new_messages, spec)
    for loss in losses:
        yield RequestFix(_RULE_NAME, f"{loss}: {spec.display_name} has no other form for it", path)
