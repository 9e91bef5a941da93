"""``holdfast inspect``: show sessions in a browser, from the store or from a recorded file."""

from __future__ import annotations

import errno
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import click

from holdfast.cli.commands.import_ import ImportFailure, import_file
from holdfast.cli.files.follow_file import follow_file
from holdfast.cli.files.user_paths import (
    describe_missing_store,
    explain_unwritable_store,
    open_named_store,
    store_option,
)
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.terminal import ProgressBar, encode_printable_json, make_json_option
from holdfast.cli.proxy_options import MAX_PORT
from holdfast.config import load_configuration
from holdfast.errors import HoldfastError, UnknownId
from holdfast.inspector.rendering import PageWriter
from holdfast.inspector.sources import InspectedStore
from holdfast.messages.text.single_line import clean_single_line
from holdfast.store.base import SessionStore, ignore_progress
from holdfast.store.location import hide_password, locate_store
from holdfast.store.open_store import open_store

EXAMPLES = """\
\b
Examples:
  holdfast inspect
  holdfast inspect 4d56
  holdfast inspect ~/.claude/projects/-work/8ab9d04e.jsonl
  holdfast inspect 4d56 --export session.html
"""
DEFAULT_PORT = 8650
"""Port without --port. If it is taken, any free one is used."""


