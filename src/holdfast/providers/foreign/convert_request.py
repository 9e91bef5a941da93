"""Convert a request of one API to another: its messages, its options, and notes on all that has no form there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message, collect_media_in_messages, format_part_placeholder, get_result_text
from holdfast.messages.old_calls import has_old_call, rewrite_old_calls
from holdfast.messages.parts import Media, Opaque, Part, Thinking, ToolResult
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.strip_foreign import (
    SEALED_SEARCH_KINDS,
    get_opaque_text,
    is_message_or_field,
    strip_foreign_content,
)
from holdfast.normalize.ids import mint_call_id
from holdfast.normalize.result_media import move_media_after_results
from holdfast.normalize.roles import CONTINUE_TEXT
from holdfast.normalize.tracked_messages import TrackedMessage
from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.raw_json import encode_json, replace_json_fields
from holdfast.providers.common.portable_options import PortableOptions
from holdfast.providers.common.tool_names import map_invalid_tool_names, rename_message_tools
from holdfast.providers.registry import get_api_dialect, get_api_spec, have_one_provider
from holdfast.providers.requests.options import read_request_options, write_request_options
from holdfast.providers.requests.parsed_request import ParsedRequest, parse_request
from holdfast.providers.requests.recognize import recognize_api
from holdfast.providers.requests.request_body import build_request_body
from holdfast.state.codec.reading import get_decoder
from holdfast.state.dialect import Dialect


def convert_request(
    request: bytes,
    target_api: str,
    model: str = "",
    *,
    api: str | None = None,
) -> tuple[bytes, tuple[str, ...]]:
    """Convert ``request`` to a body of ``target_api``; return it with a note on each thing that has no form there.

    ``model`` is the model to name, by default the one in the body. ``api`` is the API of ``request``, by default
    recognized from it. Messages are translated one by one and not repaired. A body that is one of ``target_api``
    already keeps its bytes.

    Raises ``UnrecognizedContent`` and ``FormatError`` as ``parse_request`` does, and ``FormatError`` if a part of the
    history is stored by the provider and not in the body.
    """
    spec = get_api_spec(target_api)
    fields = parse_body_fields(request)
    api = api or recognize_api(fields)
    if api == target_api:
        has_other_model = model and spec.has_model_field and bytes(fields.get("model", b"")) != encode_json(model)
        if not has_other_model:
            return request, ()
        return replace_json_fields(request, fields, {"model": encode_json(model)}), ()
    parsed_request = _rewrite_old_calls(parse_request(request, api), get_api_dialect(target_api, model))
    _require_inline_history(parsed_request)
    source_spec = get_api_spec(parsed_request.api)
    source_options = read_request_options(parsed_request.api, parsed_request.fields, source_spec.messages_field)
    messages, message_notes = _convert_messages(parsed_request, source_options, spec)
    target_model = model or parsed_request.model
    source_options, messages, name_notes = _rename_invalid_tools(source_options, messages, spec, target_model)
    target_options, option_notes = write_request_options(target_api, source_options, target_model)
    sized_messages = []
    for message in messages:
        if message.parts:
            sized_messages.append(SizedMessage(message))
    body = build_request_body(target_api, target_model, sized_messages, setup_fields=target_options)
    return body, (
        *_describe_dropped_parts(parsed_request, target_api),
        *message_notes,
        *name_notes,
        *_describe_dropped_options(source_options),
        *option_notes,
    )


# -- history that is stored by the provider ----------------------------------------------------------------------------


def _require_inline_history(parsed_request: ParsedRequest) -> None:
    """Raise ``FormatError`` if a part of the history is not in the body, but stored by the provider."""
    options = get_api_spec(parsed_request.api).options
    names = options.stored_history_fields
    if not parsed_request.messages:  # a stored prompt is the whole request only where there is nothing else
        names = (*names, *options.stored_prompt_fields)
    history_fields = []
    for key in names:
        if bytes(parsed_request.fields.get(key, b"null")) not in (b"null", b'""'):
            history_fields.append(key)
    if history_fields:
        reference = f"the field {history_fields[0]!r}"
    elif _has_item_reference(parsed_request, options.reference_item_types):
        reference = "an item_reference"
    else:
        return
    raise FormatError(
        f"{reference} refers to history that the provider stores, so it cannot be converted; put the messages"
        " themselves into the request, then convert it"
    )


def _has_item_reference(parsed_request: ParsedRequest, reference_types: Sequence[str]) -> bool:
    for sized_message in parsed_request.messages:
        for part in sized_message.message.parts:
            if isinstance(part, Opaque) and _get_item_type(part) in reference_types:
                return True
    return False


class _ItemType(msgspec.Struct):
    type: str = ""


def _get_item_type(part: Opaque) -> str | None:
    """Return the field ``type`` of an opaque part, or None if it is not an object of JSON."""
    if part.raw is None:
        return None
    try:
        return get_decoder(_ItemType).decode(part.raw).type
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


# -- messages ----------------------------------------------------------------------------------------------------------


def _convert_messages(
    parsed_request: ParsedRequest, options: PortableOptions, spec: ApiSpec
) -> tuple[list[Message], list[str]]:
    """Convert the messages to those of the target API, the system prompt first, with notes on the changes."""
    keeps_file_ids = have_one_provider(spec.api, parsed_request.api)
    messages = []
    for text in options.system:
        if text:
            messages.append(Message.from_text("system", text))
    for sized_message in parsed_request.messages:
        messages.append(strip_foreign_content(sized_message.message, spec.api, keeps_file_ids=keeps_file_ids))
    messages, notes = move_result_media(messages, spec)
    # Where the system prompt is a field, a request of nothing else would have an empty list, which is refused.
    if spec.system_fields and messages and all(message.role == "system" for message in messages):
        messages.append(Message.from_text("user", CONTINUE_TEXT))
        notes.append(f"a user message was added, because the API needs one: {CONTINUE_TEXT!r}")
    return messages, [*notes, *describe_unshown_media(messages, spec)]


def _rewrite_old_calls(parsed_request: ParsedRequest, dialect: Dialect) -> ParsedRequest:
    """Put calls and results in the place of Chat's old form, which no other API has."""
    messages = [sized_message.message for sized_message in parsed_request.messages]
    if not any(map(has_old_call, messages)):
        return parsed_request
    new_messages = rewrite_old_calls(messages, lambda seed: mint_call_id(seed, dialect))
    return replace(parsed_request, messages=tuple(map(SizedMessage, new_messages)))


