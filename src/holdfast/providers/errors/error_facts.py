"""Gather what an error says from the shapes it comes in: JSON, JSON inside of text, server-sent events, HTML, bytes.

Gateways wrap the errors of providers in their own, often as a string of JSON in a message. The rules in
``error_rules`` then see one flat collection of texts, codes, statuses and numbers, in which the nesting is gone.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from holdfast.providers.errors.number_text import canonicalize_number_text
from holdfast.providers.errors.report import ErrorReport

# The limits below bound the work that a hostile or broken gateway can cause: every text is matched against some forty
# patterns. All of them are far above what real errors need.
_MAX_TEXT_CHARS = 20_000
"""Characters of one text that are read; the longest error seen has 4,000."""
_MAX_TEXTS = 40
"""Texts that are collected, and elements of one list that are read."""
_MAX_CODE_CHARS = 200
_MAX_COUNT = 10**15
"""Numbers from here on are no counts of tokens (a time in nanoseconds, an id)."""
_MAX_DEPTH = 10
"""Levels of nesting that are followed; OpenRouter around LiteLLM around a provider has six."""
_MESSAGE_FIELDS = frozenset(
    {"message", "msg", "detail", "details", "error", "errors", "reason", "raw", "metadata", "cause", "body",
     "title", "innererror", "data", "description", "error_description", "error_message", "errormessage",
     "error_msg", "response", "exception", "failure", "fault", "response_body", "codex_error_info", "original",
     "lasterror", "previous_errors", "base_resp", "status_msg"}
)  # fmt: skip
"""Fields in which providers and gateways say what happened.

