"""How a client is started so that it talks to the proxy, and keeps its settings, its logins and its home otherwise.

An address that a client has of its own goes on behind the proxy's (``…/u/https://its.own/address``), so that it stays
the upstream, exactly, whatever else the proxy sends elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.cli.clients.client_settings import (
    LLM_API_BASE,
    ClientEnvironment,
    ConfiguredUrl,
    find_claude_folder_urls,
    find_configured_urls,
    get_llm_cli_folder,
    get_nested_value,
    list_claude_folder_settings,
    list_settings_files,
    parse_lenient_json,
)
from holdfast.config.providers import ADDRESS_VARIABLES, PROVIDERS
from holdfast.proxy.http.headers import TOKEN_HEADER

CHATGPT_CODEX_URL = "https://chatgpt.com/backend-api/codex"
"""Where Codex asks when it is logged in with ChatGPT. [M]"""
LOCAL_HOSTS = "127.0.0.1,localhost"
CLAUDE_HEADERS_VARIABLE = "ANTHROPIC_CUSTOM_HEADERS"
"""Headers that Claude Code sends beside its own, one a line. [M]"""


class LaunchPlan(Struct, frozen=True):
    """How a client is started: what is added to its command, its variables and a temporary folder."""

    arguments: tuple[str, ...] = ()
    """What stands before the client's own arguments."""
    environment: Mapping[str, str] = {}
    """Variables that are set; all others stay."""
    files: Mapping[str, str] = {}
    """Temporary files, by their names in the folder."""
    mirrored_folder: str = ""
    """A folder whose things are to be found in the temporary one too, but for those that ``files`` replaces."""
    notes: tuple[str, ...] = ()
    """What does not go through the proxy, and why."""


class LaunchRequest(Struct, frozen=True):
    """What is to be started: ``arguments`` without the program, where it is, and where the proxy is."""

    proxy: str
    environment: ClientEnvironment
    arguments: Sequence[str] = ()
    temporary: str = ""
    """The folder for temporary files."""
    explicit_upstreams: frozenset[str] = frozenset()
    """Providers whose address was asked for: it stands above what the client's variables say."""
    is_chatgpt: bool = False
    """Whether Codex is logged in with ChatGPT."""
    token: str = ""
    """What the proxy wants to be told by its clients."""

    def make_proxied_url(self, url: str) -> str:
        """Return the address at the proxy from which requests go on to ``url``."""
        if _is_url_below(url, self.proxy):
            return url
        official = next(
            (provider.official for provider in PROVIDERS.values() if _is_url_below(url, provider.official)), None
        )
        return f"{self.proxy}/u/{url}" if official is None else self.proxy + url.removeprefix(official)


LITELLM_GATEWAYS = {
    "OPENROUTER_API_BASE": "https://openrouter.ai/api/v1",
    "DEEPSEEK_API_BASE": "https://api.deepseek.com/beta",
    "XAI_API_BASE": "https://api.x.ai/v1",
    "GROQ_API_BASE": "https://api.groq.com/openai/v1",
}
"""More that LiteLLM reads, with the addresses that it has itself. [M]"""


def _is_url_below(url: str, base: str) -> bool:
    return url == base or url.startswith(f"{base}/")


def list_launch_files(client: str, environment: ClientEnvironment) -> tuple[str, ...]:
    """Return the files that must be read before ``client`` is started, where they are there."""
    beside = {"claude": list_claude_folder_settings, "opencode": list_opencode_files, "gemini": _list_gemini_files}.get(
        client
    )
    return list_settings_files(client, environment) + (beside(environment) if beside is not None else ())


def plan_launch(client: str, launch_request: LaunchRequest) -> LaunchPlan:
    """Return how ``client``, the name of a program, is started; one that is not known has the variables of the SDKs."""
    plan = CLIENT_LAUNCHERS.get(client, _plan_sdk_launch)(launch_request)
    if launch_request.token and CLAUDE_HEADERS_VARIABLE not in plan.environment:
        note = f"that proxy wants its token: {client} must send it in the header {TOKEN_HEADER.decode()}"
        plan = msgspec.structs.replace(plan, notes=(*plan.notes, note))
    return msgspec.structs.replace(
        plan, environment={**_make_no_proxy_variables(launch_request.environment.environment), **plan.environment}
    )


def get_command_client(command: str) -> str:
    """Return the name of the program that ``command`` is, as clients are called here."""
    name = PurePath(command.replace("\\", "/")).name.lower()
    return name.removesuffix(".exe").removesuffix(".cmd").removesuffix(".ps1")


