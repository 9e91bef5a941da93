"""The table ``[proxy]`` of a ``holdfast.toml``: where the proxy listens, where it sends requests, and what it does.

::

    [proxy]
    openai = "http://127.0.0.1:8080/v1"
    policy = "opencode"
    observe = true
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, TypeAlias, get_type_hints

import msgspec
from msgspec import Meta, Struct

from holdfast.config.addresses import BASE_URL_PATTERN, is_base_url, is_local_url, is_loopback_host
from holdfast.config.providers import PROVIDERS
from holdfast.config.tables import describe_unknown_name, format_short_value, require_table
from holdfast.errors import ConfigError
from holdfast.planning.presets.registry import PRESETS
from holdfast.state.codec.reading import convert_value

SECRET_SETTING = "token"  # noqa: S105
"""The setting whose value is never shown."""
DEFAULT_PROXY_PORT = 8_642
"""Chosen because no program known to us listens there."""

BaseUrl: TypeAlias = Annotated[
    str, Meta(pattern=BASE_URL_PATTERN, description="an address such as https://gateway.example/v1")
]
BooleanSetting: TypeAlias = Annotated[bool, Meta(description="true or false")]
SecondsSetting: TypeAlias = Annotated[float, Meta(ge=0, le=3_600, description="a number of seconds from 0 to 3,600")]
_SUMMARIES_DESCRIPTION = 'one of "extract", "client", or the name of a model'


class ProxySettings(Struct, frozen=True, kw_only=True):
    """The settings of the proxy. A key of the table has the same name."""

    # -- where requests go ---------------------------------------------------------------------------------------
    anthropic: BaseUrl = PROVIDERS["anthropic"].base_url
    """Address of the provider for the Messages API; by default Anthropic's own."""
    openai: BaseUrl = PROVIDERS["openai"].base_url
    """Address of the provider for Chat Completions and Responses; by default OpenAI's own."""
    gemini: BaseUrl = PROVIDERS["gemini"].base_url
    """Address of the provider for Gemini's ``generateContent``; by default Google's own."""

    # -- what happens to them ------------------------------------------------------------------------------------
    policy: Annotated[str, Meta(description=f"one of {', '.join(PRESETS)}")] = "holdfast"
    """The policy that new sessions begin with and keep."""
    observe: BooleanSetting = False
    """Change nothing, but record requests and answers."""
    bypass: BooleanSetting = False
    """Change nothing and record nothing: a plain relay."""
    summaries: Annotated[str, Meta(pattern=r"^\S+\Z", description=_SUMMARIES_DESCRIPTION)] = "extract"
    """The writer of summaries: none (``extract``), the request's own model and login (``client``), or the model of this
    name. By default none, because a call that nobody asked for costs the user money."""
    window: Annotated[int, Meta(ge=0, le=10**9, description="a whole number of tokens, 0 = as the catalogue says")] = 0
    """Tokens that a conversation may have, whatever the model's window is; 0 leaves it to the catalogue."""
    ask_windows: BooleanSetting = True
    """Ask servers on this machine or in a private network for the window of their models."""

    telemetry: BooleanSetting = False
    """Export OpenTelemetry's spans and metrics."""
    telemetry_content: BooleanSetting = False
    """Export the words of requests and answers with them, with known secrets masked."""

    # -- where it listens ----------------------------------------------------------------------------------------
    host: Annotated[str, Meta(pattern=r"^[^\s/@\[\]]+\Z", description="a name or an address without a port")] = (
        "127.0.0.1"
    )
    """By default loopback; for any other address a token is required."""
    port: Annotated[int, Meta(ge=0, le=65_535, description="a whole number up to 65,535, 0 = a free port")] = (
        DEFAULT_PROXY_PORT
    )
    token: Annotated[
        str, Meta(pattern=r"^([!-~]{16,})?\Z", description="16 or more letters, digits and signs, or nothing")
    ] = ""
    """Token that clients must send in ``x-holdfast-token``, if not empty. 16 characters cannot be guessed."""

    # -- its limits ----------------------------------------------------------------------------------------------
    body_bytes: Annotated[int, Meta(ge=1, le=10**10, description="a whole number of bytes, 1 or more")] = 100_000_000
    """Largest request in bytes, decompressed. Three times what the Messages API accepts (32 MB), so that it is the
    provider who refuses a large one and says why."""
    concurrent: Annotated[int, Meta(ge=1, le=100_000, description="a whole number, 1 or more")] = 512
    """Requests at a time; further ones are refused. Measured with 200 streams; more than twice that leaves room."""
    keepalive: SecondsSetting = 10.0
    """Seconds of silence after which a waiting client gets a keep-alive; 0 sends none. Far below the shortest timeout
    of any client that we know."""
    drain: SecondsSetting = 30.0
    """Seconds that answers under way may take after the server was told to stop; most end within them."""

    def __repr__(self) -> str:
        """Return all settings but the token, which is never logged."""
        public_values = []
        for name, value in msgspec.structs.asdict(self).items():
            if name != SECRET_SETTING:
                public_values.append(f"{name}={value!r}")
        return f"ProxySettings({', '.join(public_values)})"


