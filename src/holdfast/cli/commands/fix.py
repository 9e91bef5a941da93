"""``holdfast fix``: a request made one that the provider takes, and what was changed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, BinaryIO

import click
import msgspec
from msgspec import Raw, Struct

from holdfast.cli.commands.lint import FOUND, Case, betas_of, case_of
from holdfast.cli.files import cases, content, new_file
from holdfast.cli.output.hints import instead
from holdfast.cli.output.terminal import as_json_bytes, clean, console, json_option, many
from holdfast.errors import FormatError, HoldfastError
from holdfast.providers.convert import convert
from holdfast.providers.fix import Mend, Mended, mend, readable
from holdfast.providers.recognize import body_fields, recognise
from holdfast.providers.registry import APIS

EXAMPLES = """\
\b
Examples:
  holdfast fix request.json > fixed.json
  holdfast fix request.json --to openai-responses --model gpt-5.5
  holdfast fix cases.jsonl --jsonl > fixed.jsonl
"""


class Wish(Struct, frozen=True):
    """What is asked for: the API of the input, the API of the output, the model whose rules hold, beta headers."""

    api: str | None = None
    to: str | None = None
    model: str = ""
    betas: tuple[str, ...] = ()


@click.command("fix", epilog=EXAMPLES)
@click.argument("file", metavar="FILE|-")
@click.option("--api", type=click.Choice(APIS), help="The API it is for. [default: told from the request]")
@click.option("--to", type=click.Choice(APIS), help="The API it shall be for.")
@click.option("--model", default="", help="The model it shall be for. [default: the request's own]")
@click.option("--beta", "betas", metavar="NAME", multiple=True, help="A beta header it is sent with; may be repeated.")
@click.option("-o", "--output", metavar="FILE", help="Where the request is written. [default: standard output]")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@click.option("--jsonl", is_flag=True, help='A case a line in, {"api", "request"}; {"request", "edits"} a line out.')
@json_option("request, edits and what is left")
@click.pass_context
def command(
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
    """Repair a request: print one that the provider takes, and tell what was changed and why.

    A valid request comes back byte for byte. With --jsonl a line may be a part of a request. Exit code 1 when a rule is
    still broken: what it takes to mend it is told on standard error.
    """
    wish = Wish(**asked)
    with _opened(output, force=force) as out:
        fine = _each(file, wish, out) if jsonl else _whole(file, wish, out, as_json=as_json, is_file=output is not None)
    if not fine:
        ctx.exit(FOUND)


class _Printed:
    """Standard output, where there is one."""

    def write(self, data: bytes) -> None:
        """Print ``data`` at once."""
        click.echo(data, nl=False)


def _opened(output: str | None, *, force: bool) -> AbstractContextManager[_Printed | BinaryIO]:
    """Return where the request goes: standard output, or the file ``output``, there whole at the end or not at all."""
    return nullcontext(_Printed()) if output is None else new_file(output, force=force)


def _whole(file: str, wish: Wish, out: _Printed | BinaryIO, *, as_json: bool, is_file: bool) -> bool:
    data = content(file)
    try:
        made = fixed(data, wish, whole=True)
    except FormatError as error:
        advice = instead(data)
        raise type(error)(f"{error}{advice and f' ({advice})'}") from None
    if is_file or not as_json:
        out.write(made.body)
    if as_json:
        click.echo(told(made))
    else:
        _say(made, is_same=made.body in data)
    return made.is_valid


def fixed(data: bytes, wish: Wish, *, whole: bool = False) -> Mended:
    """Return the request in ``data``, bare or in a ``Case``, repaired and, if that is wished, of another API.

    A ``whole`` request is to have all that one must; without, it may be a part of one. Raises ``FormatError`` and
    ``Unrecognised`` for what is no request.
    """
    case = case_of(data)
    body, halves = readable(bytes(case.request) or data)
    api = wish.api or case.api or recognise(body_fields(body))
    to = wish.to or api
    made = Mended(api, body) if to == api else _mended(body, api, case.model, wish, case)
    made = msgspec.structs.replace(made, edits=(*halves, *made.edits))
    converted, lost = convert(made.body, to, wish.model, api=api)
    if to == api and converted != made.body:
        renamed = Mend("model", "the model that was asked for", "$.model")
        made = msgspec.structs.replace(made, edits=(*made.edits, renamed))
    last = _mended(converted, to, wish.model or case.model, wish, case, whole=whole)
    return msgspec.structs.replace(last, edits=(*made.edits, *(Mend("convert", why) for why in lost), *last.edits))


def _mended(body: bytes, api: str, model: str, wish: Wish, case: Case, *, whole: bool = False) -> Mended:
    from holdfast.config import load

    betas = betas_of(case, wish.betas)
    return mend(body, api, model=model, dialect=load().dialect, betas=betas, whole=whole)


def told(made: Mended) -> bytes:
    """Return what ``--json`` prints: the request as it stands, its edits, and all that is still found."""
    return msgspec.json.encode({"request": Raw(made.body), "edits": made.edits, "findings": made.findings})


# -- a case a line -----------------------------------------------------------------------------------------------------


def _each(file: str, wish: Wish, out: _Printed | BinaryIO) -> bool:
    """Write a repaired case for each line, in order; return whether all are valid."""
    every = True
    for line in cases(file):
        answer, fine = of_line(line, wish)
        every = every and fine
        out.write(answer + b"\n")
    return every


def of_line(line: bytes, wish: Wish = Wish()) -> tuple[bytes, bool]:
    """Return what is printed for one line, which is never an error of its own, and whether the request is valid."""
    try:
        made = fixed(line, wish)
    except (HoldfastError, RecursionError) as error:
        return as_json_bytes({"request": None, "edits": [], "error": str(error)}), False
    answer = {"request": Raw(made.body.strip()), "edits": list(made.edits)}
    left = [finding for finding in made.findings if finding.level == "error"]
    return msgspec.json.encode(answer | ({"findings": left} if left else {})), made.is_valid


# -- for people --------------------------------------------------------------------------------------------------------


def _say(made: Mended, *, is_same: bool) -> None:
    """Tell what was changed, and what is left; ``is_same`` says that it has the bytes that came."""
    from rich.text import Text

    out = console(stderr=True)
    for edit in made.edits:
        where = f"  {clean(edit.path)}" if edit.path else ""
        line = Text.assemble(("changed  ", "green"), edit.rule, (where, "bold"))
        out.print(line.append(f"\n         {clean(edit.why)}"), soft_wrap=True)
    left = [finding for finding in made.findings if finding.level == "error"]
    for finding in left:
        line = Text.assemble(("left     ", "red"), finding.rule, (f"  {clean(finding.path)}", "bold"))
        out.print(line.append(f"\n         {clean(finding.message)}"), soft_wrap=True)
    if left:
        out.print(f"{many(len(made.edits), 'change')}; {many(len(left), 'rule')} still broken", style="red")
    elif made.edits:
        out.print(f"valid now: {many(len(made.edits), 'change')}", style="green")
    elif is_same:
        out.print("valid as it was: nothing changed", style="green")
    else:
        out.print(f"valid now: converted to {made.api}, and nothing was left out", style="green")
