"""Where clients are pointed by their own settings: which files tell, and which addresses stand in them.

Nothing is read here: who calls reads the files. What a folder says is left out where its client asks the user before it
believes it (Claude Code, Codex, Gemini CLI), for the folder may have been fetched from somewhere.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

_JSON_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)
LLM_API_BASE = re.compile(
    r"(?m)^(?P<before>[ \t-]*api_base:[ \t]*(?P<quote>[\"']?))(?P<url>https?://[^\s\"'#]+)(?P=quote)"
)
"""An address in the models that are added to llm."""
_AIDER_API_BASE = re.compile(r"(?m)^openai-api-base:[ \t]*[\"']?(https?://[^\s\"'#]+)")


class ConfiguredUrl(Struct, frozen=True):
    """An address that a client's own settings name."""

    path: str
    """The file that says so."""
    key: str
    """What it is the address of: a provider, a setting, a variable."""
    url: str


class ClientEnvironment(Struct, frozen=True):
    """Where a client is started. ``file_texts`` are its files that are there, by their paths."""

    environment: Mapping[str, str]
    home: str
    folder: str
    file_texts: Mapping[str, str] = {}
    repository_root: str = ""
    """The top of the git repository that the folder is in, if it is in one."""

    def resolve_folder(self, variable: str, default: str) -> PurePath:
        """Return the folder that ``variable`` names, else the one called ``default`` at home."""
        path = self.environment.get(variable)
        return PurePath(path) if path else PurePath(self.home, default)


class ClientSettingsSource(NamedTuple):
    """Where a client's settings are, the weakest first, and what reads the addresses in one of them."""

    files: Callable[[ClientEnvironment], list[PurePath]]
    addresses: Callable[[str], Iterator[tuple[str, str]]]


def list_settings_files(client: str, environment: ClientEnvironment) -> tuple[str, ...]:
    """Return the files that may point ``client`` somewhere, the weakest first, whether they are there or not."""
    return tuple(map(str, SETTINGS_READERS[client].files(environment))) if client in SETTINGS_READERS else ()


def find_configured_urls(client: str, environment: ClientEnvironment) -> tuple[ConfiguredUrl, ...]:
    """Return the addresses in the files of ``client`` that are there, the weakest first; a broken one has none."""
    read_urls = SETTINGS_READERS[client].addresses if client in SETTINGS_READERS else _read_no_urls
    texts = (
        (path, environment.file_texts[path])
        for path in list_settings_files(client, environment)
        if path in environment.file_texts
    )
    return tuple(ConfiguredUrl(path, key, url) for path, text in texts for key, url in read_urls(text))


def list_claude_folder_settings(environment: ClientEnvironment) -> tuple[str, ...]:
    """Return the files of the working folder that Claude Code goes by once its user believes the folder."""
    return tuple(
        [str(PurePath(environment.folder, ".claude", name)) for name in ("settings.json", "settings.local.json")]
    )


def find_claude_folder_urls(environment: ClientEnvironment) -> tuple[ConfiguredUrl, ...]:
    """Return the addresses in them, the weakest first: nobody is led there, but it can be told."""
    texts = (
        (path, environment.file_texts[path])
        for path in list_claude_folder_settings(environment)
        if path in environment.file_texts
    )
    return tuple(ConfiguredUrl(path, key, url) for path, text in texts for key, url in _read_claude_urls(text))


def parse_lenient_json(text: str) -> dict[str, Any]:
    """Return the object that ``text`` is, JSON with comments and commas too many; an empty one if it is none."""
    plain = _TRAILING_COMMA.sub(lambda match: match[1] or "", _JSON_COMMENT.sub(lambda match: match[1] or "", text))
    try:
        whole = msgspec.json.decode(plain)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return whole if isinstance(whole, dict) else {}


def get_nested_value(whole: object, *names: str) -> Any:
    """Return what stands in ``whole`` under ``names``, one in the other, or nothing."""
    for name in names:
        whole = whole.get(name) if isinstance(whole, dict) else None
    return whole


def _read_no_urls(_: str) -> Iterator[tuple[str, str]]:
    yield from ()


def _iterate_nested_urls(whole: object, *names: str) -> Iterator[tuple[str, str]]:
    """Yield for each key of ``whole`` the address that stands in it under ``names``."""
    for key, value in whole.items() if isinstance(whole, dict) else ():
        url = get_nested_value(value, *names)
        if isinstance(url, str) and url:
            yield key, url


# -- each client -------------------------------------------------------------------------------------------------------


def _read_claude_urls(text: str) -> Iterator[tuple[str, str]]:
    url = get_nested_value(parse_lenient_json(text), "env", "ANTHROPIC_BASE_URL")
    if isinstance(url, str) and url:
        yield "ANTHROPIC_BASE_URL", url


