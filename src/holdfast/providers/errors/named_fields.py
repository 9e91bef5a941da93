"""Read the field that a refusal names: one that the server does not take, misses, or caps.

Only the wording is read here; whether the request has such a field, and what may be done about it, is decided in
``providers/requests/adapt_body.py``. Sources of the wordings stand at the patterns (read on 2026-11-28).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from holdfast.providers.errors.error_facts import collect_error_facts
from holdfast.providers.errors.report import ErrorReport

NamedFieldKind: TypeAlias = Literal["refused", "missing", "capped", "renamed", "beta"]
_POSSIBLE_KINDS = frozenset({"invalid_history", "invalid_request", "unknown", "output_limit", "config", "media"})
"""Verdicts of refusals that may be about one field; limits, keys and servers are not."""
_REQUEST_STATUSES = frozenset({400, 422})
"""Statuses that say that the request itself is wrong. (Cerebras changed from 422 to 400 in 2026.)"""
_MAX_FIELDS = 8
"""Fields that one refusal may name. Bedrock and Cerebras list each; more would be a server of another API."""
_MAX_TEXT_CHARS = 4_000
"""Characters of each text that are read; what follows quotes the request."""
_SILENT_FIELDS = frozenset({"input", "ctx", "param", "type", "code", "loc", "failed_generation"})
"""Fields of an error that say nothing about what happened in words of the server."""
_MAX_DEPTH = 8
_MAX_LIST = 40
_PLAIN_NAME = re.compile(r"[A-Za-z_$][\w$.\[\]/-]{0,199}")
MIN_OUTPUT_CAP = 16
"""A cap below this is not the largest answer of a model but another number of the text."""


class NamedField(Struct, frozen=True):
    """One field that a refusal names."""

    kind: NamedFieldKind
    path: tuple[str, ...] = ()
    """The field's steps in the server's own notation, indexes included: ``("messages", "2", "name")``."""
    limit: int = 0
    """The largest value that is accepted, for ``capped``."""
    value: str = ""
    """The name to use instead, for ``renamed``; the name of the beta, for ``beta`` (empty if the text names none)."""
    beside: str = ""
    """A field that stands beside the missing one, if the text says so."""


def find_named_fields(report: ErrorReport, kind: str, output_cap: int | None = None) -> tuple[NamedField, ...]:
    """Return the fields that ``report`` names, each once, in the order of the text; ``kind`` is the verdict on it.

    ``output_cap`` is the verdict's cap of the answer, for wordings of it that no pattern here knows.
    """
    if kind not in _POSSIBLE_KINDS:
        return ()
    facts = collect_error_facts(report)
    for status in facts.statuses:
        if status >= 400 and status not in _REQUEST_STATUSES:
            return ()
    found: list[NamedField] = []
    for named_field in _iter_named_fields(report):
        if named_field not in found:
            found.append(named_field)
    if not found:
        # A field in the text may have a better place, or a new name; the code and its field need no words.
        found += dict.fromkeys([*_iter_coded_fields(report.body, _MAX_DEPTH), *_iter_coded_fields(report.message, 1)])
    has_cap = any(named_field.kind == "capped" for named_field in found)
    if output_cap is not None and output_cap >= MIN_OUTPUT_CAP and not has_cap:
        found.append(NamedField("capped", ("max_tokens",), output_cap))
    return tuple(found[:_MAX_FIELDS])


def _iter_named_fields(report: ErrorReport) -> Iterator[NamedField]:
    for value in (report.message, report.body):
        for located_error in _iter_located_errors(value, _MAX_DEPTH):
            yield from _read_located_error(located_error)
        for text in _iter_texts(value, _MAX_DEPTH):
            yield from read_named_fields(text)


# -- errors with a code and a field of their own -----------------------------------------------------------------------


_KIND_BY_CODE: Mapping[str, NamedFieldKind] = {
    "unknown_parameter": "refused",
    "unsupported_parameter": "refused",
    "unrecognized_request_argument": "refused",
    "missing_required_parameter": "missing",
}
"""OpenAI's codes beside ``param``, which servers repeat with words of their own: ``unknown_parameter``
(pydantic-ai#3653), ``unsupported_parameter`` (vscode-copilot-release#8929), ``missing_required_parameter``
(codex#6934), ``unrecognized_request_argument`` (Azure: Menci/Floway#157, 2026-07-08)."""


def _iter_coded_fields(value: Any, depth: int) -> Iterator[NamedField]:
    """Yield the fields of errors whose code says what is wrong with ``param``, whatever the language of the text."""
    if depth <= 0:
        return
    if isinstance(value, bytes | bytearray | memoryview | str):
        yield from _iter_coded_fields(_parse_json(value), depth - 1)
    elif isinstance(value, Mapping):
        kind = _KIND_BY_CODE.get(str(value.get("code", "")))
        field = value.get("param")
        path = split_field_path(field) if kind is not None and isinstance(field, str) else ()
        if kind is not None and path and _PLAIN_NAME.fullmatch(str(field)):
            yield NamedField(kind, path)
        for inner in value.values():
            if not isinstance(inner, str) or inner.lstrip().startswith(("{", "[")):
                yield from _iter_coded_fields(inner, depth - 1)
    elif isinstance(value, list | tuple):
        for inner in value[:_MAX_LIST]:
            yield from _iter_coded_fields(inner, depth - 1)


# -- errors with a path of their own -----------------------------------------------------------------------------------


def _iter_located_errors(value: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    """Yield the errors with a path ``loc``, as pydantic writes them (Mistral, Bedrock's schema, vLLM)."""
    if depth <= 0:
        return
    if isinstance(value, bytes | bytearray | memoryview | str):
        yield from _iter_located_errors(_parse_json(value), depth - 1)
    elif isinstance(value, Mapping):
        if isinstance(value.get("loc"), list | tuple):
            yield value
        for inner in value.values():
            if not isinstance(inner, str) or inner.lstrip().startswith(("{", "[")):
                yield from _iter_located_errors(inner, depth - 1)
    elif isinstance(value, list | tuple):
        for inner in value[:_MAX_LIST]:
            yield from _iter_located_errors(inner, depth - 1)


def _read_located_error(error: Mapping[str, Any]) -> Iterator[NamedField]:
    """Yield the field of one error with ``loc`` (Mistral 422: partITech/php-mistral#76, litellm#30835)."""
    path = split_field_path("/".join([str(step) for step in error["loc"]]))
    code = str(error.get("type", ""))
    text = str(error.get("msg", "")).lower()
    if not path:
        return
    if code == "extra_forbidden" or "extra inputs are not permitted" in text or "extra fields not permitted" in text:
        yield NamedField("refused", path)
    elif code in {"missing", "value_error.missing"} or text == "field required":
        yield NamedField("missing", path)


# -- texts -------------------------------------------------------------------------------------------------------------


def _iter_texts(value: Any, depth: int) -> Iterator[str]:
    """Yield the texts of a report that say what happened, those in JSON inside of a text included."""
    if depth <= 0:
        return
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value).decode("utf-8", "replace")
    if isinstance(value, str):
        parsed = _parse_json(value)
        if parsed is None:
            yield value[:_MAX_TEXT_CHARS]
        else:
            yield from _iter_texts(parsed, depth - 1)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            # `input` and `ctx` quote the request, whose words must not be read as an error. A gateway put the whole
            # message into `param`, which else holds a name (AQBot#93, 2026-05-22).
            is_sentence = name == "param" and isinstance(inner, str) and " " in inner
            if is_sentence or str(name).lower() not in _SILENT_FIELDS:
                yield from _iter_texts(inner, depth - 1)
    elif isinstance(value, list | tuple):
        for inner in value[:_MAX_LIST]:
            yield from _iter_texts(inner, depth - 1)


def _parse_json(value: Any) -> Any:
    """Return the object or list that ``value`` holds as JSON, or behind an event's ``data:``; None if it holds none."""
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value).decode("utf-8", "replace")
    text = value.strip().removeprefix("data:").strip()
    begin = min((place for place in (text.find("{"), text.find("[")) if place >= 0), default=-1)
    if begin != 0:
        return None
    try:
        parsed = json.loads(text)
    except (RecursionError, ValueError):
        return None
    return parsed if isinstance(parsed, dict | list) else None


_QUOTE = r"[\"'`\u2018\u2019\u201c\u201d\[\]()]{0,2}"
_NAME = r"[#A-Za-z_$][\w$.\[\]*/#-]{0,199}?"
_QUOTED_NAME = rf"{_QUOTE}(?P<field>{_NAME}){_QUOTE}"
_FREE_NAME = rf"(?<![\w$.\[\]*/#-]){_QUOTED_NAME}"
"""A name that no fixed words come before. It begins where no other name goes on: trying each of its characters as the
beginning would take time with the square of its length."""
_END = r"(?![\w$\[\]/*-]|\.\w)"
"""What may not follow a name: more of it."""

_REFUSED_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # OpenAI, both APIs: "Unknown parameter: 'input[2].action'." (gajae-code#1688); "Unsupported parameter:
        # 'temperature' is not supported with this model." (khoj#1377). Rust servers: "unknown field `x`, expected …".
        # A gateway: "unsupported chat completion parameter: prompt_cache_options" (omi#10483, 2026-07-24).
        (
            rf"\b(?:unknown|unsupported|unrecogni[sz]ed|unexpected) (?:request |chat completion )?"
            rf"(?:parameter|field|argument|key|property|keyword argument)s?(?: supplied)?(?: name)?:? {_QUOTED_NAME}"
            rf"{_END}(?! (?:value|must))"
        ),
        # Groq: "property 'store' is unsupported, did you mean 'stop'?" (chatbot#21). Cerebras: "property
        # 'messages.2.assistant.reasoning_content' is unsupported" (qwen-code#11045, 2026-09-04).
        rf"\bproperty {_QUOTED_NAME}{_END} is (?:unsupported|not supported|not allowed|not permitted)",
        # Anthropic, Bedrock, Vertex, Foundry: "context_management: Extra inputs are not permitted",
        # "#/stream_options: Extra inputs are not permitted" (semantic-kernel#10510).
        rf"(?:^|[\s:,;]){_QUOTED_NAME}{_END}: extra (?:inputs are|fields) not permitted",
        # Bedrock: "#: extraneous key [x] is not permitted".
        rf"\bextraneous key {_QUOTED_NAME}{_END} is not permitted",
        # xAI: "Argument not supported on this model: presencePenalty" (uni-api#105), "Model grok-4.6 does not support
        # parameter presencePenalty." (NativeTavern#83, 2026-09-15).
        rf"\bargument not supported on this model: {_QUOTED_NAME}{_END}",
        rf"\bdoes not support (?:the )?(?:parameter|field|argument) {_QUOTED_NAME}{_END}",
        # OpenAI: "Unsupported value: 'temperature' does not support 0.2 with this model." Only the default passes.
        rf"\bunsupported value: {_QUOTED_NAME}{_END} does not support \S+ with this model",
        # Anthropic, Opus 4.7 on: "`temperature` is deprecated for this model." (inspect_ai#3721)
        (
            rf"(?:^|[\s:,;]){_QUOTED_NAME}{_END} is (?:deprecated|not supported|unsupported|not available|not allowed)"
            r" (?:for|with|by|on|in) (?:this|the|the current|your|that) (?:model|endpoint|api|deployment|server)"
        ),
        rf"\bparameter:? {_QUOTED_NAME}{_END} is (?:not supported|unsupported|not allowed|not permitted)",
        # Anthropic 4.5 and 4.6: "`temperature` and `top_p` cannot both be specified for this model." The second goes.
        rf"(?<!\w)\w{{1,200}}{_QUOTE} and {_QUOTED_NAME}{_END} cannot both be specified",
        # JSON Schema validators: "Additional properties are not allowed ('x' was unexpected)".
        rf"\badditional properties are not allowed {_QUOTED_NAME}{_END} was unexpected",
    )
)
_LISTED_REFUSED = re.compile(
    # OpenAI and Azure: "Unrecognized request arguments supplied: store, metadata". NVIDIA: "Validation: Unsupported
    # parameter(s): `prompt_cache_key`" (opencode#45113, 2026-09-11; free-claude-code#127 without backticks). Servers
    # with Zod 3 (its own text): "Unrecognized key(s) in object: 'a', 'b'".
    r"\b(?:unrecogni[sz]ed request arguments? supplied"
    r"|(?:unsupported|unrecogni[sz]ed|unknown) (?:parameter|field|argument|key)\(s\)(?: in object)?)"
    r": (?P<names>[`'\"]?\w{1,200}[`'\"]?(?:, ?[`'\"]?\w{1,200}[`'\"]?){0,20})",
    re.IGNORECASE,
)
_NEW_LINE = r"(?:\n|\\n)"
"""A line break, or one that is escaped because a server quotes another one's JSON."""
_FIELD_LINE = (
    rf"(?:^|\"|{_NEW_LINE})[ \t]{{0,8}}(?P<field>[A-Za-z_$][\w$.\[\]-]{{0,199}}(?: -> [\w$.\[\]-]{{1,200}}){{0,20}})"
)
_REFUSED_LINE = re.compile(
    # Pydantic's own list, a field to a line and the reason under it: "body -> presence_penalty\n  Extra inputs are not
    # permitted (type=extra_forbidden)" (NVIDIA: kilocode#9652, 2026-04-29; litellm#4558).
    rf"{_FIELD_LINE}{_NEW_LINE}[ \t]{{1,8}}extra (?:inputs are|fields) not permitted",
    re.IGNORECASE,
)
_MISSING_LINE = re.compile(rf"{_FIELD_LINE}{_NEW_LINE}[ \t]{{1,8}}field required\b", re.IGNORECASE)
_PLACED_REFUSED = re.compile(
    # Groq, in a message: "'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' :
    # property 'reasoning_content' is unsupported)]" (freellmapi#1070, 2026-08-30).
    rf"\({_QUOTE}(?P<parent>{_NAME}){_QUOTE} : property {_QUOTED_NAME} is unsupported",
    re.IGNORECASE,
)
_GOOGLE_REFUSED = re.compile(
    # Gemini: "Invalid JSON payload received. Unknown name \"x\" at 'contents[0].parts[1]': Cannot find field."
    rf"unknown name {_QUOTED_NAME}{_END}(?: at {_QUOTE}(?P<parent>{_NAME}){_QUOTE}(?=:))?: cannot find field",
    re.IGNORECASE,
)
_RENAMED = re.compile(
    # OpenAI and Azure: "Unsupported parameter: 'max_tokens' is not supported with this model. Use
    # 'max_completion_tokens' instead."
    rf"{_FREE_NAME}{_END} is not supported with this model\. use {_QUOTE}(?P<other>\w+){_QUOTE} instead",
    re.IGNORECASE,
)
_MISSING_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # OpenAI Responses: "Missing required parameter: 'input[3].summary'." (opencodex#4673, 2026-09-15)
        rf"\bmissing required (?:parameter|field|property|key)s?:? {_QUOTED_NAME}{_END}",
        # DeepSeek: "Missing `reasoning_content` field in the assistant message at message index 4." (continue#10193,
        # 2026-02-04; aider-desk#529)
        rf"\bmissing {_QUOTED_NAME}{_END} field in the assistant message",
        # Anthropic, Bedrock, vLLM: "tools.0.custom.input_schema: Field required"
        rf"(?:^|[\s:,;]){_QUOTED_NAME}{_END}: field required",
        # DeepSeek: "The `reasoning_content` in the thinking mode must be passed back to the API." (waveterm#3266)
        rf"\bthe {_QUOTED_NAME}{_END} (?:in the thinking mode )?must be passed back",
        rf"{_FREE_NAME}{_END} is (?:a )?required (?:parameter|field|property)",
    )
)
_MISSING_IN_CALLS = re.compile(
    # Kimi: "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2"
    rf"{_FREE_NAME}{_END} is missing in (?P<role>assistant) tool call message",
    re.IGNORECASE,
)
_EMPTY_PARAMETERS = re.compile(r"function parameters is empty", re.IGNORECASE)
"""MiniMax: "invalid params, function parameters is empty (2013)" (qwen-code#11834, 2026-09-13)."""
_OUTPUT_FIELD = r"(?P<field>max_(?:completion_|output_|new_)?tokens|maxOutputTokens|max_tokens_to_sample|maxTokens)"
_CAP_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # Anthropic: "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens for …".
        rf"{_OUTPUT_FIELD}{_QUOTE}: ?[\d,]+ ?> ?(?P<limit>[\d,]+)",
        # OpenAI: "max_tokens is too large: 200000. This model supports at most 16384 completion tokens", SGLang the
        # same without a space.
        rf"{_OUTPUT_FIELD}{_QUOTE} is too large: ?[\d,]+\. ?this model supports at most (?P<limit>[\d,]+)",
        # DeepSeek: "Invalid max_tokens value, the valid range of max_tokens is [1, 393216]"; Qwen: "Range of
        # max_tokens should be [1, 8192]"; GLM the range alone.
        rf"range of {_QUOTE}{_OUTPUT_FIELD}{_QUOTE} (?:is|should be) \[\d+, ?(?P<limit>[\d,]+)\]",
        # Groq: "`max_tokens` must be less than or equal to `32768`, the maximum value for …".
        (
            rf"{_OUTPUT_FIELD}{_QUOTE}:?,? (?:must be|should be|input should be) (?:less than or equal to|at most|<=)"
            rf" {_QUOTE}(?P<limit>[\d,]+)"
        ),
        # OpenAI Responses: "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 128000".
        rf"{_OUTPUT_FIELD}{_QUOTE}: integer above maximum value\. expected a value <= (?P<limit>[\d,]+)",
    )
)
_EXCLUSIVE_CAP_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # Vertex: "… it has a maxOutputTokens value of 100000 but the supported range is from 1 (inclusive) to 65537
        # (exclusive)."
        (
            rf"{_OUTPUT_FIELD} value of [\d,]+ but the supported range is from \d+ \(inclusive\) to (?P<limit>[\d,]+)"
            r" \(exclusive\)"
        ),
    )
)
_UNNAMED_CAP = re.compile(
    # Bedrock: "The maximum tokens you requested exceeds the model limit of 8192."
    r"maximum tokens you requested exceeds the model limit of (?P<limit>[\d,]+)",
    re.IGNORECASE,
)
_NAMED_BETAS = re.compile(
    # Anthropic and Vertex: "Unexpected value(s) `a`, `b` for the `anthropic-beta` header." (claude-code#49370)
    r"unexpected values?(?:\(s\))? (?P<names>.{1,600}?) for the \W?anthropic-beta\W? header",
    re.IGNORECASE,
)
_BETA_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{2,79}")
_UNNAMED_BETA = re.compile(r"\binvalid beta flag\b", re.IGNORECASE)
"""Bedrock: "invalid beta flag" (claude-code#49648); it does not say which."""
_PATH_STEP = re.compile(r"[^.\[\]/]+")
_GENERIC_STEPS = frozenset({"", "#", "$", "body", "request"})


