"""``holdfast lint``: check whether the provider would accept a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import click
import msgspec
from msgspec import Raw, Struct

from holdfast.cli.files.input_files import STDIN, iter_input_lines, read_input_file
from holdfast.cli.output.hints import recognize_trajectory, suggest_right_command
from holdfast.cli.output.terminal import (
    encode_printable_json,
    make_console,
    make_json_option,
    print_json,
    print_wrapped,
)
from holdfast.config import Catalog, load_catalog, load_shipped_catalog
from holdfast.errors import ConfigError, FormatError, UnrecognizedContent
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.json_path import set_body_model
from holdfast.providers.common.json.lenient_json import read_json_text
from holdfast.providers.common.json.surrogates import replace_surrogates_in_bytes
from holdfast.providers.dialects.registry import PROVIDER_NAMES
from holdfast.providers.dialects.request_provider import RequestProvider
from holdfast.providers.registry import API_NAMES, describe_missing_rules
from holdfast.providers.requests.recognize import find_doubtful_api, recognize_api
from holdfast.providers.rules.rule import Finding
from holdfast.providers.rules.validate import validate_request
from holdfast.state.codec.reading import get_decoder

EXAMPLES = """\
\b
Examples:
  holdfast lint request.json
  curl … | holdfast lint - --api anthropic
  holdfast lint request.json --provider mistral
  holdfast lint cases.jsonl --jsonl > verdicts.jsonl