A list of names, not all fields: others (``input``, ``content``) quote the request, whose words must not be classified.
"""
_CODE_FIELDS = frozenset(
    {"code", "type", "status", "error_code", "errorcode", "__type", "error_type", "status_code", "statuscode",
     "http_status"}
)  # fmt: skip
_COUNT_FIELDS = {
    "n_ctx": "limit",
    "context_length": "limit",
    "context_window": "limit",
    "max_context_length": "limit",
    "max_prompt_tokens": "limit",
    "n_prompt_tokens": "requested",
    "prompt_tokens": "requested",
    "requested_tokens": "requested",
}
"""Fields beside a message that hold the numbers (llama.cpp, ds4)."""
_DELAY_FIELDS = {"retry_after": 1.0, "retry-after": 1.0, "retryafter": 1.0, "retrydelay": 1.0, "retry_after_ms": 0.001}
"""Fields that say when to come back, with the unit of each in seconds."""
_LEADING_NUMBER = re.compile(r"^\d{1,9}(?:\.\d{1,9})?")

# Links are removed before matching: OpenAI's point to ".../rate-limits" and Groq's to ".../billing" whatever the error.
_URL = re.compile(r"https?://[^\s\"'<>)\]}]{1,2000}")
# Bounded repetition: an error page cut in the middle of a tag must not be scanned once for every "<" in it.
_TAG = re.compile(
    r"<(?:script|style)\b.{0,4000}?</(?:script|style)>|<[a-zA-Z/!][^<>]{0,400}>", re.DOTALL | re.IGNORECASE
)
# Clients report their own retries beside the provider's error. Those times say nothing about the provider's limits.
_CLIENT_RETRIES = re.compile(
    r"retried \d{1,4} times?(?: \(total retry wait time: [^()]{1,60}\))?"
    r"|retrying in \d{1,6} (?:s|sec|seconds?|minutes?)\W{1,4}\(attempt \d{1,4}/\d{1,4}\)"
    r"|after \d{1,4} (?:retries|attempts)|reached max retries: \d{1,4}|having trouble responding right now",
    re.IGNORECASE,
)
# 9router adds its own time to every refusal ("[400]: … (reset after 30s)"), also to those that no time cures.
_GATEWAY_RESET = re.compile(r"(\[4(?:00|13|22)\]:[^\n]{0,600}?)\(reset after \d{1,6}s\)")
# Pydantic quotes what it refuses: {'msg': …, 'input': 'words of a user'} and [type=…, input_value='…'].
_QUOTED_INPUT = re.compile(
    r"""(?:(["'])input\1: ?|\binput_value=)(?:'(?:[^'\\]|\\.){0,8000}'|"(?:[^"\\]|\\.){0,8000}"|[^,}\]\n]{0,400})""",
    re.IGNORECASE,
)
_QUOTES = re.compile(r"[\"'`*\u2018\u2019\u201c\u201d\\]")
_SPACE = re.compile(r"\s+")
_NON_ALPHANUMERIC = re.compile(r"[^a-z0-9]+")
_LEADING_STATUS = re.compile(r"^\W{0,3}(?:http |error |api error |error code:? |status code:? )*([45]\d\d)\b")
_NAMED_STATUS = re.compile(r"(?:status(?: code)?|http|error code|api error)[ :=(]{1,3}([45]\d\d)\b")


class ErrorFacts(Struct, frozen=True):
    """The contents of an error, normalized for matching."""

    plain_text: str
    """All texts, one a line: lower case, without quotes, links and markup, numbers as plain digits."""
    raw_text: str
    """All texts in lower case and otherwise unchanged; durations (``1m2.5s``) can only be read from these."""
    codes: frozenset[str]
    """Error codes and types, reduced to lower-case letters and digits."""
    statuses: frozenset[int]
    """HTTP statuses: that of the response, and those that fields or texts name."""
    counts: Mapping[str, int]
    """``limit`` and ``requested`` in tokens, from numeric fields beside the message."""
    retry_delays: tuple[float, ...]
    """Seconds to wait, from fields of the body, in ascending order."""


def collect_error_facts(report: ErrorReport) -> ErrorFacts:
    """Collect the facts of ``report``. The order of fields in its body makes no difference."""
    collector = _FactCollector(report.status, report.code)
    collector.add_value(report.message, _MAX_DEPTH)
    collector.add_value(report.body, _MAX_DEPTH)
    lines = {line for line in map(_normalize_text, collector.texts) if line}
    plain_text = "\n".join(sorted(lines))
    return ErrorFacts(
        plain_text=plain_text,
        raw_text="\n".join(sorted(collector.texts)).lower(),
        codes=frozenset(collector.codes),
        statuses=frozenset({*collector.statuses, *_find_stated_statuses(plain_text)}),
        counts=collector.counts,
        retry_delays=tuple(sorted(collector.delays)),
    )


def _find_stated_statuses(text: str) -> Iterator[int]:
    """Yield the HTTP statuses in each line of ``text``: a leading number, or one that is called a status."""
    for line in text.split("\n"):
        for match in (_LEADING_STATUS.search(line), _NAMED_STATUS.search(line)):
            if match:
                yield int(match[1])


class _FactCollector:
    """Walk nested values and collect texts, codes, statuses, counts and delays."""

    def __init__(self, status: int | None, code: str) -> None:
        self.texts: set[str] = set()
        self.codes: set[str] = set()
        # Callers may give several codes in one text, as in "400/context_length_exceeded".
        for word in re.split(r"[\s/|,()]+", code[:_MAX_CODE_CHARS]):
            if normalized_code := _normalize_code(word):
                self.codes.add(normalized_code)
        self.statuses = {status} if status else set()
        self.counts: dict[str, int] = {}
        self.delays: list[float] = []

    def add_value(self, content: Any, depth: int) -> None:
        """Add a value of any type, and the values inside it down to ``depth`` levels."""
        if depth <= 0 or len(self.texts) >= _MAX_TEXTS:
            return
        if isinstance(content, bytes | bytearray | memoryview):
            content = bytes(content).decode("utf-8", "replace")
        if isinstance(content, str):
            self._add_text(content, depth)
        elif isinstance(content, Mapping):
            self._add_wrapped_error(content, depth)
            # Sorted, so that the limit on texts drops the same ones whatever the order of fields was.
            for key, value in sorted(content.items(), key=_get_item_name):
                self._add_field(str(key).lower(), value, depth - 1)
        elif isinstance(content, list | tuple):
            for element in content[:_MAX_TEXTS]:
                self.add_value(element, depth - 1)

    def _add_wrapped_error(self, value: Mapping[Any, Any], depth: int) -> None:
        """Add an error that is the only field of an object and has its code as name.

        Events of AWS look so: ``{"ValidationException": {"message": …}}``.
        """
        if len(value) != 1:
            return
        name, error = next(iter(value.items()))
        if isinstance(error, Mapping) and str(name).lower() not in _MESSAGE_FIELDS:
            self._add_code(str(name)[:_MAX_CODE_CHARS])
            self.add_value(error, depth - 1)

    def _add_text(self, value: str, depth: int) -> None:
        text, json_values = _split_embedded_json(value)
        text = _QUOTED_INPUT.sub(" ", _GATEWAY_RESET.sub(r"\1", _CLIENT_RETRIES.sub(" ", text)))
        for json_value in json_values:
            self.add_value(json_value, depth - 1)
        if text:
            self.texts.add(text[:_MAX_TEXT_CHARS])

    def _add_field(self, key: str, value: Any, depth: int) -> None:
        if key in _CODE_FIELDS and type(value) in {str, int}:
            self._add_code(str(value)[:_MAX_CODE_CHARS])
        elif key in _COUNT_FIELDS and type(value) is int and 0 < value < _MAX_COUNT:
            name = _COUNT_FIELDS[key]
            self.counts[name] = max(value, self.counts.get(name, 0))
        elif key in _DELAY_FIELDS:
            match = _LEADING_NUMBER.match(str(value))  # Google writes "34.07s"
            if match is not None:
                self.delays.append(float(match[0]) * _DELAY_FIELDS[key])
        elif key in _MESSAGE_FIELDS:
            self.add_value(value, depth)

    def _add_code(self, value: str) -> None:
        if len(value) == 3 and value.isascii() and value.isdecimal():
            self.statuses.add(int(value))
        code = _normalize_code(value)
        if code:
            self.codes.add(code)


def _get_item_name(item: tuple[Any, Any]) -> str:
    return str(item[0])


def _normalize_code(text: str) -> str:
    """Reduce a code to lower-case letters and digits, so that ``RateLimitError`` and ``rate_limit_error`` are equal."""
    return _NON_ALPHANUMERIC.sub("", text.lower())


def _split_embedded_json(text: str) -> tuple[str, tuple[Any, ...]]:
    """Split ``text`` into the words around the JSON in it and a tuple of the JSON values, which may be empty."""
    if "data:" in text:
        event_values = tuple(_parse_sse_data(text))
        if event_values:
            return "", event_values
    begin = text.find("{")
    end = text.rfind("}") + 1
    if begin < 0 or end <= begin:
        return text, ()
    # Google wraps the errors of its streams in a list.
    if text.lstrip().startswith("["):
        list_value = _try_parse_json(text)
        if list_value is not None:
            return "", (list_value,)
    json_value = _try_parse_json(text[begin:end])
    if json_value is None:
        return text, ()
    return (text[:begin] + text[end:]).strip("[] \n\t"), (json_value,)


def _parse_sse_data(text: str) -> Iterator[Any]:
    """Yield the JSON values of server-sent events."""
    for line in text.splitlines()[:_MAX_TEXTS]:
        if line.startswith("data:"):
            json_value = _try_parse_json(line.removeprefix("data:"))
        else:
            json_value = None
        if json_value is not None:
            yield json_value


def _try_parse_json(text: str) -> Any:
    """Parse ``text`` as JSON, or return None if it is not valid (or is ``null``)."""
    try:
        # The standard library's parser, because it accepts lone surrogates: gateways cut texts in the middle of a pair.
        return json.loads(text)
    except (RecursionError, ValueError):
        return None


def _normalize_text(text: str) -> str:
    if "<" in text:
        text = html.unescape(_TAG.sub(" ", text))
    text = _URL.sub(" ", text)
    # JSON that was quoted twice, or cut so that it no longer parses, has its line breaks escaped.
    text = text.replace("\\n", " ")
    text = _QUOTES.sub("", text)
    text = canonicalize_number_text(text)
    return _SPACE.sub(" ", text).strip()
