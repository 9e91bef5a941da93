"""``holdfast export``: write a session in a tool's format, or as a request."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from holdfast.cli.files.input_files import open_output_file
from holdfast.cli.files.user_paths import open_named_store, store_option
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.terminal import ProgressBar, make_json_option, print_json
from holdfast.formats import (
    EXPORT_FORMATS,
    ExportResult,
    Recording,
    describe_losses,
    export_atif_segments,
    export_with_loss_notes,
)
from holdfast.formats import apply_decisions_to_messages as as_seen
from holdfast.formats.atif.document import FORMAT as ATIF
from holdfast.formats.losses import OPENCODE_DATABASE
from holdfast.formats.opencode.rows import build_opencode_rows
from holdfast.formats.opencode.write import iter_opencode_sessions
from holdfast.messages.text.single_line import clean_single_line
from holdfast.store.session_recording import load_recording

EXAMPLES = """\
\b
Examples:
  holdfast export 4d56 -o session.jsonl
  holdfast export 4d56 --format pi -o session.jsonl
  holdfast export 4d56 --format anthropic | holdfast lint -
  holdfast export 4d56 --reduced -o session.jsonl
  holdfast export 4d56 --format opencode -o opencode.db
  holdfast export 4d56 --format opencode-json -o session.json
  holdfast export 4d56 --format atif -o trajectory.json
"""
DEFAULT_EXPORT_FORMAT = "claude-code"
"""The format for a session that no tool recorded."""


ALL_EXPORT_FORMATS = (*EXPORT_FORMATS, OPENCODE_DATABASE)
"""All formats: those that are text, and a database."""


def _export_session(recording: Recording, format_name: str) -> ExportResult:
    """Export a session; as a database of opencode it includes the sessions of its sub-agents."""
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
    "--format",
    "format_",
    type=click.Choice(ALL_EXPORT_FORMATS),
    help="The format. [default: the one it was recorded in]",
)
@click.option("--reduced", is_flag=True, help="Write it as the model sees it now, with the decisions in force applied.")
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of standard output.")
@click.option(
    "--segments",
    is_flag=True,
    help="With atif: end the file at each compaction, and go on in FILE.cont-1, FILE.cont-2, … beside it.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@store_option
@make_json_option("a report, with the content if no file is given,")
def export_command(
    session: str,
    format_: str | None,
    output: str | None,
    store: str | None,
    *,
    reduced: bool,
    segments: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write a session in the format of a tool, or as a request.

    SESSION is the beginning of an id. Lines recorded by a tool are written unchanged; our own compactions
    become that tool's. The formats anthropic and openai-chat write the session's next request; opencode is a database
    of that tool, and opencode-json a file that it can import. Anything a format cannot hold is listed as left out.

    With --reduced, the decisions of Holdfast (holdfast context --record) replace the original texts, so that the tool
    can continue from the reduced session: one branch, previews instead of long results. The log keeps the originals.
    """
    with open_named_store(store, readonly=True) as there:
        info = there.get_session(session)
        # Lines of the original tool come back byte for byte only in its own format.
        own_format = info.format if info.format in ALL_EXPORT_FORMATS else DEFAULT_EXPORT_FORMAT
        form = format_ or own_format
        if form == OPENCODE_DATABASE and output is None:
            raise CommandError(
                "the format opencode is a database, which needs a file; give -o FILE, or --format opencode-json"
            )
        if segments and (form != ATIF or output is None):
            raise CommandError("--segments writes several files of the format atif; give --format atif and -o FILE")
        with ProgressBar("writing", is_wanted=not as_json):
            recording = load_recording(there, info)
            written = as_seen(recording) if reduced else recording
            if segments and output is not None:
                result = _write_segments(written, Path(output), force=force)
            else:
                result = _export_session(written, form)
    data = result.data
    record = {"session": info.key, "format": form, "bytes": len(data), "left_out": list(result.left_out)}
    if output is not None:
        if not segments:
            with open_output_file(output, force=force) as file:
                file.write(data)
        if as_json:
            print_json(record | {"file": output})
        else:
            click.echo(f"{clean_single_line(output)}: {len(data):,} bytes of {form}", err=True)
    elif as_json:
        print_json(record | {"content": data.decode("utf-8", "replace")})
    else:
        click.echo(data, nl=False)
    if not as_json:
        for note in result.left_out:
            click.echo(f"left out: {clean_single_line(note)}", err=True)


def _write_segments(recording: Recording, path: Path, *, force: bool) -> ExportResult:
    """Write a session as files that go on in each other; return the bytes of all of them together."""
    files, left_out = export_atif_segments(recording, path.name)
    with ExitStack() as stack:
        # All are opened before the first is complete: if one of them must not be replaced, none is written.
        streams = []
        for name, data in files:
            stream = stack.enter_context(open_output_file(str(path.with_name(name)), force=force))
            streams.append((stream, data))
        for stream, data in streams:
            stream.write(data)
    return ExportResult(b"".join(data for _, data in files), left_out)
