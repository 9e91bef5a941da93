"""The tools of the session, which really run in a copy of the sources, and questions about those sources.

Read, Grep, Glob, Edit and Write work on the copy. Bash runs Python there and answers a few ``git`` commands itself, so
neither git nor a shell is needed. The output contains no machine's paths and no real times.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

HOME = "/home/dev/holdfast"
"""The working folder that the session shows."""
LONGEST, WIDEST = 95_000, 240
"""Characters kept of a command's output, and of a line that a search found."""
OWN_TEST = "test_example_session.py"
"""The test of this session, which the copy leaves out."""
COMMITS = (
    "4e8c1d7 Branch as a lawful fold",
    "b07a93e Estimator: fit over fifteen classes of content",
    "9b02f6e Freeze the public names of state/entries.py",
    "1d5f8ac References: one extractor for all",
    "c3e4470 Settings: every number with its origin",
    "70ab2d9 First values",
)


class Name(NamedTuple):
    """A definition at the top level of a module: its place and its line."""

    name: str
    path: str
    line: int
    end: int
    text: str
    fields: int = 0


def outline(path: str, text: str) -> list[Name]:
    """Return the top-level definitions of a module, private ones too; none if it does not parse."""
    found, lines = [], text.split("\n")
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return []
    for node in body:
        names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names += [leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)]
        inner = sum(isinstance(below, ast.AnnAssign) for below in getattr(node, "body", ()))
        found += [
            Name(name, path, node.lineno, node.end_lineno or node.lineno, lines[node.lineno - 1].strip(), inner)
            for name in names
            if name != "__all__"
        ]
    return found


@dataclass
class Workshop:
    """A copy of the sources in which the tools of the session really run."""

    root: Path
    first: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Path, root: Path) -> Workshop:
        """Copy the files that a reader of the repository looks at."""
        for name in ("src", "tests", "docs"):
            if (source / name).is_dir():
                shutil.copytree(
                    source / name,
                    root / name,
                    ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", ".*", OWN_TEST),
                )
        for name in ("README.md", "pyproject.toml"):
            if (source / name).is_file():
                shutil.copy(source / name, root / name)
        return cls(root)

    def begin(self) -> None:
        """Remember every file, so that later differences count as changes."""
        self.first = {name: self.text(name) for name in self.names()}

    def names(self, pattern: str = "**/*.*", under: str = ".") -> list[str]:
        """Return the paths that match, sorted, relative to the copy."""
        base = self.root / under
        files = [base] if base.is_file() else [path for path in base.glob(pattern) if path.is_file()]
        return sorted(p.relative_to(self.root).as_posix() for p in files if p.suffix not in {".pyc", ".lock"})

    def text(self, path: str) -> str:
        """Return the text of a file of the copy."""
        return (self.root / path).read_text("utf-8", "replace")

    def use(self, tool: str, given: dict[str, Any]) -> tuple[str, bool]:
        """Run a tool; return its output and whether it failed."""
        try:
            done = getattr(self, tool.lower())(**given)
        except (OSError, ValueError) as error:
            return f"Error: {error}".replace(str(self.root), HOME), True
        return done if isinstance(done, tuple) else (done, False)

    def at(self, path: str) -> Path:
        """Return the file in the copy for a path of the session."""
        return self.root / path.removeprefix(HOME).lstrip("/")

    def read(self, file_path: str, offset: int = 1, limit: int = 420) -> str:
        """Return lines with their numbers."""
        lines = self.at(file_path).read_text("utf-8", "replace").splitlines()[offset - 1 : offset - 1 + limit]
        return "\n".join(f"{number:>6}→{line}" for number, line in enumerate(lines, offset))

    def glob(self, pattern: str) -> str:
        """Return the paths that match a pattern."""
        return "\n".join(f"{HOME}/{name}" for name in self.names(pattern)) or "No files found"

    def grep(self, pattern: str, path: str = HOME, head_limit: int = 60, **_: object) -> str:
        """Return ``path:line:text`` for each line that matches."""
        wanted, anywhere, hits = re.compile(pattern), re.compile(pattern, re.MULTILINE), []
        for name in self.names(under=path.removeprefix(HOME).lstrip("/") or "."):
            text = self.text(name)
            lines = enumerate(text.splitlines() if anywhere.search(text) else (), 1)
            hits += [f"{name}:{number}:{line[:WIDEST]}" for number, line in lines if wanted.search(line)]
            if len(hits) >= head_limit:
                break
        return "\n".join(hits[:head_limit]) or "No matches found"

    def edit(self, file_path: str, old_string: str, new_string: str, *, replace_all: bool = False) -> str:
        """Replace a text, which must be unique unless all places are replaced."""
        text = self.at(file_path).read_text("utf-8")
        found = text.count(old_string)
        if found == 0 or (found > 1 and not replace_all):
            raise ValueError(f"old_string found {found} times in {file_path}")
        self.at(file_path).write_text(text.replace(old_string, new_string), "utf-8")
        return f"The file {file_path} has been updated successfully."

    def write(self, file_path: str, content: str) -> str:
        """Write a new file."""
        self.at(file_path).parent.mkdir(parents=True, exist_ok=True)
        self.at(file_path).write_text(content, "utf-8")
        return f"File created successfully at: {file_path}"

    def bash(self, command: str, **_: object) -> tuple[str, bool]:
        """Run a command; cut long output, and put the exit code first if it failed."""
        output, code = self.python(command) if command.startswith("python ") else (self.git(command), 0)
        if len(output) > LONGEST:
            output = f"{output[:LONGEST]}\n... [{len(output) - LONGEST} characters cut]"
        return (f"Exit code {code}\n" if code else "") + output.rstrip("\n"), code != 0

    def python(self, command: str) -> tuple[str, int]:
        """Run Python in the copy, and make paths and times in its output neutral."""
        setting = {"PYTHONPATH": str(self.root / "src"), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *shlex.split(command)[1:]],
            cwd=self.root,
            env=os.environ | setting,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=60,
            check=False,
        )
        text = (done.stdout + done.stderr).replace(str(self.root), HOME)
        for prefix in sorted({sys.prefix, sys.base_prefix}, key=len, reverse=True):
            text = text.replace(prefix, "/usr")
        text = re.sub(r"\b0x[0-9a-f]{8,}\b", "0x7f3a5c0e21d0", text)
        return re.sub(r"\b\d+\.\d+s\b", "0.004s", text), done.returncode

    def git(self, command: str) -> str:
        """Answer ``git log``, ``git status`` and ``git diff --stat`` as git would."""
        if command.startswith("git log"):
            return "\n".join(COMMITS)
        if command.startswith("git status"):
            return "\n".join(f"{' M' if name in self.first else '??'} {name}" for name in self.changed())
        return "\n".join(self.stat(name) for name in self.changed() if name in self.first)

    def changed(self) -> list[str]:
        """Return the paths of new and changed files."""
        return [name for name in self.names() if self.first.get(name) != self.text(name)]

    def stat(self, name: str) -> str:
        """Return a line of ``git diff --stat``."""
        lines = list(difflib.ndiff(self.first[name].splitlines(), self.text(name).splitlines()))
        more, less = (sum(line.startswith(mark) for line in lines) for mark in ("+ ", "- "))
        return f" {name} | {more + less} {'+' * more}{'-' * less}"


