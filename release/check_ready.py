"""Check what must be true before a release is tagged, and print one thing to do for each thing that is not.

    python release/check_ready.py dist/*

The arguments are the wheel and the sdist that ``uv build`` made, and the SBOM (docs/releasing.md).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

from version import ROOT, VersionProblem, read_versions

PLACEHOLDER_NAMESPACE = "example.holdfast/"
"""Namespace of server.json until the project has a public home. Nobody can own a name below ``.example``, so the MCP
registry cannot accept it by accident."""

_RELATIVE_LINK = re.compile(r"\]\((?!https?://|#|mailto:)[^)]+\)")


def list_source_problems(root: Path = ROOT) -> list[str]:
    """Return a sentence for each thing in the sources that is not ready."""
    problems = []
    try:
        versions = set.union(*read_versions(root).values())
    except VersionProblem as problem:
        return [str(problem)]
    if len(versions) > 1:
        problems.append(f"The versions differ: {', '.join(sorted(versions))}. Run: python release/version.py VERSION")
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    version = project["version"]
    heading = re.escape(f"## [{version}] - ")
    if not re.search(rf"^{heading}\d{{4}}-\d{{2}}-\d{{2}}$", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE):
        problems.append(f"CHANGELOG.md has no heading with a date for {version}. Write: ## [{version}] - YYYY-MM-DD")
    if "Source" not in project.get("urls", {}):
        problems.append("pyproject.toml names no home. Follow 'Before the first release' in docs/releasing.md.")
    server = json.loads((root / "server.json").read_text("utf-8"))["name"]
    if server.startswith(PLACEHOLDER_NAMESPACE):
        problems.append(f"server.json still has the name {server}. Follow 'Before the first release' there.")
    if f"<!-- mcp-name: {server} -->" not in (root / "README.md").read_text("utf-8"):
        problems.append(f"README.md does not name the MCP server. Write: <!-- mcp-name: {server} -->")
    return problems


def list_git_problems(root: Path = ROOT) -> list[str]:
    """Return a sentence for each difference between the folder and its last commit, and for a tag that exists."""
    changed = _run_git(root, "status", "--porcelain")
    if changed is None:
        return ["This is no git checkout. Build releases from one, so that the tag and the files agree."]
    problems = []
    if changed:
        files = changed.splitlines()
        problems.append(f"{len(files)} files are not as committed, first{files[0][2:]}. Commit or remove them.")
    version = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    if _run_git(root, "tag", "--list", f"v{version}"):
        problems.append(f"The tag v{version} exists. A release is never made twice; choose the next version.")
    return problems


def _run_git(root: Path, *arguments: str) -> str | None:
    ran = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return ran.stdout if ran.returncode == 0 else None


def list_package_problems(files: list[Path], version: str) -> list[str]:
    """Return a sentence for each thing about the built files that is not ready.

    Args:
        files: The wheel, the sdist and the SBOM, in any order.
        version: The version of the sources.

    """
    expected = {f"holdfast-{version}-py3-none-any.whl", f"holdfast-{version}.tar.gz", f"holdfast-{version}.cdx.json"}
    names = {file.name for file in files}
    problems = [f"{name} is missing. Build it as docs/releasing.md shows." for name in sorted(expected - names)]
    problems += [f"{name} is no file of {version}. Remove it." for name in sorted(names - expected)]
    for file in files:
        if file.name not in expected or file.suffix not in {".whl", ".gz"}:
            continue
        metadata = read_package_metadata(file)
        if metadata["Version"] != version:
            problems.append(f"{file.name} has the version {metadata['Version']}. Build it again.")
        links = _RELATIVE_LINK.findall(str(metadata.get_payload()))
        if links:
            problems.append(
                f"The README in {file.name} has {len(links)} links that lead nowhere outside the repository, first "
                f"{links[0][1:]}. Follow 'Before the first release' in docs/releasing.md."
            )
    return problems


def read_package_metadata(file: Path) -> Message:
    """Return the metadata of a wheel or an sdist; its body is the README."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            return Parser().parsestr(wheel.read(name).decode())
    with tarfile.open(file) as sdist:
        name = next(name for name in sdist.getnames() if name.count("/") == 1 and name.endswith("/PKG-INFO"))
        member = sdist.extractfile(name)
        assert member is not None
        return Parser().parsestr(member.read().decode())


def main(arguments: list[str]) -> int:
    """Check the sources and the files that the arguments name; return the exit code."""
    files = [Path(argument) for argument in arguments]
    missing = [str(file) for file in files if not file.is_file()]
    if not files or missing:
        print(f"usage: python release/check_ready.py dist/*; no such file: {', '.join(missing)}", file=sys.stderr)
        return 2
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    problems = [*list_source_problems(), *list_git_problems(), *list_package_problems(files, version)]
    for problem in problems:
        print(problem)
    print(f"holdfast {version}: {'ready' if not problems else f'{len(problems)} things to do'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