def _make_no_proxy_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables by which nobody asks a proxy of the network for this machine."""
    if not any(environment.get(name) for name in environment if name.lower() in {"http_proxy", "all_proxy"}):
        return {}
    no_proxy = next((environment[name] for name in ("NO_PROXY", "no_proxy") if environment.get(name)), "")
    every = f"{no_proxy},{LOCAL_HOSTS}" if no_proxy else LOCAL_HOSTS
    return {"NO_PROXY": every, "no_proxy": every}


def _choose_base_url(launch_request: LaunchRequest, name: str, configured_urls: Sequence[ConfiguredUrl] = ()) -> str:
    """Return what variable ``name`` is to hold: the way to where it or a file leads now, else to its provider.

    Nothing where it leads nowhere and is not usual.
    """
    (provider, variable), environment = ADDRESS_VARIABLES[name], launch_request.environment.environment
    equivalent_names = [
        other_variable.name
        for other_variable in provider.variables
        if variable.is_usual and other_variable.behind == variable.behind
    ]
    own = next((environment[key] for key in (name, *equivalent_names) if environment.get(key)), "")
    own = own or next((pointer.url for pointer in reversed(configured_urls) if pointer.key == name), "")
    if own and provider.name not in launch_request.explicit_upstreams:
        return launch_request.make_proxied_url(own)
    return launch_request.proxy + variable.behind if own or variable.is_usual else ""


def _plan_sdk_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Return the variables of all SDKs."""
    environment = {name: url for name in ADDRESS_VARIABLES if (url := _choose_base_url(launch_request, name))}
    own = launch_request.environment.environment
    return LaunchPlan(
        environment=environment
        | {name: launch_request.make_proxied_url(own.get(name) or LITELLM_GATEWAYS[name]) for name in LITELLM_GATEWAYS}
    )


# -- each client -------------------------------------------------------------------------------------------------------


def _plan_claude_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Return a variable; where the user's settings set it, they stand above it, so settings of ours above them.

    Those of a folder stand above both; to where they lead, which somebody else may have written, no key is sent.
    """
    configured_urls, beside = (
        find_configured_urls("claude", launch_request.environment),
        find_claude_folder_urls(launch_request.environment),
    )
    is_told = configured_urls and "anthropic" not in launch_request.explicit_upstreams
    url = (
        launch_request.make_proxied_url(configured_urls[-1].url)
        if is_told
        else _choose_base_url(launch_request, "ANTHROPIC_BASE_URL")
    )
    environment = {"ANTHROPIC_BASE_URL": url}
    if launch_request.token:
        own = launch_request.environment.environment.get(CLAUDE_HEADERS_VARIABLE, "")
        environment[CLAUDE_HEADERS_VARIABLE] = "\n".join(
            filter(None, (own, f"{TOKEN_HEADER.decode()}: {launch_request.token}"))
        )
    clouds = [
        name
        for name in ("BEDROCK", "VERTEX", "FOUNDRY")
        if launch_request.environment.environment.get(f"CLAUDE_CODE_USE_{name}")
    ]
    notes = [f"CLAUDE_CODE_USE_{name} is set: what Claude Code asks there goes past the proxy" for name in clouds]
    if beside and "anthropic" in launch_request.explicit_upstreams:
        configured_urls = (*configured_urls, *beside)
    elif beside and not configured_urls:
        where, url_there = beside[-1].path, beside[-1].url
        how = f"for what it asks to go through it give --upstream-anthropic {url_there}"
        notes.append(f"{where} sets ANTHROPIC_BASE_URL: Claude Code goes there, past the proxy; {how}")
    if configured_urls and any(argument.partition("=")[0] == "--settings" for argument in launch_request.arguments):
        notes.append(
            f"{configured_urls[-1].path} sets ANTHROPIC_BASE_URL: take it out there, for --settings of your own "
            "is given"
        )
        return LaunchPlan(environment=environment, notes=tuple(notes))
    settings = ("--settings", _encode_json_text({"env": {"ANTHROPIC_BASE_URL": url}})) if configured_urls else ()
    return LaunchPlan(settings, environment, notes=tuple(notes))


_CODEX_OPTION_DOTS = {"openai_base_url": 0, "model_providers": 2}
"""Dots in the names of settings that Codex can be told as options."""


def _plan_codex_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Return options: the built-in provider's address, and that of each provider of the user's own."""
    configured_urls = {
        configured_url.key: configured_url.url
        for configured_url in find_configured_urls("codex", launch_request.environment)
    }
    own = {
        key: launch_request.make_proxied_url(url)
        for key, url in configured_urls.items()
        if key.count(".") == _CODEX_OPTION_DOTS.get(key.partition(".")[0])
    }
    built_in = (
        launch_request.make_proxied_url(CHATGPT_CODEX_URL)
        if launch_request.is_chatgpt
        else f"{launch_request.proxy}/v1"
    )
    addresses = {"openai_base_url": built_in, **own}
    options = [part for key, url in addresses.items() for part in ("-c", f"{key}={_encode_json_text(url)}")]
    notes = [
        f"{key} cannot be set from here, for its name has a dot; it goes past the proxy"
        for key in configured_urls.keys() - own
    ]
    if "--oss" in launch_request.arguments:
        notes.append("--oss of Codex goes past the proxy; add its server as a provider of your own")
    return LaunchPlan(tuple(options), notes=tuple(notes))


