"""``holdfast doctor``: check this installation, and show the settings in force."""

from __future__ import annotations

import os
import platform
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec
from msgspec import Struct
from platformdirs import user_config_path

from holdfast import config
from holdfast.cli.files.unreadable_sessions import (
    SCAN_SECONDS,
    UnreadableSessions,
    find_unread_tools,
    scan_session_tool,
)
from holdfast.cli.files.user_paths import (
    explain_unwritable_store,
    get_modification_sort_key,
    list_session_files,
    list_session_tools,
    store_option,
)
from holdfast.cli.output.errors import EXPECTED_ERRORS, describe_error
from holdfast.cli.output.terminal import (
    COLUMN_GAP,
    MIN_WRAP_WIDTH,
    WRAP_INDENT,
    ProgressBar,
    make_console,
    make_json_option,
    print_json,
    print_table,
)
from holdfast.cli.proxy_options import (
    MIN_FREE_BYTES,
    describe_low_disk,
    describe_proxy_mode,
    get_upstream_urls,
    load_effective_settings,
    make_proxy_url,
)
from holdfast.errors import UnknownId
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.planning.budget import DEFAULT_WINDOW
from holdfast.planning.presets.registry import PRESETS
from holdfast.proxy.settings import Settings
from holdfast.reports.sessions.session_list import format_age
from holdfast.store.base import SessionInfo, SessionStore
from holdfast.store.blobs.blob_place import read_blob_location
from holdfast.store.blobs.object_location import parse_object_location
from holdfast.store.location import find_store_file, locate_store
from holdfast.store.open_store import open_store

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

EXAMPLES = """\
\b
Examples:
  holdfast doctor
  holdfast doctor --online
  holdfast doctor --json
"""
MIN_PYTHON = (3, 11)
"""The oldest supported version of Python."""
EXIT_WRONG = 1
_LOW_DISK_BYTES = 100_000_000
"""Bytes of free disk below which the user is warned. Chosen by judgement: a few long sessions fill as much."""
GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_POINTING_HINT = "its startup output says how, and holdfast run -- CLIENT needs no setup"
_STATE_STYLES = {"ok": "green", "note": "yellow", "wrong": "red"}
_STATE_WIDTH, _MIN_TEXT_WIDTH = 7, 40
"""Columns of the state, and the least width for the text of a check; with less it starts on the next line."""


class DoctorCheck(Struct, frozen=True):
    """One check and its result. A note is not a fault: it names something optional that is missing."""

    subject: str
    state: Literal["ok", "note", "wrong"]
    text: str


@click.command("doctor", epilog=EXAMPLES)
@click.option("--online", is_flag=True, help="Also contact servers beyond this machine, without a key.")
@click.option("-v", "--verbose", is_flag=True, help="Also print the context windows assumed for models.")
@store_option
@make_json_option("the checks, the sessions that cannot be read and the table of windows")
@click.pass_context
def doctor_command(ctx: click.Context, store: str | None, *, online: bool, verbose: bool, as_json: bool) -> None:
    """Check this installation: store, configuration, extras, recorded sessions, and where clients are pointed.

    Prints the settings in force and where they come from. Sessions of other tools are read for a few seconds, the
    newest first; those that cannot be read are named with the reason. Addresses in the variables of SDKs and in the
    settings of clients are checked for a running proxy. Exit code 1 if something is wrong.
    """
    unreadable: list[UnreadableSessions] = []
    checks = [
        *_run_checks(store, online=online, quiet=as_json),
        *_check_session_tools(unreadable),
        *_check_clients(online=online),
    ]
    windows = _list_windows()
    if as_json:
        record = {"checks": msgspec.to_builtins(checks), "windows": windows}
        print_json(record | {"unreadable_sessions": msgspec.to_builtins(unreadable)})
    elif verbose:
        _print_checks(checks, windows)
    else:
        _print_checks(checks, [])
    if any(check.state == "wrong" for check in checks):
        ctx.exit(EXIT_WRONG)


