"""The scripts that check a release: whether it is ready, its SBOM, its extras."""

from __future__ import annotations

import copy
import importlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast

ROOT = Path(__file__).parents[2]
VERSION = holdfast.__version__
NAMES = [f"holdfast-{VERSION}{suffix}" for suffix in ("-py3-none-any.whl", ".tar.gz", ".cdx.json")]


def load_script(name):
    """Return a script of ``release/`` as a module."""
    sys.path.insert(0, str(ROOT / "release"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "release"))


check_ready = load_script("check_ready")
check_sbom = load_script("check_sbom")
check_extras = load_script("check_extras")


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text, path
    path.write_text(text.replace(old, new), "utf-8")


def test_files_that_the_page_names_exist():
    """Each script and each list of requirements that docs/releasing.md names is in the repository."""
    page = (ROOT / "docs" / "releasing.md").read_text("utf-8")
    names = set(re.findall(r"(?<![\w/.])(?:release|requirements|tests|src)/[\w./-]+\.(?:py|txt|json)", page))
    assert {
        "release/version.py",
        "release/check_ready.py",
        "release/check_sbom.py",
        "requirements/release.txt",
    } <= names
    assert [name for name in sorted(names) if not (ROOT / name).is_file()] == []


# -- ready or not ------------------------------------------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path):
    """Return a folder with copies of the files that ``list_source_problems`` reads."""
    places = [place.path for place in load_script("version").VERSION_PLACES]
    for name in [*places, "README.md", "CHANGELOG.md", "docs/releasing.md"]:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return tmp_path


def make_ready(sources: Path) -> None:
    """Do what 'Before the first release' and step 1 of docs/releasing.md say, as far as they concern the files."""
    page = (sources / "docs/releasing.md").read_text("utf-8")
    block = re.search(r"^ *```toml\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    project = sources / "pyproject.toml"
    replace_text(project, 'readme = "README.md"\n', 'dynamic = ["readme"]\n')
    replace_text(project, '"hatchling>=1.27"]', '"hatchling>=1.27", "hatch-fancy-pypi-readme>=25.1"]')
    replace_text(project, "[project.optional-dependencies]", f"{block[1]}\n[project.optional-dependencies]")
    replace_text(project, "OWNER", "an-owner")
    for name in ("server.json", "README.md"):
        replace_text(sources / name, "example.holdfast/", "io.github.an-owner/")
    replace_text(sources / "CHANGELOG.md", f"## [{VERSION}] - unreleased", f"## [{VERSION}] - 2026-12-31")


def test_sources_that_follow_the_page_are_ready(sources):
    """Whoever does what docs/releasing.md says, and nothing else, gets no problem from the check."""
    make_ready(sources)
    assert check_ready.list_source_problems(sources) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        ("CHANGELOG.md", " - 2026-12-31", " - unreleased", "CHANGELOG.md has no heading with a date"),
        ("pyproject.toml", "Source = ", "Origin = ", "pyproject.toml names no home"),
        ("server.json", "io.github.an-owner/", "example.holdfast/", "server.json still has the name example.holdfast/"),
        ("README.md", "mcp-name: ", "mcp: ", "README.md does not name the MCP server"),
        ("integrations/hosts/pi/package.json", VERSION, "9.9.9", f"The versions differ: {VERSION}, 9.9.9"),
        ("server.json", '"version"', '"versoin"', "server.json names the version 0 times, not 2"),
    ],
)
def test_each_thing_that_is_not_ready_is_named(sources, name, old, new, problem):
    """One wrong thing in sources that were ready is one problem or more, and its sentence names file and remedy."""
    make_ready(sources)
    replace_text(sources / name, old, new)
    assert any(found.startswith(problem) for found in check_ready.list_source_problems(sources))


