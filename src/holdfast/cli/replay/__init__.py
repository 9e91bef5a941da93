"""``holdfast replay``: what policies would have made of a recorded session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import replace

from holdfast import config
from holdfast.cli.output.errors import EXPECTED, Stopped, of_file, reason
from holdfast.cli.output.ranges import Whole
from holdfast.cli.output.terminal import Waiting, clean, console, has_colours, json_option, say_json, say_table
from holdfast.cli.places import changed, own_sessions, stored, tools
from holdfast.cli.recordings import Source, sources
from holdfast.cli.replay.dump import Dump
from holdfast.cli.replay.session_report import DEFAULT_FRAME, FailedPolicy, Order, Report, check, reported
from holdfast.errors import UnknownPolicy
from holdfast.planning.presets.presets import PRESETS
from holdfast.providers.recognize import APIS

DEFAULT_WINDOW = 64_000
"""Tokens: small enough for most recorded sessions to outgrow it."""
LARGEST = 1_000_000_000
"""Tokens: a hundred times the largest window of any model; more is a slip of the finger."""
EXAMPLES = """\
\b
The table, for each policy:
  invalid        requests that break a rule of the provider
  over window    requests larger than the usable part of the window
  words lost     messages of the user that a request should have held and did not
  cache hit      share of the input tokens read from the prompt cache
  × append       cost, beside never taking anything away
  fact recall    of what the model used again, the share still in its request
  ms p95         what planning a request took, but for the slowest twentieth
  noticed        what a policy told itself, by its own estimate of tokens

\b
Examples:
  holdfast replay --latest
  holdfast replay session.jsonl --window 96000 --policy holdfast,opencode
  holdfast replay *.jsonl --json > figures.json
  holdfast replay session.jsonl --dump requests/