def _run_checks(store: str | None, *, online: bool, quiet: bool) -> Iterator[DoctorCheck]:
    yield _check_python()
    yield from _check_store(store, online=online, quiet=quiet)
    yield from _check_configuration()
    yield _check_extra("exact tokenizer", "bpe_openai", "replay counts with our own estimate")
    yield _check_extra("mcp", "mcp", "holdfast mcp cannot run", "mcp")
    yield _check_relay_stack()


def _check_python() -> DoctorCheck:
    try:
        own = version("holdfast")
    except PackageNotFoundError:
        own = "not installed"
    text = f"holdfast {own}, Python {platform.python_version()} at {sys.executable}"
    if sys.version_info < MIN_PYTHON:
        return DoctorCheck("version", "wrong", text)
    return DoctorCheck("version", "ok", text)


def _check_store(option: str | None, *, online: bool, quiet: bool) -> Iterator[DoctorCheck]:
    """Yield the store's location, whether it can be read, and whether other users could read it too."""
    place = locate_store(option)
    try:
        with open_store(place.url, readonly=True) as there:
            count = len(there.list_sessions())
    except EXPECTED_ERRORS as error:
        yield DoctorCheck("store", "wrong", f"{place.name} ({place.origin}): {describe_error(error)}")
        return
    if why := explain_unwritable_store(place.url):
        yield DoctorCheck("store", "wrong", why)
        return
    path = find_store_file(place.url)
    if path is None:
        yield DoctorCheck("store", "ok", f"{place.name} ({place.origin}), {format_count(count, 'session')}")
        yield from _check_entries(place.url, quiet=quiet)
        return
    # A full disk is reported even if there is no store yet: the first request would fail to create it.
    yield from _check_disk_space(path)
    if not path.exists():
        yield DoctorCheck("store", "ok", f"{place.name} ({place.origin}), empty so far")
        return
    yield DoctorCheck(
        "store",
        "ok",
        f"{place.name} ({place.origin}), {format_count(count, 'session')}, {path.stat().st_size:,} bytes",
    )
    yield _check_permissions(path)
    yield from _check_blob_place(path, online=online)
    yield from _check_entries(place.url, quiet=quiet)


def _check_disk_space(path: Path) -> Iterator[DoctorCheck]:
    """Yield a warning if the store's disk is full or nearly full."""
    text = describe_low_disk(path, _LOW_DISK_BYTES)
    if not text:
        return
    if describe_low_disk(path, MIN_FREE_BYTES):
        yield DoctorCheck("disk", "wrong", text)
    else:
        yield DoctorCheck("disk", "note", text)


def _check_entries(store_url: str, *, quiet: bool) -> Iterator[DoctorCheck]:
    """Read every entry of every session, and yield the sessions with entries that cannot be read."""
    has_damage = False
    with open_store(store_url, readonly=True) as there, ProgressBar(is_wanted=not quiet) as waiting:
        sessions = there.list_sessions()
        for info in waiting.track_items("reading", sessions):
            if fault := _describe_session_damage(there, info):
                has_damage = True
                yield DoctorCheck("entries", "wrong", f"session {info.key}: {fault}")
    if not has_damage:
        count = sum(info.entry_count for info in sessions)
        yield DoctorCheck(
            "entries",
            "ok",
            f"{count:,} of {format_count(len(sessions), 'session')}, and each can be read",
        )


def _describe_session_damage(store: SessionStore, info: SessionInfo) -> str:
    """Describe the unreadable entries of a session and the remedy, or return an empty string."""
    try:
        problems = store.find_damage(info.key)
    except UnknownId:
        # Somebody removed the session since the list was read.
        return ""
    except EXPECTED_ERRORS as error:
        return describe_error(error)
    if not problems:
        return ""
    # The first problem is shown without its own remedy, because repair is the remedy for all of them.
    first = problems[0].partition(";")[0]
    return f"{len(problems):,} of {info.entry_count:,} cannot be read: {first}; run holdfast repair to set them aside"


def _check_blob_place(path: Path, *, online: bool) -> Iterator[DoctorCheck]:
    """Yield where the texts of the store are, if not beside its file, and whether they can be reached."""
    try:
        location = read_blob_location(path.with_name(f"{path.name}.blobs"))
        if location is None:
            return
        name = parse_object_location(location).name
        if not online:
            yield DoctorCheck("texts", "ok", f"in {name} (not asked; --online asks)")
            return
        with open_store(path, readonly=True) as there:
            there.blobs.has_blob("0" * 64)
    except EXPECTED_ERRORS as error:
        yield DoctorCheck("texts", "wrong", describe_error(error))
    else:
        yield DoctorCheck("texts", "ok", f"in {name}, which answers")


