"""The files that a release consists of beside the package: versions, licences, the MCP registry's description."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import anyio
import pytest
from committed_files import list_committed_files
from jsonschema import Draft7Validator, FormatChecker

import holdfast

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "holdfast"
SERVER = json.loads((ROOT / "server.json").read_text("utf-8"))
SCHEMA = json.loads((Path(__file__).parent / "mcp_server_schema.json").read_text("utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture
def version_script(monkeypatch):
    """Return ``release/version.py`` as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "release"))
    import version

    yield version
    sys.modules.pop("version")


@pytest.fixture
def sources(version_script, tmp_path):
    """Return a folder with copies of the files that name the version."""
    for place in version_script.VERSION_PLACES:
        copy = tmp_path / place.path
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / place.path, copy)
    return tmp_path


def test_all_files_name_the_same_version(version_script):
    """Every file that names the version names the one that ``holdfast --version`` prints."""
    assert {path: {holdfast.__version__} for path in version_script.read_versions()} == version_script.read_versions()


def test_set_version_changes_the_version_and_nothing_else(version_script, sources):
    """After ``set_version`` each file has the new version where the old one was, and is otherwise unchanged."""
    version_script.set_version("12.0.3rc1", sources)
    for place in version_script.VERSION_PLACES:
        before = (ROOT / place.path).read_text("utf-8").splitlines()
        after = (sources / place.path).read_text("utf-8").splitlines()
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        assert len(changed) == place.occurrences, place.path
        assert all(new == old.replace(holdfast.__version__, "12.0.3rc1") for old, new in changed)
    assert {frozenset(found) for found in version_script.read_versions(sources).values()} == {frozenset({"12.0.3rc1"})}


@pytest.mark.parametrize("version", ["", "1", "v1.2.3", "1.2", "latest", "1.2.3.4", '1.2.3"'])
def test_wrong_versions_change_no_file(version_script, sources, version):
    """What is no version is refused, and no file is changed."""
    with pytest.raises(version_script.VersionProblem, match=r"is not a version\. Write it as"):
        version_script.set_version(version, sources)
    for place in version_script.VERSION_PLACES:
        assert (sources / place.path).read_bytes() == (ROOT / place.path).read_bytes()


def test_file_without_a_version_is_named_and_no_file_changes(version_script, sources):
    """If one file does not name the version, the error names it, and the others stay as they are."""
    last = version_script.VERSION_PLACES[-1].path
    (sources / last).write_text("{}", "utf-8")
    with pytest.raises(version_script.VersionProblem, match=re.escape(f"{last} names the version 0 times, not 1")):
        version_script.set_version("1.0.0", sources)
    assert (sources / "pyproject.toml").read_bytes() == (ROOT / "pyproject.toml").read_bytes()


def test_version_command_shows_every_file():
    """``python release/version.py`` lists each file with its version; a wrong call exits 2 without a trace."""
    script = ROOT / "release" / "version.py"
    shown = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    assert len(re.findall(rf"^{re.escape(holdfast.__version__)} +\S+$", shown, re.MULTILINE)) == len(shown.splitlines())
    for arguments in (["--help"], ["one"], ["1.0.0", "1.0.1"]):
        ran = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)
        assert ran.returncode == 2
        assert "Traceback" not in ran.stderr
        assert ran.stderr


# -- the MCP registry's description ------------------------------------------------------------------------------------


def list_schema_errors(server: object) -> list[str]:
    return [error.message for error in Draft7Validator(SCHEMA, format_checker=FormatChecker()).iter_errors(server)]


def test_server_json_follows_the_schema_of_the_registry():
    """``server.json`` is what the MCP registry accepts, and its versions are this version."""
    Draft7Validator.check_schema(SCHEMA)
    assert list_schema_errors(SERVER) == []
    assert [SERVER["version"], *(package["version"] for package in SERVER["packages"])] == [holdfast.__version__] * 2
    assert [package["identifier"] for package in SERVER["packages"]] == [PROJECT["name"]]