def parse_proxy_table(table: object, file: str) -> dict[str, Any]:
    """Parse table ``[proxy]``; raise ``ConfigError`` for a wrong key or value."""
    values = require_table(table, "[proxy]", file)
    names = ProxySettings.__struct_fields__
    # An unknown key is reported before any wrong value.
    for key in values:
        if key not in names:
            raise ConfigError(describe_unknown_name("setting", key, names, f"{file}: [proxy]"))
    return {key: convert_proxy_setting(key, value, f"{file}: [proxy] {key}") for key, value in values.items()}


def convert_proxy_setting(key: str, value: object, place: str) -> Any:
    """Convert ``value`` for setting ``key``; raise ``ConfigError`` with the allowed values at ``place``."""
    setting_type = _get_setting_types()[key]
    try:
        setting_value = convert_value(value, setting_type)
    except msgspec.ValidationError as error:
        problem = "is of another form" if "regex" in str(error) else str(error)
        raise ConfigError(_describe_wrong_setting(key, value, place, problem)) from None
    problem = _find_setting_problem(key, setting_value)
    if problem:
        raise ConfigError(_describe_wrong_setting(key, value, place, problem))
    return setting_value


def check_project_settings(settings: Mapping[str, Any], file: str, user_file: str) -> None:
    """Raise ``ConfigError`` if a project's file contains settings that belong into ``user_file``.

    A folder that was downloaded from somewhere must not decide where the API keys of the person working in it are sent,
    or which machines can reach the proxy. The same goes for the words of their
    conversations. So addresses and hosts beyond this machine, the token, and telemetry with content are allowed in the
    user's own file only.
    """
    for key, value in settings.items():
        is_remote_provider = key in PROVIDERS and not is_local_url(value)
        is_remote_host = key == "host" and not is_loopback_host(value)
        is_content_export = key == "telemetry_content" and value
        if is_remote_provider or is_remote_host or is_content_export or key == SECRET_SETTING:
            problem = f"{file}: [proxy] {key} would lead beyond this machine, which a project's file may not say"
            raise ConfigError(f"{problem}; move the line to {user_file} if you want it")


def _describe_wrong_setting(key: str, value: object, place: str, problem: str) -> str:
    shown_value = "…" if key == SECRET_SETTING else format_short_value(value)
    return f"{place} = {shown_value}: {problem}; allowed is {_describe_allowed_values(key)}"


def _find_setting_problem(key: str, value: Any) -> str:
    """Describe the problem of a value of the right type; ``""`` without one."""
    if key == "policy" and value not in PRESETS:
        return "no policy is called that"
    # The pattern of the type cannot check whether host and port are possible.
    if key in PROVIDERS and not is_base_url(value):
        return "has a host or a port that cannot be"
    return ""


def _describe_allowed_values(key: str) -> str:
    for annotation in _get_setting_types()[key].__metadata__:
        if annotation.description:
            return str(annotation.description)
    raise KeyError(key)  # each setting's type has a description


@cache
def _get_setting_types() -> dict[str, Any]:
    return get_type_hints(ProxySettings, include_extras=True)