_OPENCODE_PROVIDERS = {
    "anthropic": (f"{PROVIDERS['anthropic'].official}/v1", ("ANTHROPIC_API_KEY",)),
    "openai": (f"{PROVIDERS['openai'].official}/v1", ("OPENAI_API_KEY",)),
    "google": (
        f"{PROVIDERS['gemini'].official}/v1beta",
        ("GOOGLE_GENERATIVE_AI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ),
}
"""Providers that opencode knows without a list: where they are, and the variables that hold their keys."""


def list_opencode_files(environment: ClientEnvironment) -> tuple[str, str]:
    """Return where opencode has the names of its logins, and its list of providers."""
    logins = environment.resolve_folder("XDG_DATA_HOME", ".local/share") / "opencode/auth.json"
    return str(logins), str(environment.resolve_folder("XDG_CACHE_HOME", ".cache") / "opencode/models.json")


def _plan_opencode_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Return a configuration in a variable, above all others: addresses alone, of providers that can be used.

    A provider that nobody named or has a login for would be offered to the user as one that has none.
    """
    configured_urls = {entry.key: entry.url for entry in find_configured_urls("opencode", launch_request.environment)}
    user_config = parse_lenient_json(launch_request.environment.environment.get("OPENCODE_CONFIG_CONTENT", ""))
    own = {
        name: url
        for name, entry in (get_nested_value(user_config, "provider") or {}).items()
        if isinstance(url := get_nested_value(entry, "options", "baseURL"), str)
    }
    urls = _find_usable_providers(launch_request.environment, user_config) | configured_urls | own
    proxy_config = {
        "provider": {name: {"options": {"baseURL": launch_request.make_proxied_url(url)}} for name, url in urls.items()}
    }
    note = "opencode has no key, login or provider of yours, and its free models go past the proxy: opencode auth login"
    return LaunchPlan(
        environment={"OPENCODE_CONFIG_CONTENT": _encode_json_text(_merge_tables(user_config, proxy_config))},
        notes=() if urls else (note,),
    )


def _find_usable_providers(environment: ClientEnvironment, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the addresses of the providers that a configuration names, or for which there is a key or a login."""
    logins, all_providers = (
        parse_lenient_json(environment.file_texts.get(path, "")) for path in list_opencode_files(environment)
    )
    configs = (
        options,
        *(
            parse_lenient_json(environment.file_texts.get(path, ""))
            for path in list_settings_files("opencode", environment)
        ),
    )
    configured_names = {name for mapping in configs for name in get_nested_value(mapping, "provider") or ()}
    urls_and_keys = {
        name: (mapping.get("api"), mapping.get("env") or ())
        for name, mapping in all_providers.items()
        if isinstance(mapping, dict)
    }
    usable_urls = {}
    for name, (url, keys) in (urls_and_keys | _OPENCODE_PROVIDERS).items():
        if url and (
            name in configured_names or name in logins or any(environment.environment.get(key) for key in keys)
        ):
            usable_urls[name] = url
    return usable_urls


def _merge_tables(below: Any, above: Any) -> Any:
    """Return ``above`` laid over ``below``, table by table."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: _merge_tables(below.get(key), value) for key, value in above.items()}


PI_EXTENSION = """\
// Written by `holdfast run`: every model of pi is asked through the proxy, and its own address stands behind it.
const proxy = %s, official = %s;
const apis = ["anthropic-messages", "openai-completions", "openai-responses", "openai-codex-responses",
  "google-generative-ai"];
const through = (url) => {
  const isBelow = (one) => url === one || url.startsWith(one + "/");
  if (isBelow(proxy)) return url;
  const own = official.find(isBelow);
  return own ? proxy + url.slice(own.length) : proxy + "/u/" + url;
};
export default function (pi) {
  const point = (event, { modelRegistry, model: current }) => {
    // pi makes the models of models.json anew for each call of getAll, so the one in use is pointed by itself.
    for (const model of [...modelRegistry.getAll(), current, event?.model])
      if (model && apis.includes(model.api) && model.baseUrl) model.baseUrl = through(model.baseUrl);
  };
  for (const event of ["session_start", "model_select", "before_agent_start"]) pi.on(event, point);
}
"""
_PI_PACKAGE_COMMANDS = {"install", "remove", "uninstall", "update", "list", "config"}
"""Commands of pi that take no options before them, and ask no model."""


def _plan_pi_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Return an extension: providers of pi have their addresses in a file, and no variable."""
    if launch_request.arguments and launch_request.arguments[0] in _PI_PACKAGE_COMMANDS:
        return LaunchPlan()
    name = "holdfast.js"
    text = PI_EXTENSION % (
        _encode_json_text(launch_request.proxy),
        _encode_json_text([provider.official for provider in PROVIDERS.values()]),
    )
    return LaunchPlan(("-e", str(PurePath(launch_request.temporary, name))), files={name: text})


def _list_gemini_files(environment: ClientEnvironment) -> tuple[str]:
    """Return where Gemini CLI has its settings."""
    return (str(PurePath(environment.home, ".gemini/settings.json")),)


def _plan_gemini_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Return a variable; beside it a key in a variable is taken only where the settings choose a login [M]."""
    url = _choose_base_url(
        launch_request, "GOOGLE_GEMINI_BASE_URL", find_configured_urls("gemini", launch_request.environment)
    )
    (path,) = _list_gemini_files(launch_request.environment)
    chosen = get_nested_value(
        parse_lenient_json(launch_request.environment.file_texts.get(path, "")), "security", "auth", "selectedType"
    )
    setting = f'"security": {{"auth": {{"selectedType": "gemini-api-key"}}}} in {path}'
    notes = () if chosen else (f"without a terminal Gemini CLI takes a key and another address only with {setting}",)
    return LaunchPlan(environment={"GOOGLE_GEMINI_BASE_URL": url}, notes=notes)


_AIDER_BASE_VARIABLE = "AIDER_OPENAI_API_BASE"
"""The variable in which aider has its own option ``--openai-api-base``."""


def _plan_aider_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Return the variables of the SDKs, and aider's own; where a file sets that, its option stands above it."""
    configured_urls = find_configured_urls("aider", launch_request.environment)
    own = [configured_url.url for configured_url in configured_urls if configured_url.key == _AIDER_BASE_VARIABLE]
    url = own[-1] if own else launch_request.environment.environment.get(_AIDER_BASE_VARIABLE, "")
    is_told = url and "openai" not in launch_request.explicit_upstreams
    first = (
        launch_request.make_proxied_url(url)
        if is_told
        else _choose_base_url(launch_request, "OPENAI_API_BASE", configured_urls)
    )
    places = {
        configured_url.path: configured_url
        for configured_url in configured_urls
        if configured_url.key in ADDRESS_VARIABLES and configured_url.key != "OPENAI_API_BASE"
    }
    notes = [
        f"{where} sets {configured_url.key}, which stands above what is set here"
        for where, configured_url in places.items()
    ]
    environment = {
        **_plan_sdk_launch(launch_request).environment,
        _AIDER_BASE_VARIABLE: first,
        "OPENAI_API_BASE": first,
    }
    if not launch_request.environment.environment.get("OPENAI_BASE_URL"):  # LiteLLM asks it before the others
        environment["OPENAI_BASE_URL"] = first
    return LaunchPlan(("--openai-api-base", first) if own else (), environment, notes=tuple(notes))


def _plan_llm_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Return the variables of the SDKs; where models were added that have an address, a folder with another list."""
    place = launch_request.environment
    (path,) = list_settings_files("llm", place)
    text = place.file_texts.get(path, "")
    new_text = LLM_API_BASE.sub(
        lambda match: f"{match['before']}{launch_request.make_proxied_url(match['url'])}{match['quote']}", text
    )
    environment = _plan_sdk_launch(launch_request).environment
    if new_text == text:
        return LaunchPlan(environment=environment)
    return LaunchPlan(
        environment={**environment, "LLM_USER_PATH": launch_request.temporary},
        files={PurePath(path).name: new_text},
        mirrored_folder=str(get_llm_cli_folder(place)),
    )


def _encode_json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


CLIENT_LAUNCHERS: dict[str, Callable[[LaunchRequest], LaunchPlan]] = {
    "claude": _plan_claude_launch,
    "codex": _plan_codex_launch,
    "opencode": _plan_opencode_launch,
    "pi": _plan_pi_launch,
    "gemini": _plan_gemini_launch,
    "aider": _plan_aider_launch,
    "llm": _plan_llm_launch,
}
"""The clients for which there is more to do than to set variables, or less."""
