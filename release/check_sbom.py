"""Check that an SBOM describes the environment that runs this script: what Holdfast installs, and its licences.

    core/bin/python release/check_sbom.py dist/holdfast-0.1.0.cdx.json

``core`` is an environment with the wheel and ``requirements/core.txt`` alone. The SBOM is CycloneDX as JSON, written by
``cyclonedx-py``; docs/releasing.md has the command. Needs no package, so that it can run in that environment.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

ALLOWED_LICENSES = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "License :: OSI Approved :: Apache Software License",
        "License :: OSI Approved :: BSD License",
        "MIT",
        "MPL-2.0",
        "PSF-2.0",
        "Unlicense",
    }
)
"""Licences of packages that are installed with Holdfast: their terms ask nothing of a program that only imports them.

A package may also name a licence by a classifier. Another licence needs a decision of the maintainers, and a line here.
"""


def list_sbom_problems(sbom: dict[str, Any], installed: dict[str, str]) -> list[str]:
    """Compare an SBOM with the installed packages.

    Args:
        sbom: A CycloneDX document.
        installed: Versions by normalized name, with Holdfast itself.

    Returns:
        A sentence for each difference, licence that is not allowed, or part that is missing.

    """
    problems = []
    if sbom.get("bomFormat") != "CycloneDX":
        return ["This is no CycloneDX document. Write it with cyclonedx-py, as docs/releasing.md shows."]
    subject = sbom["metadata"]["component"]
    components = sbom.get("components", [])
    if (subject["name"], subject.get("version")) != ("holdfast", installed.get("holdfast")):
        problems.append(
            f"It is about {subject['name']} {subject.get('version')}, not holdfast {installed.get('holdfast')}."
        )
    listed = {normalize_name(component["name"]): component["version"] for component in components}
    expected = {name: version for name, version in installed.items() if name != "holdfast"}
    for name in sorted(listed.keys() | expected.keys()):
        if listed.get(name) != expected.get(name):
            problems.append(f"{name}: {listed.get(name)} in the SBOM, {expected.get(name)} installed.")
    for component in [subject, *components]:
        problems += list_license_problems(component)
    for component in components:
        if not component.get("purl", "").startswith("pkg:"):
            problems.append(f"{component['name']}: no package URL, by which scanners find known vulnerabilities.")
    if not any(entry.get("dependsOn") for entry in sbom.get("dependencies", ()) if entry["ref"] == subject["bom-ref"]):
        problems.append("It does not say what holdfast depends on.")
    return problems


def list_license_problems(component: dict[str, Any]) -> list[str]:
    """Return a sentence for each licence of a component that is not allowed, or one if it names none."""
    names = list_license_names(component)
    if not names:
        return [f"{component['name']}: no licence."]
    unknown = [name for name in names if name not in ALLOWED_LICENSES]
    return [f"{component['name']}: the licence {name} is not in ALLOWED_LICENSES." for name in unknown]


def list_license_names(component: dict[str, Any]) -> list[str]:
    """Return the licences of a component: SPDX ids, also those in an expression, and names of classifiers."""
    names: list[str] = []
    for entry in component.get("licenses", ()):
        if "expression" in entry:
            names += [word for word in re.split(r"[\s()]+", entry["expression"]) if word not in {"", "AND", "OR"}]
        else:
            names.append(entry["license"].get("id") or entry["license"]["name"])
    return names


def normalize_name(name: str) -> str:
    """Return the name of a package as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def list_installed_versions(found: list[Distribution]) -> dict[str, str]:
    """Return the versions of packages by normalized name, without pip, which Holdfast does not install."""
    versions = {normalize_name(distribution.metadata["Name"]): distribution.version for distribution in found}
    versions.pop("pip", None)
    return versions


def main(arguments: list[str]) -> int:
    """Check the SBOM that the only argument names; return the exit code."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python release/check_sbom.py SBOM", file=sys.stderr)
        return 2
    try:
        sbom = json.loads(Path(arguments[0]).read_text("utf-8"))
    except (OSError, ValueError) as error:
        print(f"{arguments[0]} cannot be read: {error}. Write it with cyclonedx-py, see docs/releasing.md.")
        return 2
    installed = list_installed_versions(list(distributions()))
    problems = list_sbom_problems(sbom, installed)
    for problem in problems:
        print(problem)
    print(f"{len(installed) - 1} packages beside holdfast; {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
