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
from holdfast.cli.files.user_paths import explain_impossible_path, explain_unwritable_store, get_store_path
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.terminal import format_count
from holdfast.config.providers import PROVIDERS
from holdfast.errors import ConfigError, WindowTooSmall
from holdfast.planning.budget import check_budget
from holdfast.planning.pipeline import Policy
from holdfast.proxy.modes import get_proxy_mode
from holdfast.proxy.settings import TOKEN_VARIABLE, Settings, adapt_policy_to_proxy, load_proxy_settings
from holdfast.state.target import ModelLimits, Target
from holdfast.store.open_store import open_store

if TYPE_CHECKING:
    from holdfast.cli.reports.dry_run import PolicyForecast

F = TypeVar("F", bound=Callable[..., Any])

MIN_FREE_BYTES = 4_000_000
"""[H] Bytes of free disk that a long conversation takes at once."""
MAX_PORT = 65_535
MAX_WINDOW = 10**9
"""The largest window that the proxy takes."""
UNSERVED_STATES = ("bypassed", "unrecorded", "refused", "failed")
"""States of requests for which Holdfast did less than it is there for."""
_UPSTREAM_PREFIX = "upstream_"
"""What stands before the setting in the name of its option."""


def add_proxy_options(command: F) -> F:
    """Return ``command`` with the options that say what the proxy does."""
    for option in reversed(_make_proxy_options()):
        command = option(command)
    return command


def _make_proxy_options() -> list[Callable[[F], F]]:
    upstreams = [
        click.option(
            f"--upstream-{name}",
            metavar="URL",
            help=f"Who answers {provider.answers}. [default: holdfast.toml, else the SDK's variable, else its maker]",
        )
        for name, provider in PROVIDERS.items()
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
        click.option(
            "--window", type=IntegerParamType(0), help="Tokens a conversation may have. [default: what the model can]"
        ),
    ]


def get_option_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the command line ``options`` asks for, by their names; nothing for those it does not."""
    return {name.removeprefix(_UPSTREAM_PREFIX): value for name, value in options.items() if value is not None}


class EffectiveSettings(NamedTuple):
    """The proxy's settings, the files they are from, and the upstreams that were asked for, here or in a file."""

    settings: Settings
    configuration: config.Configuration
    explicit_upstreams: frozenset[str]


