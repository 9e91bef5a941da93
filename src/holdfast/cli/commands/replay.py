"""``holdfast replay``: run recorded sessions through policies and compare the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import replace

from holdfast import config
from holdfast.cli.files.recordings import RecordingSource, iter_recordings
from holdfast.cli.files.user_paths import (
    get_modification_sort_key,
    list_session_files,
    list_session_tools,
    suggest_export_for_session,
)
from holdfast.cli.output.errors import EXPECTED_ERRORS, WRONG_USE, CommandError, describe_error, prefix_file_name
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.terminal import (
    ProgressBar,
    has_colors,
    make_console,
    make_json_option,
    print_json,
    print_table,
)
from holdfast.cli.replay.dump import RequestDumpFolder
from holdfast.cli.replay.summary_model import SummaryModelOptions, open_summary_model, parse_summary_kinds
from holdfast.errors import UnknownPolicy, UnrecognizedContent
from holdfast.messages.text.single_line import clean_single_line
from holdfast.planning.presets.registry import PRESETS
from holdfast.providers.registry import API_NAMES
from holdfast.replay.report import OUR_POLICY, PolicyRow
from holdfast.replay.repositories import RepositoryPool
from holdfast.reports.sessions.session_replay import (
    DEFAULT_SETUP_TOKENS,
    DEFAULT_WINDOW,
    MAX_REPLAY_WINDOW,
    PolicyFailure,
    ReplayJob,
    ReplayReport,
    check_replay_window,
    replay_recording,
)

EXAMPLES = """\
\b
The table, for each policy:
  invalid        requests that break a rule of the provider
  over window    requests larger than the usable part of the window
  words lost     messages of the user that are missing from a request
  cache hit      share of the input tokens read from the prompt cache
  × append       cost, as a multiple of the cost of never removing anything
  fact recall    share of the facts the model used later that were still in its request
  ms p95         milliseconds to plan a request; 95 % took no longer
  noticed        warnings of the policy itself, by its own token estimate

\b
Examples:
  holdfast replay --latest
  holdfast replay session.jsonl --window 96000 --policy holdfast,opencode
  holdfast replay *.jsonl --json > figures.json
  holdfast replay session.jsonl --losses
  holdfast replay session.jsonl --dump requests/
  holdfast replay session.jsonl --summaries all --answers answers.jsonl