def read_named_fields(text: str) -> Iterator[NamedField]:
    """Yield the fields that one text of an error names."""
    for named_field in (*_read_betas(text), *_read_caps(text), *_read_missing(text), *_read_refused(text)):
        # A name such as `#` stands for the body as a whole.
        if named_field.path or named_field.kind == "beta":
            yield named_field


def _read_missing(text: str) -> Iterator[NamedField]:
    for match in _MISSING_IN_CALLS.finditer(text):
        yield NamedField("missing", split_field_path(match["field"]), beside="tool_calls")
    for pattern in _MISSING_PATTERNS:
        for match in pattern.finditer(text):
            yield NamedField("missing", split_field_path(match["field"]))
    for match in _MISSING_LINE.finditer(text):
        yield NamedField("missing", _split_field_line(match["field"]))
    if _EMPTY_PARAMETERS.search(text):
        yield NamedField("missing", ("tools", "0", "function", "parameters"))


def _read_refused(text: str) -> Iterator[NamedField]:
    found: list[NamedField] = []
    for match in _RENAMED.finditer(text):
        found.append(NamedField("renamed", split_field_path(match["field"]), value=match["other"]))
    for match in (*_PLACED_REFUSED.finditer(text), *_GOOGLE_REFUSED.finditer(text)):
        path = (*split_field_path(match["parent"] or ""), *split_field_path(match["field"]))
        found.append(NamedField("refused", path))
    for match in _LISTED_REFUSED.finditer(text):
        found += [NamedField("refused", (name.strip(" `'\""),)) for name in match["names"].split(",")]
    for match in _REFUSED_LINE.finditer(text):
        found.append(NamedField("refused", _split_field_line(match["field"])))
    # The wider patterns would read the same fields without their places.
    patterns = () if found else _REFUSED_PATTERNS
    for pattern in patterns:
        for match in pattern.finditer(text):
            found.append(NamedField("refused", split_field_path(match["field"])))
    yield from found