def test_links_lead_to_the_published_version(sources):
    """With the lines of docs/releasing.md the README of the package has absolute links to the tag of the version."""
    pytest.importorskip("hatch_fancy_pypi_readme", reason="requirements/release.txt has what builds a release")
    make_ready(sources)
    for name in ("LICENSE", "NOTICE.md"):
        shutil.copy(ROOT / name, sources / name)
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(sources), "-t", "wheel"]
    subprocess.run(command, cwd=sources, check=True, capture_output=True)
    wheel = sources / NAMES[0]
    assert check_ready.list_package_problems([wheel], VERSION) == [
        f"{name} is missing. Build it as docs/releasing.md shows." for name in sorted(NAMES[1:])
    ]
    metadata = check_ready.read_package_metadata(wheel)
    home = "https://github.com/an-owner/holdfast"
    assert f"]({home}/blob/v{VERSION}/docs/proxy.md)" in metadata.get_payload()
    assert f"]({home}/raw/v{VERSION}/docs/images/demo.svg)" in metadata.get_payload()
    assert f"Source, {home}" in metadata.get_all("Project-URL")


def write_packages(folder: Path, metadata: str) -> list[Path]:
    """Write a wheel and an sdist that hold ``metadata`` alone, and an empty SBOM; return the three."""
    files = [folder / name for name in NAMES]
    with zipfile.ZipFile(files[0], "w") as wheel:
        wheel.writestr(f"holdfast-{VERSION}.dist-info/METADATA", metadata)
    with tarfile.open(files[1], "w:gz") as sdist:
        member = tarfile.TarInfo(f"holdfast-{VERSION}/PKG-INFO")
        member.size = len(metadata.encode())
        sdist.addfile(member, BytesIO(metadata.encode()))
    files[2].write_text("{}", "utf-8")
    return files


def test_built_files_are_compared_with_the_sources(tmp_path):
    """Files of the version without relative links are fine; another version, a link or a stray file is a problem."""
    fine = f"Version: {VERSION}\n\n[a](https://example.com/a) [b](#b)"
    files = write_packages(tmp_path, fine)
    assert check_ready.list_package_problems(files, VERSION) == []
    stray = tmp_path / "holdfast-0.0.1.tar.gz"
    stray.touch()
    assert check_ready.list_package_problems([*files, stray], VERSION) == [
        "holdfast-0.0.1.tar.gz is no file of 0.1.0. Remove it.".replace("0.1.0", VERSION)
    ]
    write_packages(tmp_path, f"{fine} [c](docs/c.md)")
    problems = check_ready.list_package_problems(files, VERSION)
    assert [problem.partition(" has ")[0] for problem in problems] == [f"The README in {name}" for name in NAMES[:2]]
    write_packages(tmp_path, fine.replace(VERSION, "9.9.9"))
    assert [problem.partition(". ")[2] for problem in check_ready.list_package_problems(files, VERSION)] == [
        "Build it again."
    ] * 2


def test_folder_must_be_as_committed_and_the_tag_must_be_new(sources):
    """No checkout, a file that is not committed, and a tag of this version are a problem each; else there is none."""
    assert [text.partition(".")[0] for text in check_ready.list_git_problems(sources)] == ["This is no git checkout"]

    def git(*arguments):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
        subprocess.run(["git", *identity, *arguments], cwd=sources, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "--message", "all")
    assert check_ready.list_git_problems(sources) == []
    (sources / "stray.txt").touch()
    assert check_ready.list_git_problems(sources) == [
        "1 files are not as committed, first stray.txt. Commit or remove them."
    ]
    (sources / "stray.txt").unlink()
    git("tag", f"v{VERSION}")
    assert [text.partition(" exists")[0] for text in check_ready.list_git_problems(sources)] == [f"The tag v{VERSION}"]


# -- the SBOM ----------------------------------------------------------------------------------------------------------

INSTALLED = {"holdfast": VERSION, "anyio": "4.16.0", "jinja2": "3.1.6", "prometheus-client": "0.26.0"}
LICENSES = {
    "anyio": [{"license": {"id": "MIT"}}],
    "jinja2": [{"license": {"name": "License :: OSI Approved :: BSD License"}}],
    "prometheus-client": [{"expression": "Apache-2.0 AND (BSD-2-Clause OR MIT)"}],
}