Call: TypeAlias = tuple[str, dict[str, Any]]


def call(tool: str, path: str | None = None, **given: object) -> Call:
    """Return a tool call; ``path`` is spelled out for the tools that take one."""
    where = {} if path is None else {"path" if tool == "Grep" else "file_path": f"{HOME}/{path}"}
    return tool, {**where, **given}


def bash(command: str, description: str) -> Call:
    """Return a call of Bash with its description."""
    return call("Bash", command=command, description=description)


def python(code: str, description: str) -> Call:
    """Return a call that runs a few lines of Python."""
    return bash(f"python -c {shlex.quote(code)}", description)


def modules(shop: Workshop, *packages: str, each: int = 12) -> list[str]:
    """Return at most ``each`` modules of a package that define something public: those with a list, then the widest."""
    found: list[str] = []
    for package in packages:
        paths = [path for path in shop.names("*.py", f"src/holdfast/{package}") if not path.endswith("__init__.py")]
        paths.sort(key=lambda path: ("__all__ =" not in shop.text(path), -len(public(shop, path))))
        found += sorted(path for path in paths[:each] if public(shop, path))
    return found


def public(shop: Workshop, path: str) -> list[str]:
    """Return the public names of a module, sorted."""
    return sorted({name.name for name in outline(path, shop.text(path)) if not name.name.startswith("_")})


def told(names: list[Name]) -> str:
    """Return names as a sentence with their places."""
    return ", ".join(f"`{name.name}` ({name.path.removeprefix('src/holdfast/')}:{name.line})" for name in names)


def imported(text: str) -> set[str]:
    """Return the names that a module imports from this project."""
    froms = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in froms if (node.module or "").startswith("holdfast.") for alias in node.names}


def place(text: str) -> tuple[str, list[str]]:
    """Return the statement to put the list after, or the existing list and its names."""
    anchor = '"""'
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.Import | ast.ImportFrom):
            continue
        words = ast.get_source_segment(text, node) or ""
        if isinstance(node, ast.Assign) and words.startswith("__all__"):
            return words, [str(leaf.value) for leaf in ast.walk(node.value) if isinstance(leaf, ast.Constant)]
        if not isinstance(node, ast.Assign) and text.count(words) == 1:
            anchor = words
    return anchor, []
