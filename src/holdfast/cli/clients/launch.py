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
    API_BASE,
    Place,
    Pointer,
    files,
    folder_files,
    folder_pointers,
    inside,
    llm_home,
    pointers,
    table,
)
from holdfast.config.providers import PROVIDERS, VARIABLES
from holdfast.proxy.http.headers import TOKEN

CHATGPT = "https://chatgpt.com/backend-api/codex"
"""Where Codex asks when it is logged in with ChatGPT. [M]"""
NO_PROXY = "127.0.0.1,localhost"
HEADERS = "ANTHROPIC_CUSTOM_HEADERS"
"""Headers that Claude Code sends beside its own, one a line. [M]"""


class Launch(Struct, frozen=True):
    """How a client is started: what is added to its command, its variables and a temporary folder."""

    arguments: tuple[str, ...] = ()
    """What stands before the client's own arguments."""
    environment: Mapping[str, str] = {}
    """Variables that are set; all others stay."""
    files: Mapping[str, str] = {}
    """Temporary files, by their names in the folder."""
    mirrored: str = ""
    """A folder whose things are to be found in the temporary one too, but for those that ``files`` replaces."""
    notes: tuple[str, ...] = ()
    """What does not go through the proxy, and why."""


class Order(Struct, frozen=True):
    """What is to be started: ``arguments`` without the program, where it is, and where the proxy is."""

    proxy: str
    place: Place
    arguments: Sequence[str] = ()
    temporary: str = ""
    """The folder for temporary files."""
    fixed: frozenset[str] = frozenset()
    """Providers whose address was asked for: it stands above what the client's variables say."""
    is_chatgpt: bool = False
    """Whether Codex is logged in with ChatGPT."""
    token: str = ""
    """What the proxy wants to be told by its clients."""

    def through(self, url: str) -> str:
        """Return the address at the proxy from which requests go on to ``url``."""
        if _is_below(url, self.proxy):
            return url
        official = next((one.official for one in PROVIDERS.values() if _is_below(url, one.official)), None)
        return f"{self.proxy}/u/{url}" if official is None else self.proxy + url.removeprefix(official)


GATEWAYS = {
    "OPENROUTER_API_BASE": "https://openrouter.ai/api/v1",
    "DEEPSEEK_API_BASE": "https://api.deepseek.com/beta",
    "XAI_API_BASE": "https://api.x.ai/v1",
    "GROQ_API_BASE": "https://api.groq.com/openai/v1",
}
"""More that LiteLLM reads, with the addresses that it has itself. [M]"""


def _is_below(url: str, base: str) -> bool:
    return url == base or url.startswith(f"{base}/")


def sources(client: str, place: Place) -> tuple[str, ...]:
    """Return the files that must be read before ``client`` is started, where they are there."""
    beside = {"claude": folder_files, "opencode": opencode_files, "gemini": _gemini_files}.get(client)
    return files(client, place) + (beside(place) if beside is not None else ())


def launch(client: str, order: Order) -> Launch:
    """Return how ``client``, the name of a program, is started; one that is not known has the variables of the SDKs."""
    found = LAUNCHES.get(client, _sdks)(order)
    if order.token and HEADERS not in found.environment:
        wanted = f"that proxy wants its token: {client} must send it in the header {TOKEN.decode()}"
        found = msgspec.structs.replace(found, notes=(*found.notes, wanted))
    return msgspec.structs.replace(found, environment={**_unproxied(order.place.environment), **found.environment})


def program(command: str) -> str:
    """Return the name of the program that ``command`` is, as clients are called here."""
    name = PurePath(command.replace("\\", "/")).name.lower()
    return name.removesuffix(".exe").removesuffix(".cmd").removesuffix(".ps1")