def make_sbom():
    """Return an SBOM of ``INSTALLED`` as cyclonedx-py writes it."""
    names = {"jinja2": "Jinja2", "prometheus-client": "prometheus_client"}
    return {
        "bomFormat": "CycloneDX",
        "metadata": {
            "component": {"name": "holdfast", "version": VERSION, "bom-ref": "root", "licenses": LICENSES["anyio"]}
        },
        "components": [
            {
                "name": names.get(name, name),
                "version": INSTALLED[name],
                "licenses": licenses,
                "purl": f"pkg:pypi/{name}@{INSTALLED[name]}",
            }
            for name, licenses in LICENSES.items()
        ],
        "dependencies": [{"ref": "root", "dependsOn": ["anyio==4.16.0"]}],
    }


def test_sbom_of_the_environment_has_no_problems():
    """An SBOM that lists what is installed is fine: however a name is spelled, and however a licence is given."""
    assert check_sbom.list_sbom_problems(make_sbom(), INSTALLED) == []


@given(st.data())
def test_any_difference_from_the_environment_is_a_problem(data):
    """A package that is missing, of another version, without licence, address or with an unknown licence is named."""
    sbom = make_sbom()
    position = data.draw(st.integers(0, len(sbom["components"]) - 1))
    component = sbom["components"][position]
    change = data.draw(st.sampled_from(["missing", "version", "licence", "licences", "expression", "purl"]))
    if change == "missing":
        del sbom["components"][position]
    elif change == "version":
        component["version"] += ".1"
    elif change == "licence":
        component["licenses"] = [*component["licenses"], {"license": {"id": "AGPL-3.0-only"}}]
    elif change == "licences":
        component["licenses"] = []
    elif change == "expression":
        component["licenses"] = [{"expression": "MIT AND GPL-2.0-only"}]
    else:
        del component["purl"]
    (problem,) = check_sbom.list_sbom_problems(sbom, INSTALLED)
    assert check_sbom.normalize_name(problem.partition(":")[0]) == list(LICENSES)[position]


def test_sbom_must_be_about_this_release_and_its_requirements():
    """An SBOM of another version, without the requirements, with a package too many, or of another kind is refused."""
    sbom = make_sbom()
    assert len(check_sbom.list_sbom_problems(sbom, {**INSTALLED, "holdfast": "9.9.9"})) == 1
    assert len(check_sbom.list_sbom_problems(sbom, {**INSTALLED, "h11": "0.16.0"})) == 1
    without = copy.deepcopy(sbom)
    without["dependencies"] = []
    assert check_sbom.list_sbom_problems(without, INSTALLED) == ["It does not say what holdfast depends on."]
    assert check_sbom.list_sbom_problems({"spdxVersion": "SPDX-2.3"}, INSTALLED)[0].startswith("This is no CycloneDX")


# -- extras ------------------------------------------------------------------------------------------------------------


def test_extras_are_those_of_the_project():
    """The script knows each extra of pyproject.toml with its packages, from the metadata of what is installed."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert {extra: check_extras.list_packages_of_extra(extra) for extra in check_extras.list_extras()} == {
        extra: [re.split(r"[\[><=;]", requirement)[0].strip() for requirement in requirements]
        for extra, requirements in extras.items()
    }


def test_import_names_are_those_that_programs_import():
    """A package's import names come from its files, whatever the package itself is called."""
    assert check_extras.list_import_names("bpe-openai") == ["bpe_openai"]
    assert check_extras.list_import_names("pillow") == ["PIL"]
    assert check_extras.list_import_names("pytest") == ["py", "pytest"]
    with pytest.raises(PackageNotFoundError):
        check_extras.list_import_names("a-package-that-nobody-has")


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("check_extras", []),
        ("check_extras", ["exakt"]),
        ("check_sbom", []),
        ("check_sbom", ["/no/such/file"]),
        ("check_ready", []),
        ("check_ready", ["/no/such/file"]),
    ],
)
def test_wrong_use_of_a_script_is_explained(script, arguments):
    """A wrong call exits 2 with a sentence, without a traceback."""
    command = [sys.executable, ROOT / "release" / f"{script}.py", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    assert ran.stdout + ran.stderr
