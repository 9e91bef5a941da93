"""``holdfast export``: a session in the form of a tool, or as a request."""

from __future__ import annotations

from collections.abc import Sequence

import click
from msgspec.structs import replace

from holdfast.cli.files.input_files import open_output_file
from holdfast.cli.files.user_paths import open_named_store, store_option
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.terminal import ProgressBar, clean_single_line, make_json_option, print_json
from holdfast.formats import EXPORT_FORMATS, ExportResult, Recording, describe_losses, export_with_loss_notes
from holdfast.formats import apply_decisions_to_messages as as_seen
from holdfast.formats.losses import OPENCODE_DATABASE
from holdfast.formats.opencode.rows import build_opencode_rows
from holdfast.formats.opencode.write import iter_opencode_sessions
from holdfast.store.base import SessionInfo, SessionStore

EXAMPLES = """\
\b
Examples:
  holdfast export 4d56 -o session.jsonl
  holdfast export 4d56 --format pi -o session.jsonl
  holdfast export 4d56 --format anthropic | holdfast lint -
  holdfast export 4d56 --reduced -o session.jsonl
  holdfast export 4d56 --format opencode -o opencode.db
  holdfast export 4d56 --format opencode-json -o session.json
"""
DEFAULT_EXPORT_FORMAT = "claude-code"
"""The form of a session that was not recorded by a tool."""


ALL_EXPORT_FORMATS = (*EXPORT_FORMATS, OPENCODE_DATABASE)
"""Every form there is: those that are text, and a database."""


def _export_session(recording: Recording, format_name: str) -> ExportResult:
    """Return a session in a form; as a database of opencode, with those of its sub-agents."""
    if format_name != OPENCODE_DATABASE:
        return export_with_loss_notes(recording, format_name)
    from holdfast.store.foreign.opencode import build_opencode_database

    return ExportResult(
        build_opencode_database(build_opencode_rows(iter_opencode_sessions(recording))),
        describe_losses(recording, format_name),
    )


@click.command("export", epilog=EXAMPLES)
@click.argument("session")
@click.option(
    "--format", "format_", type=click.Choice(ALL_EXPORT_FORMATS), help="The form. [default: the one it was recorded in]"
)
@click.option("--reduced", is_flag=True, help="As the model sees it now: decisions in force are what is written.")
@click.option("-o", "--output", metavar="FILE", help="Write there instead of standard output.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@store_option
@make_json_option("what was written, its content too where no file is given,")
def command(
    session: str,
    format_: str | None,
    output: str | None,
    store: str | None,
    *,
    reduced: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write a session in the form of a tool, or as a request.

    SESSION is the beginning of an id. Lines that came from a tool leave as they came; our own compactions become that
    tool's. The forms anthropic and openai-chat give the request that the session makes now; opencode is a database of
    that tool, opencode-json what it imports into the one it has. What a form has no place for is told beside it.

    With --reduced, what was decided (holdfast context --record) is written in place of what was said, for the tool to
    go on from: one branch, previews in place of long results. The log keeps what was said.
    """
    with open_named_store(store, readonly=True) as there:
        info = there.get_session(session)
        form = format_ or (info.format if info.format in ALL_EXPORT_FORMATS else DEFAULT_EXPORT_FORMAT)
        if form == OPENCODE_DATABASE and output is None:
            raise CommandError(
                "the form opencode is a database, which needs a file: give -o FILE, or --format opencode-json"
            )
        with ProgressBar("writing", is_wanted=not as_json):
            recording = load_recording(there, info)
            result = _export_session(as_seen(recording) if reduced else recording, form)
    data = result.data
    record = {"session": info.key, "format": form, "bytes": len(data), "left_out": list(result.left_out)}
    if output is not None:
        with open_output_file(output, force=force) as file:
            file.write(data)
        line = f"{clean_single_line(output)}: {len(data):,} bytes of {form}"
        print_json(record | {"file": output}) if as_json else click.echo(line, err=True)
    elif as_json:
        print_json(record | {"content": data.decode("utf-8", "replace")})
    else:
        click.echo(data, nl=False)
    for note in () if as_json else result.left_out:
        click.echo(f"left out: {clean_single_line(note)}", err=True)


def load_recording(store: SessionStore, info: SessionInfo) -> Recording:
    """Return a session of the store, with those of its sub-agents, as a recording."""
    chains = [sidechain for sidechain in store.list_sessions() if sidechain.key.endswith(f"@{info.key}")]
    return replace(_load_session_recording(store, info), sidechains=_load_session_recordings(store, chains))


def _load_session_recordings(store: SessionStore, infos: Sequence[SessionInfo]) -> tuple[Recording, ...]:
    return tuple(_load_session_recording(store, info) for info in sorted(infos, key=lambda info: info.key))


def _load_session_recording(store: SessionStore, info: SessionInfo) -> Recording:
    entries = tuple(store.read_entries(info.key))
    return Recording(info.format, info.key, info.cwd, info.title, info.model, "", entries, info.leaf_id)