def _unproxied(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables by which nobody asks a proxy of the network for this machine."""
    if not any(environment.get(name) for name in environment if name.lower() in {"http_proxy", "all_proxy"}):
        return {}
    told = next((environment[name] for name in ("NO_PROXY", "no_proxy") if environment.get(name)), "")
    every = f"{told},{NO_PROXY}" if told else NO_PROXY
    return {"NO_PROXY": every, "no_proxy": every}


def _address(order: Order, name: str, told: Sequence[Pointer] = ()) -> str:
    """Return what variable ``name`` is to hold: the way to where it or a file leads now, else to its provider.

    Nothing where it leads nowhere and is not usual.
    """
    (provider, one), environment = VARIABLES[name], order.place.environment
    same = [other.name for other in provider.variables if one.is_usual and other.behind == one.behind]
    own = next((environment[key] for key in (name, *same) if environment.get(key)), "")
    own = own or next((pointer.url for pointer in reversed(told) if pointer.key == name), "")
    if own and provider.name not in order.fixed:
        return order.through(own)
    return order.proxy + one.behind if own or one.is_usual else ""


def _sdks(order: Order) -> Launch:
    """Return the variables of all SDKs."""
    environment = {name: url for name in VARIABLES if (url := _address(order, name))}
    own = order.place.environment
    return Launch(environment=environment | {name: order.through(own.get(name) or GATEWAYS[name]) for name in GATEWAYS})


# -- each client -------------------------------------------------------------------------------------------------------


def _claude(order: Order) -> Launch:
    """Return a variable; where the user's settings set it, they stand above it, so settings of ours above them.

    Those of a folder stand above both; to where they lead, which somebody else may have written, no key is sent.
    """
    told, beside = pointers("claude", order.place), folder_pointers(order.place)
    is_told = told and "anthropic" not in order.fixed
    url = order.through(told[-1].url) if is_told else _address(order, "ANTHROPIC_BASE_URL")
    environment = {"ANTHROPIC_BASE_URL": url}
    if order.token:
        own = order.place.environment.get(HEADERS, "")
        environment[HEADERS] = "\n".join(filter(None, (own, f"{TOKEN.decode()}: {order.token}")))
    clouds = [
        name for name in ("BEDROCK", "VERTEX", "FOUNDRY") if order.place.environment.get(f"CLAUDE_CODE_USE_{name}")
    ]
    notes = [f"CLAUDE_CODE_USE_{name} is set: what Claude Code asks there goes past the proxy" for name in clouds]
    if beside and "anthropic" in order.fixed:
        told = (*told, *beside)
    elif beside and not told:
        where, url_there = beside[-1].where, beside[-1].url
        how = f"for what it asks to go through it give --upstream-anthropic {url_there}"
        notes.append(f"{where} sets ANTHROPIC_BASE_URL: Claude Code goes there, past the proxy; {how}")
    if told and any(one.partition("=")[0] == "--settings" for one in order.arguments):
        notes.append(
            f"{told[-1].where} sets ANTHROPIC_BASE_URL: take it out there, for --settings of your own is given"
        )
        return Launch(environment=environment, notes=tuple(notes))
    settings = ("--settings", _json({"env": {"ANTHROPIC_BASE_URL": url}})) if told else ()
    return Launch(settings, environment, notes=tuple(notes))


_DEPTH = {"openai_base_url": 0, "model_providers": 2}
"""Dots in the names of settings that Codex can be told as options."""


def _codex(order: Order) -> Launch:
    """Return options: the built-in provider's address, and that of each provider of the user's own."""
    told = {one.key: one.url for one in pointers("codex", order.place)}
    own = {key: order.through(url) for key, url in told.items() if key.count(".") == _DEPTH.get(key.partition(".")[0])}
    built_in = order.through(CHATGPT) if order.is_chatgpt else f"{order.proxy}/v1"
    addresses = {"openai_base_url": built_in, **own}
    options = [part for key, url in addresses.items() for part in ("-c", f"{key}={_json(url)}")]
    notes = [
        f"{key} cannot be set from here, for its name has a dot; it goes past the proxy" for key in told.keys() - own
    ]
    if "--oss" in order.arguments:
        notes.append("--oss of Codex goes past the proxy; add its server as a provider of your own")
    return Launch(tuple(options), notes=tuple(notes))


_OPENCODE = {
    "anthropic": (f"{PROVIDERS['anthropic'].official}/v1", ("ANTHROPIC_API_KEY",)),
    "openai": (f"{PROVIDERS['openai'].official}/v1", ("OPENAI_API_KEY",)),
    "google": (
        f"{PROVIDERS['gemini'].official}/v1beta",
        ("GOOGLE_GENERATIVE_AI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ),
}
"""Providers that opencode knows without a list: where they are, and the variables that hold their keys."""


def opencode_files(place: Place) -> tuple[str, str]:
    """Return where opencode has the names of its logins, and its list of providers."""
    logins = place.at_home("XDG_DATA_HOME", ".local/share") / "opencode/auth.json"
    return str(logins), str(place.at_home("XDG_CACHE_HOME", ".cache") / "opencode/models.json")


def _opencode(order: Order) -> Launch:
    """Return a configuration in a variable, above all others: addresses alone, of providers that can be used.

    A provider that nobody named or has a login for would be offered to the user as one that has none.
    """
    told = {one.key: one.url for one in pointers("opencode", order.place)}
    given = table(order.place.environment.get("OPENCODE_CONFIG_CONTENT", ""))
    own = {
        name: url
        for name, one in (inside(given, "provider") or {}).items()
        if isinstance(url := inside(one, "options", "baseURL"), str)
    }
    urls = _usable(order.place, given) | told | own
    ours = {"provider": {name: {"options": {"baseURL": order.through(url)}} for name, url in urls.items()}}
    none = "opencode has no key, login or provider of yours, and its free models go past the proxy: opencode auth login"
    return Launch(environment={"OPENCODE_CONFIG_CONTENT": _json(_merged(given, ours))}, notes=() if urls else (none,))


def _usable(place: Place, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the addresses of the providers that a configuration names, or for which there is a key or a login."""
    logins, listed = (table(place.texts.get(path, "")) for path in opencode_files(place))
    configured = (given, *(table(place.texts.get(path, "")) for path in files("opencode", place)))
    named = {name for one in configured for name in inside(one, "provider") or ()}
    known = {name: (one.get("api"), one.get("env") or ()) for name, one in listed.items() if isinstance(one, dict)}
    found = {}
    for name, (url, keys) in (known | _OPENCODE).items():
        if url and (name in named or name in logins or any(place.environment.get(key) for key in keys)):
            found[name] = url
    return found


def _merged(below: Any, above: Any) -> Any:
    """Return ``above`` laid over ``below``, table by table."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: _merged(below.get(key), value) for key, value in above.items()}


EXTENSION = """\
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
_PACKAGES = {"install", "remove", "uninstall", "update", "list", "config"}
"""Commands of pi that take no options before them, and ask no model."""


def _pi(order: Order) -> Launch:
    """Return an extension: providers of pi have their addresses in a file, and no variable."""
    if order.arguments and order.arguments[0] in _PACKAGES:
        return Launch()
    name = "holdfast.js"
    text = EXTENSION % (_json(order.proxy), _json([one.official for one in PROVIDERS.values()]))
    return Launch(("-e", str(PurePath(order.temporary, name))), files={name: text})


def _gemini_files(place: Place) -> tuple[str]:
    """Return where Gemini CLI has its settings."""
    return (str(PurePath(place.home, ".gemini/settings.json")),)


def _gemini(order: Order) -> Launch:
    """Return a variable; beside it a key in a variable is taken only where the settings choose a login [M]."""
    url = _address(order, "GOOGLE_GEMINI_BASE_URL", pointers("gemini", order.place))
    (path,) = _gemini_files(order.place)
    chosen = inside(table(order.place.texts.get(path, "")), "security", "auth", "selectedType")
    told = f'"security": {{"auth": {{"selectedType": "gemini-api-key"}}}} in {path}'
    notes = () if chosen else (f"without a terminal Gemini CLI takes a key and another address only with {told}",)
    return Launch(environment={"GOOGLE_GEMINI_BASE_URL": url}, notes=notes)


_AIDER_BASE = "AIDER_OPENAI_API_BASE"
"""The variable in which aider has its own option ``--openai-api-base``."""


def _aider(order: Order) -> Launch:
    """Return the variables of the SDKs, and aider's own; where a file sets that, its option stands above it."""
    told = pointers("aider", order.place)
    own = [one.url for one in told if one.key == _AIDER_BASE]
    url = own[-1] if own else order.place.environment.get(_AIDER_BASE, "")
    is_told = url and "openai" not in order.fixed
    first = order.through(url) if is_told else _address(order, "OPENAI_API_BASE", told)
    places = {one.where: one for one in told if one.key in VARIABLES and one.key != "OPENAI_API_BASE"}
    notes = [f"{where} sets {one.key}, which stands above what is set here" for where, one in places.items()]
    environment = {**_sdks(order).environment, _AIDER_BASE: first, "OPENAI_API_BASE": first}
    if not order.place.environment.get("OPENAI_BASE_URL"):  # LiteLLM asks it before the others
        environment["OPENAI_BASE_URL"] = first
    return Launch(("--openai-api-base", first) if own else (), environment, notes=tuple(notes))


def _llm(order: Order) -> Launch:
    """Return the variables of the SDKs; where models were added that have an address, a folder with another list."""
    place = order.place
    (path,) = files("llm", place)
    text = place.texts.get(path, "")
    led = API_BASE.sub(lambda one: f"{one['before']}{order.through(one['url'])}{one['quote']}", text)
    environment = _sdks(order).environment
    if led == text:
        return Launch(environment=environment)
    return Launch(
        environment={**environment, "LLM_USER_PATH": order.temporary},
        files={PurePath(path).name: led},
        mirrored=str(llm_home(place)),
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


LAUNCHES: dict[str, Callable[[Order], Launch]] = {
    "claude": _claude,
    "codex": _codex,
    "opencode": _opencode,
    "pi": _pi,
    "gemini": _gemini,
    "aider": _aider,
    "llm": _llm,
}
"""The clients for which there is more to do than to set variables, or less."""
