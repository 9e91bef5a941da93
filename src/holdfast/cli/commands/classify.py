"""``holdfast classify``: what a provider's error, or an answer, is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from holdfast.cli.files import cases, content
from holdfast.cli.output.errors import Stopped
from holdfast.cli.output.hints import session_of
from holdfast.cli.output.ranges import Whole
from holdfast.cli.output.terminal import as_json_bytes, clean, console, json_option, say_json
from holdfast.providers.overflow import AnswerReport, ErrorReport, Report, Verdict, classify

EXAMPLES = """\
\b
Examples:
  holdfast classify error.json
  curl … | holdfast classify - --status 429
  holdfast classify cases.jsonl --jsonl > verdicts.jsonl
"""
_CASE = frozenset({"channel", "finish_reason", "usage"})
"""Fields of which a case has one and an error body none, at its top."""
_ANSWER = "answer"

_MEANINGS: dict[str, tuple[str, str]] = {
    "context_window": ("the prompt does not fit the context window", "send less: compact the conversation"),
    "input_plus_output": (
        "prompt and answer together do not fit the context window",
        "ask for a shorter answer (max_tokens), then compact the conversation",
    ),
    "request_bytes": ("the body has too many bytes", "send fewer or smaller images and files, then compact"),
    "message_count": ("there are too many messages", "compact the conversation"),
    "oversized_part": ("one part of a message is too long", "cut that part; the conversation itself may fit"),
    "tpm_ceiling": (
        "this one request is over the tokens a minute that the account has",
        "send less; no waiting makes it fit",
    ),
    "tier_gate": (
        "the account has no long context",
        "count with a window of 200,000 tokens and compact, or enable long context",
    ),
    "silent_overflow": ("the prompt fills the window, though no error says so", "compact before the next request"),
    "silent_truncation": (
        "the provider read far less than was sent: it cut the prompt",
        "raise its context size (num_ctx), or compact to what it reads",
    ),
    "rate_limit": ("requests or tokens a minute are used up", "wait, then send the same again"),
    "quota": ("a quota is used up", "wait for its reset, or raise it; compacting does not help"),
    "billing": ("the account has no money left for it", "add credits; compacting does not help"),
    "overloaded": ("the provider has no capacity", "wait, then send the same again"),
    "auth": ("the key or its permissions are refused", "check the key"),
    "server": ("the server failed", "send the same again, a few times at most"),
    "network": ("the connection failed or took too long", "send the same again, a few times at most"),
    "output_limit": ("the answer's length is over what the model can", "lower max_tokens, or let it go on"),
    "media": ("an image, a document or a sound is refused", "make it smaller, convert it or leave it out"),
    "invalid_history": ("the messages are not in an order or form the provider takes", "run: holdfast lint REQUEST"),
    "invalid_request": ("a field of the request is refused", "run: holdfast lint REQUEST"),
    "model": ("the model is not there, or not for this account", "check the model's name"),
    "config": ("a setting here or on the server does not allow it", "change that setting; compacting does not help"),
    "content": ("an ordinary answer", "nothing"),
    "unknown": ("nothing in it tells what it is", "give the status too (--status), or look at the provider's log"),
}


@click.command("classify", epilog=EXAMPLES)
@click.argument("file", metavar="FILE|-")
@click.option("--status", type=Whole(100, 599), help="The HTTP status it came with.")
@click.option("--provider", default="", help="Who said it.")
@click.option("--jsonl", is_flag=True, help="A case a line in, a verdict a line out, in order.")
@json_option("the verdict")
def command(file: str, status: int | None, provider: str, *, jsonl: bool, as_json: bool) -> None:
    """Tell what a provider's error is: an overflow, a rate limit, or else.

    FILE holds an error body as it came: JSON, text or HTML. With --jsonl a line is {"provider", "channel":
    "error"|"stream_error"|"answer", "status", "code", "message" or "body", "finish_reason", "usage", "estimate",
    "window"}, with what is known of it; estimate and window are your own tokens.
    """
    if jsonl:
        for line in cases(file):
            click.echo(as_json_bytes(of_line(line)))
        return
    data = content(file)
    if tool := session_of(data):
        raise Stopped(f"it is a session of {tool} and no error; give what the provider said")
    verdict = classify(_report_of(data, status, provider))
    if as_json:
        say_json(told(verdict))
    else:
        _say(verdict)


def told(verdict: Verdict) -> dict[str, Any]:
    """Return what ``--json`` and ``--jsonl`` print."""
    return {
        "is_overflow": verdict.is_overflow,
        "kind": verdict.kind,
        "limit": verdict.limit,
        "requested": verdict.requested,
        "retry_after": verdict.retry_after,
    }


def of_line(line: bytes) -> dict[str, Any]:
    """Return the verdict on one line; of one that is no case, ``unknown`` with the reason."""
    try:
        case = json.loads(line.decode("utf-8-sig", "surrogatepass"))
    except UnicodeDecodeError as error:
        return _no_case(f"the line is not UTF-8 at byte {error.start}; encode it as UTF-8")
    except (RecursionError, ValueError) as error:
        return _no_case(f"the line is no JSON: {clean(str(error), 200)}; give an object a line")
    if not isinstance(case, dict):
        return _no_case("the line is no JSON object; give one with 'message' or 'body'")
    return told(classify(report(case)))


def _no_case(why: str) -> dict[str, Any]:
    return told(Verdict("unknown")) | {"error": why}


def report(case: Mapping[str, Any]) -> Report:
    """Return the report that a case is; fields of a wrong type count as not given."""
    provider, reason = _text(case.get("provider")), _text(case.get("finish_reason"))
    estimate, window = _whole(case.get("estimate")), _whole(case.get("window"))
    if case.get("channel", _ANSWER if reason and not case.get("message") else "") == _ANSWER:
        return AnswerReport(provider, reason or _text(case.get("code")), _fields(case.get("usage")), estimate, window)
    headers = {name: _text(value) for name, value in _fields(case.get("headers")).items()}
    said = [case.get("body"), case.get("message")]
    return ErrorReport(
        provider, _whole(case.get("status")), _text(case.get("code")), "", said, headers, estimate, window
    )


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _whole(value: Any) -> int | None:
    """Return a whole number, also one written as text; None for anything else."""
    if isinstance(value, str) and len(value) < 16 and value.isascii() and value.isdecimal():
        return int(value)
    return int(value) if type(value) in {int, float} and 0 <= value < 10**15 else None


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _report_of(data: bytes, status: int | None, provider: str) -> Report:
    """Return the report that a whole file is: a case, or an error body."""
    try:
        case = json.loads(data)
    except (RecursionError, ValueError):
        case = None
    if isinstance(case, dict) and not _CASE.isdisjoint(case):
        return report({"provider": provider, "status": status} | case)
    return ErrorReport(provider, status, body=data)


def _say(verdict: Verdict) -> None:
    from rich.text import Text

    out = console()
    what, cure = _MEANINGS[verdict.kind]
    style = "yellow" if verdict.is_overflow else "bold"
    name = "an overflow" if verdict.is_overflow else "no overflow"
    out.print(Text.assemble((verdict.kind, style), f" ({name}): {what}"))
    if numbers := _numbers(verdict):
        out.print(f"  numbers     {numbers}")
    if verdict.retry_after is not None:
        out.print(f"  come back   in {verdict.retry_after:g} seconds")
    out.print(f"  what to do  {cure}")


def _numbers(verdict: Verdict) -> str:
    """Return the numbers in words."""
    limit, asked = verdict.limit, verdict.requested
    if limit is not None and asked is not None:
        over = f", {asked - limit:,} over" if asked > limit else ""
        return f"{asked:,} tokens asked for, {limit:,} fit{over}"
    if limit is not None:
        return f"{limit:,} tokens fit"
    return "" if asked is None else f"{asked:,} tokens asked for"