def move_result_media(messages: Sequence[Message], spec: ApiSpec) -> tuple[list[Message], list[str]]:
    """Move media out of tool results into a user message after them, for APIs with text-only results.

    Returns the messages and a note on the number of moved media; the same messages and no note if nothing moves.
    """
    if spec.shape.results_hold_media:
        return list(messages), []
    can_show = spec.shape.can_show_media or _always
    media_count = 0
    for message in messages:
        for result in message.results:
            for part in result.content:
                if isinstance(part, Media) and can_show(part):
                    media_count += 1
    if not media_count:
        return list(messages), []
    tracked_messages = [TrackedMessage(index, index + 1, message) for index, message in enumerate(messages)]
    note = f"{media_count} × media in a tool result: moved into a user message after it"
    moved_messages = move_media_after_results(tracked_messages, can_show, {})
    return [tracked.message for tracked in moved_messages], [note]


def _always(_part: Media) -> bool:
    return True


def describe_unshown_media(messages: Sequence[Message], spec: ApiSpec) -> list[str]:
    """Return a note on each kind of media that this API can only show as a placeholder line."""
    line_counts: Counter[str] = Counter()
    for message in messages:
        for media in collect_media_in_messages(message):
            if not _is_media_shown(media, message, spec):
                line_counts[_describe_placeholder(media)] += 1
    return [f"{count} × {line}" for line, count in line_counts.items()]


def _describe_placeholder(part: Media) -> str:
    return f"{part.kind}: replaced by {format_part_placeholder(part)!r}"