"""


class ReplayOptions(Struct, frozen=True):
    """The options of the command line."""

    files: tuple[str, ...]
    latest: bool
    all_sessions: bool
    window: int | None
    setup_tokens: int | None
    policy: str
    api: str | None
    model: str
    cuts: bool | None
    show: str | None
    dump: str | None
    session: str
    as_json: bool
    losses: bool
    summaries: str = "extract"
    summary_model: str | None = None
    base_url: str | None = None
    answers: str | None = None


class ReplayFailure(Struct, frozen=True):
    """A file that could not be replayed, and why."""

    file: str
    error: str


@click.command("replay", epilog=EXAMPLES)
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option(
    "--latest",
    is_flag=True,
    help="Your newest session of Claude Code, Codex, opencode, Gemini CLI, Copilot CLI, goose, OpenClaw or pi.",
)
@click.option("--all", "all_sessions", is_flag=True, help="All your sessions of these tools.")
@click.option(
    "--window",
    type=IntegerParamType(max=MAX_REPLAY_WINDOW),
    help=f"The context window, in tokens. [default: {DEFAULT_WINDOW}, or as recorded if --model is not in the catalog]",
)
@click.option(
    "--setup-tokens",
    "--frame",
    "setup_tokens",
    type=IntegerParamType(0),
    help=f"Tokens of system prompt and tools. [default: as recorded, else {DEFAULT_SETUP_TOKENS}]",
)
@click.option("--policy", default="all", show_default=True, help="Policies, separated by commas.")
@click.option("--api", type=click.Choice(API_NAMES), help="The API to build requests for. [default: the model's]")
@click.option(
    "--model",
    default=config.DEFAULT_MODEL,
    show_default=True,
    help="The model whose prices count.",
)
@click.option(
    "--cuts/--no-cuts",
    default=None,
    help="Measure recall at cuts (three more runs). [default: with --json only]",
)
@click.option(
    "--losses",
    is_flag=True,
    help="Tell where facts were lost, with ours alone unless --policy names others.",
)
@click.option("--show", metavar="POLICY", help="The policy to draw. [default: holdfast]")
@click.option("--dump", metavar="DIR", help="Write every request there, one {file, policy, step, request} per line.")
@click.option(
    "--summaries",
    default="extract",
    show_default=True,
    metavar="KINDS",
    help="Who writes summaries: extract (no model), both (a model and the extract), model (it alone), or all three.",
)
@click.option("--summary-model", metavar="MODEL", help="The model that writes them. [default: that of --model]")
@click.option(
    "--base-url",
    metavar="URL",
    help="The address of its API. [default: its SDK's variable, else the official address]",
)
@click.option("--answers", metavar="FILE", help="Read the model's answers there if it has them, and add new ones.")
@click.option(
    "--session",
    default="",
    metavar="ID",
    help="Only this session of a database; the beginning of its id is enough.",
)
@make_json_option("an array with an object for each file and policy, and for each repository if there are several,")
@click.pass_context
def replay_command(ctx: click.Context, /, **given: Any) -> None:
    """Run a recorded session through policies: cost, cache, recall.

    Each answer in the recording is requested again, the way each policy would have requested it. Every request is
    validated, measured against the window, priced with a simulated prompt cache, and searched for the facts the model
    went on to use. Files are sessions of Claude Code, Codex, Copilot CLI, Gemini CLI or pi, a database or export of
    opencode or goose, a database of OpenClaw, trajectories in ATIF or of SWE-agent or mini-swe-agent, or request
    bodies. Nothing leaves this machine, unless --summaries names a model's: then its provider is asked, and paid, for
    each summary.

    Exit code 2 if no file could be replayed.
    """
    options = ReplayOptions(**given)
    replay_job = _make_replay_setup(options)
    check_replay_window(replay_job)
    dump = None
    # Made before the first file is read, so that a folder that cannot be written is reported at once.
    if options.dump:
        dump = RequestDumpFolder(options.dump)
    with _open_wanted_model(options, replay_job) as replay_job, ProgressBar(is_wanted=not options.as_json) as waiting:
        files = _list_files(options)
        outcomes: list[ReplayReport | ReplayFailure] = []
        for file, session in files:
            outcomes += _replay_file(file, session, replay_job, waiting, dump)
    if options.as_json:
        _print_reports_json(outcomes)
        # The array is printed either way, but a script must not take a list of errors alone for a success.
        if all(isinstance(outcome, ReplayFailure) for outcome in outcomes):
            ctx.exit(WRONG_USE)
    else:
        _print_reports(options, replay_job, outcomes)


@contextmanager
def _open_wanted_model(options: ReplayOptions, replay_job: ReplayJob) -> Iterator[ReplayJob]:
    """Return the job with the model that writes summaries, if any kind of summary needs one."""
    if replay_job.summary_kinds == ("extract",):
        yield replay_job
        return
    model_options = SummaryModelOptions(options.summary_model or options.model, options.base_url, options.answers)
    with open_summary_model(model_options, replay_job.catalog) as summary_model:
        yield replace(replay_job, summary_model=summary_model)


def _make_replay_setup(options: ReplayOptions) -> ReplayJob:
    summary_kinds = parse_summary_kinds(options.summaries)
    requested = options.policy.replace(" ", "").split(",")
    names = list(dict.fromkeys(name for name in requested if name))
    if not names:
        raise UnknownPolicy(f"--policy {options.policy!r} names no policy; choose from all, {', '.join(PRESETS)}")
    if names == ["all"]:
        # Each row with a model's summaries costs money: only ours is compared with itself unless others are named.
        # The losses of seven policies would fill many screens.
        compares_all = summary_kinds == ("extract",) and not options.losses
        names = list(PRESETS) if compares_all else [OUR_POLICY]
    configuration = config.load_configuration()
    # Cuts take three more runs a policy, so they are for figures (--json); a person sees a picture instead.
    measures_cuts = options.cuts
    if measures_cuts is None:
        measures_cuts = options.as_json and summary_kinds == ("extract",)
    pictured_policies: tuple[str, ...] = ()
    if not options.as_json:
        pictured_policies = (_choose_pictured_policy(options, names),)
    return ReplayJob(
        policies=tuple(configuration.build_policy(name) for name in names),
        window=DEFAULT_WINDOW if options.window is None else options.window,
        catalog=configuration.catalog,
        model=options.model,
        setup_tokens=options.setup_tokens,
        api=options.api,
        measures_cuts=measures_cuts,
        pictured_policies=pictured_policies,
        allows_recorded_window=options.window is None,
        studies_losses=options.losses,
        summary_kinds=summary_kinds,
    )


def _choose_pictured_policy(options: ReplayOptions, names: Sequence[str]) -> str:
    """Return the policy to draw: the one of --show, else holdfast, else the last of this run."""
    if options.show is None:
        return "holdfast" if "holdfast" in names else names[-1]
    if options.show not in names:
        raise UnknownPolicy(f"--show {options.show!r} is not a policy of this run; choose from {', '.join(names)}")
    return options.show


def _list_files(options: ReplayOptions) -> list[tuple[str, str]]:
    """List the files to replay, the given ones first, each with the session to take from a database ("": all).

    Raises ``CommandError`` if there are none.
    """
    files = [(file, options.session) for file in options.files]
    if options.latest or options.all_sessions:
        tools = list_session_tools()
        paths: list[Path] = []
        for tool in tools:
            paths += list_session_files(tool)
        paths.sort(key=get_modification_sort_key, reverse=True)
        if not paths:
            folders = ", ".join(str(tool.folder) for tool in tools)
            raise CommandError(f"no recorded session was found in {folders}; give a file instead")
        if options.all_sessions:
            files += [(str(path), "") for path in paths]
        else:
            files.append(_find_newest_session(paths))
    if not files:
        raise CommandError("give a file to replay, or --latest for your newest session; see holdfast replay --help")
    return files


def _find_newest_session(paths: Sequence[Path]) -> tuple[str, str]:
    """Return the first of the files that has sessions, with the id of its newest one if it is a database.

    If none has any, the first file is returned: its reader says what is wrong.
    """
    from holdfast.store.foreign.open_database import open_foreign_database
    from holdfast.store.foreign.sqlite_files import is_sqlite_file

    for path in paths:
        if not is_sqlite_file(path):
            return str(path), ""
        # Before 2026.8 the database of OpenClaw had no sessions, and changed whenever a login was renewed.
        with suppress(UnrecognizedContent), open_foreign_database(path) as there:
            sessions = there.list_root_sessions()
            if sessions:
                return str(path), sessions[-1].id
    return str(paths[0]), ""


def _replay_file(
    file: str,
    session: str,
    replay_job: ReplayJob,
    waiting: ProgressBar,
    dump: RequestDumpFolder | None,
) -> Iterator[ReplayReport | ReplayFailure]:
    """Yield the outcome of each session in a file. Raises ``CommandError`` for wrong use, which ends the command."""
    # Caught here and for each source: an unreadable file ends after the sessions that were read from it.
    try:
        for source in iter_recordings(file, session):
            yield _replay_source(source, replay_job, waiting, dump)
    except CommandError:
        raise
    except EXPECTED_ERRORS as error:
        yield ReplayFailure(file, describe_error(error))


def _replay_source(
    source: RecordingSource,
    replay_job: ReplayJob,
    waiting: ProgressBar,
    dump: RequestDumpFolder | None,
) -> ReplayReport | ReplayFailure:
    try:
        return replay_recording(source.name, source.read(), replay_job, waiting, dump)
    except EXPECTED_ERRORS as error:
        why = ""
        if isinstance(error, FileNotFoundError):
            why = suggest_export_for_session(source.name)
        return ReplayFailure(source.name, why or describe_error(error))


def _print_reports_json(outcomes: Sequence[ReplayReport | ReplayFailure]) -> None:
    from holdfast.replay.report import encode_policy_row
    from holdfast.replay.repositories import encode_repositories

    out: list[dict[str, Any]] = []
    for outcome in outcomes:
        if isinstance(outcome, ReplayFailure):
            out.append({"file": outcome.file, "error": outcome.error})
        else:
            out += [encode_policy_row(outcome.subject, row) for row in outcome.rows]
            for failure in outcome.failures:
                out.append(
                    {"file": outcome.subject.file, "policy": failure.policy, "error": describe_error(failure.error)}
                )
    reports = [outcome for outcome in outcomes if isinstance(outcome, ReplayReport)]
    pools = _pool_repositories(reports)
    print_json(out + encode_repositories(pools))


def _print_reports(
    options: ReplayOptions,
    replay_job: ReplayJob,
    outcomes: Sequence[ReplayReport | ReplayFailure],
) -> None:
    """Print a table and a picture for each file, and one table for all together.

    Raises ``CommandError`` if no file could be read.
    """
    reports = [outcome for outcome in outcomes if isinstance(outcome, ReplayReport)]
    error_lines = []
    for failure in outcomes:
        if isinstance(failure, ReplayFailure):
            error_lines.append(clean_single_line(prefix_file_name(failure.file, failure.error)))
    # A single file that failed is simply the error of the command.
    if not reports and len(error_lines) == 1:
        raise CommandError(error_lines[0])
    for line in error_lines:
        click.echo(line, err=True)
    if not reports:
        raise CommandError("no file could be replayed")
    out = make_console()
    # A picture for each of many sessions would hide the tables, so it must be asked for.
    # So must one beside the losses, which have bars of their own.
    wants_picture = (len(reports) == 1 and not options.losses) or options.show is not None
    for number, report in enumerate(reports):
        if number:
            out.print()
        _print_report(report, replay_job, out, wants_picture=wants_picture)
    if len(reports) > 1:
        _print_pool(reports, replay_job, out)


def _print_report(
    report: ReplayReport,
    replay_job: ReplayJob,
    console: Any,
    *,
    wants_picture: bool,
) -> None:
    from holdfast.replay.picture import draw_policy_picture
    from holdfast.replay.report import (
        make_cut_table,
        make_policy_remarks,
        make_policy_table,
        make_policy_verdict,
        make_session_heading,
    )

    subject = replace(report.subject, file=clean_single_line(report.subject.file))
    rows = report.rows
    parts: list[Any] = [
        make_session_heading(subject),
        make_policy_table(rows, console.width),
        make_cut_table(rows, width=console.width),
    ]
    parts += [make_policy_remarks(rows), *map(_format_policy_failure, report.failures), make_policy_verdict(rows)]
    measurement = None
    for row in rows:
        if row.figures.policy in replay_job.pictured_policies:
            measurement = row.figures
            break
    parts += _make_loss_parts(rows, console.width)
    if wants_picture and measurement is not None:
        letters = not has_colors(console)
        parts.append(
            draw_policy_picture(
                measurement.policy,
                measurement.points,
                subject.window,
                subject.usable,
                console.width,
                letters=letters,
            )
        )
    _print_parts(console, parts)


def _pool_repositories(reports: Sequence[ReplayReport]) -> list[RepositoryPool]:
    """Return the pools of the repositories, or nothing unless there are two to compare."""
    from holdfast.replay.repositories import pool_by_repository

    pools = pool_by_repository([(report.subject, report.rows) for report in reports])
    return pools if len(pools) > 1 else []


def _print_pool(reports: Sequence[ReplayReport], replay_job: ReplayJob, console: Any) -> None:
    """Print one table over all sessions."""
    from holdfast.replay.report import (
        HEADLINE_BUDGET,
        make_cut_table,
        make_policy_remarks,
        make_policy_table,
        make_policy_verdict,
        make_pool_heading,
        pool_policy_rows,
    )
    from holdfast.replay.report_repositories import make_repository_heading, make_repository_table

    rows = pool_policy_rows([(report.subject, report.rows) for report in reports])
    facts_by_policy: dict[str, list[tuple[int, int]]] = {}
    if replay_job.measures_cuts:
        for report in reports:
            for row in report.rows:
                score = row.get_measured_cuts().get(HEADLINE_BUDGET)
                if score is not None:
                    facts = (score.kept_facts, score.dependencies)
                    facts_by_policy.setdefault(row.figures.policy, []).append(facts)
    parts: list[Any] = [make_pool_heading([report.subject for report in reports])]
    if rows:
        parts += [make_policy_table(rows, console.width), make_cut_table(rows, facts_by_policy, width=console.width)]
        parts += [make_policy_remarks(rows), _format_pool_failures(reports), make_policy_verdict(rows)]
        pools = _pool_repositories(reports)
        if pools:
            parts += [make_repository_heading(pools), make_repository_table(pools, clean_single_line, console.width)]
        parts += _make_loss_parts(rows, console.width, names_files=True)
    console.print()
    _print_parts(console, parts)


def _make_loss_parts(rows: Sequence[PolicyRow], width: int, *, names_files: bool = False) -> list[Any]:
    """Return where each policy lost facts; empty if that was not asked for."""
    from holdfast.replay.report_losses import make_loss_heading, make_loss_table, make_worst_steps

    parts: list[Any] = []
    for row in rows:
        if row.losses is not None:
            parts += [make_loss_heading(row.figures.policy, row.losses), make_loss_table(row.losses)]
            parts.append(make_worst_steps(row.losses, clean_single_line, width, names_files=names_files))
    return parts


def _format_policy_failure(failure: PolicyFailure) -> str:
    """Return the reason why a policy has no row; the rows of the other policies stand."""
    return clean_single_line(f"{failure.policy} could not be replayed: {describe_error(failure.error)}")


def _format_pool_failures(reports: Sequence[ReplayReport]) -> str:
    """Return a line for each policy that lacks some sessions, since its figures cover only the others."""
    failure_counts: Counter[str] = Counter()
    for report in reports:
        failure_counts.update(failure.policy for failure in report.failures)
    lines = [f"{policy}: without {count} of {len(reports)} sessions" for policy, count in failure_counts.items()]
    return "\n".join(lines)


def _print_parts(console: Any, parts: Sequence[Any]) -> None:
    """Print the parts that are not empty, with an empty line between two of them."""
    visible_parts = [part for part in parts if part is not None and str(part)]
    for number, part in enumerate(visible_parts):
        if number:
            console.print()
        print_table(console, part)
