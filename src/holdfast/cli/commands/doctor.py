"""``holdfast doctor``: whether this installation is in order, and what is in force."""

from __future__ import annotations

import os
import platform
import stat
import sys
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
from holdfast.cli.commands.ls import ago
from holdfast.cli.output.errors import EXPECTED, reason
from holdfast.cli.output.terminal import (
    GAP,
    LEAST,
    SET_IN,
    Waiting,
    clean,
    console,
    json_option,
    many,
    say_json,
    say_table,
)
from holdfast.cli.places import changed, file_of, own_sessions, store_option, store_place, tools, unwritable
from holdfast.cli.proxy_options import NOTHING, address_of, in_force, mode, short_of_room, upstreams_of
from holdfast.errors import UnknownId
from holdfast.planning.budget import DEFAULT_WINDOW
from holdfast.planning.presets.presets import PRESETS
from holdfast.proxy.settings import Settings
from holdfast.store import open_store
from holdfast.store.base import SessionInfo, SessionStore

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
OLDEST = (3, 11)
"""The oldest Python this runs on."""
WRONG = 1
_LITTLE = 100_000_000
"""[H] Bytes of free disk that are soon used up."""
OTHERS = stat.S_IRWXG | stat.S_IRWXO
_TO_POINT = "it prints how when it begins, and holdfast run -- CLIENT needs none"
_STYLES = {"ok": "green", "note": "yellow", "wrong": "red"}
_STATE, _READABLE = 7, 40
"""Columns of the state, and columns that the text of a check has beside it, or it goes on below."""


class Check(Struct, frozen=True):
    """One thing that was looked at. A note is no fault: something more could be had."""

    what: str
    state: Literal["ok", "note", "wrong"]
    text: str


@click.command("doctor", epilog=EXAMPLES)
@click.option("--online", is_flag=True, help="Ask servers beyond this machine too, without a key.")
@click.option("-v", "--verbose", is_flag=True, help="Print the windows that are assumed of models, too.")
@store_option
@json_option("the checks and the table of windows")
@click.pass_context
def command(ctx: click.Context, store: str | None, *, online: bool, verbose: bool, as_json: bool) -> None:
    """Check this installation: store, configuration, extras, recorded sessions, and where clients are pointed.

    Prints what is in force and why. Addresses in the variables of the SDKs and in the settings of clients are asked
    whether a proxy is there. Exit code 1 if something is wrong.
    """
    checks = [*_checks(store, quiet=as_json), *_pointed(online=online)]
    windows = _windows()
    if as_json:
        say_json({"checks": msgspec.to_builtins(checks), "windows": windows})
    else:
        _say(checks, windows if verbose else [])
    if any(check.state == "wrong" for check in checks):
        ctx.exit(WRONG)


def _checks(store: str | None, *, quiet: bool) -> Iterator[Check]:
    yield _python()
    yield from _store(store, quiet=quiet)
    yield from _configuration()
    yield _extra("exact tokenizer", "bpe_openai", "replay counts with our estimate")
    yield _extra("mcp", "mcp", "holdfast mcp cannot serve", "mcp")
    yield _relay_stack()
    yield from _tools()


def _python() -> Check:
    try:
        own = version("holdfast")
    except PackageNotFoundError:
        own = "not installed"
    text = f"holdfast {own}, Python {platform.python_version()} at {sys.executable}"
    return Check("version", "ok" if sys.version_info >= OLDEST else "wrong", text)


def _store(given: str | None, *, quiet: bool) -> Iterator[Check]:
    """Yield where the store is, whether it can be read, and whether others could read it too."""
    place = store_place(given)
    try:
        with open_store(place.where, readonly=True) as there:
            count = len(there.sessions())
    except EXPECTED as error:
        yield Check("store", "wrong", f"{place.where} ({place.origin}): {reason(error)}")
        return
    if why := unwritable(place.where):
        yield Check("store", "wrong", why)
        return
    path = file_of(place.where)
    yield from _room(path)
    if not path.exists():
        yield Check("store", "ok", f"{place.where} ({place.origin}), nothing in it yet")
        return
    yield Check(
        "store", "ok", f"{place.where} ({place.origin}), {many(count, 'session')}, {path.stat().st_size:,} bytes"
    )
    yield _permissions(path)
    yield from _entries(place.where, quiet=quiet)


def _room(path: Path) -> Iterator[Check]:
    """Yield that the disk of the store is full, or nearly, where it is."""
    if text := short_of_room(path, _LITTLE):
        yield Check("disk", "wrong" if short_of_room(path, NOTHING) else "note", text)