"""
F = TypeVar("F", bound=Callable[..., Any])
EXIT_FOUND = 1
PROVIDER_RULE = "provider"
"""Name of the warning about a provider without rules for the API of the request."""
_LEVEL_STYLES = {"error": "red", "warning": "yellow"}


class RequestCase(Struct):
    """A request with what is not in its body: the API, the model in the URL, the headers, the provider."""

    api: str | None = None
    request: Raw = Raw()
    model: str = ""
    betas: tuple[str, ...] | None = None
    provider: str = ""
    version: str = ""


class LintOptions(Struct, frozen=True):
    """Options that apply to every request: API, model (overrides the request's own), headers, provider."""

    api: str | None = None
    model: str = ""
    betas: tuple[str, ...] = ()
    provider: str = ""
    version: str = ""


def make_version_option() -> Callable[[F], F]:
    """Return the ``--anthropic-version`` option."""
    return click.option(
        "--anthropic-version",
        "version",
        default="",
        metavar="DATE",
        help="The anthropic-version header sent with the request, such as 2026-10-21. [default: unknown]",
    )


def make_provider_option() -> Callable[[F], F]:
    """Return the ``--provider`` option."""
    return click.option(
        "--provider",
        type=click.Choice(("", *PROVIDER_NAMES)),
        default="",
        metavar="NAME",
        help=f"Who serves the request: {', '.join(PROVIDER_NAMES)}."
        " [default: as holdfast.toml says, or told from the request]",
    )


@click.command("lint", epilog=EXAMPLES)
@click.argument("file", metavar="FILE|-")
@click.option("--api", type=click.Choice(API_NAMES), help="The API of the request. [default: recognized from it]")
@click.option("--model", default="", help="The model to check for. [default: the request's own]")
@click.option(
    "--beta",
    "betas",
    multiple=True,
    metavar="NAME",
    help="A beta header sent with the request; may be repeated.",
)
@make_provider_option()
@make_version_option()
@click.option(
    "--jsonl",
    is_flag=True,
    help='Read one {"api", "request"} per line, print one verdict per line, in order.',
)
@make_json_option("the verdict")
@click.pass_context
def lint_command(
    ctx: click.Context,
    /,
    file: str,
    *,
    jsonl: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Check whether the provider would accept a request, and list every broken rule with its JSON path.

    With --jsonl a line may be a part of a request: a missing model or max_tokens is then no error. Exit code 1 if a
    rule is broken. Warnings come from rules that are only inferred, and do not make a request invalid.
    """
    lint_options = LintOptions(**asked)
    if jsonl:
        valid = _lint_lines(file, lint_options)
    else:
        valid = _lint_file(file, lint_options, as_json=as_json)
    if not valid:
        ctx.exit(EXIT_FOUND)


def _lint_file(file: str, lint_options: LintOptions, *, as_json: bool) -> bool:
    data = read_input_file(file)
    try:
        findings = lint_request_body(data, lint_options, catalog=load_catalog(), complete=True)
    except UnrecognizedContent as error:
        if not recognize_trajectory(data):
            raise
        raise UnrecognizedContent(f"{error} ({suggest_right_command(data)})") from None
    print_missing_rules(findings)
    if as_json:
        print_json(encode_findings(findings))
    else:
        _print_findings(file, data, findings)
        if not has_no_errors(findings):
            print_doubtful_api(data, lint_options.api, lint_options.provider)
    return has_no_errors(findings)


def lint_request_body(
    data: bytes,
    lint_options: LintOptions = LintOptions(),
    *,
    catalog: Catalog | None = None,
    complete: bool = False,
) -> tuple[Finding, ...]:
    """Check a request, or a part of one, bare or in a ``RequestCase``, and return the findings.

    ``catalog`` may tell who serves the model; by default the shipped one. A ``complete`` request must name its model
    and ``max_tokens``; a part of one need not.

    Raises ``UnrecognizedContent`` if it belongs to no known API.
    """
    case = parse_request_case(data)
    body = bytes(case.request) or data
    model = lint_options.model or case.model
    # The validator reports a body that is not an object.
    with suppress(FormatError):
        body = set_body_model(body, model)
    named_provider = lint_options.provider or case.provider
    api, provider = lint_options.api or case.api, RequestProvider()
    # The validator reports these too: a body that is not JSON, and an unknown API.
    with suppress(FormatError):
        fields = parse_body_fields(body)
        api = api or recognize_api(fields, named_provider)
        chosen_model = model or read_json_text(fields.get("model"))
        provider = (catalog or load_shipped_catalog()).find_provider(
            api, chosen_model, named=named_provider, fields=fields
        )
    findings = validate_request(
        body,
        api,
        betas=merge_betas(case, lint_options.betas),
        version=lint_options.version or case.version,
        model=model,
        provider=provider,
        complete=complete,
    )
    return (*findings, *find_missing_rules(api, named_provider))


def find_missing_rules(api: str | None, named_provider: str) -> tuple[Finding, ...]:
    """Return a warning if no rules are known of the provider that was named for ``api``."""
    problem = describe_missing_rules(api, named_provider) if api else ""
    return (Finding(PROVIDER_RULE, "warning", "$", problem),) if problem else ()


def print_missing_rules(findings: Sequence[Finding]) -> None:
    """Print the warning of ``find_missing_rules`` among ``findings`` on standard error, if it is there."""
    for finding in findings:
        if finding.rule == PROVIDER_RULE:
            click.echo(f"warning: {finding.message}", err=True)


def print_doubtful_api(data: bytes, asked_api: str | None, provider: str) -> None:
    """Say on standard error that only the model's name told the API of a request, if that is so."""
    case = parse_request_case(data)
    named_provider = provider or case.provider
    if asked_api or case.api or named_provider:
        return
    with suppress(FormatError, UnrecognizedContent):
        fields = parse_body_fields(bytes(case.request) or data)
        api = recognize_api(fields)
        other_api = find_doubtful_api(fields, api)
        if other_api:
            click.echo(f"taken for {api} because of its model's name; if it is not, give --api {other_api}", err=True)


def merge_betas(case: RequestCase, option_betas: Sequence[str]) -> tuple[str, ...] | None:
    """Return the betas of a case together with those of the options, or None without any."""
    if not option_betas:
        return case.betas
    return tuple(dict.fromkeys([*(case.betas or ()), *option_betas]))


def parse_request_case(data: bytes) -> RequestCase:
    """Parse the case in ``data``; anything else gives a case without a request. Lone surrogates are kept."""
    clean = replace_surrogates_in_bytes(data)
    try:
        case = get_decoder(RequestCase).decode(clean)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return RequestCase()
    # The decoder saw repaired bytes, but the rules must judge the request as it was given.
    if clean is not data and (request := bytes(case.request)):
        start = clean.find(request)
        case.request = Raw(data[start : start + len(request)])
    return case


def has_no_errors(findings: Sequence[Finding]) -> bool:
    """Return whether no finding is an error (warnings are allowed)."""
    return all(finding.level != "error" for finding in findings)


def encode_findings(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the record that ``--json`` and ``--jsonl`` print."""
    return {"valid": has_no_errors(findings), "findings": [msgspec.to_builtins(finding) for finding in findings]}


def _lint_lines(file: str, lint_options: LintOptions) -> bool:
    """Print a verdict for each line; return whether all are valid."""
    are_all_valid = True
    catalog = load_catalog()
    warnings: set[Finding] = set()
    for line in iter_input_lines(file):
        findings = lint_line(line, lint_options, catalog)
        warnings.update(finding for finding in findings if finding.rule == PROVIDER_RULE)
        are_all_valid = are_all_valid and has_no_errors(findings)
        click.echo(encode_printable_json(encode_findings(findings)))
    print_missing_rules(sorted(warnings, key=lambda finding: finding.message))
    return are_all_valid


def lint_line(
    line: bytes, lint_options: LintOptions = LintOptions(), catalog: Catalog | None = None
) -> tuple[Finding, ...]:
    """Check one line; a line that cannot be read, or names an unknown provider, gives a finding instead of an error."""
    try:
        return lint_request_body(line, lint_options, catalog=catalog)
    except ConfigError as error:
        return (Finding(PROVIDER_RULE, "error", "$.provider", str(error)),)
    except (UnrecognizedContent, FormatError) as error:
        rule = "api" if isinstance(error, UnrecognizedContent) else "json"
        return (Finding(rule, "error", "$", str(error)),)


def _print_findings(file: str, data: bytes, findings: Sequence[Finding]) -> None:
    from rich.text import Text

    out = make_console()
    findings = [finding for finding in findings if finding.rule != PROVIDER_RULE]  # it is on standard error
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
        error_count = format_count(errors, "error")
        warning_count = format_count(len(findings) - errors, "warning")
        out.print(f"{name}: invalid: {error_count}, {warning_count}", style="red")
    if errors and findings[0].rule == "json" and (advice := suggest_right_command(data)):
        print_wrapped(out, Text(f"({advice})", style="dim"))
