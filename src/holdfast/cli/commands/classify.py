"""``holdfast classify``: classify a provider's error, or an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from holdfast.cli.files.input_files import iter_input_lines, read_input_file
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.hints import recognize_session_tool
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.terminal import encode_printable_json, make_console, make_json_option, print_json
from holdfast.messages.text.single_line import clean_single_line
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import AnswerReport, ErrorReport, ProviderReport, Verdict

EXAMPLES = """\
\b
Examples:
  holdfast classify error.json
  curl … | holdfast classify - --status 429
  holdfast classify cases.jsonl --jsonl > verdicts.jsonl
"""
_CASE_FIELDS = frozenset({"channel", "finish_reason", "usage"})
"""Fields that tell a case from a plain error body, which has none of them at its top level."""
_ANSWER_CHANNEL = "answer"

_KIND_DESCRIPTIONS: dict[str, tuple[str, str]] = {
    "context_window": ("the prompt does not fit the context window", "send less: compact the conversation"),
    "input_plus_output": (
        "prompt and answer together do not fit the context window",
        "ask for a shorter answer (max_tokens), then compact the conversation",
    ),
    "request_bytes": ("the body has too many bytes", "send fewer or smaller images and files, then compact"),
    "message_count": ("there are too many messages", "compact the conversation"),
    "oversized_part": ("one part of a message is too long", "cut that part; the conversation itself may fit"),
    "tpm_ceiling": (
        "this one request is over the account's tokens per minute",
        "send less; waiting does not help",
    ),
    "tier_gate": (
        "the account has no access to long context",
        "count with a window of 200,000 tokens and compact, or enable long context",
    ),
    "silent_overflow": ("the prompt fills the window, though no error says so", "compact before the next request"),
    "silent_truncation": (
        "the provider read far less than was sent: it cut the prompt",
        "raise its context size (num_ctx), or compact to what it reads",
    ),
    "rate_limit": ("the requests or tokens per minute are used up", "wait, then send the same again"),
    "quota": ("a quota is used up", "wait for its reset, or raise it; compacting does not help"),
    "billing": ("the account has no credit left", "add credits; compacting does not help"),
    "overloaded": ("the provider has no capacity", "wait, then send the same again"),
    "auth": ("the key or its permissions are refused", "check the key"),
    "server": ("the server failed", "send the same again, a few times at most"),
    "network": ("the connection failed or took too long", "send the same again, a few times at most"),
    "output_limit": ("the answer is longer than the model allows", "lower max_tokens, or let it continue"),
    "media": ("an image, a document or a sound is refused", "make it smaller, convert it or leave it out"),
    "invalid_history": ("the messages are not in an order or form the provider accepts", "run: holdfast lint REQUEST"),
    "invalid_request": ("a field of the request is refused", "run: holdfast lint REQUEST"),
    "model": ("the model does not exist, or not for this account", "check the model's name"),
    "config": ("a setting here or on the server does not allow it", "change that setting; compacting does not help"),
    "content": ("an ordinary answer", "nothing"),
    "unknown": ("the text matches no known error", "give the status too (--status), or look at the provider's log"),
}


@click.command("classify", epilog=EXAMPLES)
@click.argument("file", metavar="FILE|-")
@click.option("--status", type=IntegerParamType(100, 599), help="The HTTP status it came with.")
@click.option("--provider", default="", help="The provider that sent it.")
@click.option("--jsonl", is_flag=True, help="Read one case per line, print one verdict per line, in order.")
@make_json_option("the verdict")
def classify_command(file: str, status: int | None, provider: str, *, jsonl: bool, as_json: bool) -> None:
    """Classify a provider's error: an overflow, a rate limit, or something else.

    FILE holds an error body exactly as received: JSON, text or HTML. With --jsonl each line is {"provider", "channel":
    "error"|"stream_error"|"answer", "status", "code", "message" or "body", "finish_reason", "usage", "estimate",
    "window"}, with the fields you know; estimate and window are your own tokens. limit and requested are tokens, or
    bytes if "unit" says so.
    """
    if jsonl:
        for line in iter_input_lines(file):
            click.echo(encode_printable_json(classify_line(line)))
        return
    data = read_input_file(file)
    # Session files quote errors, so their text would be classified as if the provider had sent it.
    if tool := recognize_session_tool(data):
        raise CommandError(f"this is a session of {tool}, not an error; give the provider's error body")
    verdict = classify_error(_parse_report(data, status, provider))
    if as_json:
        print_json(encode_verdict(verdict))
    else:
        _print_verdict(verdict)


def encode_verdict(verdict: Verdict) -> dict[str, Any]:
    """Return the record that ``--json`` and ``--jsonl`` print.

    Sizes are tokens. A limit of bytes has ``unit`` beside it, and a cap of the answer's length is ``output_cap``.
    """
    record: dict[str, Any] = {
        "is_overflow": verdict.is_overflow,
        "kind": verdict.kind,
        "limit": verdict.limit,
        "requested": verdict.requested,
        "retry_after": verdict.retry_after,
    }
    if verdict.max_bytes is not None or verdict.sent_bytes is not None:
        record |= {"limit": verdict.max_bytes, "requested": verdict.sent_bytes, "unit": "bytes"}
    if verdict.output_cap is not None:
        record["output_cap"] = verdict.output_cap
    return record


def classify_line(line: bytes) -> dict[str, Any]:
    """Classify one line; a line that is not a case gives ``unknown`` with the reason."""
    try:
        case = json.loads(line.decode("utf-8-sig", "surrogatepass"))
    except UnicodeDecodeError as error:
        return _make_unknown_verdict(f"the line is not UTF-8 at byte {error.start}; encode it as UTF-8")
    except (RecursionError, ValueError) as error:
        return _make_unknown_verdict(
            f"the line is not JSON: {clean_single_line(str(error), 200)}; give one object per line"
        )
    if not isinstance(case, dict):
        return _make_unknown_verdict("the line is not a JSON object; give one with 'message' or 'body'")
    return encode_verdict(classify_error(parse_error_case(case)))


def _make_unknown_verdict(why: str) -> dict[str, Any]:
    return encode_verdict(Verdict("unknown")) | {"error": why}


def parse_error_case(case: Mapping[str, Any]) -> ProviderReport:
    """Parse a case into a report; fields of the wrong type count as missing."""
    provider = _get_text(case.get("provider"))
    reason = _get_text(case.get("finish_reason"))
    estimate = _get_whole_number(case.get("estimate"))
    window = _get_whole_number(case.get("window"))
    code = _get_text(case.get("code"))
    # Without a channel, a finish reason without a message can only come from an answer.
    is_answer = bool(reason) and not case.get("message")
    if "channel" in case:
        is_answer = case["channel"] == _ANSWER_CHANNEL
    if is_answer:
        return AnswerReport(
            provider,
            reason or code,
            _get_dict_or_empty(case.get("usage")),
            estimate,
            window,
        )
    headers = {name: _get_text(value) for name, value in _get_dict_or_empty(case.get("headers")).items()}
    return ErrorReport(
        provider=provider,
        status=_get_whole_number(case.get("status")),
        code=code,
        body=[case.get("body"), case.get("message")],
        headers=headers,
        estimate=estimate,
        window=window,
    )


def _get_text(value: Any) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _get_whole_number(value: Any) -> int | None:
    """Return a whole number, also if written as text, or None for anything else."""
    # Digits are bounded because a provider's text may hold any number; larger ones are not token counts.
    if isinstance(value, str) and len(value) < 16 and value.isascii() and value.isdecimal():
        return int(value)
    # The exact type, because True is an int to ``isinstance``.
    if type(value) in {int, float} and 0 <= value < 10**15:
        return int(value)
    return None


def _get_dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _parse_report(data: bytes, status: int | None, provider: str) -> ProviderReport:
    """Parse a whole file into a report: a case, or an error body."""
    try:
        case = json.loads(data)
    except (RecursionError, ValueError):
        case = None
    if isinstance(case, dict) and not _CASE_FIELDS.isdisjoint(case):
        return parse_error_case({"provider": provider, "status": status} | case)
    return ErrorReport(provider, status, body=data)


def _print_verdict(verdict: Verdict) -> None:
    from rich.text import Text

    out = make_console()
    meaning, cure = _KIND_DESCRIPTIONS[verdict.kind]
    style = "yellow" if verdict.is_overflow else "bold"
    name = "an overflow" if verdict.is_overflow else "not an overflow"
    out.print(Text.assemble((verdict.kind, style), f" ({name}): {meaning}"))
    if numbers := _format_numbers(verdict):
        out.print(f"  numbers     {numbers}")
    if verdict.retry_after is not None:
        out.print(f"  retry       in {verdict.retry_after:g} seconds")
    out.print(f"  what to do  {cure}")


def _format_numbers(verdict: Verdict) -> str:
    """Format the limit and the requested tokens or bytes, as far as they are known."""
    if verdict.output_cap is not None:
        return f"at most {verdict.output_cap:,} tokens of answer"
    if verdict.max_bytes is not None:
        sent = "" if verdict.sent_bytes is None else f"{verdict.sent_bytes:,} bytes sent, "
        return f"{sent}{verdict.max_bytes:,} bytes fit"
    limit, requested_tokens = verdict.limit, verdict.requested
    if limit is not None and requested_tokens is not None:
        over = f", {requested_tokens - limit:,} over" if requested_tokens > limit else ""
        return f"{requested_tokens:,} tokens asked for, {limit:,} fit{over}"
    if limit is not None:
        return f"{limit:,} tokens fit"
    return "" if requested_tokens is None else f"{requested_tokens:,} tokens asked for"