def _is_media_shown(part: Media, message: Message, spec: ApiSpec) -> bool:
    """Return whether the API's writer keeps ``part``, which is in ``message`` or in one of its results.

    The writer is asked by encoding the part and reading it back, so that its rules need not be written down twice.
    """
    holder: Part = part if part in message.parts else ToolResult("a", "a", (part,))
    placeholder = format_part_placeholder(part)
    for raw in spec.encode_message(Message(message.role, (holder,)), None):
        decoded = spec.decode_message(raw)
        if placeholder == decoded.text or placeholder in map(get_result_text, decoded.results):
            return False
    return True


def _rename_invalid_tools(
    options: PortableOptions,
    messages: list[Message],
    spec: ApiSpec,
    model: str,
) -> tuple[PortableOptions, list[Message], list[str]]:
    """Rename tools with names that the API refuses, in declarations, choice, calls and results alike, with notes."""
    tool_names = [tool.name for tool in options.tools]
    for message in messages:
        tool_names += [call.name for call in message.calls]
    for message in messages:
        tool_names += [result.name for result in message.results]
    # All names at once, so that no new name is one that another tool has.
    names = map_invalid_tool_names([*tool_names, options.chosen_tool], get_api_dialect(spec.api, model))
    if not names:
        return options, messages, []
    tools = tuple([replace(tool, name=names.get(tool.name, tool.name)) for tool in options.tools])
    chosen_tool = names.get(options.chosen_tool, options.chosen_tool)
    renamed_options = replace(options, tools=tools, chosen_tool=chosen_tool)
    renamed_messages = [rename_message_tools(message, names) for message in messages]
    notes = [f"the tool {old!r} is renamed to {new!r}" for old, new in names.items()]
    return renamed_options, renamed_messages, notes


# -- losses ------------------------------------------------------------------------------------------------------------


def _describe_dropped_parts(parsed_request: ParsedRequest, target_api: str) -> list[str]:
    """Return a note on each kind of part that the target API cannot have."""
    keeps_file_ids = have_one_provider(target_api, parsed_request.api)
    loss_counts: Counter[str] = Counter()
    error_result_count = 0
    for sized_message in parsed_request.messages:
        message = sized_message.message
        stripped_message = strip_foreign_content(message, target_api, keeps_file_ids=keeps_file_ids)
        loss_counts.update(iter_part_losses(message, stripped_message))
        error_result_count += sum(result.is_error for result in message.results)
    notes = [f"{count} × {loss}" for loss, count in loss_counts.items()]
    if error_result_count and not get_api_spec(target_api).shape.has_error_flag:
        notes.append(f"{error_result_count} × the error flag of a tool result: left out, the text is kept")
    return notes


def iter_part_losses(before: Message, after: Message) -> Iterator[str]:
    """Yield a note on each part of ``before`` that ``after``, the same message without foreign content, lacks."""
    kept_media = Counter(collect_media_in_messages(after))
    for part in _iter_parts_and_content(before):
        if isinstance(part, Thinking):
            yield "thinking: left out, signed by another API"
        elif isinstance(part, Opaque):
            if is_message_or_field(part):
                fate = "left out"
            elif get_opaque_text(part):
                fate = "titles and addresses kept as text" if part.kind in SEALED_SEARCH_KINDS else "kept as text"
            else:
                fate = f"replaced by {format_part_placeholder(part)!r}"
            yield f"{part.kind}: {fate}"
        elif isinstance(part, Media) and not kept_media[replace(part, raw=None)]:
            yield _describe_placeholder(part)


def _iter_parts_and_content(message: Message) -> Iterator[Part]:
    """Yield the parts of a message, and after each result the parts of its content."""
    for part in message.parts:
        yield part
        if isinstance(part, ToolResult):
            yield from part.content


def _describe_dropped_options(options: PortableOptions) -> list[str]:
    """Return a note on each built-in tool and each field that no other API has a form for."""
    tool_notes = []
    for tool_type in options.other_tools:
        tool_name = tool_type or "without a type"
        tool_notes.append(f"the tool {tool_name}: left out, only functions of the client can be converted")
    return tool_notes + [f"the field {name}: left out" for name in options.unread_fields]