@click.command("inspect", epilog=EXAMPLES)
@click.argument("session", required=False, metavar="[SESSION|FILE]")
@click.option(
    "--port", type=IntegerParamType(0, MAX_PORT), help=f"The port, 0 for a free one. [default: {DEFAULT_PORT}]"
)
@click.option("--open/--no-open", "opens_browser", default=True, help="Open it in a browser. [default: --open]")
@click.option("--export", "export_path", metavar="PAGE", help="Write SESSION as one HTML file, and end.")
@click.option("--mask", is_flag=True, help="With --export: no word of the session, only its structure and sizes.")
@store_option
@make_json_option("the address, or the file")
def inspect_command(
    session: str | None,
    port: int | None,
    export_path: str | None,
    store: str | None,
    *,
    opens_browser: bool,
    mask: bool,
    as_json: bool,
) -> None:
    """Show sessions in a browser: what the model saw, what was reduced, what it cost.

    SESSION is the beginning of an id; FILE a recorded session of any tool that holdfast import reads. Without either,
    all sessions of the store are listed. A session that is running is followed. Only programs on this machine can reach
    the pages. ^C ends it.

    A file is read into a store of its own, which is removed at the end; nothing is added to yours. While it grows, what
    is new in it is read and shown.

    --export writes one file that opens from disk and loads nothing, for a bug report or a colleague. Keys, tokens and
    passwords that are known by their form are masked in it; read it before you give it away, or mask every word.
    """
    if mask and export_path is None:
        raise CommandError("--mask is for --export; give the file to write")
    if export_path is not None:
        _export_page(session, store, Path(export_path).expanduser(), mask=mask, as_json=as_json)
        return
    from holdfast.inspector.server import open_listener, serve_inspector

    with ExitStack() as cleanup:
        try:
            listener = open_listener(DEFAULT_PORT if port is None else port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            if port is not None:
                raise CommandError(
                    f"port {port} is in use{_describe_port_user(port)}; give another --port, or 0 for a free one"
                ) from error
            listener = open_listener(0)
            if other := _describe_port_user(DEFAULT_PORT):
                click.echo(f"port {DEFAULT_PORT} is in use{other}; this one takes a free port", err=True)
        cleanup.enter_context(listener)
        source, key = cleanup.enter_context(_open_source(session, store, as_json=as_json))
        serve_inspector(source, listener, partial(_announce, key=key, opens_browser=opens_browser, as_json=as_json))


def _describe_port_user(port: int) -> str:
    """Return what is known of the program at ``port``: nothing, unless it is an inspector."""
    from holdfast.inspector.server import LOOPBACK, find_inspector

    name = find_inspector(port)
    if name is None:
        return ""
    return f" by an inspector of {clean_single_line(name)}: http://{LOOPBACK}:{port}/"


def _export_page(session: str | None, store: str | None, path: Path, *, mask: bool, as_json: bool) -> None:
    """Write the page of one session to ``path``, which must not exist."""
    from holdfast.inspector.export import export_session
    from holdfast.messages.text.masking import mask_secrets, mask_words

    if session is None:
        raise CommandError("--export writes one session; name it, or a recorded file")
    # Before the session is read, which may take long.
    if path.exists():
        raise CommandError(f"{clean_single_line(str(path))} exists; give another name")
    if not path.parent.is_dir():
        raise CommandError(f"there is no folder {clean_single_line(str(path.parent))}; create it, or give another name")
    with _open_source(session, store, as_json=as_json) as (source, key), ProgressBar("writing", is_wanted=not as_json):
        if not key:
            keys = ", ".join(info.key for info in source.store.list_sessions())
            raise CommandError(f"the file has several sessions ({keys}); import it and name one of them")
        page = export_session(source, source.get_session(key), mask_words if mask else mask_secrets)
    try:
        _write_new_file(path, page)
    except FileExistsError as error:
        raise CommandError(f"{clean_single_line(str(path))} exists; give another name") from error
    except OSError as error:
        raise CommandError(
            f"{clean_single_line(str(path))} could not be written ({error.strerror}): the page has "
            f"{len(page.encode('utf-8', 'replace')):,} bytes; give a name where there is room"
        ) from error
    if as_json:
        click.echo(encode_printable_json({"file": str(path), "session": key, "bytes": path.stat().st_size}))
    else:
        click.echo(f"{clean_single_line(str(path))}: session {clean_single_line(key)}, {path.stat().st_size:,} bytes")


def _write_new_file(path: Path, page: str) -> None:
    """Write ``page`` to a new file, private as the store is: it holds the session's words. Half a file is removed."""
    with path.open("x", encoding="utf-8", errors="replace") as file:
        try:
            path.chmod(0o600)
            file.write(page)
            file.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise


@contextmanager
def _open_source(session: str | None, store: str | None, *, as_json: bool) -> Iterator[tuple[InspectedStore, str]]:
    """Open the recorded file that ``session`` names, or else the store; the key is empty for all sessions."""
    with ExitStack() as cleanup:
        path = None if session is None else Path(session).expanduser()
        if path is not None and path.is_file():
            opened = cleanup.enter_context(_open_file(path, as_json=as_json))
        else:
            try:
                opened = cleanup.enter_context(_open_store(store, session))
            except UnknownId as error:
                if path is None or not _is_meant_as_path(path):
                    raise
                kind = "a folder; give a recorded file in it" if path.is_dir() else "no file there is"
                name = clean_single_line(str(path))
                raise CommandError(f"{name} is {kind}, and no session's id begins so") from error
        yield opened


def _is_meant_as_path(path: Path) -> bool:
    return path.is_dir() or bool(path.suffix) or len(path.parts) > 1


@contextmanager
def _open_store(option: str | None, session: str | None) -> Iterator[tuple[InspectedStore, str]]:
    """Open the user's store for reading, and find the session; an empty key stands for all."""
    url = locate_store(option).url
    if session is None and (why := describe_missing_store(option)):
        raise CommandError(why)
    with open_named_store(option, readonly=True) as store:
        # Read now, so that a store that cannot be read is an error of the command and not of every page.
        store.list_sessions()
        key = store.get_session(session).key if session is not None else ""
        is_writable = not explain_unwritable_store(url)
        opened = InspectedStore(
            store,
            load_configuration(),
            name=hide_password(url),
            open_writer=partial(open_store, url) if is_writable else None,
            location=url,
        )
        yield opened, key


@contextmanager
def _open_file(path: Path, *, as_json: bool) -> Iterator[tuple[InspectedStore, str]]:
    """Read a recorded file into a temporary store; the key is empty if the file has several sessions."""
    with tempfile.TemporaryDirectory(prefix="holdfast-inspect-") as folder:
        url = str(Path(folder) / "file.db")
        with open_store(url) as store:
            with ProgressBar("reading", is_wanted=not as_json) as waiting:
                outcomes = [*import_file(store, str(path), None, "", partial(_show_progress, waiting))]
            failures = [outcome for outcome in outcomes if isinstance(outcome, ImportFailure)]
            if len(failures) == len(outcomes):
                reason = failures[0].error if failures else "it has no session"
                raise CommandError(f"{clean_single_line(str(path))}: {reason}")
            for failure in failures:
                click.echo(f"left out: {clean_single_line(failure.error)}", err=True)
            keys = [info.key for info in store.list_sessions() if "@" not in info.key]
            source = InspectedStore(store, load_configuration(), name=str(path), location=url)
            with follow_file(path, partial(_read_again, store, path)):
                yield source, keys[0] if len(keys) == 1 else ""


def _read_again(store: SessionStore, path: Path) -> None:
    """Add to the store what is new in a file that changed; what cannot be read of it now is read at the next change."""
    with suppress(HoldfastError, OSError):
        for _ in import_file(store, str(path), None, "", ignore_progress):
            pass


def _show_progress(waiting: ProgressBar, bytes_read: int, size: int) -> None:
    if bytes_read < size:
        waiting.set_progress("reading", bytes_read, size)
    else:
        waiting.begin_part("storing")


def _announce(address: str, *, key: str, opens_browser: bool, as_json: bool) -> None:
    """Print the address of the first page, and open it."""
    url = address + (PageWriter().make_url("session", id=key) if key else "/")
    if as_json:
        click.echo(encode_printable_json({"url": url}))
    else:
        click.echo(f"inspector at {url}; stop with ^C")
    if opens_browser and not as_json:
        webbrowser.open(url)
