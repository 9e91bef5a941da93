"""What ``holdfast serve`` and ``holdfast run`` have in common: their options, and what is in force."""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from holdfast import config
from holdfast.cli.output.errors import Stopped
from holdfast.cli.output.ranges import Whole
from holdfast.cli.output.terminal import many
from holdfast.cli.places import file_of, no_place, unwritable
from holdfast.config.providers import PROVIDERS
from holdfast.errors import ConfigError, WindowTooSmall
from holdfast.planning.budget import guard
from holdfast.planning.settings import Settings as Numbers
from holdfast.proxy.modes import mode_of
from holdfast.proxy.settings import TOKEN, Settings, as_decided, settings
from holdfast.state.target import Limits, Target
from holdfast.store import open_store

if TYPE_CHECKING:
    from holdfast.cli.reports.dry_run import Foreseen

F = TypeVar("F", bound=Callable[..., Any])

NOTHING = 4_000_000
"""[H] Bytes of free disk that a long conversation takes at once."""
MOST_PORTS = 65_535
MOST_TOKENS = 10**9
"""The largest window that the proxy takes."""
NOT_SERVED = ("bypassed", "unrecorded", "refused", "failed")
"""States of requests for which Holdfast did less than it is there for."""
_UPSTREAM = "upstream_"
"""What stands before the setting in the name of its option."""


def proxy_options(command: F) -> F:
    """Return ``command`` with the options that say what the proxy does."""
    for option in reversed(_options()):
        command = option(command)
    return command


def _options() -> list[Callable[[F], F]]:
    upstreams = [
        click.option(
            f"--upstream-{name}",
            metavar="URL",
            help=f"Who answers {one.answers}. [default: holdfast.toml, else the SDK's variable, else its maker]",
        )
        for name, one in PROVIDERS.items()
    ]
    return [
        *upstreams,
        click.option("--policy", metavar="NAME", help="Who keeps new sessions small. [default: holdfast]"),
        click.option(
            "--observe/--manage", default=None, help="Change nothing, only record and report. [default: --manage]"
        ),
        click.option(
            "--summaries",
            metavar="WHO",
            help="Who writes summaries: extract (no model), client (the request's own) or a model. [default: extract]",
        ),
        click.option("--window", type=Whole(0), help="Tokens a conversation may have. [default: what the model can]"),
    ]


def asked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the command line ``given`` asks for, by their names; nothing for those it does not."""
    return {name.removeprefix(_UPSTREAM): value for name, value in given.items() if value is not None}


class InForce(NamedTuple):
    """The proxy's settings, the files they are from, and the upstreams that were asked for, here or in a file."""

    settings: Settings
    known: config.Configuration
    fixed: frozenset[str]


