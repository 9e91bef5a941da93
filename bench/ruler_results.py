"""What the two benchmarks of others have in common: results in a file, so that a run can be resumed, and a page's part.

A results file has JSON lines. The first names what was measured (the kit, our version, a digest of our code, seeds);
each other line is the outcome of one run. A run that stands in the file is not repeated. A file of another kit or of
other code is refused, so that figures of two versions never mix.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import holdfast

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
PLANNING_FOLDERS = ("messages", "state", "planning", "normalize")
"""Folders of the package on which a compaction without a model depends."""


class ResultsFile:
    """Outcomes of runs by their key, kept in a file of JSON lines."""

    def __init__(self, path: Path | None, subject: dict[str, Any]) -> None:
        """Read ``path``, or begin it; without a path nothing is kept. Raise ``SystemExit`` if it is of another subject.

        ``subject`` says what is measured: versions, seeds, code.
        """
        self.outcomes: dict[str, dict[str, Any]] = {}
        self._path = path
        if path is None:
            return
        if path.exists() and path.stat().st_size:
            known, self.outcomes = _read_results(path)
            if known != subject:
                differing = sorted(name for name in {*known, *subject} if known.get(name) != subject.get(name))
                raise SystemExit(
                    f"{path} has results of another {' and '.join(differing)}; name another file, or delete this one"
                )
            return
        path.write_text(json.dumps(subject) + "\n", "utf-8")

    def add(self, key: str, outcome: dict[str, Any]) -> None:
        """Keep the outcome of one run; it is on disk when this returns."""
        self.outcomes[key] = outcome
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **outcome}) + "\n")


def _read_results(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the subject and the outcomes in ``path``; a last line that was not written to its end is dropped."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    if not lines[-1].endswith("\n"):
        path.write_text("".join(lines[:-1]), "utf-8")
    outcomes: dict[str, dict[str, Any]] = {}
    for line in lines[1:]:
        if line.endswith("\n"):
            outcome = json.loads(line)
            outcomes[outcome.pop("key")] = outcome
    return json.loads(lines[0]), outcomes


def compute_code_digest(script: Path) -> str:
    """Return a digest of ``script`` and of the code that decides what a compaction keeps."""
    package = Path(holdfast.__file__).parent
    digest = blake2b(script.read_bytes(), digest_size=6)
    for folder in PLANNING_FOLDERS:
        for file in sorted((package / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def name_versions(package: str, script: str) -> dict[str, str]:
    """Return the versions of another's package and of ours, with the digest of our code and of the running script."""
    return {package: version(package), "holdfast": version("holdfast"), "code": compute_code_digest(Path(script))}


def format_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(_format_rows([head, ("---",) * len(head), *rows])) + "\n"


def _format_rows(rows: list[tuple[str, ...]]) -> Iterator[str]:
    for row in rows:
        yield f"| {' | '.join(row)} |"


def fill_page_part(name: str, text: str, page: Path = PAGE) -> None:
    """Put ``text`` between the comments ``<!-- NAME -->`` and ``<!-- end NAME -->`` of ``page``."""
    part = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    old = page.read_text("utf-8")
    if not part.search(old):
        raise SystemExit(f"{page} has no part <!-- {name} --> … <!-- end {name} -->; add the two comments")
    page.write_text(part.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", old), "utf-8")
    print(f"{page.name} written")
