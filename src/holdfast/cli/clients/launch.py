"""Plan how a client starts so that it talks to the proxy and keeps its own settings, logins and home.

An address that the client already has is appended to the proxy's (``…/u/https://its.own/address``). It stays the
client's upstream, whatever upstreams the proxy has for other clients.
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
from holdfast.config.addresses import make_no_proxy_variables
from holdfast.config.providers import ADDRESS_VARIABLES, PROVIDERS
from holdfast.proxy.http.headers import TOKEN_HEADER

CHATGPT_CODEX_URL = "https://chatgpt.com/backend-api/codex"
"""The address that Codex uses when it is logged in with ChatGPT, seen in its requests."""
CLAUDE_HEADERS_VARIABLE = "ANTHROPIC_CUSTOM_HEADERS"
"""Extra headers of Claude Code, one per line."""

CLAUDE_FIRST_PARTY_VARIABLE = "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"
"""Tells Claude Code that another base address leads to Anthropic all the same, as ``1``.

At any other host it plans for 200,000 tokens where the model has 1,000,000, and leaves out features such as tool search
(claude-code#91689, #68522, caveman#866 of 2026-08, headroom#1158 of 2026-06; read in bundles of 2026).
"""


class LaunchPlan(Struct, frozen=True):
    """How to start a client: additions to its command and variables, and the files of a temporary folder."""

    arguments: tuple[str, ...] = ()
    """Arguments to put before the client's own."""
    environment: Mapping[str, str] = {}
    """Variables to set; all others stay."""
    files: Mapping[str, str] = {}
    """Temporary files, by name."""
    mirrored_folder: str = ""
    """A folder to link into the temporary one, except for the files that ``files`` replaces."""
    notes: tuple[str, ...] = ()
    """Warnings about requests that do not go through the proxy, with the reason."""


class LaunchRequest(Struct, frozen=True):
    """The client to start: ``arguments`` without the program, its environment, and the proxy's address."""

    proxy: str
    environment: ClientEnvironment
    arguments: Sequence[str] = ()
    temporary: str = ""
    """The folder for temporary files."""
    explicit_upstreams: frozenset[str] = frozenset()
    """Providers whose address was set for the proxy; these override the client's variables."""
    is_chatgpt: bool = False
    """Whether Codex is logged in with ChatGPT."""
    token: str = ""
    """The token that the proxy requires of its clients, or an empty string."""

    def make_proxied_url(self, url: str) -> str:
        """Return the address at the proxy that forwards to ``url``."""
        if _is_url_below(url, self.proxy):
            return url
        # The proxy forwards to the official addresses without being told, so only others go into the path.
        for provider in PROVIDERS.values():
            if _is_url_below(url, provider.official):
                return self.proxy + url.removeprefix(provider.official)
        return f"{self.proxy}/u/{url}"


LITELLM_GATEWAYS = {
    "OPENROUTER_API_BASE": "https://openrouter.ai/api/v1",
    "DEEPSEEK_API_BASE": "https://api.deepseek.com/beta",
    "XAI_API_BASE": "https://api.x.ai/v1",
    "GROQ_API_BASE": "https://api.groq.com/openai/v1",
}
"""More variables that LiteLLM reads, with the default addresses in its source."""


def _is_url_below(url: str, base: str) -> bool:
    return url == base or url.startswith(f"{base}/")


def list_launch_files(client: str, environment: ClientEnvironment) -> tuple[str, ...]:
    """List the files that must be read, if they exist, before ``client`` starts."""
    files = list_settings_files(client, environment)
    if client == "claude":
        return files + list_claude_folder_settings(environment)
    if client == "opencode":
        return files + list_opencode_files(environment)
    if client == "gemini":
        return files + _list_gemini_files(environment)
    return files


def plan_launch(client: str, launch_request: LaunchRequest) -> LaunchPlan:
    """Plan how to start ``client``, a program's name; unknown programs get the variables of the SDKs."""
    plan = CLIENT_LAUNCHERS.get(client, _plan_sdk_launch)(launch_request)
    # Only Claude Code can be given an extra header by a variable; for other clients the user has to do it.
    if launch_request.token and CLAUDE_HEADERS_VARIABLE not in plan.environment:
        note = f"that proxy requires its token: {client} must send it in the header {TOKEN_HEADER.decode()}"
        plan = msgspec.structs.replace(plan, notes=(*plan.notes, note))
    return msgspec.structs.replace(
        plan, environment={**make_no_proxy_variables(launch_request.environment.environment), **plan.environment}
    )


def get_command_client(command: str) -> str:
    """Return the program name of ``command`` in the form used as a client's name here."""
    name = PurePath(command.replace("\\", "/")).name.lower()
    return name.removesuffix(".exe").removesuffix(".cmd").removesuffix(".ps1")


def _choose_base_url(launch_request: LaunchRequest, name: str, configured_urls: Sequence[ConfiguredUrl] = ()) -> str:
    """Choose the value of variable ``name``: its present target behind the proxy, else the proxy's own address.

    An empty string means: leave it unset, because it is not set now and SDKs do not usually read it.
    """
    provider, variable = ADDRESS_VARIABLES[name]
    environment = launch_request.environment.environment
    names = [name]
    if variable.is_usual:
        # Another variable of the provider with the same path points at the same server.
        names += [other.name for other in provider.variables if other.suffix == variable.suffix]
    own_url = ""
    for key in names:
        if environment.get(key):
            own_url = environment[key]
            break
    if not own_url:
        # The last file is the strongest.
        for configured in reversed(configured_urls):
            if configured.key == name:
                own_url = configured.url
                break
    if own_url and provider.name not in launch_request.explicit_upstreams:
        return launch_request.make_proxied_url(own_url)
    if own_url or variable.is_usual:
        return launch_request.proxy + variable.suffix
    return ""


def _plan_sdk_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Plan with the variables of all SDKs."""
    environment = {}
    for name in ADDRESS_VARIABLES:
        url = _choose_base_url(launch_request, name)
        if url:
            environment[name] = url
    own = launch_request.environment.environment
    for name, default_url in LITELLM_GATEWAYS.items():
        environment[name] = launch_request.make_proxied_url(own.get(name) or default_url)
    return LaunchPlan(environment=environment)


# -- each client -------------------------------------------------------------------------------------------------------


def _plan_claude_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Plan with a variable. Settings files override variables, so if one sets the address, add ``--settings``.

    Settings of the working folder override both. They may be someone else's, so no key is sent to their address.
    """
    variables = launch_request.environment.environment
    configured_urls = find_configured_urls("claude", launch_request.environment)
    folder_urls = find_claude_folder_urls(launch_request.environment)
    has_explicit_upstream = "anthropic" in launch_request.explicit_upstreams
    if configured_urls and not has_explicit_upstream:
        url = launch_request.make_proxied_url(configured_urls[-1].url)
    else:
        url = _choose_base_url(launch_request, "ANTHROPIC_BASE_URL")
    is_bypassed = bool(folder_urls) and not configured_urls and not has_explicit_upstream
    window_variables, window_notes = _plan_claude_window(launch_request, url, is_bypassed=is_bypassed)
    environment = {"ANTHROPIC_BASE_URL": url, **window_variables, **_make_claude_headers(launch_request)}
    notes = []
    for cloud in ("BEDROCK", "VERTEX", "FOUNDRY"):
        if variables.get(f"CLAUDE_CODE_USE_{cloud}"):
            notes.append(f"CLAUDE_CODE_USE_{cloud} is set, so Claude Code's requests bypass the proxy")
    if folder_urls and has_explicit_upstream:
        configured_urls = (*configured_urls, *folder_urls)
    elif folder_urls and not configured_urls:
        strongest = folder_urls[-1]
        how = f"give --upstream-anthropic {strongest.url} to send them through it"
        notes.append(f"{strongest.path} sets ANTHROPIC_BASE_URL, so Claude Code's requests bypass the proxy; {how}")
    has_settings_option = any(argument.partition("=")[0] == "--settings" for argument in launch_request.arguments)
    if configured_urls and has_settings_option:
        notes.append(
            f"{configured_urls[-1].path} sets ANTHROPIC_BASE_URL; remove it there, because your own --settings "
            "takes the place of ours"
        )
        return LaunchPlan(environment=environment, notes=(*notes, *window_notes))
    arguments: tuple[str, ...] = ()
    if configured_urls:
        arguments = ("--settings", _encode_json_text({"env": {"ANTHROPIC_BASE_URL": url}}))
    return LaunchPlan(arguments, environment, notes=(*notes, *window_notes))


_LOST_WINDOW_NOTE = (
    "Claude Code plans for 200,000 tokens at an address that is not known to be Anthropic's; if your models there have "
    "1,000,000, choose them with the suffix [1m]"
)


def _make_claude_headers(launch_request: LaunchRequest) -> dict[str, str]:
    """Return the variable that makes Claude Code send the proxy's token, beside the user's own headers."""
    if not launch_request.token:
        return {}
    header_lines = [f"{TOKEN_HEADER.decode()}: {launch_request.token}"]
    own_lines = launch_request.environment.environment.get(CLAUDE_HEADERS_VARIABLE)
    if own_lines:
        header_lines.insert(0, own_lines)
    return {CLAUDE_HEADERS_VARIABLE: "\n".join(header_lines)}


def _plan_claude_window(
    launch_request: LaunchRequest, url: str, *, is_bypassed: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variable with which Claude Code keeps its long windows at ``url``, or the note that it does not."""
    is_set_by_user = CLAUDE_FIRST_PARTY_VARIABLE in launch_request.environment.environment
    if is_set_by_user or is_bypassed:
        return {}, ()
    if _leads_to_anthropic(launch_request, url):
        return {CLAUDE_FIRST_PARTY_VARIABLE: "1"}, ()
    return {}, (_LOST_WINDOW_NOTE,)


def _leads_to_anthropic(launch_request: LaunchRequest, url: str) -> bool:
    """Return whether requests to ``url`` surely reach Anthropic through a proxy that was started for this client.

    A proxy that was running before, or one with an upstream of the user's, may send them anywhere.
    """
    if "anthropic" in launch_request.explicit_upstreams or url != launch_request.proxy:
        return False
    own_url = launch_request.environment.environment.get("ANTHROPIC_BASE_URL", "")
    configured_urls = find_configured_urls("claude", launch_request.environment)
    own_urls = [own_url, *[configured.url for configured in configured_urls]]
    return not any(_is_url_below(own, launch_request.proxy) for own in own_urls)


_CODEX_OPTION_DOTS = {"openai_base_url": 0, "model_providers": 2}
"""The number of dots in names that Codex accepts with ``-c``. A name with more has a dot inside one of its keys, which
``-c`` would split."""


def _plan_codex_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Plan with options: the address of the built-in provider, and of each provider the user added."""
    if launch_request.is_chatgpt:
        built_in_url = launch_request.make_proxied_url(CHATGPT_CODEX_URL)
    else:
        built_in_url = f"{launch_request.proxy}/v1"
    addresses = {"openai_base_url": built_in_url}
    notes = []
    for configured in find_configured_urls("codex", launch_request.environment):
        key = configured.key
        if key.count(".") == _CODEX_OPTION_DOTS.get(key.partition(".")[0]):
            addresses[key] = launch_request.make_proxied_url(configured.url)
        else:
            notes.append(f"{key} has a dot in its name and cannot be set from here; its requests bypass the proxy")
    options: list[str] = []
    for key, url in addresses.items():
        options += ["-c", f"{key}={_encode_json_text(url)}"]
    if "--oss" in launch_request.arguments:
        notes.append("codex --oss bypasses the proxy; add its server as a provider of your own")
    return LaunchPlan(tuple(options), notes=tuple(notes))


_OPENCODE_PROVIDERS = {
    "anthropic": (f"{PROVIDERS['anthropic'].official}/v1", ("ANTHROPIC_API_KEY",)),
    "openai": (f"{PROVIDERS['openai'].official}/v1", ("OPENAI_API_KEY",)),
    "google": (
        f"{PROVIDERS['gemini'].official}/v1beta",
        ("GOOGLE_GENERATIVE_AI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ),
}
"""Providers that opencode knows without its downloaded list: their addresses, and the variables of their keys."""


def list_opencode_files(environment: ClientEnvironment) -> tuple[str, str]:
    """Return the files with opencode's logins and its downloaded list of providers."""
    logins = environment.resolve_folder("XDG_DATA_HOME", ".local/share") / "opencode/auth.json"
    return str(logins), str(environment.resolve_folder("XDG_CACHE_HOME", ".cache") / "opencode/models.json")


def _plan_opencode_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Plan with a configuration in a variable, which overrides all others and sets only addresses.

    Only usable providers get one: opencode would list any other provider in it as configured, though it has no key.
    """
    configured_urls = {entry.key: entry.url for entry in find_configured_urls("opencode", launch_request.environment)}
    # The variable holds one whole configuration, so the user's own is kept and ours laid over it.
    user_config = parse_lenient_json(launch_request.environment.environment.get("OPENCODE_CONFIG_CONTENT", ""))
    own_urls = {}
    for name, entry in (get_nested_value(user_config, "provider") or {}).items():
        url = get_nested_value(entry, "options", "baseURL")
        if isinstance(url, str):
            own_urls[name] = url
    # opencode's order of precedence: its own list, then the files, then the variable.
    urls = _find_usable_providers(launch_request.environment, user_config) | configured_urls | own_urls
    proxied_providers = {}
    for name, url in urls.items():
        proxied_providers[name] = {"options": {"baseURL": launch_request.make_proxied_url(url)}}
    content = _merge_tables(user_config, {"provider": proxied_providers})
    notes: tuple[str, ...] = ()
    if not urls:
        notes = (
            "opencode has no key, login or provider, and its free models bypass the proxy; run opencode auth login",
        )
    return LaunchPlan(environment={"OPENCODE_CONFIG_CONTENT": _encode_json_text(content)}, notes=notes)


def _find_usable_providers(environment: ClientEnvironment, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the addresses of providers that a configuration names, or for which there is a key or a login."""
    logins_path, providers_path = list_opencode_files(environment)
    logins = parse_lenient_json(environment.file_texts.get(logins_path, ""))
    downloaded_providers = parse_lenient_json(environment.file_texts.get(providers_path, ""))

    settings_paths = list_settings_files("opencode", environment)
    configs = [options, *(parse_lenient_json(environment.file_texts.get(path, "")) for path in settings_paths)]
    configured_names: set[str] = set()
    for config in configs:
        configured_names.update(get_nested_value(config, "provider") or ())

    urls_and_keys = {}
    for name, provider in downloaded_providers.items():
        if isinstance(provider, dict):
            urls_and_keys[name] = (provider.get("api"), provider.get("env") or ())
    usable_urls = {}
    for name, (url, key_variables) in (urls_and_keys | _OPENCODE_PROVIDERS).items():
        has_key = any(environment.environment.get(variable) for variable in key_variables)
        if url and (name in configured_names or name in logins or has_key):
            usable_urls[name] = url
    return usable_urls


def _merge_tables(below: Any, above: Any) -> Any:
    """Merge two JSON values table by table; ``above`` wins."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: _merge_tables(below.get(key), value) for key, value in above.items()}


PI_EXTENSION = """\
// Written by `holdfast run`: every model of pi is asked through the proxy, with its own address after the proxy's.
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
"""Commands of pi that accept no options before them and ask no model."""


def _plan_pi_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Plan with an extension: pi keeps the addresses of its providers in a file and reads no variable for them."""
    # pi fails if an option comes before one of these commands.
    if launch_request.arguments and launch_request.arguments[0] in _PI_PACKAGE_COMMANDS:
        return LaunchPlan()
    name = "holdfast.js"
    official_urls = [provider.official for provider in PROVIDERS.values()]
    text = PI_EXTENSION % (_encode_json_text(launch_request.proxy), _encode_json_text(official_urls))
    return LaunchPlan(("-e", str(PurePath(launch_request.temporary, name))), files={name: text})


def _list_gemini_files(environment: ClientEnvironment) -> tuple[str]:
    """Return the settings file of Gemini CLI."""
    return (str(PurePath(environment.home, ".gemini/settings.json")),)


def _plan_gemini_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Plan with a variable, and warn if the settings choose no login.

    Without a terminal Gemini CLI then ignores a key in a variable, as observed.
    """
    configured_urls = find_configured_urls("gemini", launch_request.environment)
    url = _choose_base_url(launch_request, "GOOGLE_GEMINI_BASE_URL", configured_urls)
    (path,) = _list_gemini_files(launch_request.environment)
    settings = parse_lenient_json(launch_request.environment.file_texts.get(path, ""))
    notes: tuple[str, ...] = ()
    if not get_nested_value(settings, "security", "auth", "selectedType"):
        setting = f'"security": {{"auth": {{"selectedType": "gemini-api-key"}}}} in {path}'
        notes = (f"without a terminal, Gemini CLI uses a key with another address only with {setting}",)
    return LaunchPlan(environment={"GOOGLE_GEMINI_BASE_URL": url}, notes=notes)


_AIDER_BASE_VARIABLE = "AIDER_OPENAI_API_BASE"
"""The variable form of aider's option ``--openai-api-base``."""


def _plan_aider_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Plan with the variables of the SDKs and aider's own, and with its option if a file sets that."""
    configured_urls = find_configured_urls("aider", launch_request.environment)
    variables = launch_request.environment.environment
    own_urls = [configured.url for configured in configured_urls if configured.key == _AIDER_BASE_VARIABLE]
    own_url = own_urls[-1] if own_urls else variables.get(_AIDER_BASE_VARIABLE, "")
    if own_url and "openai" not in launch_request.explicit_upstreams:
        base_url = launch_request.make_proxied_url(own_url)
    else:
        base_url = _choose_base_url(launch_request, "OPENAI_API_BASE", configured_urls)

    # One note a file is enough, even if it sets several variables.
    overriding_urls: dict[str, ConfiguredUrl] = {}
    for configured in configured_urls:
        if configured.key in ADDRESS_VARIABLES and configured.key != "OPENAI_API_BASE":
            overriding_urls[configured.path] = configured
    notes = []
    for path, configured in overriding_urls.items():
        notes.append(f"{path} sets {configured.key}, which overrides the proxy's address; remove it there")
    environment = {
        **_plan_sdk_launch(launch_request).environment,
        _AIDER_BASE_VARIABLE: base_url,
        "OPENAI_API_BASE": base_url,
    }
    # LiteLLM reads this variable before the others.
    if not variables.get("OPENAI_BASE_URL"):
        environment["OPENAI_BASE_URL"] = base_url
    # An option overrides aider's files, and a variable does not.
    arguments = ("--openai-api-base", base_url) if own_urls else ()
    return LaunchPlan(arguments, environment, notes=tuple(notes))


def _plan_llm_launch(launch_request: LaunchRequest) -> LaunchPlan:
    """Plan with the variables of the SDKs; models with addresses of their own need a copy of llm's folder as well."""
    place = launch_request.environment
    (path,) = list_settings_files("llm", place)
    text = place.file_texts.get(path, "")
    # Only the address is replaced: rewriting the file as YAML would lose the user's comments and order.
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
"""Clients that need more, or less, than the SDKs' variables."""