def _read_codex_urls(text: str) -> Iterator[tuple[str, str]]:
    try:
        whole = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return
    if isinstance(whole.get("openai_base_url"), str):
        yield "openai_base_url", whole["openai_base_url"]
    for name, url in _iterate_nested_urls(whole.get("model_providers"), "base_url"):
        yield f"model_providers.{name}.base_url", url


def _read_opencode_urls(text: str) -> Iterator[tuple[str, str]]:
    yield from _iterate_nested_urls(parse_lenient_json(text).get("provider"), "options", "baseURL")


def _read_pi_urls(text: str) -> Iterator[tuple[str, str]]:
    yield from _iterate_nested_urls(parse_lenient_json(text).get("providers"), "baseUrl")


def _read_llm_urls(text: str) -> Iterator[tuple[str, str]]:
    yield from (("api_base", match["url"]) for match in LLM_API_BASE.finditer(text))


def _read_aider_urls(text: str) -> Iterator[tuple[str, str]]:
    yield from (("OPENAI_API_BASE", match[1]) for match in _AIDER_API_BASE.finditer(text))
    yield from _read_env_file_urls(text)


def _read_env_file_urls(text: str) -> Iterator[tuple[str, str]]:
    """Yield the addresses of a file of variables."""
    pattern = r"(?m)^[ \t]*(?:export[ \t]+)?(\w+_(?:BASE_URL|API_BASE))[ \t]*=[ \t]*[\"']?(https?://[^\s\"'#]+)"
    yield from ((match[1], match[2]) for match in re.finditer(pattern, text))


def _list_opencode_configs(environment: ClientEnvironment) -> list[PurePath]:
    own = environment.resolve_folder("XDG_CONFIG_HOME", ".config") / "opencode"
    env_files = [PurePath(path) for name in ("OPENCODE_CONFIG",) if (path := environment.environment.get(name))]
    around = [location for folder in _list_ancestor_folders(environment) for location in (folder, folder / ".opencode")]
    env_folders = [
        PurePath(folder) for name in ("OPENCODE_CONFIG_DIR",) if (folder := environment.environment.get(name))
    ]
    return [
        own / "config.json",
        *_make_opencode_paths(own),
        *env_files,
        *(location for at in (*around, *env_folders) for location in _make_opencode_paths(at)),
    ]


def _make_opencode_paths(folder: PurePath) -> tuple[PurePath, ...]:
    return folder / "opencode.json", folder / "opencode.jsonc"


def _list_ancestor_folders(environment: ClientEnvironment) -> list[PurePath]:
    """Return the working folder and those that it is in, the outermost first."""
    here = PurePath(environment.folder)
    return [*reversed(here.parents), here]


def get_llm_cli_folder(environment: ClientEnvironment) -> PurePath:
    """Return where llm keeps its things."""
    at = "Library/Application Support" if sys.platform == "darwin" else ".config"
    own = environment.resolve_folder("APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME", at)
    return environment.resolve_folder("LLM_USER_PATH", str(own / "io.datasette.llm"))


def _list_aider_files(environment: ClientEnvironment) -> list[PurePath]:
    """Return the files that aider takes its options and variables from: at home, of the repository, of the folder."""
    homes = (
        PurePath(environment.home),
        PurePath(environment.repository_root or environment.folder),
        PurePath(environment.folder),
    )
    return [home / name for home in dict.fromkeys(homes) for name in (".env", ".aider.conf.yml")]


SETTINGS_READERS: dict[str, ClientSettingsSource] = {
    "claude": ClientSettingsSource(
        lambda place: [place.resolve_folder("CLAUDE_CONFIG_DIR", ".claude") / "settings.json"], _read_claude_urls
    ),
    "codex": ClientSettingsSource(
        lambda place: [place.resolve_folder("CODEX_HOME", ".codex") / "config.toml"], _read_codex_urls
    ),
    "opencode": ClientSettingsSource(_list_opencode_configs, _read_opencode_urls),
    "pi": ClientSettingsSource(
        lambda place: [place.resolve_folder("PI_CODING_AGENT_DIR", ".pi/agent") / "models.json"], _read_pi_urls
    ),
    "gemini": ClientSettingsSource(
        lambda place: [PurePath(place.home, name) for name in (".env", ".gemini/.env")], _read_env_file_urls
    ),
    "aider": ClientSettingsSource(_list_aider_files, _read_aider_urls),
    "llm": ClientSettingsSource(lambda place: [get_llm_cli_folder(place) / "extra-openai-models.yaml"], _read_llm_urls),
}
"""The clients whose settings are known, by the names of their programs."""
