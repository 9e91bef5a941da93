"""``holdfast provider``: serve the strict test provider on this machine."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.files.input_files import STDIN, read_input_file
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.ranges import FloatParamType, IntegerParamType
from holdfast.cli.output.terminal import encode_printable_json, make_json_option
from holdfast.config.providers import build_sdk_variables
from holdfast.errors import FormatError
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.providers.common.json.raw_json import decode_json_fields
from holdfast.state.codec.reading import get_decoder
from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.dialects.registry import SERVER_NAMES
from holdfast.testing.provider.faults.faults import FAULT_KINDS, Fault, parse_fault
from holdfast.testing.provider.settings import ProviderSettings

if TYPE_CHECKING:
    from holdfast.testing.provider.provider import Provider
    from holdfast.testing.provider.server.app import RequestReport

FAULT_HELP = "\n".join(f"  {name:13} {kind.about}: {', '.join(kind.stages)}" for name, kind in FAULT_KINDS.items())
EXAMPLES = f"""\
\b
Stages: body, while the request arrives; head, before the first byte of the answer;
first, before its first event; middle, after half of them; end, before the closing ones.
Faults, and the stages where they can happen, the default first:
{FAULT_HELP}

\b
Examples:
  holdfast provider --port 4010 --window 32000
  holdfast provider --fault 529:head:2 --fault stall:middle:4:30
  holdfast provider --server kimi --window 262144
  holdfast provider --script answers.jsonl --json > requests.jsonl
"""
MAX_PROVIDER_PORT = 65_535


@click.command("provider", epilog=EXAMPLES)
@click.option(
    "--port",
    type=IntegerParamType(0, MAX_PROVIDER_PORT),
    default=0,
    help="The port to listen on. [default: a free one]",
)
@click.option(
    "--window",
    type=IntegerParamType(min=1),
    default=ProviderSettings().window,
    show_default=True,
    help="The context window in tokens.",
)
@click.option(
    "--script",
    metavar="FILE",
    help='Answers, one per line: {"text", "thinking", "calls": [[NAME, {}]], "stop"}.',
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="KIND[:STAGE][:N][:SECONDS]",
    help="A fault for request N, counted from 1; 0 = all. May be repeated.",
)
@click.option(
    "--overflow",
    metavar="FAMILY",
    default=ProviderSettings().overflow,
    show_default=True,
    help="The provider whose overflow error to imitate; silent = no error.",
)
@click.option(
    "--server",
    type=click.Choice(SERVER_NAMES),
    default=None,
    metavar="NAME",
    help=f"The server to be, with its own rules and errors: {', '.join(SERVER_NAMES)}.",
)
@click.option(
    "--factor",
    type=FloatParamType(min=0, max=100, min_open=True),
    default=ProviderSettings().factor,
    show_default=True,
    help="Multiply the tokenizer's counts by this.",
)
@make_json_option("one line per request")
def provider_command(
    port: int,
    window: int,
    script: str | None,
    faults: Sequence[str],
    overflow: str,
    server: str | None,
    factor: float,
    *,
    as_json: bool,
) -> None:
    """Serve a strict test provider that refuses what real ones refuse, in their words, and costs nothing.

    It speaks Anthropic Messages, OpenAI Chat Completions and Responses, and Gemini, with streaming, token counting,
    prompt cache, compaction and signed thinking, on this machine only. It accepts any key. With --server it is one of
    the servers that only resemble an API. Without a script it answers "ok 1", "ok 2", and so on, and makes the call
    that a line "call NAME {json}" in a user message asks for. Stop it with ^C.
    """
    from holdfast.testing.provider.provider import Provider

    struck = [parse_fault(fault) for fault in faults]
    settings = ProviderSettings(window=window, factor=factor, overflow=overflow, server=server or "")
    provider = Provider(settings, _load_script(script))
    lines: SimpleQueue[RequestReport] = SimpleQueue()
    with _handle_sigterm(), _serve_provider(provider, struck, port, lines) as url:
        _print_provider_url(url, window, as_json=as_json)
        count = _print_requests(lines, as_json=as_json)
    click.echo(f"stopped after {format_count(count, 'request')}", err=True)


@contextmanager
def _handle_sigterm() -> Iterator[None]:
    """Make SIGTERM end the block as ^C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _serve_provider(
    provider: Provider,
    faults: Sequence[Fault],
    port: int,
    lines: SimpleQueue[RequestReport],
) -> Iterator[str]:
    from holdfast.testing.provider.server.local_server import serve_provider

    try:
        with serve_provider(provider, faults, port=port, on_request=lines.put) as url:
            yield url
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise CommandError(f"port {port} is already in use; give another --port, or 0 for a free one") from None


def _print_provider_url(url: str, window: int, *, as_json: bool) -> None:
    """Print the provider's address, and the variables that point clients at it."""
    variables = build_sdk_variables(url)
    if as_json:
        click.echo(encode_printable_json({"url": url, "window": window, "environment": variables}))
        return
    click.echo(f"strict provider at {url}, window {window:,} tokens; stop with ^C\n")
    for name, value in variables.items():
        click.echo(f"  export {name}={value}")
    click.echo("\nAny API key is accepted, but the SDKs need one to be set. Requests:\n")


def _print_requests(lines: SimpleQueue[RequestReport], *, as_json: bool) -> int:
    """Print each request until ^C, then those still in the queue; return how many there were."""
    count = 0
    with suppress(KeyboardInterrupt):
        while True:
            _print_request(lines.get(), as_json=as_json)
            count += 1
    while not lines.empty():
        _print_request(lines.get(), as_json=as_json)
        count += 1
    return count


def _print_request(report: RequestReport, *, as_json: bool) -> None:
    if as_json:
        click.echo(encode_printable_json(msgspec.to_builtins(report)))
    else:
        click.echo(_format_request(report))


def _format_request(report: RequestReport) -> str:
    """Format a request on one line: method, API and path, then status, size and verdict."""
    request = f"{report.method:4} {report.api or '-':16} {clean_single_line(report.path, 60)}"
    size = ""
    if report.tokens is not None:
        size = f"{report.tokens:,} tokens"
    if report.cached:
        size += f", {report.cached:,} cached"
    return f"{request:64} {report.status or '---'}  {size:32} {clean_single_line(report.verdict)}".rstrip()


# -- scripts -----------------------------------------------------------------------------------------------------------


def _load_script(file: str | None) -> list[ScriptedAnswer]:
    """Parse the answers in ``file``, one per line. Raises ``FormatError`` with the number of an invalid line."""
    if file is None:
        return []
    name = "the script" if file == STDIN else clean_single_line(file)
    answers = []
    for number, line in enumerate(read_input_file(file).split(b"\n"), 1):
        if line.strip():
            answers.append(_parse_script_line(line, f"{name}, line {number}"))
    return answers


def _parse_script_line(line: bytes, location: str) -> ScriptedAnswer:
    try:
        unknown = set(decode_json_fields(line, location)) - set(ScriptedAnswer.__struct_fields__)
        if unknown:
            raise FormatError(
                f"{location}: an answer has no {min(unknown)!r}; use {', '.join(ScriptedAnswer.__struct_fields__)}"
            )
        return get_decoder(ScriptedAnswer).decode(line)
    except (msgspec.MsgspecError, UnicodeError) as error:
        form = '{"text": "…", "calls": [["name", {"argument": 1}]]}'
        raise FormatError(f"{location} is not an answer: {error}; give {form}") from None