def in_force(given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> InForce:
    """Return what is in force; ``ConfigError`` names what cannot be."""
    known, here = config.configuration(), asked(given)
    found = settings(environment, known.proxy, here)
    _check_window(found, known)
    return InForce(found, known, frozenset({*known.proxy, *here} & {*PROVIDERS}))


def _check_window(found: Settings, known: config.Configuration) -> None:
    """Raise ``ConfigError`` where no request of the policy fits in the window that was asked for."""
    if not found.window:
        return
    numbers = as_decided(known.policy(found.policy)).settings
    if not _has_room(found.window, numbers):
        least = bisect_left(range(MOST_TOKENS), 1, key=lambda window: _has_room(window, numbers))
        raise ConfigError(
            f"window = {found.window}: no conversation fits in it; policy {found.policy} needs {least} tokens at least,"
            " and 0 is what the model can"
        )


def _has_room(window: int, numbers: Numbers) -> bool:
    try:
        guard(Target(limits=Limits(window)), numbers)
    except WindowTooSmall:
        return False
    return True


def token_of(known: config.Configuration) -> str:
    """Return the token of the user's own proxy, as ``holdfast serve`` has it; nothing where it has none."""
    return os.environ.get(TOKEN) or str(known.proxy.get("token", ""))


def mode(found: Settings, switch: Path | None = None) -> str:
    """Return in a few words what the proxy does with requests; ``switch`` is the file that makes it do nothing."""
    told = mode_of(found, switch)
    if told == "bypass":
        by = "HOLDFAST_BYPASS, or bypass in holdfast.toml" if found.bypass else f"the file {switch}"
        return f"bypassed, by {by}: a plain relay that records nothing"
    return "observing: nothing is changed" if told == "observe" else f"reducing by policy {found.policy}"


def address_of(found: Settings) -> str:
    """Return the address of a proxy with these settings, for clients of this machine."""
    host = "127.0.0.1" if found.host in {"0.0.0.0", "::"} else found.host  # noqa: S104  nothing is bound
    return f"http://{f'[{host}]' if ':' in host else host}:{found.port}"


def upstreams_of(found: Settings) -> dict[str, str]:
    """Return where the requests of each provider go."""
    return {name: getattr(found, name) for name in PROVIDERS}


def refused(error: Exception, port: int) -> Exception:
    """Return what is to be raised where the proxy did not begin."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        told = f"port {port} is taken, perhaps by another holdfast serve; give another --port, or 0 for a free one"
        return Stopped(told)
    return error


def check_place(where: str) -> None:
    """Raise ``ConfigError`` where no store can be called ``where``, or none can ever be there."""
    open_store(where, readonly=True).close()
    if why := no_place(where):
        raise ConfigError(why)


def unrecorded(where: str) -> str:
    """Return what is said at the start where nothing can be written to the store at ``where``, or nothing.

    Raises as ``check_place`` does.
    """
    check_place(where)
    if why := unwritable(where):
        return f"requests go on, but are not recorded: {why}"
    if where != ":memory:" and (why := short_of_room(file_of(where), NOTHING)):
        return f"requests go on, but what finds no room is not recorded: {why}"
    return ""


def short_of_room(path: Path, least: int) -> str:
    """Return that fewer than ``least`` bytes are free on the disk of ``path``, which need not be there, or nothing."""
    there = next(one for one in (path, *path.parents) if os.access(one, os.F_OK))
    free = disk_usage(there).free
    if free >= least:
        return ""
    return f"{free:,} bytes are free where the store is; free some, or give another path with --store"


def looked_on(found: Settings, store: str | None, keys: Sequence[str], known: config.Configuration) -> Foreseen | None:
    """Return what the policy would have done about the sessions of a proxy that only looked on; of no other."""
    from holdfast.cli.reports.dry_run import of_sessions

    return of_sessions(store, keys, known, found.policy) if mode_of(found) == "observe" else None


def done(stats: Mapping[str, Any], found: Foreseen | None) -> list[str]:
    """Return in a few words what was done about the requests, or what would have been."""
    states = _states(stats)
    otherwise = [f"{states[state]:,} {state}" for state in NOT_SERVED if states[state]]
    if found is None:
        from holdfast.cli.reports.request_size import about

        saved, avoided = stats["tokens_saved"], stats["overflows"]["avoided"]
        reduced = [f"newly reduced by {about(saved)} tokens"] if saved else []
        return [*reduced, *([f"{many(avoided, 'overflow')} avoided"] if avoided else []), *otherwise]
    from holdfast.cli.reports.dry_run import in_words

    others = "with those before this run: " if found.requests > total(stats) else ""
    return ["nothing was changed", *([others + in_words(found)] if found.requests else []), *otherwise]


def total(stats: Mapping[str, Any]) -> int:
    """Return how many requests there were; those that were posted to no API, if there were others, are none."""
    return sum(_states(stats).values())


def _states(stats: Mapping[str, Any]) -> Counter[str]:
    """Return how many of them ended in each state."""
    known = (states for api, states in stats["requests"].items() if api not in {"all", "other"})
    return sum(map(Counter, known), Counter[str]()) or Counter(stats["requests"]["all"])
