"""Adapt bodies to what a refusal said of a field: decide it once against the refused body, apply it to later ones.

A field is only changed where the request really has it (or really lacks it), so a wording that was misread changes
nothing. What a client needs for its work is never left out: the model, the messages and their words, roles and ids, the
tools, the form of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Raw

from holdfast.errors import FormatError
from holdfast.providers.common.json.raw_json import (
    JsonBytes,
    decode_json_fields,
    decode_json_value,
    encode_json,
    map_json_elements,
    remove_json_fields,
    replace_json_fields,
)
from holdfast.providers.errors.named_fields import NamedField
from holdfast.state.field_lessons import ANY_ELEMENT, ONLY_EMPTY, FieldLesson, add_field_lessons

Path: TypeAlias = tuple[str, ...]
JsonObject: TypeAlias = Mapping[str, Any]

_MESSAGE_LISTS = ("messages", "input", "contents")
"""Names of the list of messages or items in the four APIs."""
_OUTPUT_LIMITS = frozenset({"maxtokens", "maxcompletiontokens", "maxoutputtokens", "maxnewtokens"})
_NEEDED_TOP_FIELDS = frozenset(
    {"model", "messages", "input", "contents", "tools", "functions", "stream", "system", "systeminstruction",
     "instructions", "prompt", "previousresponseid", "conversation", "responseformat", "anthropicversion",
     "container", "cachedcontent", "text", "outputformat", "outputconfig", "generationconfig", "modalities",
     "mcpservers", "documents", "toolchoice", "toolconfig"}
)  # fmt: skip
"""Fields of a body that are never left out, as ``_normalize_name`` writes them: without one of them the client would
get an answer to something else, or in a form that it cannot read."""
_NEEDED_INNER_FIELDS = frozenset(
    {"role", "content", "parts", "text", "type", "id", "callid", "toolcallid", "tooluseid", "function", "arguments",
     "args", "input", "output", "thinking", "signature", "thoughtsignature", "encryptedcontent", "data", "source",
     "imageurl", "fileid", "filedata", "inlinedata", "functionresponse", "format", "jsonschema", "schema",
     "parameters", "inputschema", "description", "approve", "approvalrequestid", "refusal", "audio",
     "responseschema", "responsejsonschema", "responsemimetype"}
)  # fmt: skip
"""Fields inside of messages, items and tools that are never left out: words, ids, signed data."""
_EMPTY_ONLY_FIELDS = frozenset({"toolcalls", "functioncall", "name"})
"""Fields that are left out only where they hold nothing: Mistral refuses ``tool_calls: null`` on a user message
(litellm#30882). A ``name`` of a message that is no result may go too (Groq)."""
_CLOSED_STEPS = frozenset({"arguments", "args", "parameters", "inputschema", "schema", "jsonschema", "properties"})
"""Objects whose fields are the client's own words; nothing inside is changed."""
_EMPTY_VALUES = frozenset({b"null", b"[]", b"{}", b'""'})
_EMPTY_SCHEMA = '{"type":"object","properties":{}}'
_BLANK = '" "'
"""Kimi refuses an empty ``reasoning_content`` and takes a space; DeepSeek takes both (deer-flow#3043, openclaw#73417).
"""
_FILL_VALUES: Mapping[tuple[str, str], str] = {
    ("messages", "reasoningcontent"): _BLANK,
    ("messages", "content"): '""',
    ("toolcalls", "type"): '"function"',
    ("input", "summary"): "[]",
    ("content", "annotations"): "[]",
    ("content", "logprobs"): "[]",
    ("tools", "parameters"): _EMPTY_SCHEMA,
    ("function", "parameters"): _EMPTY_SCHEMA,
    ("tools", "inputschema"): _EMPTY_SCHEMA,
}
"""What to put where a field is missing, by the name of what holds it and its own, as JSON."""
_FILLED_ROLE = "assistant"
_MIN_THINKING_BUDGET = 1_024
"""Anthropic's least ``thinking.budget_tokens``, which must stay below ``max_tokens``."""
_BETA_FIELDS = ("anthropic_beta", "betas")
"""Fields of a body that list betas (Bedrock, Vertex)."""


# -- deciding ----------------------------------------------------------------------------------------------------------


def make_field_lessons(
    named_fields: Iterable[NamedField], body: bytes, betas: Sequence[str] = ()
) -> tuple[FieldLesson, ...]:
    """Return what to do about the fields that the refusal of ``body`` names; empty if nothing can be done.

    ``betas`` are the beta features that the request asked for in its headers.
    """
    try:
        request = decode_json_value(body, "the body")
    except FormatError:
        return ()
    if not isinstance(request, dict):
        return ()
    lessons: tuple[FieldLesson, ...] = ()
    for named_field in named_fields:
        lessons = add_field_lessons(lessons, _make_lessons(named_field, request, betas))
    return lessons


def _make_lessons(named_field: NamedField, request: JsonObject, betas: Sequence[str]) -> Iterator[FieldLesson]:
    match named_field.kind:
        case "refused":
            yield from _make_drop(named_field, request)
        case "missing":
            yield from _make_fill(named_field, request)
        case "capped":
            yield from _make_caps(named_field, request)
        case "renamed":
            yield from _make_rename(named_field, request)
        case "beta":
            yield from _make_beta_drops(named_field, request, betas)


def _make_drop(named_field: NamedField, request: JsonObject) -> Iterator[FieldLesson]:
    steps = named_field.path
    place = _resolve_path(request, steps) or _find_by_name(request, steps)
    if place is None and len(steps) > 1 and steps[0] in _MESSAGE_LISTS:
        # A gateway counts the messages that it made of ours, so the index may be another one.
        place = _find_in_messages(request, steps[-1])
    if place is None:
        return
    path, kinds = place
    name = _normalize_name(path[-1])
    if any(_normalize_name(step) in _CLOSED_STEPS for step in path[:-1]):
        return
    if len(path) == 1:
        if name not in _NEEDED_TOP_FIELDS:
            yield FieldLesson("drop", path)
        return
    if name in _NEEDED_INNER_FIELDS or path[-1] == ANY_ELEMENT:
        return
    is_message_name = name == "name" and len(path) == 3 and kinds[0] in {"user", "system", "developer", "assistant"}
    value = ONLY_EMPTY if name in _EMPTY_ONLY_FIELDS and not is_message_name else ""
    yield FieldLesson("drop", path, kinds, value=value)


def _make_fill(named_field: NamedField, request: JsonObject) -> Iterator[FieldLesson]:
    place = _resolve_path(request, named_field.path, is_missing=True)
    if place is None and len(named_field.path) == 1 and "messages" in request:
        place = (("messages", ANY_ELEMENT, named_field.path[0]), (_FILLED_ROLE,))
    if place is None:
        return
    path, kinds = place
    holders = [step for step in path[:-1] if step != ANY_ELEMENT]
    value = _FILL_VALUES.get((_normalize_name(holders[-1]), _normalize_name(path[-1]))) if holders else None
    if value is None:
        return
    beside = named_field.beside
    if path[0] == "messages" and len(path) == 3:
        if kinds != (_FILLED_ROLE,):
            return
        if path[-1] == "content":
            beside = "tool_calls"
    yield FieldLesson("fill", path, kinds, beside, value)


def _make_caps(named_field: NamedField, request: JsonObject) -> Iterator[FieldLesson]:
    place = _find_by_name(request, named_field.path) or _find_output_limit(request)
    if place is None or _normalize_name(place[0][-1]) not in _OUTPUT_LIMITS:
        return
    limit = named_field.limit
    yield FieldLesson("cap", place[0], limit=limit)
    thinking = request.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if isinstance(budget, int) and budget >= limit > _MIN_THINKING_BUDGET:
        # Half of the answer may be thinking; the whole would leave no room for words. Chosen by judgement.
        yield FieldLesson("cap", ("thinking", "budget_tokens"), limit=max(_MIN_THINKING_BUDGET, limit // 2))


def _find_output_limit(request: JsonObject) -> tuple[Path, Path] | None:
    for name in request:
        if _normalize_name(name) in _OUTPUT_LIMITS:
            return (name,), ()
    return _find_by_name(request, ("maxOutputTokens",))


def _make_rename(named_field: NamedField, request: JsonObject) -> Iterator[FieldLesson]:
    name, new_name = named_field.path[-1], named_field.value
    is_output_limit = {_normalize_name(name), _normalize_name(new_name)} <= _OUTPUT_LIMITS
    if len(named_field.path) == 1 and name in request and is_output_limit:
        yield FieldLesson("rename", (name,), value=new_name)


def _make_beta_drops(named_field: NamedField, request: JsonObject, betas: Sequence[str]) -> Iterator[FieldLesson]:
    asked = list(betas)
    for field in _BETA_FIELDS:
        value = request.get(field)
        if isinstance(value, list):
            asked += [beta for beta in value if isinstance(beta, str)]
    for beta in dict.fromkeys(asked):
        if named_field.value in ("", beta):
            yield FieldLesson("beta", value=beta)


def find_wrong_lessons(named_fields: Iterable[NamedField], lessons: Iterable[FieldLesson]) -> tuple[FieldLesson, ...]:
    """Return those of ``lessons`` that a refusal proves wrong: it names their field although they were applied."""
    named_fields = tuple(named_fields)
    wrong_lessons = []
    for lesson in lessons:
        if any(_is_about(lesson, named_field) for named_field in named_fields):
            wrong_lessons.append(lesson)
    return tuple(wrong_lessons)


def _is_about(lesson: FieldLesson, named_field: NamedField) -> bool:
    """Return whether the refusal's field may be that of ``lesson``; servers name it with more or fewer steps."""
    if lesson.action == "beta" or named_field.kind == "beta":
        return lesson.action == named_field.kind and named_field.value in ("", lesson.value)
    names = [_normalize_name(step) for step in lesson.path if step != ANY_ELEMENT]
    named = _normalize_name(named_field.path[-1])
    if lesson.action == "rename" and named == _normalize_name(lesson.value):
        return True
    if lesson.action == "cap" and named_field.kind == "capped":
        return True
    return named in (names[-1], "".join(names))


# -- finding the field -------------------------------------------------------------------------------------------------


def _resolve_path(request: JsonObject, steps: Path, *, is_missing: bool = False) -> tuple[Path, Path] | None:
    """Return the path of ``steps`` in ``request`` and the kinds of the elements on it, or None if it leads nowhere.

    Servers put the role or type of an element between its index and its field (``messages.2.assistant.name``); a step
    that no field is named like is such a word. If ``is_missing``, the last step need not exist.
    """
    value: Any = request
    path: list[str] = []
    kinds: list[str] = []
    for index, step in enumerate(steps):
        is_last = index + 1 == len(steps)
        if isinstance(value, list):
            if not step.isdecimal() or int(step) >= len(value):
                return None
            value = value[int(step)]
            kinds.append("" if path[-1] == "tools" else _get_kind(value))
            path.append(ANY_ELEMENT)
        elif isinstance(value, dict):
            name = _find_name(value, step)
            if name is not None:
                path.append(name)
                value = value[name]
            elif is_last:
                if not is_missing or not path:
                    return None
                path.append(step)
        else:
            return None
    return (tuple(path), tuple(kinds)) if path else None


def _find_by_name(request: JsonObject, steps: Path) -> tuple[Path, Path] | None:
    """Return where ``request`` has a field that the server named without its place."""
    if len(steps) != 1:
        return None
    step = steps[0]
    name = _find_name(request, step)
    if name is not None:
        return (name,), ()
    for outer, value in request.items():
        if not isinstance(value, dict):
            continue
        for inner in value:
            # xAI says `reasoningEffort` for `reasoning.effort`; Gemini's options stand in `generationConfig`.
            is_joined_name = _normalize_name(outer + inner) == _normalize_name(step)
            is_option = _normalize_name(outer) == "generationconfig" and _normalize_name(inner) == _normalize_name(step)
            if is_joined_name or is_option:
                return (outer, inner), ()
    return _find_in_messages(request, step) or _find_in_tools(request, step)


def _find_in_messages(request: JsonObject, step: str) -> tuple[Path, Path] | None:
    for field in _MESSAGE_LISTS:
        messages = request.get(field)
        if not isinstance(messages, list):
            continue
        names: dict[str, set[str]] = {}
        for message in messages:
            name = _find_name(message, step) if isinstance(message, dict) else None
            if name is not None:
                names.setdefault(name, set()).add(_get_kind(message))
        for name, kinds in names.items():
            return (field, ANY_ELEMENT, name), (kinds.pop() if len(kinds) == 1 else "",)
    return None


def _find_in_tools(request: JsonObject, step: str) -> tuple[Path, Path] | None:
    tools = request.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict):
            continue
        name = _find_name(tool, step)
        if name is not None:
            return ("tools", ANY_ELEMENT, name), ("",)
        function = tool.get("function")
        name = _find_name(function, step) if isinstance(function, dict) else None
        if name is not None:
            return ("tools", ANY_ELEMENT, "function", name), ("",)
    return None


def _find_name(value: JsonObject, step: str) -> str | None:
    """Return the field of ``value`` that ``step`` means: servers write ``presencePenalty`` for presence_penalty."""
    if step in value:
        return step
    normalized_step = _normalize_name(step)
    for name in value:
        if _normalize_name(name) == normalized_step:
            return name
    return None


def _normalize_name(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _get_kind(value: Any) -> str:
    """Return the role of a message or the type of an item or block; empty for anything else."""
    if not isinstance(value, dict):
        return ""
    for field in ("role", "type"):
        kind = value.get(field)
        if isinstance(kind, str) and kind:
            return kind
    return ""


# -- applying ----------------------------------------------------------------------------------------------------------


def apply_field_lessons(body: bytes, lessons: Iterable[FieldLesson]) -> bytes:
    """Return ``body`` with the ``lessons`` applied; the same object if they change nothing.

    All bytes that no lesson is about stay. A body that is no JSON object stays too.
    """
    for lesson in lessons:
        try:
            if lesson.action == "beta":
                body = _remove_beta(body, lesson.value)
            elif lesson.path:
                body = bytes(_change_at(body, lesson.path, lesson.element_kinds, lesson))
        except FormatError:
            continue
    return body


def remove_betas(betas: str, lessons: Iterable[FieldLesson]) -> str:
    """Return the value of a beta header without the betas that ``lessons`` leave out."""
    refused = {lesson.value for lesson in lessons if lesson.action == "beta"}
    kept = [beta.strip() for beta in betas.split(",") if beta.strip() and beta.strip() not in refused]
    return ",".join(kept)


def _remove_beta(body: bytes, beta: str) -> bytes:
    fields = decode_json_fields(body)
    for field in _BETA_FIELDS:
        value = decode_json_value(fields[field]) if field in fields else None
        if not isinstance(value, list) or beta not in value:
            continue
        kept = [name for name in value if name != beta]
        if kept:
            return replace_json_fields(body, fields, {field: encode_json(kept)})
        return remove_json_fields(body, fields, (field,))
    return body


def _change_at(raw: JsonBytes, path: Path, kinds: Path, lesson: FieldLesson) -> JsonBytes:
    """Return ``raw`` with the field at ``path`` changed; the same object if there is nothing to change."""
    step = path[0]
    if step == ANY_ELEMENT:
        if not bytes(memoryview(raw)[:64]).lstrip().startswith(b"["):
            return raw
        kind = kinds[0] if kinds else ""
        return map_json_elements(raw, lambda element: _change_element(element, kind, path[1:], kinds[1:], lesson))
    if not bytes(memoryview(raw)[:64]).lstrip().startswith(b"{"):
        return raw
    fields = decode_json_fields(raw)
    if len(path) == 1:
        return _change_field(raw, fields, step, lesson)
    if step not in fields:
        return raw
    new_value = _change_at(fields[step], path[1:], kinds, lesson)
    if new_value is fields[step]:
        return raw
    return replace_json_fields(bytes(raw), fields, {step: bytes(new_value)})


def _change_element(element: JsonBytes, kind: str, path: Path, kinds: Path, lesson: FieldLesson) -> JsonBytes:
    if kind:
        value = decode_json_value(element)
        if _get_kind(value) != kind:
            return element
    return _change_at(element, path, kinds, lesson)


def _change_field(raw: JsonBytes, fields: Mapping[str, Raw], name: str, lesson: FieldLesson) -> JsonBytes:
    value = fields.get(name)
    body = bytes(raw)
    match lesson.action:
        case "drop":
            is_kept = value is None or (lesson.value == ONLY_EMPTY and bytes(value) not in _EMPTY_VALUES)
            return raw if is_kept else remove_json_fields(body, fields, (name,))
        case "rename":
            if value is None:
                return raw
            shorter = remove_json_fields(body, fields, (name,))
            if lesson.value in fields:
                return shorter
            return replace_json_fields(shorter, decode_json_fields(shorter), {lesson.value: bytes(value)})
        case "cap":
            number = None if value is None else decode_json_value(value)
            is_over = isinstance(number, int | float) and not isinstance(number, bool) and number > lesson.limit
            return replace_json_fields(body, fields, {name: str(lesson.limit).encode()}) if is_over else raw
        case "fill":
            is_filled = value is not None and bytes(value) not in _EMPTY_VALUES
            new_value = lesson.value.encode()
            if is_filled or value == new_value or not _has_beside(fields, lesson.beside):
                return raw
            return replace_json_fields(body, fields, {name: new_value})
    return raw


def _has_beside(fields: Mapping[str, Raw], name: str) -> bool:
    return not name or (name in fields and bytes(fields[name]) not in _EMPTY_VALUES)
