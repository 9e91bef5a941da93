"""``holdfast lint``: whether a request is one that the provider takes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click
import msgspec
from msgspec import Raw, Struct

from holdfast.cli.files.input_files import STDIN, iter_input_lines, read_input_file
from holdfast.cli.output.hints import suggest_right_command
from holdfast.cli.output.terminal import (
    clean_single_line,
    encode_printable_json,
    format_count,
    make_console,
    make_json_option,
    print_json,
    print_wrapped,
)
from holdfast.errors import FormatError, UnrecognizedContent
from holdfast.providers.common.json.json_path import set_body_model
from holdfast.providers.common.json.surrogates import replace_surrogates_in_bytes
from holdfast.providers.registry import API_NAMES
from holdfast.providers.rules.rule import Finding
from holdfast.providers.rules.validate import validate_request
from holdfast.state.codec.reading import get_decoder

EXAMPLES = """\
\b
Examples:
  holdfast lint request.json
  curl … | holdfast lint - --api anthropic
  holdfast lint cases.jsonl --jsonl > verdicts.jsonl
"""
EXIT_FOUND = 1
_LEVEL_STYLES = {"error": "red", "warning": "yellow"}


class RequestCase(Struct):
    """A request, bare or with what stands outside its body: its API, a model in its address, betas in its headers."""

    api: str | None = None
    request: Raw = Raw()
    model: str = ""
    betas: tuple[str, ...] | None = None


class LintOptions(Struct, frozen=True):
    """What is asked for all requests: their API, their model whatever they name, betas of their headers."""

    api: str | None = None
    model: str = ""
    betas: tuple[str, ...] = ()


@click.command("lint", epilog=EXAMPLES)
@click.argument("file", metavar="FILE|-")
@click.option("--api", type=click.Choice(API_NAMES), help="The API it is for. [default: told from the request]")
@click.option("--model", default="", help="The model it is for. [default: the request's own]")
@click.option(
    "--beta", "betas", multiple=True, metavar="NAME", help="A beta of the request's headers; may be repeated."
)
@click.option("--jsonl", is_flag=True, help='A case a line in, {"api", "request"}; a verdict a line out, in order.')
@make_json_option("the verdict")
@click.pass_context
def command(
    ctx: click.Context, file: str, api: str | None, model: str, betas: tuple[str, ...], *, jsonl: bool, as_json: bool
) -> None:
    """Check whether a request is one that the provider takes: every broken rule, with a JSON path.

    With --jsonl a line may be a part of a request: that it names no model or max_tokens is no finding there.
    Exit code 1 when a rule is broken. Warnings, from rules that are only inferred, do not make a request invalid.
    """
    lint_options = LintOptions(api, model, betas)
    valid = _lint_lines(file, lint_options) if jsonl else _lint_file(file, lint_options, as_json=as_json)
    if not valid:
        ctx.exit(EXIT_FOUND)


def _lint_file(file: str, lint_options: LintOptions, *, as_json: bool) -> bool:
    data = read_input_file(file)
    findings = lint_request_body(data, lint_options, whole=True)
    if as_json:
        print_json(encode_findings(findings))
    else:
        _print_findings(file, data, findings)
    return has_no_errors(findings)


def lint_request_body(
    data: bytes, lint_options: LintOptions = LintOptions(), *, whole: bool = False
) -> tuple[Finding, ...]:
    """Return the findings on a request, or a part of one, bare or in a ``RequestCase``.

    Raises ``UnrecognizedContent`` for one of no API we know.
    """
    case = parse_request_case(data)
    body, model = bytes(case.request) or data, lint_options.model or case.model
    with suppress(FormatError):  # what is no object is a finding of the validator's
        body = set_body_model(body, model)
    return validate_request(
        body, lint_options.api or case.api, betas=merge_betas(case, lint_options.betas), model=model, complete=whole
    )


def merge_betas(case: RequestCase, option_betas: Sequence[str]) -> tuple[str, ...] | None:
    """Return the betas of a case and those that were ``option_betas`` beside it; nothing when nobody says any."""
    return case.betas if not option_betas else tuple(dict.fromkeys([*(case.betas or ()), *option_betas]))


def parse_request_case(data: bytes) -> RequestCase:
    """Return the case in ``data``; one without a request for what is none. Halves of characters in it stay."""
    clean = replace_surrogates_in_bytes(data)
    try:
        case = get_decoder(RequestCase).decode(clean)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return RequestCase()
    if clean is not data and (request := bytes(case.request)):
        start = clean.find(request)
        case.request = Raw(data[start : start + len(request)])
    return case


def has_no_errors(findings: Sequence[Finding]) -> bool:
    """Return whether nothing in ``findings`` is an error."""
    return all(finding.level != "error" for finding in findings)


def encode_findings(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what ``--json`` and ``--jsonl`` print."""
    return {"valid": has_no_errors(findings), "findings": [msgspec.to_builtins(finding) for finding in findings]}


def _lint_lines(file: str, lint_options: LintOptions) -> bool:
    """Print a verdict for each line; return whether all are valid."""
    every = True
    for line in iter_input_lines(file):
        findings = lint_line(line, lint_options)
        every = every and has_no_errors(findings)
        click.echo(encode_printable_json(encode_findings(findings)))
    return every


def lint_line(line: bytes, lint_options: LintOptions = LintOptions()) -> tuple[Finding, ...]:
    """Return the findings on one line, which is never an error of its own."""
    try:
        return lint_request_body(line, lint_options)
    except (UnrecognizedContent, FormatError) as error:
        rule = "api" if isinstance(error, UnrecognizedContent) else "json"
        return (Finding(rule, "error", "$", str(error)),)


def _print_findings(file: str, data: bytes, findings: Sequence[Finding]) -> None:
    from rich.text import Text

    out = make_console()
    for finding in findings:
        level = (f"{finding.level:8}", _LEVEL_STYLES[finding.level])
        line = Text.assemble(level, f"{finding.rule}  ", (clean_single_line(finding.path), "bold"))
        out.print(line.append(f"\n        {clean_single_line(finding.message)}"), soft_wrap=True)
    errors = sum(finding.level == "error" for finding in findings)
    name = "the request" if file == STDIN else clean_single_line(file)
    if not findings:
        out.print(f"{name}: valid, no rule broken", style="green")
    elif not errors:
        out.print(f"{name}: valid, with {format_count(len(findings), 'warning')}", style="yellow")
    else:
        out.print(
            f"{name}: invalid: {format_count(errors, 'error')}, {format_count(len(findings) - errors, 'warning')}",
            style="red",
        )
    if errors and findings[0].rule == "json" and (advice := suggest_right_command(data)):
        print_wrapped(out, Text(f"({advice})", style="dim"))
