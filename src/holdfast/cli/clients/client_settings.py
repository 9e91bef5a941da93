"""Find the addresses that clients' own settings point at: which files to read, and where the addresses are in them.

This module does no I/O; its callers read the files. Settings of a working folder are left out for the clients that ask
the user before trusting them (Claude Code, Codex, Gemini CLI): the folder may have been downloaded from anywhere.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

_JSON_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)
LLM_API_BASE = re.compile(
    r"(?m)^(?P<before>[ \t-]*api_base:[ \t]*(?P<quote>[\"']?))(?P<url>https?://[^\s\"'#]+)(?P=quote)"
)
"""The address of a model that the user added to llm."""
_AIDER_API_BASE = re.compile(r"(?m)^openai-api-base:[ \t]*[\"']?(https?://[^\s\"'#]+)")


class ConfiguredUrl(Struct, frozen=True):
    """An address set in a client's own settings."""

    path: str
    """The file that sets it."""
    key: str
    """The provider, setting or variable that it belongs to."""
    url: str


class ClientEnvironment(Struct, frozen=True):
    """The environment a client starts in. ``file_texts`` holds the texts of its existing files, by path."""

    environment: Mapping[str, str]
    home: str
    folder: str
    file_texts: Mapping[str, str] = {}
    repository_root: str = ""
    """The root of the git repository around the folder, or an empty string."""

    def resolve_folder(self, variable: str, default: str) -> PurePath:
        """Return the folder named by ``variable``, else ``default`` in the home folder."""
        path = self.environment.get(variable)
        return PurePath(path) if path else PurePath(self.home, default)


class ClientSettingsSource(NamedTuple):
    """The settings files of a client, the weakest first, and the function that reads addresses from one of them."""

    files: Callable[[ClientEnvironment], list[PurePath]]
    addresses: Callable[[str], Iterator[tuple[str, str]]]


def list_settings_files(client: str, environment: ClientEnvironment) -> tuple[str, ...]:
    """List the files that may set an address for ``client``, the weakest first, whether they exist or not."""
    if client in SETTINGS_READERS:
        return tuple(map(str, SETTINGS_READERS[client].files(environment)))
    return ()


def find_configured_urls(client: str, environment: ClientEnvironment) -> tuple[ConfiguredUrl, ...]:
    """Return the addresses in the existing files of ``client``, the weakest first; broken files yield none."""
    if client not in SETTINGS_READERS:
        return ()
    paths = list_settings_files(client, environment)
    return _read_urls_in_files(paths, SETTINGS_READERS[client].addresses, environment)


def _read_urls_in_files(
    paths: Iterable[str],
    read_urls: Callable[[str], Iterator[tuple[str, str]]],
    environment: ClientEnvironment,
) -> tuple[ConfiguredUrl, ...]:
    configured_urls = []
    for path in paths:
        if path in environment.file_texts:
            for key, url in read_urls(environment.file_texts[path]):
                configured_urls.append(ConfiguredUrl(path, key, url))
    return tuple(configured_urls)


def list_claude_folder_settings(environment: ClientEnvironment) -> tuple[str, ...]:
    """List the settings files in the working folder, which Claude Code applies once its user trusts the folder."""
    folder = PurePath(environment.folder, ".claude")
    return str(folder / "settings.json"), str(folder / "settings.local.json")


def find_claude_folder_urls(environment: ClientEnvironment) -> tuple[ConfiguredUrl, ...]:
    """Return the addresses in the folder's own settings, the weakest first.

    They are for warnings only: no client is sent to an address that a downloaded folder may have set.
    """
    return _read_urls_in_files(list_claude_folder_settings(environment), _read_claude_urls, environment)


def parse_lenient_json(text: str) -> dict[str, Any]:
    """Parse a JSON object with comments and trailing commas; return an empty dict if it is not one."""
    # Both patterns also match strings, as group 1, and keep them: the // in a URL is not a comment.
    without_comments = _JSON_COMMENT.sub(lambda match: match[1] or "", text)
    plain = _TRAILING_COMMA.sub(lambda match: match[1] or "", without_comments)
    try:
        document = msgspec.json.decode(plain)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def get_nested_value(document: object, *names: str) -> Any:
    """Return the value in ``document`` at the path ``names``, or None if it is missing."""
    value = document
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _iterate_nested_urls(document: object, *names: str) -> Iterator[tuple[str, str]]:
    """Yield each key of ``document`` that has an address at the path ``names``, with that address."""
    if not isinstance(document, dict):
        return
    for key, value in document.items():
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
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return
    if isinstance(document.get("openai_base_url"), str):
        yield "openai_base_url", document["openai_base_url"]
    for name, url in _iterate_nested_urls(document.get("model_providers"), "base_url"):
        yield f"model_providers.{name}.base_url", url


def _read_opencode_urls(text: str) -> Iterator[tuple[str, str]]:
    yield from _iterate_nested_urls(parse_lenient_json(text).get("provider"), "options", "baseURL")


def _read_pi_urls(text: str) -> Iterator[tuple[str, str]]:
    yield from _iterate_nested_urls(parse_lenient_json(text).get("providers"), "baseUrl")


def _read_llm_urls(text: str) -> Iterator[tuple[str, str]]:
    for match in LLM_API_BASE.finditer(text):
        yield "api_base", match["url"]


def _read_aider_urls(text: str) -> Iterator[tuple[str, str]]:
    for match in _AIDER_API_BASE.finditer(text):
        yield "OPENAI_API_BASE", match[1]
    yield from _read_env_file_urls(text)


def _read_env_file_urls(text: str) -> Iterator[tuple[str, str]]:
    """Yield the addresses in a file of environment variables."""
    pattern = r"(?m)^[ \t]*(?:export[ \t]+)?(\w+_(?:BASE_URL|API_BASE))[ \t]*=[ \t]*[\"']?(https?://[^\s\"'#]+)"
    for match in re.finditer(pattern, text):
        yield match[1], match[2]


def _list_opencode_configs(environment: ClientEnvironment) -> list[PurePath]:
    """List opencode's configuration files, the weakest first: global, $OPENCODE_CONFIG, project, extra folder."""
    own = environment.resolve_folder("XDG_CONFIG_HOME", ".config") / "opencode"
    configs = [own / "config.json", *_make_opencode_paths(own)]
    extra_file = environment.environment.get("OPENCODE_CONFIG")
    if extra_file:
        configs.append(PurePath(extra_file))
    for folder in _list_ancestor_folders(environment):
        configs += _make_opencode_paths(folder)
        configs += _make_opencode_paths(folder / ".opencode")
    extra_folder = environment.environment.get("OPENCODE_CONFIG_DIR")
    if extra_folder:
        configs += _make_opencode_paths(PurePath(extra_folder))
    return configs


def _make_opencode_paths(folder: PurePath) -> tuple[PurePath, ...]:
    return folder / "opencode.json", folder / "opencode.jsonc"


def _list_ancestor_folders(environment: ClientEnvironment) -> list[PurePath]:
    """List the working folder and its parents, the outermost first."""
    here = PurePath(environment.folder)
    return [*reversed(here.parents), here]


def get_llm_cli_folder(environment: ClientEnvironment) -> PurePath:
    """Return the folder in which llm keeps its settings."""
    # The folders that click.get_app_dir returns on each platform, which llm uses.
    variable = "APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME"
    default = "Library/Application Support" if sys.platform == "darwin" else ".config"
    own = environment.resolve_folder(variable, default)
    return environment.resolve_folder("LLM_USER_PATH", str(own / "io.datasette.llm"))


def _list_aider_files(environment: ClientEnvironment) -> list[PurePath]:
    """List the files from which aider reads options and variables: in the home, repository and working folder."""
    folders = (
        PurePath(environment.home),
        PurePath(environment.repository_root or environment.folder),
        PurePath(environment.folder),
    )
    files = []
    for folder in dict.fromkeys(folders):
        files += [folder / ".env", folder / ".aider.conf.yml"]
    return files


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
"""The clients with known settings, by program name."""
