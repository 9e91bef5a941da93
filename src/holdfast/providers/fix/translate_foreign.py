"""What stands in another API's form, read by that API's reader and written by this one's writer.

A message in which nothing is foreign keeps its bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Raw

from holdfast.errors import FormatError
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.content_kinds import THINKING_KIND
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.lenient_json import read_json_items
from holdfast.providers.common.json.raw_json import decode_json_value, encode_json, replace_json_fields
from holdfast.providers.fix.fix_context import FixContext, RequestFix
from holdfast.providers.fix.mixed_messages import TranslatedMessage, split_results_from_answer, translate_message
from holdfast.providers.foreign.convert_request import describe_unshown_media, move_result_media
from holdfast.providers.foreign.foreign_blocks import ForeignBlock, find_foreign_blocks
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.requests.request_body import encode_sized_messages
from holdfast.providers.rules.rule import Finding

_RULE_NAME = "foreign-form"


def translate_foreign_messages(
    body: bytes, work: FixContext, _errors: Sequence[Finding]
) -> tuple[bytes, list[RequestFix]]:
    """Return the body with what stands in another API's form in that of its own."""
    spec, fields = work.spec, parse_body_fields(body)
    raws = read_json_items(fields.get(spec.messages_field))
    signs = [_list_foreign_blocks(raw, spec) for raw in raws]
    if not any(signs) and spec.shape.results_hold_media:
        return body, []
    reads = [
        element
        for raw, message_signs in zip(raws, signs, strict=True)
        for element in split_results_from_answer(translate_message(raw, spec, message_signs))
    ]
    sized_messages, move_notes = _build_sized_messages(reads, spec)
    if not sized_messages or not (any(signs) or move_notes):
        return body, []
    wire = [Raw(element) for group in encode_sized_messages(spec, sized_messages) for element in group]
    edits = [*_describe_translations(signs, spec), *_describe_losses(reads, sized_messages, move_notes, spec)]
    return replace_json_fields(body, fields, {spec.messages_field: encode_json(wire)}), edits


def _list_foreign_blocks(raw: Raw, spec: ApiSpec) -> list[ForeignBlock]:
    """Return what is strange in a message; nothing of one that cannot be read."""
    try:
        return list(find_foreign_blocks(decode_json_value(raw), spec.api))
    except FormatError:
        return []


def _build_sized_messages(reads: Sequence[TranslatedMessage], spec: ApiSpec) -> tuple[list[SizedMessage], list[str]]:
    """Return what is to be sent, results tied to their calls, and a note on media that stand behind these now."""
    linked_messages = gemini.link_results_to_calls([translation.message for translation in reads])
    messages = [
        translation.message if translation.raw is not None else new
        for translation, new in zip(reads, linked_messages, strict=True)
    ]
    translations_by_id = {id(message): translation for message, translation in zip(messages, reads, strict=True)}
    messages, move_notes = move_result_media(messages, spec)
    pairs = [(message, translations_by_id.get(id(message), TranslatedMessage(message))) for message in messages]
    sized_messages = [
        SizedMessage(message, api=spec.api, raw=translation.raw, base_raw=translation.base)
        for message, translation in pairs
    ]
    return [
        sized_message
        for sized_message in sized_messages
        if sized_message.raw is not None or sized_message.message.parts
    ], move_notes


# -- what is told ------------------------------------------------------------------------------------------------------


def _describe_translations(foreign_blocks: Sequence[Sequence[ForeignBlock]], spec: ApiSpec) -> Iterator[RequestFix]:
    """Yield a line for each kind of thing that is written anew, with the first place of it."""
    kind_paths = [
        (kind, f"$.{spec.messages_field}[{at}]{path}")
        for at, message_signs in enumerate(foreign_blocks)
        for path, kind in message_signs
    ]
    first = dict(reversed(kind_paths))
    for kind, number in Counter(kind for kind, _ in kind_paths if kind.content_kind != THINKING_KIND).items():
        yield RequestFix(
            _RULE_NAME, f"{number} × {kind.description}: written as {spec.display_name} has it", first[kind]
        )


def _describe_losses(
    reads: Sequence[TranslatedMessage], sized_messages: Sequence[SizedMessage], move_notes: Sequence[str], spec: ApiSpec
) -> Iterator[RequestFix]:
    """Yield a line for each kind of thing that has no place in this API."""
    place = f"$.{spec.messages_field}"
    yield from (RequestFix(_RULE_NAME, note, place) for note in move_notes)
    note_counts = Counter(note for translation in reads for note in translation.losses)
    new_messages = [sized_message.message for sized_message in sized_messages if sized_message.raw is None]
    for note in (
        *(f"{number} × {note}" for note, number in note_counts.items()),
        *describe_unshown_media(new_messages, spec),
    ):
        yield RequestFix(_RULE_NAME, f"{note}: {spec.display_name} has no other form for it", place)
