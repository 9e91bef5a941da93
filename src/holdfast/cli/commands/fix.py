"""``holdfast fix``: turn a request into one that the provider accepts, and report the changes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, BinaryIO

import click
import msgspec
from msgspec import Raw, Struct

from holdfast.cli.commands.lint import (
    EXIT_FOUND,
    PROVIDER_RULE,
    RequestCase,
    find_missing_rules,
    make_provider_option,
    make_version_option,
    merge_betas,
    parse_request_case,
    print_doubtful_api,
    print_missing_rules,
)
from holdfast.cli.files.input_files import iter_input_lines, open_output_file, read_input_file
from holdfast.cli.output.hints import suggest_right_command
from holdfast.cli.output.terminal import encode_printable_json, make_console, make_json_option
from holdfast.config import Catalog, load_catalog, load_shipped_catalog
from holdfast.errors import FormatError, HoldfastError
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.lenient_json import read_json_text
from holdfast.providers.fix.fix_context import FixResult, RequestFix
from holdfast.providers.fix.fix_request import fix_lone_surrogates, fix_request
from holdfast.providers.foreign.convert_request import convert_request
from holdfast.providers.registry import API_NAMES
from holdfast.providers.requests.recognize import recognize_api

EXAMPLES = """\
\b
Examples:
  holdfast fix request.json > fixed.json
  holdfast fix request.json --to openai-responses --model gpt-5.5
  holdfast fix request.json --provider mistral > fixed.json
  holdfast fix cases.jsonl --jsonl > fixed.jsonl
"""


class FixOptions(Struct, frozen=True):
    """The options of the command line: APIs of input and output, the model to write for, headers, and provider."""

    api: str | None = None
    to: str | None = None
    model: str = ""
    betas: tuple[str, ...] | None = ()
    provider: str = ""
    version: str = ""


@click.command("fix", epilog=EXAMPLES)
@click.argument("file", metavar="FILE|-")
@click.option("--api", type=click.Choice(API_NAMES), help="The API of the request. [default: recognized from it]")
@click.option("--to", type=click.Choice(API_NAMES), help="Convert the request to this API.")
@click.option("--model", default="", help="Change the request to this model. [default: its own]")
@click.option(
    "--beta",
    "betas",
    metavar="NAME",
    multiple=True,
    help="A beta header sent with the request; may be repeated.",
)
@make_provider_option()
@make_version_option()
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the request to this file. [default: standard output]",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option(
    "--jsonl",
    is_flag=True,
    help='Read one {"api", "request"} per line, print one {"request", "edits"} per line.',
)
@make_json_option("the request, the edits and the remaining findings")
@click.pass_context
def fix_command(
    ctx: click.Context,
    /,
    file: str,
    output: str | None,
    *,
    force: bool,
    jsonl: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Fix a request so that the provider accepts it, and say what was changed.

    A valid request comes back byte for byte. With --jsonl a line may be a part of a request. Exit code 1 if a rule is
    still broken; standard error then says how to fix it yourself.
    """
    fix_options = FixOptions(**asked)
    with _open_output(output, force=force) as out:
        if jsonl:
            fine = _fix_lines(file, fix_options, out)
        else:
            fine = _fix_file(file, fix_options, out, as_json=as_json, is_file=output is not None)
    if not fine:
        ctx.exit(EXIT_FOUND)


class _StandardOutput:
    """Standard output as a file to write to."""

    def write(self, data: bytes) -> None:
        """Write ``data`` at once."""
        click.echo(data, nl=False)


def _open_output(output: str | None, *, force: bool) -> AbstractContextManager[_StandardOutput | BinaryIO]:
    """Open standard output, or the file ``output``, which appears only once it is complete."""
    if output is None:
        return nullcontext(_StandardOutput())
    return open_output_file(output, force=force)


def _fix_file(
    file: str,
    fix_options: FixOptions,
    output: _StandardOutput | BinaryIO,
    *,
    as_json: bool,
    is_file: bool,
) -> bool:
    data = read_input_file(file)
    try:
        result = fix_request_body(data, fix_options, catalog=load_catalog(), whole=True)
    except FormatError as error:
        advice = suggest_right_command(data)
        raise type(error)(f"{error}{advice and f' ({advice})'}") from None
    print_missing_rules(result.findings)
    # With --json the record on standard output already has the body.
    if is_file or not as_json:
        output.write(result.body)
    if as_json:
        click.echo(encode_fix_result(result))
    else:
        _print_fix_result(result, is_same=result.body in data)
        if result.body not in data:
            print_doubtful_api(data, fix_options.api, fix_options.provider)
    return result.is_valid