@pytest.mark.parametrize(
    "change",
    [
        {"name": "holdfast"},
        {"name": "example.holdfast/a/b"},
        {"description": "x" * 101},
        {"version": "latest"},
        {"version": "^0.1.0"},
        {"$schema": "https://example.com/other.json"},
        {"packages": []},
        {"packages": [{**SERVER["packages"][0], "transport": {"type": "http"}}]},
        {"packages": [{**SERVER["packages"][0], "packageArguments": [{"type": "named", "value": "mcp"}]}]},
        {"packages": [{**SERVER["packages"][0], "registry_name": "x"}]},
        {"packages": [{key: value for key, value in SERVER["packages"][0].items() if key != "runtimeHint"}]},
        {"titel": "Holdfast"},
    ],
)
def test_schema_refuses_what_the_registry_refuses(change):
    """A wrong name, version, length, transport, argument or field is an error."""
    assert list_schema_errors({**SERVER, **change}) != []


def test_readme_names_the_mcp_server():
    """The README, which is the package's description, names the server, by which the registry checks its owner."""
    assert re.findall(r"<!-- mcp-name: (\S+) -->", (ROOT / "README.md").read_text("utf-8")) == [SERVER["name"]]


def test_server_json_installs_what_the_extra_installs():
    """The command of ``server.json`` brings the packages of the extra ``mcp``, which the server needs."""
    arguments = SERVER["packages"][0]["runtimeArguments"]
    assert [(argument["name"], argument["value"]) for argument in arguments] == [
        ("--with", requirement) for requirement in PROJECT["optional-dependencies"]["mcp"]
    ]


@pytest.mark.long
def test_command_of_server_json_serves_mcp(tmp_path, monkeypatch):
    """With the arguments and the variable of ``server.json`` the program serves MCP and offers recall and search."""
    from mcp import Client, StdioServerParameters

    package = SERVER["packages"][0]
    arguments = [argument["value"] for argument in package["packageArguments"]]
    variables = {variable["name"]: str(tmp_path / "store.db") for variable in package["environmentVariables"]}
    example = str(ROOT / "examples" / "long-session.jsonl")
    command = [sys.executable, "-m", "holdfast"]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    subprocess.run([*command, "import", example], check=True, capture_output=True)

    async def list_tool_names():
        server = StdioServerParameters(command=command[0], args=[*command[1:], *arguments], env=variables)
        async with Client(server) as client:
            return [tool.name for tool in (await client.list_tools()).tools], client.server_info.version

    assert anyio.run(list_tool_names) == (["recall", "search"], SERVER["version"])


# -- licences ----------------------------------------------------------------------------------------------------------


def list_licensed_patterns() -> list[str]:
    """Return the patterns in the first column of the table in NOTICE.md."""
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "NOTICE.md").read_text("utf-8"), re.MULTILINE)
    return [pattern for row in rows for pattern in re.findall(r"`([^`]+)`", row)]


def test_notice_covers_each_file_that_is_not_python():
    """Each file of the package that is not Python code has a row in NOTICE.md, and each row has a file."""
    files = [path for path in list_committed_files() if path.is_relative_to(PACKAGE) and path.suffix != ".py"]
    names = [str(path.relative_to(PACKAGE)) for path in files]
    patterns = list_licensed_patterns()
    assert len(names) > 15
    assert [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in names)] == []


def test_folders_that_are_shipped_alone_have_the_licence():
    """Each plugin of a coding agent, which is installed without the rest of the repository, has the licence's text."""
    licence = (ROOT / "LICENSE").read_text("utf-8")
    plugins = [path for path in (ROOT / "integrations" / "hosts").iterdir() if path.is_dir()]
    assert len(plugins) >= 5
    assert [path.name for path in plugins if (path / "LICENSE").read_text("utf-8") != licence] == []
