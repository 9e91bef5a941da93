"""Show or set the version, which several files of the repository name.

    python release/version.py            # show the files and their versions; exit 1 if they differ
    python release/version.py 0.2.0      # write the version into all of them

The Python package names its version twice, because ``import holdfast`` must not read the metadata of installed
packages. The others are read by programs that know nothing of Python: hosts of plugins, and the MCP registry.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class VersionPlace(NamedTuple):
    """A file that names the version, and how often."""

    path: str
    pattern: str
    """What stands before the version. The version itself is the text up to the next double quote."""
    occurrences: int = 1


VERSION_PLACES = (
    VersionPlace("pyproject.toml", r'^version = "'),
    VersionPlace("src/holdfast/__init__.py", r'^__version__ = "'),
    VersionPlace("server.json", r'^ +"version": "', occurrences=2),
    VersionPlace("integrations/hosts/claude-code/.claude-plugin/plugin.json", r'^ +"version": "'),
    VersionPlace("integrations/hosts/codex/.codex-plugin/plugin.json", r'^ +"version": "'),
    VersionPlace("integrations/hosts/openclaw/package.json", r'^ +"version": "'),
    VersionPlace("integrations/hosts/opencode/package.json", r'^ +"version": "'),
    VersionPlace("integrations/hosts/pi/package.json", r'^ +"version": "'),
)
_RELEASE_VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")


class VersionProblem(Exception):
    """A version that cannot be read or set; the message says what to do."""


def read_versions(root: Path = ROOT) -> dict[str, set[str]]:
    """Return the versions that each file names, normally one.

    Raises:
        VersionProblem: A file does not name the version as often as it should.

    """
    return {place.path: set(_find_versions(root, place)) for place in VERSION_PLACES}


def set_version(version: str, root: Path = ROOT) -> None:
    """Write ``version`` into every file that names one.

    Raises:
        VersionProblem: ``version`` is none, or a file does not name a version. Then no file was changed.

    """
    if not _RELEASE_VERSION.fullmatch(version):
        raise VersionProblem(f"{version!r} is not a version. Write it as 1.2.3, or 1.2.3rc1 for a candidate.")
    read_versions(root)
    for place in VERSION_PLACES:
        path = root / place.path
        path.write_text(_compile(place).sub(rf"\g<head>{version}", path.read_text("utf-8")), "utf-8")


def _find_versions(root: Path, place: VersionPlace) -> list[str]:
    found = [match["version"] for match in _compile(place).finditer((root / place.path).read_text("utf-8"))]
    if len(found) != place.occurrences:
        raise VersionProblem(
            f"{place.path} names the version {len(found)} times, not {place.occurrences}. "
            "Correct the file, or its line in VERSION_PLACES of release/version.py."
        )
    return found


def _compile(place: VersionPlace) -> re.Pattern[str]:
    return re.compile(rf'(?P<head>{place.pattern})(?P<version>[^"]*)', re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Show or set the version; return the exit code."""
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print("usage: python release/version.py [VERSION]", file=sys.stderr)
        return 2
    try:
        if arguments:
            set_version(arguments[0])
        versions = read_versions()
    except VersionProblem as problem:
        print(problem, file=sys.stderr)
        return 2
    for path, found in versions.items():
        print(f"{', '.join(sorted(found)):<10} {path}")
    if len(set.union(*versions.values())) > 1:
        print("The versions differ. Set them with: python release/version.py VERSION", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