def _check_permissions(path: Path) -> DoctorCheck:
    exposed_files = []
    # The second one has the large texts of the same sessions.
    for file in (path, path.with_name(path.name + ".blobs")):
        if file.exists() and _get_file_mode(file) & GROUP_AND_OTHERS:
            exposed_files.append(file)
    if not exposed_files:
        return DoctorCheck(
            "permissions",
            "ok",
            f"{path.name} is {_get_file_mode(path):04o}: only its owner can read it",
        )
    modes = ", ".join(f"{file} is {_get_file_mode(file):04o}" for file in exposed_files)
    paths = " ".join(map(str, exposed_files))
    return DoctorCheck("permissions", "wrong", f"{modes}: other users can read it; run chmod go= {paths}")


def _get_file_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _check_configuration() -> Iterator[DoctorCheck]:
    folders = (("project", Path()), ("user", user_config_path("holdfast", appauthor=False)))
    fault = _catch_error(config.load_catalog)
    is_reported = False
    for scope, folder in folders:
        path = folder / config.CONFIG_FILE_NAME
        # An error about a file begins with its path, and is shown at the line of that file.
        if fault.startswith(f"{path}: "):
            is_reported = True
            yield DoctorCheck(f"configuration ({scope})", "wrong", f"{path.absolute()}{fault.removeprefix(str(path))}")
            continue
        text = "in force" if path.is_file() else "not found; the defaults are in force"
        yield DoctorCheck(f"configuration ({scope})", "ok", f"{path.absolute()}: {text}")
    if fault and not is_reported:
        yield DoctorCheck("configuration", "wrong", fault)
    # Policies are built from the files, so they can only be checked if the files can be read.
    if not fault:
        yield from _check_policies(config.load_configuration())


def _check_policies(configuration: config.Configuration) -> Iterator[DoctorCheck]:
    """Yield the settings that files change, and the policies that cannot be built with them."""
    faults = []
    for name in PRESETS:
        fault = _catch_error(partial(configuration.build_policy, name))
        if fault:
            faults.append(fault)
    # One wrong setting breaks every policy that reads it, with the same words.
    for fault in dict.fromkeys(faults):
        yield DoctorCheck("policies", "wrong", fault)
    setting_names = dict.fromkeys(f"{override.table_header} {override.key}" for override in configuration.overrides)
    if setting_names and not faults:
        yield DoctorCheck(
            "policies",
            "ok",
            f"{format_count(len(setting_names), 'setting')} changed: {', '.join(setting_names)}",
        )
    limits = [f"{name} {size:,}" for name, size in configuration.store.set_limits.items()]
    if limits:
        yield DoctorCheck("store limits", "ok", ", ".join(limits))


def _catch_error(step: Callable[[], object]) -> str:
    """Run ``step`` and return its error in words, or an empty string."""
    try:
        step()
    except EXPECTED_ERRORS as error:
        return describe_error(error)
    return ""


def _check_extra(description: str, module: str, without: str, extra: str = "exact") -> DoctorCheck:
    if find_spec(module) is not None:
        return DoctorCheck(description, "ok", f"{module} is installed")
    hint = f"uv tool install '.[{extra}]', or pip install '.[{extra}]', in the checkout of Holdfast installs it"
    return DoctorCheck(description, "note", f"{module} is not installed: {without}; {hint}")


def _check_relay_stack() -> DoctorCheck:
    """Check which HTTP parser and event loop the proxy uses, and name faster ones that are missing."""
    missing = [name for name in ("httptools", "uvloop") if find_spec(name) is None]
    parser = "h11" if "httptools" in missing else "httptools"
    loop = "asyncio" if "uvloop" in missing else "uvloop"
    text = f"the proxy runs with {parser} on {loop}"
    if not missing:
        return DoctorCheck("relay", "ok", text)
    hint = f"{' and '.join(missing)} would be faster (installed where wheels exist: CPython on Linux and macOS)"
    return DoctorCheck("relay", "note", f"{text}; {hint}")