def load_effective_settings(
    options: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> EffectiveSettings:
    """Return what is in force; ``ConfigError`` names what cannot be."""
    configuration, here = config.load_configuration(), get_option_settings(options)
    proxy_settings = load_proxy_settings(environment, configuration.proxy, here)
    _check_window_size(proxy_settings, configuration)
    return EffectiveSettings(proxy_settings, configuration, frozenset({*configuration.proxy, *here} & {*PROVIDERS}))


def _check_window_size(settings: Settings, configuration: config.Configuration) -> None:
    """Raise ``ConfigError`` where no request of the policy fits in the window that was asked for."""
    if not settings.window:
        return
    policy = adapt_policy_to_proxy(configuration.build_policy(settings.policy))
    if not _can_fit_window(settings.window, policy):
        min_window = bisect_left(range(MAX_WINDOW), 1, key=lambda window: _can_fit_window(window, policy))
        raise ConfigError(
            f"window = {settings.window}: no conversation fits in it; policy {settings.policy} needs {min_window} "
            "tokens at least,"
            " and 0 is what the model can"
        )


def _can_fit_window(window: int, policy: Policy) -> bool:
    try:
        check_budget(Target(limits=ModelLimits(window)), policy.settings, policy.rules)
    except WindowTooSmall:
        return False
    return True


def get_proxy_token(configuration: config.Configuration) -> str:
    """Return the token of the user's own proxy, as ``holdfast serve`` has it; nothing where it has none."""
    return os.environ.get(TOKEN_VARIABLE) or str(configuration.proxy.get("token", ""))


def describe_proxy_mode(settings: Settings, switch: Path | None = None) -> str:
    """Return in a few words what the proxy does with requests; ``switch`` is the file that makes it do nothing."""
    current_mode = get_proxy_mode(settings, switch)
    if current_mode == "bypass":
        by = "HOLDFAST_BYPASS, or bypass in holdfast.toml" if settings.bypass else f"the file {switch}"
        return f"bypassed, by {by}: a plain relay that records nothing"
    return "observing: nothing is changed" if current_mode == "observe" else f"reducing by policy {settings.policy}"


def make_proxy_url(settings: Settings) -> str:
    """Return the address of a proxy with these settings, for clients of this machine."""
    host = "127.0.0.1" if settings.host in {"0.0.0.0", "::"} else settings.host  # noqa: S104  nothing is bound
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def get_upstream_urls(settings: Settings) -> dict[str, str]:
    """Return where the requests of each provider go."""
    return {name: getattr(settings, name) for name in PROVIDERS}


def translate_bind_error(error: Exception, port: int) -> Exception:
    """Return what is to be raised where the proxy did not begin."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        message = f"port {port} is taken, perhaps by another holdfast serve; give another --port, or 0 for a free one"
        return CommandError(message)
    return error


def check_store_url(store_url: str) -> None:
    """Raise ``ConfigError`` where no store can be called ``store_url``, or none can ever be there."""
    open_store(store_url, readonly=True).close()
    if why := explain_impossible_path(store_url):
        raise ConfigError(why)


def describe_recording_problem(store_url: str) -> str:
    """Return what is said at the start where nothing can be written to the store at ``store_url``, or nothing.

    Raises as ``check_store_url`` does.
    """
    check_store_url(store_url)
    if why := explain_unwritable_store(store_url):
        return f"requests go on, but are not recorded: {why}"
    if store_url != ":memory:" and (why := describe_low_disk(get_store_path(store_url), MIN_FREE_BYTES)):
        return f"requests go on, but what finds no room is not recorded: {why}"
    return ""


def describe_low_disk(path: Path, min_bytes: int) -> str:
    """Return that fewer than ``min_bytes`` bytes are free on the disk of ``path``, which need not be there, or
    nothing.
    """
    there = next(candidate for candidate in (path, *path.parents) if os.access(candidate, os.F_OK))
    free = disk_usage(there).free
    if free >= min_bytes:
        return ""
    return f"{free:,} bytes are free where the store is; free some, or give another path with --store"


def forecast_observed_sessions(
    settings: Settings, store: str | None, keys: Sequence[str], configuration: config.Configuration
) -> PolicyForecast | None:
    """Return what the policy would have done about the sessions of a proxy that only looked on; of no other."""
    from holdfast.cli.reports.dry_run import forecast_sessions

    return (
        forecast_sessions(store, keys, configuration, settings.policy)
        if get_proxy_mode(settings) == "observe"
        else None
    )


def summarize_run(stats: Mapping[str, Any], dry_run: PolicyForecast | None) -> list[str]:
    """Return in a few words what was done about the requests, or what would have been."""
    states = _count_states(stats)
    otherwise = [f"{states[state]:,} {state}" for state in UNSERVED_STATES if states[state]]
    if dry_run is None:
        from holdfast.cli.reports.request_size import format_tokens

        saved_tokens, avoided_overflows = stats["tokens_saved"], stats["overflows"]["avoided"]
        savings = [f"newly reduced by {format_tokens(saved_tokens)} tokens"] if saved_tokens else []
        return [
            *savings,
            *([f"{format_count(avoided_overflows, 'overflow')} avoided"] if avoided_overflows else []),
            *otherwise,
        ]
    from holdfast.cli.reports.dry_run import describe_forecast

    prefix = "with those before this run: " if dry_run.requests > count_proxy_requests(stats) else ""
    return ["nothing was changed", *([prefix + describe_forecast(dry_run)] if dry_run.requests else []), *otherwise]


def count_proxy_requests(stats: Mapping[str, Any]) -> int:
    """Return how many requests there were; those that were posted to no API, if there were others, are none."""
    return sum(_count_states(stats).values())


def _count_states(stats: Mapping[str, Any]) -> Counter[str]:
    """Return how many of them ended in each state."""
    state_counts = (states for api, states in stats["requests"].items() if api not in {"all", "other"})
    return sum(map(Counter, state_counts), Counter[str]()) or Counter(stats["requests"]["all"])