"""


class Asked(Struct, frozen=True):
    """The command line."""

    files: tuple[str, ...]
    latest: bool
    all_sessions: bool
    window: int
    frame: int | None
    policy: str
    api: str | None
    model: str
    cuts: bool | None
    show: str | None
    dump: str | None
    session: str
    as_json: bool


class Failed(Struct, frozen=True):
    """A file that could not be replayed, and why."""

    file: str
    error: str


@click.command("replay", epilog=EXAMPLES)
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option("--latest", is_flag=True, help="Your newest session of Claude Code, Codex, opencode, Gemini CLI or pi.")
@click.option("--all", "all_sessions", is_flag=True, help="All your sessions of these.")
@click.option(
    "--window",
    type=Whole(max=LARGEST),
    default=DEFAULT_WINDOW,
    show_default=True,
    help="The context window, in tokens.",
)
@click.option(
    "--frame",
    type=Whole(0),
    help=f"Tokens of system prompt and tools. [default: as recorded, else {DEFAULT_FRAME}]",
)
@click.option("--policy", default="all", show_default=True, help="Policies, with commas between them.")
@click.option("--api", type=click.Choice(APIS), help="The API to make requests for. [default: the model's]")
@click.option("--model", default=config.DEFAULT_MODEL, show_default=True, help="The model whose prices count.")
@click.option("--cuts/--no-cuts", default=None, help="Recall at cuts: three more runs. [default: with --json only]")
@click.option("--show", metavar="POLICY", help="The policy whose picture is shown. [default: holdfast]")
@click.option("--dump", metavar="DIR", help="Write every request there: {file, policy, step, request} a line.")
@click.option("--session", default="", metavar="ID", help="Of a database this session alone; the beginning is enough.")
@json_option("an object for each file and policy, in one array,")
def command(**given: Any) -> None:
    """Run a recorded session through policies: cost, cache, recall.

    Each answer in the record is asked for again, as each policy would have asked: its request is validated, measured
    against the window, priced with a simulated prompt cache, and searched for what the model went on to use. Files are
    sessions of Claude Code, Codex, Gemini CLI or pi, the database of opencode or what it exported, or request bodies.
    Nothing leaves this machine.
    """
    asked = Asked(**given)
    order = _order(asked)
    check(order)
    dump = Dump(asked.dump) if asked.dump else None
    with Waiting(wanted=not asked.as_json) as waiting:
        wanted = _wanted(asked)
        outcomes = (one for file, session in wanted for one in _outcomes(file, session, order, waiting, dump))
        if asked.as_json:
            _say_json(list(outcomes))
        else:
            _say(asked, order, list(outcomes))


def _order(asked: Asked) -> Order:
    names = list(dict.fromkeys(name for name in asked.policy.replace(" ", "").split(",") if name))
    if not names:
        raise UnknownPolicy(f"--policy {asked.policy!r} names none; there are all, {', '.join(PRESETS)}")
    names = list(PRESETS) if names == ["all"] else names
    known = config.configuration()
    return Order(
        policies=tuple(known.policy(name) for name in names),
        window=asked.window,
        catalog=known.catalog,
        model=asked.model,
        frame=asked.frame,
        api=asked.api,
        cuts=asked.as_json if asked.cuts is None else asked.cuts,
        points_of=None if asked.as_json else _shown(asked, names),
    )


def _shown(asked: Asked, names: Sequence[str]) -> str:
    """Return the policy whose picture is shown."""
    if asked.show is None:
        return "holdfast" if "holdfast" in names else names[-1]
    if asked.show not in names:
        raise UnknownPolicy(f"--show {asked.show!r} is none of the policies of this run: {', '.join(names)}")
    return asked.show


def _wanted(asked: Asked) -> list[tuple[str, str]]:
    """Return the files to replay, those given first, each with the session wanted of a database.

    ``Stopped`` where there are none.
    """
    files = [(file, asked.session) for file in asked.files]
    if asked.latest or asked.all_sessions:
        places = tools()
        found = sorted((path for tool in places for path in own_sessions(tool)), key=changed, reverse=True)
        if not found:
            looked = ", ".join(str(tool.folder) for tool in places)
            raise Stopped(f"no recorded session was found; looked in {looked}. Give a file instead")
        files += [(str(path), "") for path in found] if asked.all_sessions else [_newest(str(found[0]))]
    if not files:
        raise Stopped("give a file to replay, or --latest for your newest session; see holdfast replay --help")
    return files


def _newest(file: str) -> tuple[str, str]:
    """Return ``file`` and, where it is a database, the id of the session in it that began last."""
    from holdfast.store.foreign import opencode as foreign

    if not foreign.is_database(Path(file)):
        return file, ""
    with foreign.opened(Path(file)) as there:
        return file, next((one.id for one in reversed(there.roots())), "")


def _outcomes(file: str, session: str, order: Order, waiting: Waiting, dump: Dump | None) -> Iterator[Report | Failed]:
    """Yield what came of each session in a file."""
    try:
        for source in sources(file, session):
            yield _outcome(source, order, waiting, dump)
    except Stopped:
        raise
    except EXPECTED as error:
        yield Failed(file, reason(error))


def _outcome(source: Source, order: Order, waiting: Waiting, dump: Dump | None) -> Report | Failed:
    try:
        return reported(source, order, waiting, dump)
    except EXPECTED as error:
        why = stored(source.name) if isinstance(error, FileNotFoundError) else ""
        return Failed(source.name, why or reason(error))


def _say_json(outcomes: Sequence[Report | Failed]) -> None:
    from holdfast.replay.report import record

    out: list[dict[str, Any]] = []
    for outcome in outcomes:
        if isinstance(outcome, Failed):
            out.append({"file": outcome.file, "error": outcome.error})
        else:
            out += [record(outcome.subject, row) for row in outcome.rows]
            out += [{"file": outcome.subject.file, "policy": one.policy, "error": one.error} for one in outcome.failed]
    say_json(out)


def _say(asked: Asked, order: Order, outcomes: Sequence[Report | Failed]) -> None:
    """Print a table and a picture for each file, and a table for all together; stop where no file could be read."""
    reports = [outcome for outcome in outcomes if isinstance(outcome, Report)]
    told = [clean(of_file(one.file, one.error)) for one in outcomes if isinstance(one, Failed)]
    if not reports and len(told) == 1:
        raise Stopped(told[0])
    for line in told:
        click.echo(line, err=True)
    if not reports:
        raise Stopped("no file could be replayed")
    out = console()
    wants_picture = len(reports) == 1 or asked.show is not None
    for number, report in enumerate(reports):
        if number:
            out.print()
        _say_report(report, order, out, wants_picture=wants_picture)
    if len(reports) > 1:
        _say_pool(reports, order, out)


def _say_report(report: Report, order: Order, out: Any, *, wants_picture: bool) -> None:
    from holdfast.replay.picture import picture
    from holdfast.replay.report import cut_table, heading, policy_table, remarks, verdict

    subject, rows = replace(report.subject, file=clean(report.subject.file)), report.rows
    parts: list[Any] = [heading(subject), policy_table(rows, out.width), cut_table(rows, width=out.width)]
    parts += [remarks(rows), *map(_failure, report.failed), verdict(rows)]
    drawn = next((row.measured for row in rows if row.measured.policy == order.points_of), None)
    if wants_picture and drawn is not None:
        letters = not has_colours(out)
        parts.append(picture(drawn.policy, drawn.points, subject.window, subject.usable, out.width, letters=letters))
    _print(out, parts)


def _say_pool(reports: Sequence[Report], order: Order, out: Any) -> None:
    from holdfast.replay.report import HEADLINE, cut_table, policy_table, pool_heading, pooled, remarks, verdict

    rows = pooled([(report.subject, report.rows) for report in reports])
    by_session: dict[str, list[tuple[int, int]]] = {}
    for row in (row for report in reports for row in report.rows if order.cuts):
        score = row.cuts_measured().get(HEADLINE)
        if score is not None:
            by_session.setdefault(row.measured.policy, []).append((score.facts, score.dependencies))
    parts: list[Any] = [pool_heading([report.subject for report in reports])]
    if rows:
        parts += [policy_table(rows, out.width), cut_table(rows, by_session, width=out.width)]
        parts += [remarks(rows), _failures_in_pool(reports), verdict(rows)]
    out.print()
    _print(out, parts)


def _failure(failed: FailedPolicy) -> str:
    """Return why there is no row of a policy; the others of its session stand."""
    return clean(f"{failed.policy} could not be replayed: {failed.error}")


def _failures_in_pool(reports: Sequence[Report]) -> str:
    """Return a line for each policy that misses sessions which others have; its figures are of the rest alone."""
    missed = Counter(one.policy for report in reports for one in report.failed)
    return "\n".join(f"{policy}: without {number} of {len(reports)} sessions" for policy, number in missed.items())


def _print(out: Any, parts: Sequence[Any]) -> None:
    """Print what there is, an empty line between two parts."""
    shown = [part for part in parts if part is not None and str(part)]
    for number, part in enumerate(shown):
        if number:
            out.print()
        say_table(out, part)
