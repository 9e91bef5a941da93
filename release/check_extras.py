"""Check that what an extra of the installed Holdfast names is installed and can be imported.

    python release/check_extras.py --list          # the extras, one a line
    python release/check_extras.py exact mcp       # import what these name

For each package of an extra its import packages are loaded, and the adapter ``holdfast.integrations.NAME`` if there is
one. Needs no package but Holdfast, so that it can run in an environment that has nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution, metadata, requires

_REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9._-]+")


def list_extras() -> list[str]:
    """Return the extras that the metadata of the installed Holdfast names."""
    return sorted(metadata("holdfast").get_all("Provides-Extra") or [])


def list_packages_of_extra(extra: str) -> list[str]:
    """Return the names of the packages that ``extra`` installs."""
    marker = re.compile(rf"""extra == ['"]{re.escape(extra)}['"]""")
    names = []
    for line in requires("holdfast") or ():
        match = _REQUIREMENT_NAME.match(line)
        if match and marker.search(line):
            names.append(match[0])
    return names


def list_import_names(package: str) -> list[str]:
    """Return what one imports of an installed package: its outermost modules that are no namespace.

    ``opentelemetry-sdk`` shares the folder ``opentelemetry`` with others, so for it ``opentelemetry.sdk.trace`` and its
    like are returned.

    Raises:
        PackageNotFoundError: It is not installed.

    """
    modules = set()
    for file in distribution(package).files or ():
        if file.suffix not in {".py", ".so"} or ".." in file.parts or not all(map(_is_module_part, file.parts[:-1])):
            continue
        name = file.name.partition(".")[0]
        modules.add(file.parts[:-1] if name == "__init__" else (*file.parts[:-1], name))
    modules = {parts for parts in modules if parts and _is_module_part(parts[-1]) and not parts[0].startswith("_")}
    outermost = min(map(len, modules), default=0)
    return sorted(".".join(parts) for parts in modules if len(parts) == outermost)


def _is_module_part(part: str) -> bool:
    return part.isidentifier() and part != "__pycache__"


def list_extra_problems(extra: str) -> list[str]:
    """Import everything that ``extra`` is for, and return a sentence for each thing that fails."""
    problems = []
    packages = list_packages_of_extra(extra)
    if not packages:
        problems.append(f"{extra}: it names no package")
    names = []
    for package in packages:
        try:
            found = list_import_names(package)
        except PackageNotFoundError:
            problems.append(f"{extra}: {package} is not installed")
            continue
        if not found:
            problems.append(f"{extra}: {package} has nothing that can be imported")
        names += found
    adapter = f"holdfast.integrations.{extra.replace('-', '_')}"
    if importlib.util.find_spec(adapter):
        names.append(adapter)
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever an import raises, the extra does not work
            problems.append(f"{extra}: import {name}: {type(error).__name__}: {error}")
    print(f"{extra}: {', '.join(names)}")
    return problems


def main(arguments: list[str]) -> int:
    """Check the extras that are named; return the exit code."""
    known = list_extras()
    if arguments == ["--list"]:
        print("\n".join(known))
        return 0
    unknown = [extra for extra in arguments if extra not in known]
    if unknown or not arguments:
        print(f"usage: python release/check_extras.py EXTRA…; the extras are {', '.join(known)}", file=sys.stderr)
        return 2
    problems = [problem for extra in arguments for problem in list_extra_problems(extra)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
