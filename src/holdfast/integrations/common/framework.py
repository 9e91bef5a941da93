"""Check that the framework of an adapter is installed, in a version that the adapter can work with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata


@contextmanager
def require_framework(framework: str, *, distribution: str, oldest_version: str, extra: str) -> Iterator[None]:
    """Import an adapter inside this block: if its framework cannot be used, the error says what to install.

    ``distribution`` is what pip calls the framework, ``extra`` that of Holdfast which installs it. Raises
    ``ImportError`` if the installed version is older than ``oldest_version``, and with the original error inside if
    something that the adapter needs is missing.
    """
    found_version = find_installed_version(distribution)
    advice = f"needs {framework} {oldest_version} or newer: pip install -U 'holdfast[{extra}]'"
    if found_version and is_older_version(found_version, oldest_version):
        raise ImportError(f"Holdfast's adapter {advice} ({distribution} {found_version} is installed)")
    try:
        yield
    except ImportError as error:
        found = f"{distribution} {found_version} is installed" if found_version else f"{distribution} is not installed"
        raise ImportError(f"Holdfast's adapter {advice} ({found}: {error})") from error


def find_installed_version(distribution: str) -> str:
    """Return the version of an installed distribution, or ``""`` if there is none: it may be on the path even so."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def is_older_version(version: str, other_version: str) -> bool:
    """Return whether the numbers of ``version`` are lower than those of ``other_version``.

    What follows the numbers does not count: a release candidate has what its release will have. A version without
    numbers, as some checkouts have, is not older.
    """
    numbers = _read_release_numbers(version)
    return bool(numbers) and numbers < _read_release_numbers(other_version)


def _read_release_numbers(version: str) -> list[int]:
    """Return the numbers that a version begins with, without zeros at the end, so that 1.5 is 1.5.0."""
    leading = re.match(r"\d+(\.\d+)*", version.strip().removeprefix("v"))
    numbers = [int(number) for number in leading[0].split(".")] if leading else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers
