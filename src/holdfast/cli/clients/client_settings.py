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

_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', re.DOTALL)
API_BASE = re.compile(r"(?m)^(?P<before>[ \t-]*api_base:[ \t]*(?P<quote>[\"']?))(?P<url>https?://[^\s\"'#]+)(?P=quote)")
"""An address in the models that are added to llm."""
_AIDER = re.compile(r"(?m)^openai-api-base:[ \t]*[\"']?(https?://[^\s\"'#]+)")


class Pointer(Struct, frozen=True):
    """An address that a client's own settings name."""

    where: str
    """The file that says so."""
    key: str
    """What it is the address of: a provider, a setting, a variable."""
    url: str


class Place(Struct, frozen=True):
    """Where a client is started. ``texts`` are its files that are there, by their paths."""

    environment: Mapping[str, str]
    home: str
    folder: str
    texts: Mapping[str, str] = {}
    root: str = ""
    """The top of the git repository that the folder is in, if it is in one."""

    def at_home(self, variable: str, default: str) -> PurePath:
        """Return the folder that ``variable`` names, else the one called ``default`` at home."""
        told = self.environment.get(variable)
        return PurePath(told) if told else PurePath(self.home, default)


class Own(NamedTuple):
    """Where a client's settings are, the weakest first, and what reads the addresses in one of them."""

    files: Callable[[Place], list[PurePath]]
    addresses: Callable[[str], Iterator[tuple[str, str]]]


def files(client: str, place: Place) -> tuple[str, ...]:
    """Return the files that may point ``client`` somewhere, the weakest first, whether they are there or not."""
    return tuple(map(str, OWN[client].files(place))) if client in OWN else ()


def pointers(client: str, place: Place) -> tuple[Pointer, ...]:
    """Return the addresses in the files of ``client`` that are there, the weakest first; a broken one has none."""
    read = OWN[client].addresses if client in OWN else _nothing
    found = ((path, place.texts[path]) for path in files(client, place) if path in place.texts)
    return tuple(Pointer(path, key, url) for path, text in found for key, url in read(text))


def folder_files(place: Place) -> tuple[str, ...]:
    """Return the files of the working folder that Claude Code goes by once its user believes the folder."""
    return tuple([str(PurePath(place.folder, ".claude", name)) for name in ("settings.json", "settings.local.json")])


def folder_pointers(place: Place) -> tuple[Pointer, ...]:
    """Return the addresses in them, the weakest first: nobody is led there, but it can be told."""
    found = ((path, place.texts[path]) for path in folder_files(place) if path in place.texts)
    return tuple(Pointer(path, key, url) for path, text in found for key, url in _claude(text))


def table(text: str) -> dict[str, Any]:
    """Return the object that ``text`` is, JSON with comments and commas too many; an empty one if it is none."""
    plain = _TRAILING.sub(lambda found: found[1] or "", _COMMENT.sub(lambda found: found[1] or "", text))
    try:
        whole = msgspec.json.decode(plain)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return whole if isinstance(whole, dict) else {}


def inside(whole: object, *names: str) -> Any:
    """Return what stands in ``whole`` under ``names``, one in the other, or nothing."""
    for name in names:
        whole = whole.get(name) if isinstance(whole, dict) else None
    return whole


def _nothing(_: str) -> Iterator[tuple[str, str]]:
    yield from ()


def _urls(whole: object, *names: str) -> Iterator[tuple[str, str]]:
    """Yield for each key of ``whole`` the address that stands in it under ``names``."""
    for key, one in whole.items() if isinstance(whole, dict) else ():
        url = inside(one, *names)
        if isinstance(url, str) and url:
            yield key, url


# -- each client -------------------------------------------------------------------------------------------------------


def _claude(text: str) -> Iterator[tuple[str, str]]:
    url = inside(table(text), "env", "ANTHROPIC_BASE_URL")
    if isinstance(url, str) and url:
        yield "ANTHROPIC_BASE_URL", url


def _codex(text: str) -> Iterator[tuple[str, str]]:
    try:
        whole = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return
    if isinstance(whole.get("openai_base_url"), str):
        yield "openai_base_url", whole["openai_base_url"]
    for name, url in _urls(whole.get("model_providers"), "base_url"):
        yield f"model_providers.{name}.base_url", url


def _opencode(text: str) -> Iterator[tuple[str, str]]:
    yield from _urls(table(text).get("provider"), "options", "baseURL")


def _pi(text: str) -> Iterator[tuple[str, str]]:
    yield from _urls(table(text).get("providers"), "baseUrl")


def _llm(text: str) -> Iterator[tuple[str, str]]:
    yield from (("api_base", found["url"]) for found in API_BASE.finditer(text))


def _aider(text: str) -> Iterator[tuple[str, str]]:
    yield from (("OPENAI_API_BASE", found[1]) for found in _AIDER.finditer(text))
    yield from _variables(text)


def _variables(text: str) -> Iterator[tuple[str, str]]:
    """Yield the addresses of a file of variables."""
    pattern = r"(?m)^[ \t]*(?:export[ \t]+)?(\w+_(?:BASE_URL|API_BASE))[ \t]*=[ \t]*[\"']?(https?://[^\s\"'#]+)"
    yield from ((found[1], found[2]) for found in re.finditer(pattern, text))


def _opencode_files(place: Place) -> list[PurePath]:
    own = place.at_home("XDG_CONFIG_HOME", ".config") / "opencode"
    told = [PurePath(path) for name in ("OPENCODE_CONFIG",) if (path := place.environment.get(name))]
    around = [one for folder in _upward(place) for one in (folder, folder / ".opencode")]
    given = [PurePath(folder) for name in ("OPENCODE_CONFIG_DIR",) if (folder := place.environment.get(name))]
    return [own / "config.json", *_configs(own), *told, *(one for at in (*around, *given) for one in _configs(at))]


def _configs(folder: PurePath) -> tuple[PurePath, ...]:
    return folder / "opencode.json", folder / "opencode.jsonc"


def _upward(place: Place) -> list[PurePath]:
    """Return the working folder and those that it is in, the outermost first."""
    here = PurePath(place.folder)
    return [*reversed(here.parents), here]


def llm_home(place: Place) -> PurePath:
    """Return where llm keeps its things."""
    at = "Library/Application Support" if sys.platform == "darwin" else ".config"
    own = place.at_home("APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME", at)
    return place.at_home("LLM_USER_PATH", str(own / "io.datasette.llm"))


def _mixed(place: Place) -> list[PurePath]:
    """Return the files that aider takes its options and variables from: at home, of the repository, of the folder."""
    homes = (PurePath(place.home), PurePath(place.root or place.folder), PurePath(place.folder))
    return [home / name for home in dict.fromkeys(homes) for name in (".env", ".aider.conf.yml")]


OWN: dict[str, Own] = {
    "claude": Own(lambda place: [place.at_home("CLAUDE_CONFIG_DIR", ".claude") / "settings.json"], _claude),
    "codex": Own(lambda place: [place.at_home("CODEX_HOME", ".codex") / "config.toml"], _codex),
    "opencode": Own(_opencode_files, _opencode),
    "pi": Own(lambda place: [place.at_home("PI_CODING_AGENT_DIR", ".pi/agent") / "models.json"], _pi),
    "gemini": Own(lambda place: [PurePath(place.home, name) for name in (".env", ".gemini/.env")], _variables),
    "aider": Own(_mixed, _aider),
    "llm": Own(lambda place: [llm_home(place) / "extra-openai-models.yaml"], _llm),
}
"""The clients whose settings are known, by the names of their programs."""
