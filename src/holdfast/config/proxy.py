"""The table ``[proxy]`` of a ``holdfast.toml``: where the proxy listens, where it sends, and what it does between.

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
"""The setting that is never shown."""
DEFAULT_PROXY_PORT = 8_642
"""[H] No program that is known to us listens there."""

BaseUrl: TypeAlias = Annotated[
    str, Meta(pattern=BASE_URL_PATTERN, description="an address such as https://gateway.example/v1")
]
BooleanSetting: TypeAlias = Annotated[bool, Meta(description="true or false")]
SecondsSetting: TypeAlias = Annotated[float, Meta(ge=0, le=3_600, description="a number of seconds from 0 to 3,600")]
_SUMMARIES_DESCRIPTION = 'one of "extract", "client", or the name of a model'


class ProxySettings(Struct, frozen=True, kw_only=True):
    """What the proxy does; a key of the table has the same name."""

    # -- where requests go ---------------------------------------------------------------------------------------
    anthropic: BaseUrl = PROVIDERS["anthropic"].base_url
    """Who answers Messages; Anthropic's own address."""
    openai: BaseUrl = PROVIDERS["openai"].base_url
    """Who answers Chat Completions and Responses; OpenAI's own address."""
    gemini: BaseUrl = PROVIDERS["gemini"].base_url
    """Who answers Gemini's ``generateContent``; Google's own address."""

    # -- what happens to them ------------------------------------------------------------------------------------
    policy: Annotated[str, Meta(description=f"one of {', '.join(PRESETS)}")] = "holdfast"
    """The policy that new sessions begin with, and keep."""
    observe: BooleanSetting = False
    """Nothing is changed; what was said and answered is recorded."""
    bypass: BooleanSetting = False
    """Nothing is changed and nothing is recorded: a plain relay."""
    summaries: Annotated[str, Meta(pattern=r"^\S+\Z", description=_SUMMARIES_DESCRIPTION)] = "extract"
    """Who writes summaries: nobody (``extract``, no call of ours), the request's own model and login (``client``), or
    the model of this name. [H] No call of ours unless it was asked for."""
    window: Annotated[int, Meta(ge=0, le=10**9, description="a whole number of tokens, 0 = as the catalogue says")] = 0
    """Tokens that a conversation may have, whatever the model could; 0 asks the catalogue."""

    # -- where it listens ----------------------------------------------------------------------------------------
    host: Annotated[str, Meta(pattern=r"^[^\s/@\[\]]+\Z", description="a name or an address without a port")] = (
        "127.0.0.1"
    )
    """[H] Loopback: beyond it a token is needed."""
    port: Annotated[int, Meta(ge=0, le=65_535, description="a whole number up to 65,535, 0 = a free port")] = (
        DEFAULT_PROXY_PORT
    )
    token: Annotated[
        str, Meta(pattern=r"^([!-~]{16,})?\Z", description="16 or more letters, digits and signs, or nothing")
    ] = ""
    """What a client must know, in ``x-holdfast-token``; nothing = no client needs to. [H] 16 signs cannot be tried."""

    # -- what it bears -------------------------------------------------------------------------------------------
    body_bytes: Annotated[int, Meta(ge=1, le=10**10, description="a whole number of bytes, 1 or more")] = 100_000_000
    """Bytes of one request, unpacked. [H] Three times what Messages takes (32 MB): who refuses it then says so."""
    concurrent: Annotated[int, Meta(ge=1, le=100_000, description="a whole number, 1 or more")] = 512
    """Requests at a time; more are refused. [H] Twice the 200 streams that it is measured with, and room."""
    keepalive: SecondsSetting = 10.0
    """Seconds of silence after which a waiting client hears that we are there; 0 = it never does. [H] Far below the
    shortest patience of a client that is known to us."""
    drain: SecondsSetting = 30.0
    """Seconds that answers under way may take after a stop was asked for. [H] Most answers end within them."""

    def __repr__(self) -> str:
        """Return what is set, the token left out: it is never logged."""
        public_values = {name: value for name, value in msgspec.structs.asdict(self).items() if name != SECRET_SETTING}
        return f"ProxySettings({', '.join(f'{name}={value!r}' for name, value in public_values.items())})"


def parse_proxy_table(table: object, file: str) -> dict[str, Any]:
    """Return what table ``[proxy]`` says; ``ConfigError`` names a wrong key or value."""
    values = require_table(table, "[proxy]", file)
    for key in values:
        if key not in ProxySettings.__struct_fields__:
            raise ConfigError(
                describe_unknown_name("setting", key, ProxySettings.__struct_fields__, f"{file}: [proxy]")
            )
    return {key: convert_proxy_setting(key, value, f"{file}: [proxy] {key}") for key, value in values.items()}


def convert_proxy_setting(key: str, value: object, place: str) -> Any:
    """Return ``value`` as setting ``key`` holds it; ``ConfigError`` says what is allowed where it was ``place``."""
    kind = _get_setting_types()[key]
    try:
        new = convert_value(value, kind)
    except msgspec.ValidationError as error:
        why = "is of another form" if "regex" in str(error) else str(error)
        raise ConfigError(_describe_wrong_setting(key, value, place, why)) from None
    if why := _find_setting_problem(key, new):
        raise ConfigError(_describe_wrong_setting(key, value, place, why))
    return new


def check_project_settings(settings: Mapping[str, Any], file: str, user_file: str) -> None:
    """Return if a project may say all that it ``settings``; ``ConfigError`` otherwise, ``user_file`` being the user's
    file.

    Whoever wrote a folder that was fetched from somewhere must not choose who gets the keys of whoever works there, or
    who may reach the proxy: addresses and hosts beyond this machine, and the token, stand in the user's own file.
    """
    for key, value in settings.items():
        if (
            (key in PROVIDERS and not is_local_url(value))
            or (key == "host" and not is_loopback_host(value))
            or key == SECRET_SETTING
        ):
            problem = f"{file}: [proxy] {key} would lead beyond this machine, which a project's file may not say"
            raise ConfigError(f"{problem}; move the line to {user_file} if you want it")


def _describe_wrong_setting(key: str, value: object, place: str, why: str) -> str:
    return (
        f"{place} = {'…' if key == SECRET_SETTING else format_short_value(value)}: {why}; allowed is "
        f"{_describe_allowed_values(key)}"
    )


def _find_setting_problem(key: str, value: Any) -> str:
    """Return what is wrong with a value of the right type, or nothing."""
    if key == "policy" and value not in PRESETS:
        return "no policy is called that"
    if key in PROVIDERS and not is_base_url(value):
        return "has a host or a port that cannot be"
    return ""


def _describe_allowed_values(key: str) -> str:
    return next(
        str(annotation.description) for annotation in _get_setting_types()[key].__metadata__ if annotation.description
    )


@cache
def _get_setting_types() -> dict[str, Any]:
    return get_type_hints(ProxySettings, include_extras=True)
