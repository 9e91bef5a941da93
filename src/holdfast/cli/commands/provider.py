"""``holdfast provider``: the strict provider as a server on this machine, for anybody's tests."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.files import STDIN, content
from holdfast.cli.output.errors import Stopped
from holdfast.cli.output.ranges import Measure, Whole
from holdfast.cli.output.terminal import as_json_bytes, clean, json_option, many
from holdfast.config.providers import leading_to
from holdfast.errors import FormatError
from holdfast.providers.common.json.raw_json import fields
from holdfast.state.codec.reading import decoder
from holdfast.testing.provider.calls import Said
from holdfast.testing.provider.faults.faults import KINDS, Fault, parsed
from holdfast.testing.provider.settings import Settings

if TYPE_CHECKING:
    from holdfast.testing.provider.provider import Provider
    from holdfast.testing.provider.server.app import Told

FAULTS = "\n".join(f"  {name:13} {kind.about}: {', '.join(kind.stages)}" for name, kind in KINDS.items())
EXAMPLES = f"""\
\b
Stages: body, while the request comes in; head, before the first byte of the answer;
first, before its first event; middle, behind half of them; end, before those that end it.
Faults, and where they can strike, the usual stage first:
{FAULTS}

\b
Examples:
  holdfast provider --port 4010 --window 32000
  holdfast provider --fault 529:head:2 --fault stall:middle:4:30
  holdfast provider --script answers.jsonl --json > requests.jsonl
"""
MOST_PORTS = 65_535


@click.command("provider", epilog=EXAMPLES)
@click.option("--port", type=Whole(0, MOST_PORTS), default=0, help="Port of this machine. [default: a free one]")
@click.option(
    "--window",
    type=Whole(min=1),
    default=Settings().window,
    show_default=True,
    help="Tokens of the context window.",
)
@click.option(
    "--script", metavar="FILE", help='Answers, one a line: {"text", "thinking", "calls": [[NAME, {}]], "stop"}.'
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="KIND[:STAGE][:N][:SECONDS]",
    help="What strikes request N, counted from 1; 0 = all. Again for more.",
)
@click.option(
    "--overflow",
    metavar="FAMILY",
    default=Settings().overflow,
    show_default=True,
    help="Whose words an overflow has; silent = none at all.",
)
@click.option(
    "--factor",
    type=Measure(min=0, max=100, min_open=True),
    default=Settings().factor,
    show_default=True,
    help="Tokens for one token of the tokenizer.",
)
@json_option("a line a request")
def command(
    port: int, window: int, script: str | None, faults: Sequence[str], overflow: str, factor: float, *, as_json: bool
) -> None:
    """Serve a strict provider: it refuses what real ones refuse, in their words, and costs nothing.

    It speaks Anthropic Messages, OpenAI Chat Completions and Responses, and Gemini, with streaming, token counting,
    prompt cache, compaction and signed thinking, on this machine only. Any key is taken. Without a script it answers
    "ok 1", "ok 2", and makes the call that a user's line "call NAME {json}" asks for. Ends with ^C.
    """
    from holdfast.testing.provider.provider import Provider

    struck = [parsed(fault) for fault in faults]
    provider = Provider(Settings(window=window, factor=factor, overflow=overflow), _script(script))
    lines: SimpleQueue[Told] = SimpleQueue()
    with _ending(), _served(provider, struck, port, lines) as url:
        _greet(url, window, as_json=as_json)
        count = _follow(lines, as_json=as_json)
    click.echo(f"stopped after {many(count, 'request')}", err=True)


@contextmanager
def _ending() -> Iterator[None]:
    """Let a request to terminate end the block as ^C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _served(provider: Provider, faults: Sequence[Fault], port: int, lines: SimpleQueue[Told]) -> Iterator[str]:
    from holdfast.testing.provider.server.serving import serving

    try:
        with serving(provider, faults, port=port, onlooker=lines.put) as url:
            yield url
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise Stopped(f"port {port} is taken by another program; give another --port, or 0 for a free one") from None


def _greet(url: str, window: int, *, as_json: bool) -> None:
    """Tell where the provider is, and how clients get there."""
    variables = leading_to(url)
    if as_json:
        click.echo(as_json_bytes({"url": url, "window": window, "environment": variables}))
        return
    click.echo(f"strict provider at {url}, window {window:,} tokens; ends with ^C\n")
    for name, value in variables.items():
        click.echo(f"  export {name}={value}")
    click.echo("\nAny API key is taken, but the SDKs want one to be set. Requests:\n")


def _follow(lines: SimpleQueue[Told], *, as_json: bool) -> int:
    """Tell each request until ^C, and those that were still to be told; return how many there were."""
    count = 0
    with suppress(KeyboardInterrupt):
        while True:
            _tell(lines.get(), as_json=as_json)
            count += 1
    while not lines.empty():
        _tell(lines.get(), as_json=as_json)
        count += 1
    return count


def _tell(told: Told, *, as_json: bool) -> None:
    click.echo(as_json_bytes(msgspec.to_builtins(told)) if as_json else _line(told))


def _line(told: Told) -> str:
    """Return a request on one line: what was asked, how large it was, what came of it."""
    tokens = "" if told.tokens is None else f"{told.tokens:,} tokens"
    cached = f", {told.cached:,} cached" if told.cached else ""
    asked = f"{told.method:4} {told.api or '-':16} {clean(told.path, 60)}"
    return f"{asked:64} {told.status or '---'}  {tokens + cached:32} {clean(told.verdict)}".rstrip()


# -- scripts -----------------------------------------------------------------------------------------------------------


def _script(file: str | None) -> list[Said]:
    """Return the answers in ``file``, one a line; raises ``FormatError`` with the number of a line that is none."""
    if file is None:
        return []
    name = "the script" if file == STDIN else clean(file)
    lines = enumerate(content(file).split(b"\n"), 1)
    return [_said(line, f"{name}, line {number}") for number, line in lines if line.strip()]


def _said(line: bytes, where: str) -> Said:
    try:
        unknown = set(fields(line, where)) - set(Said.__struct_fields__)
        if unknown:
            raise FormatError(f"{where}: no answer has {min(unknown)!r}; give {', '.join(Said.__struct_fields__)}")
        return decoder(Said).decode(line)
    except (msgspec.MsgspecError, UnicodeError) as error:
        form = '{"text": "…", "calls": [["name", {"argument": 1}]]}'
        raise FormatError(f"{where} is no answer: {error}; give {form}") from None
