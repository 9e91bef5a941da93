"""The options and startup checks that ``holdfast serve`` and ``holdfast run`` share."""

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
from holdfast.cli.files.user_paths import explain_impossible_path, explain_unwritable_store
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.config.providers import PROVIDERS
from holdfast.errors import ConfigError, WindowTooSmall
from holdfast.messages.text.counts import format_count
from holdfast.planning.budget import check_budget
from holdfast.planning.pipeline import Policy
from holdfast.proxy.modes import get_proxy_mode
from holdfast.proxy.settings import TOKEN_VARIABLE, Settings, adapt_policy_to_proxy, load_proxy_settings
from holdfast.state.target import ModelLimits, Target
from holdfast.store.location import find_store_file
from holdfast.store.open_store import open_store

if TYPE_CHECKING:
    from holdfast.reports.requests.dry_run import PolicyForecast

F = TypeVar("F", bound=Callable[..., Any])

MIN_FREE_BYTES = 4_000_000
"""Bytes of free disk below which recording is expected to fail. Chosen by judgement: about what one request of a long
conversation writes at once."""
MAX_PORT = 65_535
MAX_WINDOW = 10**9
"""The largest window that the proxy accepts, in tokens; larger numbers are typing errors."""
UNSERVED_STATES = ("bypassed", "unrecorded", "refused", "failed")
"""States of requests that passed through without Holdfast's full service."""
_UPSTREAM_PREFIX = "upstream_"
"""Prefix that the option of an upstream has before the name of its setting."""


def add_proxy_options(command: F) -> F:
    """Add the options that configure the proxy to ``command``."""
    for option in reversed(_make_proxy_options()):
        command = option(command)
    return command


def _make_proxy_options() -> list[Callable[[F], F]]:
    upstreams = []
    for name, provider in PROVIDERS.items():
        help_text = (
            f"Where to send {provider.answers}. [default: holdfast.toml, else the SDK's variable, else official]"
        )
        upstreams.append(click.option(f"--upstream-{name}", metavar="URL", help=help_text))
    return [
        *upstreams,
        click.option("--policy", metavar="NAME", help="The policy for new sessions. [default: holdfast]"),
        click.option(
            "--observe/--manage",
            default=None,
            help="With --observe only record and report, and change nothing. [default: --manage]",
        ),
        click.option(
            "--summaries",
            metavar="WRITER",
            help="Who writes summaries: extract (no model), client (the request's own) or a model. [default: extract]",
        ),
        click.option(
            "--window",
            type=IntegerParamType(0),
            help="Limit of a conversation in tokens. [default: the model's window]",
        ),
        click.option(
            "--telemetry/--no-telemetry",
            default=None,
            help="Export OpenTelemetry's spans and metrics. [default: --no-telemetry]",
        ),
        click.option(
            "--telemetry-content/--no-telemetry-content",
            default=None,
            help="Export the words of requests and answers with them. [default: --no-telemetry-content]",
        ),
    ]


def get_option_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the proxy settings given on the command line, by setting name; options not given are left out."""
    settings = {}
    for name, value in options.items():
        if value is not None:
            settings[name.removeprefix(_UPSTREAM_PREFIX)] = value
    return settings


class EffectiveSettings(NamedTuple):
    """The proxy's settings, the configuration they come from, and the upstreams set explicitly by option or file."""

    settings: Settings
    configuration: config.Configuration
    explicit_upstreams: frozenset[str]


