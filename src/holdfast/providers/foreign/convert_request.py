"""A request of one API as a request of another: what it says, what it asks for, and what was left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message, collect_media_in_messages, format_part_placeholder, get_result_text
from holdfast.messages.parts import Media, Opaque, Part, Thinking, ToolResult
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.strip_foreign import get_opaque_text, is_message_or_field, strip_foreign_content
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
from holdfast.providers.requests.recognize import recognize_api
from holdfast.providers.requests.request_body import ParsedRequest, build_request_body, parse_request
from holdfast.state.codec.reading import get_decoder


def convert_request(
    request: bytes, target_api: str, model: str = "", *, api: str | None = None
) -> tuple[bytes, tuple[str, ...]]:
    """Return ``request`` as a body of the API ``target_api``, and a note on each thing that has no form there.

    ``model`` is the one to name, empty for the body's own. The messages are translated one by one and not repaired. A
    body that is one of ``target_api`` already keeps its bytes. Raises ``UnrecognizedContent`` and ``FormatError`` as
    ``parse_request``, and ``FormatError`` where a part of the history is not in the body but with the provider.
    """
    spec, fields = get_api_spec(target_api), parse_body_fields(request)
    api = api or recognize_api(fields)
    if api == target_api:
        has_other_model = model and spec.has_model_field and bytes(fields.get("model", b"")) != encode_json(model)
        return (replace_json_fields(request, fields, {"model": encode_json(model)}) if has_other_model else request), ()
    parsed_request = parse_request(request, api)
    _require_inline_history(parsed_request)
    source_options = read_request_options(
        parsed_request.api, parsed_request.fields, get_api_spec(parsed_request.api).messages_field
    )
    messages, notes = _convert_messages(parsed_request, source_options, spec)
    source_options, messages, new = _rename_invalid_tools(source_options, messages, spec, model or parsed_request.model)
    options, option_notes = write_request_options(target_api, source_options)
    out = build_request_body(
        target_api,
        model or parsed_request.model,
        [SizedMessage(message) for message in messages if message.parts],
        setup_fields=options,
    )
    return out, (
        *_describe_dropped_parts(parsed_request, target_api),
        *notes,
        *new,
        *_describe_dropped_options(source_options),
        *option_notes,
    )


# -- what is not in the body -------------------------------------------------------------------------------------------


def _require_inline_history(parsed_request: ParsedRequest) -> None:
    """Raise ``FormatError`` where what was said is not in the body but with the provider."""
    options = get_api_spec(parsed_request.api).options
    names = options.stored_history_fields
    if not parsed_request.messages:
        names = (*names, *options.stored_prompt_fields)
    history_fields = [key for key in names if bytes(parsed_request.fields.get(key, b"null")) not in (b"null", b'""')]
    kinds = [
        part
        for sized_message in parsed_request.messages
        for part in sized_message.message.parts
        if isinstance(part, Opaque)
    ]
    has_reference = any(_get_item_type(part) in options.reference_item_types for part in kinds)
    if history_fields or has_reference:
        where = f"the field {history_fields[0]!r}" if history_fields else "an item_reference"
        raise FormatError(
            f"{where} refers to history that lies with the provider, so it cannot be sent elsewhere; put the messages"
            " themselves into the request, then convert it"
        )


class _ItemType(msgspec.Struct):
    type: str = ""


def _get_item_type(part: Opaque) -> str | None:
    """Return the type that an opaque part says; None where it says none that can be read."""
    try:
        return None if part.raw is None else get_decoder(_ItemType).decode(part.raw).type
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


# -- what is said ------------------------------------------------------------------------------------------------------


def _convert_messages(
    parsed_request: ParsedRequest, options: PortableOptions, spec: ApiSpec
) -> tuple[list[Message], list[str]]:
    """Return the messages as the other API says them, the system prompt first, and what was done to them."""
    keeps_file_ids = have_one_provider(spec.api, parsed_request.api)
    messages = [Message.from_text("system", words) for words in options.system if words]
    messages += [
        strip_foreign_content(sized_message.message, spec.api, keeps_file_ids=keeps_file_ids)
        for sized_message in parsed_request.messages
    ]
    messages, notes = move_result_media(messages, spec)
    if spec.system_fields and messages and all(message.role == "system" for message in messages):
        messages.append(Message.from_text("user", CONTINUE_TEXT))
        notes.append(f"a user's message was added, since one must stand there: {CONTINUE_TEXT!r}")
    return messages, [*notes, *describe_unshown_media(messages, spec)]


def move_result_media(messages: Sequence[Message], spec: ApiSpec) -> tuple[list[Message], list[str]]:
    """Return the messages with the media of results behind each batch of these, and a note on how many moved.

    That is for APIs whose results hold words alone.
    """
    shape = spec.shape
    results = [] if shape.results_hold_media else [result for message in messages for result in message.results]
    can_show = shape.can_show_media or _always
    media_count = sum(isinstance(part, Media) and can_show(part) for result in results for part in result.content)
    if not media_count:
        return list(messages), []
    items = [TrackedMessage(at, at + 1, message) for at, message in enumerate(messages)]
    note = f"{media_count} × media in a tool's result: a user shows it behind the results"
    return [item.message for item in move_media_after_results(items, can_show, {})], [note]


def _always(_part: Media) -> bool:
    return True


def describe_unshown_media(messages: Sequence[Message], spec: ApiSpec) -> list[str]:
    """Return a note on each kind of media for which this API has no form but a line."""
    line_counts: Counter[str] = Counter()
    for message in messages:
        line_counts.update(
            _describe_placeholder(part)
            for part in collect_media_in_messages(message)
            if not _is_media_shown(part, message, spec)
        )
    return [f"{number} × {line}" for line, number in line_counts.items()]


def _describe_placeholder(part: Media) -> str:
    return f"{part.kind}: {format_part_placeholder(part)!r} stands there"


def _is_media_shown(part: Media, message: Message, spec: ApiSpec) -> bool:
    """Return whether ``part`` is written as itself where it stands in ``message``."""
    holder: Part = part if part in message.parts else ToolResult("a", "a", (part,))
    for raw in spec.encode_message(Message(message.role, (holder,)), None):
        new_message = spec.decode_message(raw)
        if format_part_placeholder(part) in (
            new_message.text,
            *(get_result_text(result) for result in new_message.results),
        ):
            return False
    return True


def _rename_invalid_tools(
    options: PortableOptions, messages: list[Message], spec: ApiSpec, model: str
) -> tuple[PortableOptions, list[Message], list[str]]:
    """Return all with the names of tools that this API takes, the same everywhere, and a note on each new one."""
    tool_names = [tool.name for tool in options.tools]
    tool_names += [call.name for message in messages for call in message.calls]
    tool_names += [result.name for message in messages for result in message.results]
    names = map_invalid_tool_names([*tool_names, options.chosen_tool], get_api_dialect(spec.api, model))
    if not names:
        return options, messages, []
    tools = tuple([replace(tool, name=names.get(tool.name, tool.name)) for tool in options.tools])
    options = replace(options, tools=tools, chosen_tool=names.get(options.chosen_tool, options.chosen_tool))
    notes = [f"the tool {old!r} is named {new!r} there" for old, new in names.items()]
    return options, [rename_message_tools(message, names) for message in messages], notes


# -- what is left behind -----------------------------------------------------------------------------------------------


def _describe_dropped_parts(parsed_request: ParsedRequest, target_api: str) -> list[str]:
    """Return a note on each kind of part that stays behind."""
    messages = [sized_message.message for sized_message in parsed_request.messages]
    keeps_file_ids = have_one_provider(target_api, parsed_request.api)
    kind_counts: Counter[str] = Counter()
    for before in messages:
        kind_counts.update(
            iter_part_losses(before, strip_foreign_content(before, target_api, keeps_file_ids=keeps_file_ids))
        )
    notes = [f"{number} × {kind}" for kind, number in kind_counts.items()]
    if not get_api_spec(target_api).shape.has_error_flag and (
        failure_count := sum(result.is_error for message in messages for result in message.results)
    ):
        notes.append(f"{failure_count} × the mark that a tool failed: its words stay")
    return notes


def iter_part_losses(before: Message, after: Message) -> Iterator[str]:
    """Yield a line for each part of a message that is not as it was."""
    stays = Counter(collect_media_in_messages(after))
    for part in _iter_parts_deep(before):
        if isinstance(part, Thinking):
            yield "thinking: sealed by another API"
        elif isinstance(part, Opaque):
            own = is_message_or_field(part)
            instead = "its words stay" if get_opaque_text(part) else f"{format_part_placeholder(part)!r} stands there"
            yield f"{part.kind}: {'left out' if own else instead}"
        elif isinstance(part, Media) and not stays[_without_raw_bytes(part)]:
            yield _describe_placeholder(part)


def _without_raw_bytes(part: Media) -> Media:
    """Return media without the bytes it came in."""
    return replace(part, raw=None)


def _iter_parts_deep(message: Message) -> Iterator[Part]:
    for part in message.parts:
        yield part
        if isinstance(part, ToolResult):
            yield from part.content


def _describe_dropped_options(options: PortableOptions) -> list[str]:
    """Return a note on each tool and field that has no form elsewhere."""
    tools = [
        f"the tool {kind or 'without a type'}: only functions of the client's have a form there"
        for kind in options.other_tools
    ]
    return tools + [f"the field {name}: left out" for name in options.unread_fields]