def _entries(where: str, *, quiet: bool) -> Iterator[Check]:
    """Yield which sessions have entries that cannot be read: every one is."""
    damaged = False
    with open_store(where, readonly=True) as there, Waiting(wanted=not quiet) as waiting:
        sessions = there.sessions()
        for info in waiting.over("reading", sessions):
            if fault := _damage(there, info):
                damaged = True
                yield Check("entries", "wrong", f"session {info.key}: {fault}")
    if not damaged:
        count = sum(info.entries for info in sessions)
        yield Check("entries", "ok", f"{count:,} of {many(len(sessions), 'session')}, and each can be read")


def _damage(store: SessionStore, info: SessionInfo) -> str:
    """Return what of a session cannot be read and what to do, or nothing."""
    try:
        found = store.damage(info.key)
    except UnknownId:  # it was removed a moment ago
        return ""
    except EXPECTED as error:
        return reason(error)
    if not found:
        return ""
    first = found[0].partition(";")[0]
    return f"{len(found):,} of {info.entries:,} cannot be read: {first}; holdfast repair puts it aside"


def _permissions(path: Path) -> Check:
    open_ = [one for one in (path, path.with_name(path.name + ".blobs")) if one.exists() and _mode(one) & OTHERS]
    if not open_:
        return Check("permissions", "ok", f"{path.name} is {_mode(path):04o}: its owner's alone")
    told = ", ".join(f"{one} is {_mode(one):04o}" for one in open_)
    return Check("permissions", "wrong", f"{told}: others can get at it; chmod go= {' '.join(map(str, open_))}")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _configuration() -> Iterator[Check]:
    folders = (("project", Path()), ("user", user_config_path("holdfast", appauthor=False)))
    fault = _fault(config.load)
    told = False
    for whose, folder in folders:
        path = folder / config.FILE
        if fault.startswith(f"{path}: "):
            told = True
            yield Check(f"configuration ({whose})", "wrong", f"{path.absolute()}{fault.removeprefix(str(path))}")
            continue
        text = "in force" if path.is_file() else "not there; the defaults are in force"
        yield Check(f"configuration ({whose})", "ok", f"{path.absolute()}: {text}")
    if fault and not told:
        yield Check("configuration", "wrong", fault)
    if not fault:
        yield from _policies(config.configuration())


def _policies(found: config.Configuration) -> Iterator[Check]:
    """Yield which settings the files change, and whether the policies can be had like that."""
    faults = [fault for name in PRESETS if (fault := _fault(partial(found.policy, name)))]
    for fault in dict.fromkeys(faults):
        yield Check("policies", "wrong", fault)
    changed = dict.fromkeys(f"{one.table} {one.setting}" for one in found.overrides)
    if changed and not faults:
        yield Check("policies", "ok", f"{many(len(changed), 'setting')} changed: {', '.join(changed)}")
    limits = [f"{name} {size:,}" for name, size in found.store.limits.items()]
    if limits:
        yield Check("store limits", "ok", ", ".join(limits))


def _fault(step: Callable[[], object]) -> str:
    """Return why ``step`` cannot be done, or nothing."""
    try:
        step()
    except EXPECTED as error:
        return reason(error)
    return ""


def _extra(what: str, module: str, without: str, extra: str = "exact") -> Check:
    if find_spec(module) is not None:
        return Check(what, "ok", f"{module} is installed")
    told = f"uv tool install '.[{extra}]', or pip install '.[{extra}]', in the checkout of Holdfast brings it"
    return Check(what, "note", f"{module} is not installed: {without}; {told}")


def _relay_stack() -> Check:
    """Return what the proxy parses HTTP with and runs on, and which of the faster ones are missing."""
    parser, loop = "httptools", "uvloop"
    missing = [name for name in (parser, loop) if find_spec(name) is None]
    text = f"the proxy runs with {'h11' if parser in missing else parser} on {'asyncio' if loop in missing else loop}"
    if not missing:
        return Check("relay", "ok", text)
    told = f"{' and '.join(missing)}, which come along where they have wheels (CPython on Linux and macOS), are faster"
    return Check("relay", "note", f"{text}; {told}")


def _tools() -> Iterator[Check]:
    for tool in tools():
        found = own_sessions(tool)
        newest = f", the newest {ago(int(changed(found[0])[0] * 1_000))}" if found else ""
        kind = "database" if tool.pattern.endswith(".db") else "session"
        yield Check(tool.name, "ok", f"{many(len(found), kind)} in {tool.folder}{newest}")


def _pointed(*, online: bool) -> Iterator[Check]:
    """Yield where clients are pointed and what is there; with ``online`` whether the providers can be reached."""
    from holdfast.cli.clients.survey import behind, pointed, upstreams

    led: dict[str, list[str]] = {}
    every, token = list(pointed()), _token()
    for one in every:
        found = one.check(token, online=online)
        yield Check(one.what, found.state, found.text)
        led.setdefault(found.proxy, []).append(one.what)
    if not every:
        yield Check("clients", "ok", "none is pointed anywhere; holdfast run -- CLIENT starts one with a proxy")
    settings = _settings([name for address, names in led.items() if address for name in names])
    if isinstance(settings, str):
        yield Check("proxy", "wrong", settings)
        return
    yield from _proxies(settings, led, token)
    yield from _doubled(token)
    addresses = upstreams_of(settings) | behind(every)
    for what, answer in upstreams(addresses) if online else ():
        yield Check(what, answer.state, answer.text)


