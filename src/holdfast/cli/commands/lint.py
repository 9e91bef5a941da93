"""``holdfast lint``: whether a request is one that the provider takes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click
import msgspec
from msgspec import Raw, Struct

from holdfast.cli.files import STDIN, cases, content
from holdfast.cli.output.hints import instead
from holdfast.cli.output.terminal import as_json_bytes, clean, console, json_option, many, say_json, say_whole
from holdfast.errors import FormatError, Unrecognised
from holdfast.providers.common.json.json_path import named
from holdfast.providers.common.json.surrogates import whole
from holdfast.providers.recognize import APIS
from holdfast.providers.rules import Finding, validate
from holdfast.state.codec.reading import decoder

EXAMPLES = """\
\b
Examples:
  holdfast lint request.json
  curl … | holdfast lint - --api anthropic
  holdfast lint cases.jsonl --jsonl > verdicts.jsonl
"""
FOUND = 1
_STYLES = {"error": "red", "warning": "yellow"}


class Case(Struct):
    """A request, bare or with what stands outside its body: its API, a model in its address, betas in its headers."""

    api: str | None = None
    request: Raw = Raw()
    model: str = ""
    betas: tuple[str, ...] | None = None


class Wish(Struct, frozen=True):
    """What is asked for all requests: their API, their model whatever they name, betas of their headers."""

    api: str | None = None
    model: str = ""
    betas: tuple[str, ...] = ()


@click.command("lint", epilog=EXAMPLES)
@click.argument("file", metavar="FILE|-")
@click.option("--api", type=click.Choice(APIS), help="The API it is for. [default: told from the request]")
@click.option("--model", default="", help="The model it is for. [default: the request's own]")
@click.option(
    "--beta", "betas", multiple=True, metavar="NAME", help="A beta of the request's headers; may be repeated."
)
@click.option("--jsonl", is_flag=True, help='A case a line in, {"api", "request"}; a verdict a line out, in order.')
@json_option("the verdict")
@click.pass_context
def command(
    ctx: click.Context, file: str, api: str | None, model: str, betas: tuple[str, ...], *, jsonl: bool, as_json: bool
) -> None:
    """Check whether a request is one that the provider takes: every broken rule, with a JSON path.

    With --jsonl a line may be a part of a request: that it names no model or max_tokens is no finding there.
    Exit code 1 when a rule is broken. Warnings, from rules that are only inferred, do not make a request invalid.
    """
    wish = Wish(api, model, betas)
    valid = _lines(file, wish) if jsonl else _whole(file, wish, as_json=as_json)
    if not valid:
        ctx.exit(FOUND)


def _whole(file: str, wish: Wish, *, as_json: bool) -> bool:
    data = content(file)
    found = judged(data, wish, whole=True)
    if as_json:
        say_json(verdict(found))
    else:
        _say(file, data, found)
    return is_valid(found)


def judged(data: bytes, wish: Wish = Wish(), *, whole: bool = False) -> tuple[Finding, ...]:
    """Return the findings on a request, or a part of one, bare or in a ``Case``.

    Raises ``Unrecognised`` for one of no API we know.
    """
    case = case_of(data)
    body, model = bytes(case.request) or data, wish.model or case.model
    with suppress(FormatError):  # what is no object is a finding of the validator's
        body = named(body, model)
    return validate(body, wish.api or case.api, betas=betas_of(case, wish.betas), model=model, whole=whole)


def betas_of(case: Case, told: Sequence[str]) -> tuple[str, ...] | None:
    """Return the betas of a case and those that were ``told`` beside it; nothing when nobody says any."""
    return case.betas if not told else tuple(dict.fromkeys([*(case.betas or ()), *told]))


def case_of(data: bytes) -> Case:
    """Return the case in ``data``; one without a request for what is none. Halves of characters in it stay."""
    clean = whole(data)
    try:
        case = decoder(Case).decode(clean)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return Case()
    if clean is not data and (request := bytes(case.request)):
        start = clean.find(request)
        case.request = Raw(data[start : start + len(request)])
    return case


def is_valid(found: Sequence[Finding]) -> bool:
    """Return whether nothing in ``found`` is an error."""
    return all(finding.level != "error" for finding in found)


def verdict(found: Sequence[Finding]) -> dict[str, Any]:
    """Return what ``--json`` and ``--jsonl`` print."""
    return {"valid": is_valid(found), "findings": [msgspec.to_builtins(finding) for finding in found]}


def _lines(file: str, wish: Wish) -> bool:
    """Print a verdict for each line; return whether all are valid."""
    every = True
    for line in cases(file):
        found = of_line(line, wish)
        every = every and is_valid(found)
        click.echo(as_json_bytes(verdict(found)))
    return every


def of_line(line: bytes, wish: Wish = Wish()) -> tuple[Finding, ...]:
    """Return the findings on one line, which is never an error of its own."""
    try:
        return judged(line, wish)
    except (Unrecognised, FormatError) as error:
        rule = "api" if isinstance(error, Unrecognised) else "json"
        return (Finding(rule, "error", "$", str(error)),)


def _say(file: str, data: bytes, found: Sequence[Finding]) -> None:
    from rich.text import Text

    out = console()
    for finding in found:
        level = (f"{finding.level:8}", _STYLES[finding.level])
        line = Text.assemble(level, f"{finding.rule}  ", (clean(finding.path), "bold"))
        out.print(line.append(f"\n        {clean(finding.message)}"), soft_wrap=True)
    errors = sum(finding.level == "error" for finding in found)
    name = "the request" if file == STDIN else clean(file)
    if not found:
        out.print(f"{name}: valid, no rule broken", style="green")
    elif not errors:
        out.print(f"{name}: valid, with {many(len(found), 'warning')}", style="yellow")
    else:
        out.print(f"{name}: invalid: {many(errors, 'error')}, {many(len(found) - errors, 'warning')}", style="red")
    if errors and found[0].rule == "json" and (advice := instead(data)):
        say_whole(out, Text(f"({advice})", style="dim"))