def load_effective_settings(
    options: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> EffectiveSettings:
    """Merge command line, environment and files into the settings in force. Raises ``ConfigError`` for invalid ones."""
    configuration = config.load_configuration()
    option_settings = get_option_settings(options)
    proxy_settings = load_proxy_settings(environment, configuration.proxy, option_settings)
    _check_window_size(proxy_settings, configuration)
    # A variable is not explicit: it may be the client's own, which run puts behind the proxy.
    explicit_names = {*configuration.proxy, *option_settings}
    return EffectiveSettings(proxy_settings, configuration, frozenset(explicit_names & {*PROVIDERS}))


def _check_window_size(settings: Settings, configuration: config.Configuration) -> None:
    """Raise ``ConfigError`` if the requested window is too small for the policy, and name the smallest that works."""
    if not settings.window:
        return
    policy = adapt_policy_to_proxy(configuration.build_policy(settings.policy))
    if not _can_fit_window(settings.window, policy):
        # Whether a window fits is monotonic in its size, so a binary search finds the smallest one in 30 checks.
        min_window = bisect_left(range(MAX_WINDOW), 1, key=lambda window: _can_fit_window(window, policy))
        raise ConfigError(
            f"window = {settings.window} is too small for any conversation; policy {settings.policy} needs at least "
            f"{min_window} tokens, and 0 means the model's own window"
        )


def _can_fit_window(window: int, policy: Policy) -> bool:
    try:
        check_budget(Target(limits=ModelLimits(window)), policy.settings, policy.rules)
    except WindowTooSmall:
        return False
    return True


def get_proxy_token(configuration: config.Configuration) -> str:
    """Return the token that the user's own ``holdfast serve`` requires, or an empty string."""
    return os.environ.get(TOKEN_VARIABLE) or str(configuration.proxy.get("token", ""))


def describe_proxy_mode(settings: Settings, switch: Path | None = None) -> str:
    """Describe in a few words how the proxy treats requests; it is bypassed while the file ``switch`` exists."""
    current_mode = get_proxy_mode(settings, switch)
    if current_mode == "bypass":
        if settings.bypass:
            by = "HOLDFAST_BYPASS, or bypass in holdfast.toml"
        else:
            by = f"the file {switch}"
        return f"bypassed, by {by}: a plain relay that records nothing"
    if current_mode == "observe":
        return "observing: nothing is changed"
    return f"reducing by policy {settings.policy}"


def make_proxy_url(settings: Settings) -> str:
    """Return the address of a proxy with these settings, as clients on this machine reach it."""
    host = settings.host
    # These mean "all addresses" to a server, and nothing to a client.
    if host in {"0.0.0.0", "::"}:  # noqa: S104  nothing is bound
        host = "127.0.0.1"
    if ":" in host:
        # The form of an IPv6 address in a URL.
        host = f"[{host}]"
    return f"http://{host}:{settings.port}"


def get_upstream_urls(settings: Settings) -> dict[str, str]:
    """Return the upstream address of each provider."""
    return {name: getattr(settings, name) for name in PROVIDERS}


def translate_bind_error(error: Exception, port: int) -> Exception:
    """Return the error to raise if the proxy could not start; a taken port becomes a message with advice."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        message = f"port {port} is in use, perhaps by another holdfast serve; give another --port, or 0 for a free one"
        return CommandError(message)
    return error


def check_store_url(store_url: str) -> None:
    """Raise ``ConfigError`` if ``store_url`` is not a valid store, or no store can ever exist there."""
    open_store(store_url, readonly=True).close()
    if why := explain_impossible_path(store_url):
        raise ConfigError(why)


def describe_recording_problem(store_url: str) -> str:
    """Return the warning to print at the start if nothing can be recorded at ``store_url``, else an empty string.

    Raises as ``check_store_url`` does.
    """
    check_store_url(store_url)
    if why := explain_unwritable_store(store_url):
        return f"requests are answered, but not recorded: {why}"
    path = find_store_file(store_url)
    if path is not None and (why := describe_low_disk(path, MIN_FREE_BYTES)):
        return f"requests are answered, but recording stops when the disk is full: {why}"
    return ""


def describe_low_disk(path: Path, min_bytes: int) -> str:
    """Return a warning if the disk of ``path`` has fewer than ``min_bytes`` bytes free, else an empty string.

    ``path`` need not exist; its nearest existing parent counts.
    """
    existing_path = next(candidate for candidate in (path, *path.parents) if os.access(candidate, os.F_OK))
    free = disk_usage(existing_path).free
    if free >= min_bytes:
        return ""
    return f"only {free:,} bytes are free on the store's disk; free some space, or give another path with --store"


def forecast_observed_sessions(
    settings: Settings,
    store: str | None,
    keys: Sequence[str],
    configuration: config.Configuration,
) -> PolicyForecast | None:
    """Forecast the decisions of the policy, if the proxy only observed; otherwise return None."""
    from holdfast.cli.reports.forecast_sessions import forecast_sessions

    if get_proxy_mode(settings) == "observe":
        return forecast_sessions(store, keys, configuration, settings.policy)
    return None


def summarize_run(stats: Mapping[str, Any], dry_run: PolicyForecast | None) -> list[str]:
    """List in short phrases the effect on the requests or, with a forecast, the effect it would have had."""
    states = _count_states(stats)
    unserved = [f"{states[state]:,} {state}" for state in UNSERVED_STATES if states[state]]
    if dry_run is None:
        from holdfast.reports.requests.request_size import format_tokens

        parts = []
        if stats["tokens_saved"]:
            parts.append(f"newly reduced by {format_tokens(stats['tokens_saved'])} tokens")
        if stats["overflows"]["avoided"]:
            parts.append(f"{format_count(stats['overflows']['avoided'], 'overflow')} avoided")
        if stats["changed_fields"]:
            parts.append(f"{format_count(stats['changed_fields'], 'field')} changed that providers refuse")
        return [*parts, *unserved]
    from holdfast.reports.requests.dry_run import describe_forecast

    parts = ["nothing was changed"]
    if dry_run.requests:
        # The forecast covers whole sessions, which may have begun before this run.
        prefix = ""
        if dry_run.requests > count_proxy_requests(stats):
            prefix = "including earlier runs: "
        parts.append(prefix + describe_forecast(dry_run))
    return [*parts, *unserved]


def count_proxy_requests(stats: Mapping[str, Any]) -> int:
    """Count the requests to known APIs; requests to other paths count only if there were no others."""
    return sum(_count_states(stats).values())


def _count_states(stats: Mapping[str, Any]) -> Counter[str]:
    """Count how many requests ended in each state."""
    totals: Counter[str] = Counter()
    for api, states in stats["requests"].items():
        if api not in {"all", "other"}:
            totals += Counter(states)  # unlike ``update``, this drops states without requests
    return totals or Counter(stats["requests"]["all"])
