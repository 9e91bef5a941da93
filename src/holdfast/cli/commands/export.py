"""``holdfast export``: a session in the form of a tool, or as a request."""

from __future__ import annotations

from collections.abc import Sequence

import click
from msgspec.structs import replace

from holdfast.cli.files import new_file
from holdfast.cli.output.errors import Stopped
from holdfast.cli.output.terminal import Waiting, clean, json_option, say_json
from holdfast.cli.places import opened, store_option
from holdfast.formats import WRITERS, Recording, Written, left_out, written
from holdfast.formats import reduced as as_seen
from holdfast.formats.losses import DATABASE
from holdfast.formats.opencode.rows import rows_of
from holdfast.formats.opencode.write import sessions
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
FALLBACK = "claude-code"
"""The form of a session that was not recorded by a tool."""


FORMS = (*WRITERS, DATABASE)
"""Every form there is: those that are text, and a database."""


def _exported(recording: Recording, form: str) -> Written:
    """Return a session in a form; as a database of opencode, with those of its sub-agents."""
    if form != DATABASE:
        return written(recording, form)
    from holdfast.store.foreign.opencode import database

    return Written(database(rows_of(sessions(recording))), left_out(recording, form))


@click.command("export", epilog=EXAMPLES)
@click.argument("session")
@click.option("--format", "format_", type=click.Choice(FORMS), help="The form. [default: the one it was recorded in]")
@click.option("--reduced", is_flag=True, help="As the model sees it now: decisions in force are what is written.")
@click.option("-o", "--output", metavar="FILE", help="Write there instead of standard output.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@store_option
@json_option("what was written, its content too where no file is given,")
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
    with opened(store, readonly=True) as there:
        info = there.session(session)
        form = format_ or (info.format if info.format in FORMS else FALLBACK)
        if form == DATABASE and output is None:
            raise Stopped(
                "the form opencode is a database, which needs a file: give -o FILE, or --format opencode-json"
            )
        with Waiting("writing", wanted=not as_json):
            recording = recording_of_session(there, info)
            made = _exported(as_seen(recording) if reduced else recording, form)
    data = made.data
    told = {"session": info.key, "format": form, "bytes": len(data), "left_out": list(made.left_out)}
    if output is not None:
        with new_file(output, force=force) as file:
            file.write(data)
        line = f"{clean(output)}: {len(data):,} bytes of {form}"
        say_json(told | {"file": output}) if as_json else click.echo(line, err=True)
    elif as_json:
        say_json(told | {"content": data.decode("utf-8", "replace")})
    else:
        click.echo(data, nl=False)
    for note in () if as_json else made.left_out:
        click.echo(f"left out: {clean(note)}", err=True)


def recording_of_session(store: SessionStore, info: SessionInfo) -> Recording:
    """Return a session of the store, with those of its sub-agents, as a recording."""
    chains = [other for other in store.sessions() if other.key.endswith(f"@{info.key}")]
    return replace(_recording(store, info), sidechains=_recordings(store, chains))


def _recordings(store: SessionStore, infos: Sequence[SessionInfo]) -> tuple[Recording, ...]:
    return tuple(_recording(store, info) for info in sorted(infos, key=lambda info: info.key))


def _recording(store: SessionStore, info: SessionInfo) -> Recording:
    entries = tuple(store.entries(info.key))
    return Recording(info.format, info.key, info.cwd, info.title, info.model, "", entries, info.leaf)