def _token() -> str:
    """Return the token of the user's own proxy; nothing where it has none, or what is said of it cannot be."""
    with suppress(*EXPECTED):
        return in_force({}).settings.token
    return ""


def _proxies(settings: Settings, led: dict[str, list[str]], token: str) -> Iterator[Check]:
    """Yield which proxies run and who is pointed at them; where none does, what one would do."""
    from holdfast.cli.clients.survey import looked_at

    address = address_of(settings)
    running = {at: looked_at(at, token, online=False) for at in dict.fromkeys([*filter(None, led), address])}
    for at, found in running.items():
        if found.proxy:
            who = f"pointed at it: {', '.join(led[at])}" if at in led else f"nobody is pointed at it: {_TO_POINT}"
            yield Check("proxy", found.state, f"{at}: {found.text}; {who}")
    if not any(found.proxy for found in running.values()):
        told = ", ".join(f"{name} {url}" for name, url in upstreams_of(settings).items())
        does = f"holdfast serve would be {mode(settings)}, with the upstreams {told}"
        yield Check("proxy", "ok", f"none runs at {address}; {does}")


def _doubled(token: str) -> Iterator[Check]:
    """Yield which upstreams of a proxy that began here are proxies of ours: they may be meant for clients alone."""
    from holdfast.cli.clients.survey import chained

    for name, found in chained(upstreams_of(in_force({}).settings), token).items():
        sends = f"holdfast serve would send on to {found.proxy}, {found.text}"
        yield Check(f"upstream {name}", "note", f"{sends}: recorded and reduced twice; --upstream-{name} names another")


def _settings(leading: Collection[str]) -> Settings | str:
    """Return what a proxy would do, or why it cannot; variables ``leading`` to one that runs are for its clients."""
    try:
        return in_force({}, {name: value for name, value in os.environ.items() if name not in leading}).settings
    except EXPECTED as error:
        return reason(error)


def _windows() -> list[dict[str, object]]:
    """Return the windows in force in the order they are asked; the shipped ones where the user's cannot be read."""
    catalog = config.shipped() if _fault(config.load) else config.load()
    lines = [line for line in catalog.model if line.window is not None]
    table: list[dict[str, object]] = [
        {"models": [line.match] if isinstance(line.match, str) else list(line.match), "window": line.window}
        for line in lines
    ]
    return [*table, {"models": ["any other"], "window": DEFAULT_WINDOW}]


def _plain(pattern: str) -> str:
    """Return a pattern of the catalogue as people write it."""
    return pattern.replace("[.-]", "-").replace("[.]", ".").replace("[[]", "[").replace("[]]", "]")


def _say(checks: list[Check], windows: list[dict[str, object]]) -> None:
    from rich.text import Text

    out = console()
    widest = max(len(check.what) for check in checks)
    for check in checks:
        _say_check(out, check, widest)
    if windows:
        out.print()
        say_table(out, _table_of(windows))
    wrong = sum(check.state == "wrong" for check in checks)
    told = Text(f"{many(wrong, 'thing')} wrong", "red") if wrong else Text("everything is in order", "green")
    out.print()
    out.print(told)


def _say_check(out: Console, check: Check, widest: int) -> None:
    """Print a check, its text in a column of its own, or below where that were too narrow to be read."""
    from rich.text import Text

    head = Text.assemble((f"{check.state:{_STATE}}", _STYLES[check.state]), f"{clean(check.what):{widest + GAP}}")
    room = out.width - len(head)
    is_wide = room >= _READABLE
    lines = list(Text(clean(check.text)).wrap(out, room if is_wide else max(LEAST, out.width - SET_IN)))
    first = [head.append_text(lines.pop(0))] if is_wide else [head]
    for line in first:
        line.rstrip()
        out.print(line, no_wrap=True)
    for line in lines:
        line.rstrip()
        line.pad_left(_STATE + widest + GAP if is_wide else SET_IN)
        out.print(line, no_wrap=True)


def _table_of(windows: list[dict[str, object]]) -> Table:
    """Return the windows, each with its models, as people read them."""
    from rich.table import Table
    from rich.text import Text

    known = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    known.add_column("window", justify="right", no_wrap=True)
    known.add_column("models")
    by_size: dict[object, list[str]] = {}
    for line in windows:
        models = line["models"]
        by_size.setdefault(line["window"], []).extend(models if isinstance(models, list) else [])
    for window, models in by_size.items():
        known.add_row(Text(f"{window:,}"), Text(", ".join(map(_plain, models)), style="dim"))
    return known