def split_field_path(text: str) -> tuple[str, ...]:
    """Split a field's path in any notation into steps: ``input[2].action``, ``#/a/b``, ``messages.1.content.0``."""
    steps = [step.strip("'\"` ") for step in _PATH_STEP.findall(text)]
    while steps and steps[0].lower() in _GENERIC_STEPS:
        del steps[0]
    return tuple(steps)


def _split_field_line(text: str) -> tuple[str, ...]:
    """Split a path as Pydantic 1 and NVIDIA write it: ``body -> messages -> 0 -> name``."""
    return split_field_path(text.replace(" -> ", "/"))


def _read_caps(text: str) -> Iterator[NamedField]:
    for pattern in _CAP_PATTERNS:
        for match in pattern.finditer(text):
            yield from _make_cap(match["field"], match["limit"])
    for pattern in _EXCLUSIVE_CAP_PATTERNS:
        for match in pattern.finditer(text):
            yield from _make_cap(match["field"], match["limit"], less=1)
    for match in _UNNAMED_CAP.finditer(text):
        yield from _make_cap("max_tokens", match["limit"])


def _make_cap(field: str, limit_text: str, less: int = 0) -> Iterator[NamedField]:
    limit = int(limit_text.replace(",", "") or 0) - less
    if limit >= MIN_OUTPUT_CAP:
        yield NamedField("capped", (field,), limit)


def _read_betas(text: str) -> Iterator[NamedField]:
    for match in _NAMED_BETAS.finditer(text):
        for name in _BETA_NAME.findall(match["names"]):
            yield NamedField("beta", value=name)
    if _UNNAMED_BETA.search(text):
        yield NamedField("beta")