def fix_request_body(
    data: bytes, fix_options: FixOptions, *, catalog: Catalog | None = None, whole: bool = False
) -> FixResult:
    """Fix the request in ``data``, bare or in a ``RequestCase``, and convert it if another API is asked for.

    ``catalog`` says who serves the model, and its limits; by default the shipped one. A ``whole`` request must be
    complete; otherwise it may be a part of one. Raises ``FormatError`` or ``UnrecognizedContent`` if ``data`` is not a
    request.
    """
    case = parse_request_case(data)
    catalog = catalog or load_shipped_catalog()
    fix_options = _merge_case(fix_options, case)
    body, halves = fix_lone_surrogates(bytes(case.request) or data)
    # Of a request that is converted the provider serves the result, so it says nothing about what there is now.
    present_provider = "" if fix_options.to else fix_options.provider
    api = fix_options.api or recognize_api(parse_body_fields(body), present_provider)
    to = fix_options.to or api
    # A conversion needs a valid request of its own API first; without one a single fix at the end is enough.
    if to == api:
        result = FixResult(api, body)
    else:
        present_options = msgspec.structs.replace(fix_options, model=case.model, provider="")
        result = _fix_by_catalog(body, api, present_options, catalog, is_converted=True)
    result = msgspec.structs.replace(result, fixes=(*halves, *result.fixes))
    new_body, losses = convert_request(result.body, to, fix_options.model, api=api)
    if to == api and new_body != result.body:
        model_edit = RequestFix("model", "the model that was asked for", "$.model")
        result = msgspec.structs.replace(result, fixes=(*result.fixes, model_edit))
    final_options = msgspec.structs.replace(fix_options, model=fix_options.model or case.model)
    last = _fix_by_catalog(new_body, to, final_options, catalog, whole=whole)
    conversion_losses = [RequestFix("convert", why) for why in losses]
    return msgspec.structs.replace(
        last,
        fixes=(*result.fixes, *conversion_losses, *last.fixes),
        findings=(*last.findings, *find_missing_rules(to, fix_options.provider)),
    )


def _merge_case(fix_options: FixOptions, case: RequestCase) -> FixOptions:
    """Return the options with what the case says beside its request; an option wins. The model is left out."""
    return msgspec.structs.replace(
        fix_options,
        api=fix_options.api or case.api,
        betas=merge_betas(case, fix_options.betas or ()),
        provider=fix_options.provider or case.provider,
        version=fix_options.version or case.version,
    )


def _fix_by_catalog(
    body: bytes,
    api: str,
    fix_options: FixOptions,
    catalog: Catalog,
    *,
    whole: bool = False,
    is_converted: bool = False,
) -> FixResult:
    """Fix ``body`` for the provider that the options, the catalogue or the body itself tells."""
    fields = parse_body_fields(body)
    model = fix_options.model or read_json_text(fields.get("model"))
    provider = catalog.find_provider(api, model, named=fix_options.provider, fields=fields)
    return fix_request(
        body,
        api,
        model=fix_options.model,
        provider=provider,
        dialect=partial(catalog.get_dialect, provider=provider),
        betas=fix_options.betas,
        version=fix_options.version,
        complete=whole,
        keep_model_options=is_converted,
    )


def encode_fix_result(result: FixResult) -> bytes:
    """Encode the record that ``--json`` prints: the request, its edits, and the remaining findings."""
    return msgspec.json.encode({"request": Raw(result.body), "edits": result.fixes, "findings": result.findings})


# -- a case a line -----------------------------------------------------------------------------------------------------


def _fix_lines(file: str, fix_options: FixOptions, output: _StandardOutput | BinaryIO) -> bool:
    """Write a fixed case for each line, in order; return whether all are valid."""
    are_all_valid = True
    catalog = load_catalog()
    for line in iter_input_lines(file):
        answer, is_valid = fix_line(line, fix_options, catalog)
        are_all_valid = are_all_valid and is_valid
        output.write(answer + b"\n")
    return are_all_valid


def fix_line(line: bytes, fix_options: FixOptions = FixOptions(), catalog: Catalog | None = None) -> tuple[bytes, bool]:
    """Return the output for one line, and whether the request is valid; errors become part of the output."""
    # A line that cannot be fixed must not stop the lines after it.
    try:
        result = fix_request_body(line, fix_options, catalog=catalog)
    except (HoldfastError, RecursionError) as error:
        return encode_printable_json({"request": None, "edits": [], "error": str(error)}), False
    record: dict[str, Any] = {"request": Raw(result.body.strip()), "edits": list(result.fixes)}
    told = [finding for finding in result.findings if finding.level == "error" or finding.rule == PROVIDER_RULE]
    if told:
        record["findings"] = told
    return msgspec.json.encode(record), result.is_valid


# -- for people --------------------------------------------------------------------------------------------------------


def _print_fix_result(result: FixResult, *, is_same: bool) -> None:
    """Print the changes and the remaining errors; ``is_same`` means the bytes did not change."""
    from rich.text import Text

    out = make_console(stderr=True)
    for edit in result.fixes:
        where = f"  {clean_single_line(edit.path)}" if edit.path else ""
        line = Text.assemble(("changed  ", "green"), edit.rule, (where, "bold"))
        out.print(line.append(f"\n         {clean_single_line(edit.why)}"), soft_wrap=True)
    errors = [finding for finding in result.findings if finding.level == "error"]
    for finding in errors:
        line = Text.assemble(("left     ", "red"), finding.rule, (f"  {clean_single_line(finding.path)}", "bold"))
        out.print(line.append(f"\n         {clean_single_line(finding.message)}"), soft_wrap=True)
    if errors:
        out.print(
            f"{format_count(len(result.fixes), 'change')}; {format_count(len(errors), 'rule')} still broken",
            style="red",
        )
    elif result.fixes:
        out.print(f"valid now: {format_count(len(result.fixes), 'change')}", style="green")
    elif is_same:
        out.print("valid as it was: nothing changed", style="green")
    else:
        out.print(f"valid now: converted to {result.api}; nothing was left out", style="green")
