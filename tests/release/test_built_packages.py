"""The wheel and the sdist, as they are built from the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from types import SimpleNamespace

import pytest
from committed_files import list_committed_files

pytest.importorskip("hatchling", reason="these tests need what builds a release: requirements/release.txt")
pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
NOT_IN_THE_SDIST = ("notes/", ".gitignore")
"""What is committed and not in the sdist, by the beginning of its path. Hatchling adds ``.gitignore``."""
LARGEST_WHEEL = 3_000_000
"""Bytes. Chosen by judgement: a quarter more than the wheel of 0.1.0, so that a large file that gets in is noticed."""
SOURCE_DATE_EPOCH = "1767225600"
"""A moment after 1980, before which a zip file has no dates: 2026-01-01."""


def copy_repository(target: Path) -> Path:
    """Copy the committed files into ``target`` and return it."""
    for path in list_committed_files():
        copy = target / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return target


def build_packages(sources: Path, *targets: str, **environment: str) -> dict[str, Path]:
    """Build ``targets`` (``wheel``, ``sdist``; none = both) and return the files by target."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(sources / "dist")]
    for target in targets:
        command += ["-t", target]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH, **environment}
    ran = subprocess.run(command, cwd=sources, env=variables, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    suffixes = {".whl": "wheel", ".gz": "sdist"}
    return {suffixes[path.suffix]: path for path in (sources / "dist").iterdir() if path.suffix in suffixes}


def list_members(package: Path) -> list[str]:
    """Return the files in a wheel, or in an sdist without its outermost folder."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            return wheel.namelist()
    with tarfile.open(package) as sdist:
        return [member.name.partition("/")[2] for member in sdist if member.isfile()]


def read_metadata(wheel: Path) -> Message:
    """Return the metadata of a wheel; its body is the README."""
    with zipfile.ZipFile(wheel) as members:
        name = next(name for name in members.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(members.read(name).decode())


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the packages built from a copy of the repository."""
    return SimpleNamespace(**build_packages(copy_repository(tmp_path_factory.mktemp("built"))))


def test_wheel_has_the_package_and_nothing_else(built):
    """The wheel has each committed file of the package, and beside it only its metadata: no tests, no stray file."""
    package = ROOT / "src" / "holdfast"
    expected = {
        f"holdfast/{path.relative_to(package)}" for path in list_committed_files() if path.is_relative_to(package)
    }
    members = list_members(built.wheel)
    metadata = {name for name in members if ".dist-info/" in name}
    assert set(members) - metadata == expected
    assert {name.partition(".dist-info/")[2] for name in metadata} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
        "licenses/NOTICE.md",
    }
    assert "holdfast/py.typed" in members


def test_wheel_is_small(built):
    """The wheel stays small, since each start of ``uvx holdfast`` on a new machine loads it."""
    assert 500_000 < built.wheel.stat().st_size < LARGEST_WHEEL


def test_wheel_needs_no_compiler_and_no_platform(built):
    """The wheel is for every platform and every Python 3, and what it requires comes by name, never by address."""
    assert built.wheel.name.endswith("-py3-none-any.whl")
    assert [line for line in read_metadata(built.wheel).get_all("Requires-Dist") if "@" in line or "://" in line] == []


def test_sdist_has_the_whole_repository(built):
    """The sdist has every committed file that the tests or a build need, and nothing that is not committed."""
    committed = {str(path.relative_to(ROOT)) for path in list_committed_files()}
    expected = {name for name in committed if not name.startswith(NOT_IN_THE_SDIST)}
    added = {"PKG-INFO", ".gitignore"}
    assert set(list_members(built.sdist)) - added == expected - added
    assert "PKG-INFO" in list_members(built.sdist)


def test_stray_files_of_a_checkout_are_not_packed(tmp_path):
    """Files that lie about in a checkout, such as keys and stores, get into neither package."""
    sources = copy_repository(tmp_path)
    for name in (".env", "holdfast.db", "secrets/key.pem", ".venv/pyvenv.cfg", "dist/old.txt"):
        (sources / name).parent.mkdir(exist_ok=True)
        (sources / name).write_text("secret", "utf-8")
    members = [name for package in build_packages(sources).values() for name in list_members(package)]
    stray = (".env", "holdfast.db", "secrets", ".venv", "dist/")
    assert [name for name in members if name.startswith(stray)] == []


def test_classifiers_are_known_and_agree_with_the_python_that_is_required(built):
    """Each classifier is an official one, and the oldest Python that they name is the oldest that is allowed."""
    from trove_classifiers import classifiers as official

    metadata = read_metadata(built.wheel)
    named = metadata.get_all("Classifier")
    assert set(named) <= official
    versions = [tuple(map(int, text.rpartition(" ")[2].split("."))) for text in named if re.search(r":: 3\.\d+$", text)]
    assert versions == [(3, minor) for minor in range(versions[0][1], versions[-1][1] + 1)]
    assert metadata["Requires-Python"] == ">={}.{}".format(*versions[0])
    assert not any("License ::" in text for text in named)
    assert metadata["License-Expression"] == "MIT"


def test_metadata_describes_the_package(built):
    """The metadata has a summary, authors, keywords, the README, each extra of pyproject.toml and the licences."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    metadata = read_metadata(built.wheel)
    assert metadata["Summary"] == project["description"]
    assert metadata["Author"] == "The Holdfast authors"
    assert sorted(metadata["Keywords"].split(",")) == sorted(project["keywords"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text("utf-8").strip()
    assert set(metadata.get_all("Provides-Extra")) == set(project["optional-dependencies"])
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE.md"]


def test_builds_are_reproducible(built, tmp_path):
    """Another folder, owner's rights, times of files, time zone and order of hashes give the same bytes."""
    sources = copy_repository(tmp_path)
    for number, path in enumerate(sorted(sources.rglob("*"))):
        if path.is_file():
            path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    again = build_packages(sources, TZ="Pacific/Kiritimati", PYTHONHASHSEED="7", LC_ALL="C")
    assert again["wheel"].read_bytes() == built.wheel.read_bytes()
    assert again["sdist"].read_bytes() == built.sdist.read_bytes()


def test_wheel_from_the_sdist_is_the_wheel_from_the_repository(built, tmp_path):
    """Who builds the wheel from the sdist, as distributors of Linux do, gets the same bytes."""
    with tarfile.open(built.sdist) as sdist:
        sdist.extractall(tmp_path, filter="data")
    (sources,) = tmp_path.iterdir()
    assert build_packages(sources, "wheel")["wheel"].read_bytes() == built.wheel.read_bytes()