def _check_session_tools(unreadable: list[UnreadableSessions]) -> Iterator[DoctorCheck]:
    """Yield where other tools keep their sessions and which of them cannot be read; add those to ``unreadable``."""
    deadline = time.monotonic() + SCAN_SECONDS
    for tool in list_session_tools():
        session_files = list_session_files(tool)
        newest = ""
        if session_files:
            changed_at, _ = get_modification_sort_key(session_files[0])
            newest = f", the newest {format_age(int(changed_at * 1_000))}"
        kind = "database" if tool.pattern.endswith((".db", ".sqlite")) else "session"
        scan = scan_session_tool(tool, deadline)
        unreadable += scan.unreadable
        text = f"{format_count(len(session_files), kind)} in {tool.folder}{newest}"
        if scan.looked_at < scan.total:
            text += f"; the time was enough to look at {scan.looked_at:,} of them"
        for group in scan.unreadable:
            text += f"; {group.count:,} cannot be read: {group.reason}, for example {group.example}"
        yield DoctorCheck(tool.name, "note" if scan.unreadable else "ok", text)
    for group in find_unread_tools():
        unreadable.append(group)
        text = f"{format_count(group.count, 'file')} with sessions, for example {group.example}: {group.reason}"
        yield DoctorCheck(group.tool, "note", text)


def _check_clients(*, online: bool) -> Iterator[DoctorCheck]:
    """Yield the addresses clients are pointed at and the servers there; with ``online`` check the providers too."""
    from holdfast.cli.clients.client_check import check_upstreams, find_embedded_upstreams, iter_client_urls

    sources_by_proxy: dict[str, list[str]] = {}
    client_urls = list(iter_client_urls())
    token = _load_proxy_token()
    for client_url in client_urls:
        result = client_url.check_url(token, online=online)
        yield DoctorCheck(client_url.source, result.state, result.text)
        sources_by_proxy.setdefault(result.proxy, []).append(client_url.source)
    if not client_urls:
        yield DoctorCheck(
            "clients",
            "ok",
            "no client is pointed at a server; holdfast run -- CLIENT starts one with a proxy",
        )
    # Variables that lead to a running proxy are meant for clients; read as its upstream they would form a loop.
    variables = []
    for proxy_url, sources in sources_by_proxy.items():
        if proxy_url:
            variables += sources
    settings = _load_settings(variables)
    if isinstance(settings, str):
        yield DoctorCheck("proxy", "wrong", settings)
        return
    yield from _check_proxies(settings, sources_by_proxy, token)
    yield from _check_doubled_proxies(token)
    if online:
        addresses = get_upstream_urls(settings) | find_embedded_upstreams(client_urls)
        for subject, answer in check_upstreams(addresses):
            yield DoctorCheck(subject, answer.state, answer.text)


def _load_proxy_token() -> str:
    """Return the token of the user's own proxy, or an empty string if it has none or the settings are invalid."""
    with suppress(*EXPECTED_ERRORS):
        return load_effective_settings({}).settings.token
    return ""


def _check_proxies(settings: Settings, sources_by_proxy: dict[str, list[str]], token: str) -> Iterator[DoctorCheck]:
    """Yield the running proxies with the clients pointed at them, or describe the proxy that would run."""
    from holdfast.cli.clients.client_check import probe_url

    address = make_proxy_url(settings)
    has_proxy = False
    # Also the configured address: a proxy may run there although no client is pointed at it.
    for proxy_url in dict.fromkeys([*filter(None, sources_by_proxy), address]):
        answer = probe_url(proxy_url, token, online=False)
        if not answer.proxy:
            continue
        has_proxy = True
        if proxy_url in sources_by_proxy:
            clients_text = f"pointed at it: {', '.join(sources_by_proxy[proxy_url])}"
        else:
            clients_text = f"no client is pointed at it: {_POINTING_HINT}"
        yield DoctorCheck("proxy", answer.state, f"{proxy_url}: {answer.text}; {clients_text}")
    if not has_proxy:
        upstream_list = ", ".join(f"{name} {url}" for name, url in get_upstream_urls(settings).items())
        does = f"holdfast serve would be {describe_proxy_mode(settings)}, with the upstreams {upstream_list}"
        yield DoctorCheck("proxy", "ok", f"no proxy runs at {address}; {does}")


def _check_doubled_proxies(token: str) -> Iterator[DoctorCheck]:
    """Yield upstreams of our proxy that are Holdfast proxies themselves; such an address is meant for clients."""
    from holdfast.cli.clients.client_check import find_chained_proxies

    upstreams = get_upstream_urls(load_effective_settings({}).settings)
    for name, answer in find_chained_proxies(upstreams, token).items():
        text = f"holdfast serve would forward to {answer.proxy}, {answer.text}: reduced twice; set --upstream-{name}"
        yield DoctorCheck(f"upstream {name}", "note", text)


def _load_settings(leading: Collection[str]) -> Settings | str:
    """Load the settings of a proxy, or return the error in words.

    Variables in ``leading`` are left out: they point clients at a running proxy and are not meant as its upstream.
    """
    environment = {name: value for name, value in os.environ.items() if name not in leading}
    try:
        return load_effective_settings({}, environment).settings
    except EXPECTED_ERRORS as error:
        return describe_error(error)


def _list_windows() -> list[dict[str, object]]:
    """Return the windows in the order they are matched; the shipped ones if the user's files are invalid."""
    # The faulty file itself is already reported as a check.
    if _catch_error(config.load_catalog):
        catalog = config.load_shipped_catalog()
    else:
        catalog = config.load_catalog()
    table: list[dict[str, object]] = []
    for line in catalog.model:
        if line.window is not None:
            patterns = [line.match] if isinstance(line.match, str) else list(line.match)
            table.append({"models": patterns, "window": line.window})
    return [*table, {"models": ["any other"], "window": DEFAULT_WINDOW}]


def _simplify_pattern(pattern: str) -> str:
    """Return a pattern of the catalog as people would write it."""
    return pattern.replace("[.-]", "-").replace("[.]", ".").replace("[[]", "[").replace("[]]", "]")


def _print_checks(checks: list[DoctorCheck], windows: list[dict[str, object]]) -> None:
    from rich.text import Text

    out = make_console()
    widest = max(len(check.subject) for check in checks)
    for check in checks:
        _print_check(out, check, widest)
    if windows:
        out.print()
        print_table(out, _make_windows_table(windows))
    wrong = sum(check.state == "wrong" for check in checks)
    if wrong:
        summary = Text(f"{format_count(wrong, 'problem')} found", "red")
    else:
        summary = Text("everything is in order", "green")
    out.print()
    out.print(summary)


def _print_check(console: Console, check: DoctorCheck, widest: int) -> None:
    """Print a check with its text in a second column, or on the next lines if the column would be too narrow."""
    from rich.text import Text

    head = Text.assemble(
        (f"{check.state:{_STATE_WIDTH}}", _STATE_STYLES[check.state]),
        f"{clean_single_line(check.subject):{widest + COLUMN_GAP}}",
    )
    indent = _STATE_WIDTH + widest + COLUMN_GAP
    text_width = console.width - len(head)
    has_room = text_width >= _MIN_TEXT_WIDTH
    if not has_room:
        indent = WRAP_INDENT
        text_width = max(MIN_WRAP_WIDTH, console.width - WRAP_INDENT)
    lines = list(Text(clean_single_line(check.text)).wrap(console, text_width))
    if has_room:
        head.append_text(lines.pop(0))
    head.rstrip()
    console.print(head, no_wrap=True)
    for line in lines:
        line.rstrip()
        line.pad_left(indent)
        console.print(line, no_wrap=True)


def _make_windows_table(windows: list[dict[str, object]]) -> Table:
    """Return a table of windows with their models."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("window", justify="right", no_wrap=True)
    table.add_column("models")
    # Many models share a window, so the table has a row for each window.
    by_size: dict[object, list[str]] = {}
    for line in windows:
        models = line["models"]
        by_size.setdefault(line["window"], []).extend(models if isinstance(models, list) else [])
    for window, models in by_size.items():
        table.add_row(Text(f"{window:,}"), Text(", ".join(map(_simplify_pattern, models)), style="dim"))
    return table
