"""A workshop and a recorder: tools that really run in a copy of the sources, and the session as lines of JSON.

Read, Grep, Glob, Edit and Write work on the copy; Bash runs Python there and answers the few ``git`` questions by
itself, so that neither git nor a shell is needed. What they print names no machine and no real time.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import re
import shlex
import subprocess
import sys
from base64 import b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from holdfast.view.tokens import count

HOME = "/home/dev/holdfast"
"""Where the session says it lives."""
START = datetime(2026, 3, 9, 8, 41, 12, tzinfo=UTC)
"""When the session begins, by its own clock."""
FRAME, FACTOR, COLD = 10_000, 1.25, 300
"""Tokens of system prompt and tools; provider's tokens for one of ours; seconds until a prompt cache is cold."""
LONGEST = 95_000
"""Characters of a command's output that are kept."""
COMMITS = ("4e8c1d7 Branch as a lawful fold", "b07a93e Estimator: fit over fifteen classes of content",
           "9b02f6e Freeze the public names of model/entries.py", "1d5f8ac References: one extractor for all",
           "c3e4470 Settings: every number with its origin", "70ab2d9 First values")  # fmt: skip


class Name(NamedTuple):
    """A definition at the top of a module: where it stands and how its line reads."""

    name: str
    path: str
    line: int
    end: int
    text: str
    fields: int = 0


def outline(path: str, text: str) -> list[Name]:
    """Return the definitions at the top of a module, and the private ones too; nothing if it does not parse."""
    found, lines = [], text.splitlines()
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return []
    for node in body:
        names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        names += [leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)]
        inner = sum(isinstance(below, ast.AnnAssign) for below in getattr(node, "body", ()))
        found += [Name(name, path, node.lineno, node.end_lineno or node.lineno, lines[node.lineno - 1].strip(), inner)
                  for name in names if name != "__all__"]  # fmt: skip
    return found


@dataclass
class Workshop:
    """A copy of the sources in which the tools of the session really run."""

    root: Path
    first: dict[str, str] = field(default_factory=dict)

    def names(self, pattern: str = "**/*.*", under: str = ".") -> list[str]:
        """Return the paths that match, sorted, relative to the copy."""
        base = self.root / under
        files = [base] if base.is_file() else [path for path in base.glob(pattern) if path.is_file()]
        return sorted(p.relative_to(self.root).as_posix() for p in files if p.suffix not in {".pyc", ".lock"})

    def text(self, path: str) -> str:
        """Return the text of a file of the copy."""
        return (self.root / path).read_text("utf-8", "replace")

    def use(self, tool: str, given: dict[str, Any]) -> tuple[str, bool]:
        """Return what the tool says and whether it failed."""
        try:
            done = getattr(self, tool.lower())(**given)
        except (OSError, ValueError) as error:
            return f"Error: {error}".replace(str(self.root), HOME), True
        return done if isinstance(done, tuple) else (done, False)

    def at(self, path: str) -> Path:
        """Return the file behind a path as the session spells it."""
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
        wanted, hits = re.compile(pattern), []
        for name in self.names(under=path.removeprefix(HOME).lstrip("/") or "."):
            lines = enumerate(self.text(name).splitlines(), 1)
            hits += [f"{name}:{number}:{line}" for number, line in lines if wanted.search(line)]
        return "\n".join(hits[:head_limit]) or "No matches found"

    def edit(self, file_path: str, old_string: str, new_string: str, *, replace_all: bool = False) -> str:
        """Replace a text; it must be unique unless every place is meant."""
        text = self.at(file_path).read_text("utf-8")
        found = text.count(old_string)
        if found == 0 or (found > 1 and not replace_all):
            raise ValueError(f"old_string found {found} times in {file_path}")
        self.at(file_path).write_text(text.replace(old_string, new_string), "utf-8")
        return f"The file {file_path} has been updated successfully."

    def write(self, file_path: str, content: str) -> str:
        """Make a file."""
        self.at(file_path).parent.mkdir(parents=True, exist_ok=True)
        self.at(file_path).write_text(content, "utf-8")
        return f"File created successfully at: {file_path}"

    def bash(self, command: str, **_: object) -> tuple[str, bool]:
        """Run a command; a long output is cut, a failure starts with its exit status."""
        output, code = self.python(command) if command.startswith("python ") else (self.git(command), 0)
        if len(output) > LONGEST:
            output = f"{output[:LONGEST]}\n... [{len(output) - LONGEST} characters cut]"
        return (f"Exit code {code}\n" if code else "") + output.rstrip("\n"), code != 0

    def python(self, command: str) -> tuple[str, int]:
        """Run Python in the copy; its paths and times are made neutral."""
        setting = {"PYTHONPATH": str(self.root / "src"), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, *shlex.split(command)[1:]], cwd=self.root, env=os.environ | setting,  # noqa: S603
                              capture_output=True, text=True, encoding="utf-8", timeout=60, check=False)  # fmt: skip
        text = (done.stdout + done.stderr).replace(str(self.root), HOME)
        for prefix in sorted({sys.prefix, sys.base_prefix}, key=len, reverse=True):
            text = text.replace(prefix, "/usr")
        return re.sub(r"\b\d+\.\d+s\b", "0.004s", text), done.returncode

    def git(self, command: str) -> str:
        """Answer ``git log``, ``git status`` and ``git diff --stat`` as git would."""
        if command.startswith("git log"):
            return "\n".join(COMMITS)
        if command.startswith("git status"):
            return "\n".join(f"{' M' if name in self.first else '??'} {name}" for name in self.changed())
        return "\n".join(self.stat(name) for name in self.changed() if name in self.first)

    def changed(self) -> list[str]:
        """Return the paths that are new or no longer what they were."""
        return [name for name in self.names() if self.first.get(name) != self.text(name)]

    def stat(self, name: str) -> str:
        """Return a line of ``git diff --stat``."""
        lines = list(difflib.ndiff(self.first[name].splitlines(), self.text(name).splitlines()))
        more, less = (sum(line.startswith(mark) for line in lines) for mark in ("+ ", "- "))
        return f" {name} | {more + less} {'+' * more}{'-' * less}"


Call: TypeAlias = tuple[str, dict[str, Any]]


def call(tool: str, path: str | None = None, **given: Any) -> Call:
    """Return a tool call; ``path`` is spelled out for the tools that take one."""
    place = {} if path is None else {"path" if tool == "Grep" else "file_path": f"{HOME}/{path}".rstrip("/")}
    return tool, {**place, **given}


def digest(*words: object) -> bytes:
    """Return 16 bytes that depend on ``words`` alone."""
    return blake2b("\x00".join(map(str, words)).encode(), digest_size=16).digest()


def number(low: int, high: int, *words: object) -> int:
    """Return a number from ``low`` to ``high``, always the same for the same words."""
    return low + int.from_bytes(digest(*words)[:6], "big") % (high - low + 1)


@dataclass
class Session:
    """The record so far: its lines, the clock, what the prompt holds and what was shown when."""

    shop: Workshop
    lines: list[str] = field(default_factory=list)
    now: datetime = START
    asked: datetime = START - timedelta(days=1)
    steps: int = 0
    held: int = 0
    cached: int = 0
    parent: str | None = None
    shown: dict[str, Name] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    edited: dict[str, int] = field(default_factory=dict)

    def pause(self, seconds: float) -> None:
        """Let time go by."""
        self.now += timedelta(seconds=seconds)

    def stamp(self) -> str:
        """Return the time as the format spells it."""
        return self.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def line(self, kind: str, **more: Any) -> str:
        """Write a line that hangs under the one before, unless it names its own parent; return its id."""
        uuid = str(UUID(bytes=digest("line", len(self.lines)), version=4))
        line = {"parentUuid": self.parent, "isSidechain": False, "userType": "external", "cwd": HOME,
                "sessionId": str(UUID(bytes=digest("session"), version=4)), "version": "2.1.39",
                "gitBranch": "public-surface", "slug": "patient-tidal-kelp", "type": kind, **more,
                "uuid": uuid, "timestamp": self.stamp()}  # fmt: skip
        self.lines.append(json.dumps(line, ensure_ascii=False))
        self.parent = uuid
        return uuid

    def user(self, text: str, wait: float = 48) -> None:
        """Let the user speak after ``wait`` seconds."""
        if self.lines:
            self.line("system", subtype="turn_duration", durationMs=number(60_000, 400_000, text), isMeta=False)
        self.pause(wait)
        uuid = self.line("user", message={"role": "user", "content": text}, todos=[], permissionMode="acceptEdits")
        snapshot = {"messageId": uuid, "trackedFileBackups": {}, "timestamp": self.stamp()}
        self.lines.append(json.dumps({"type": "file-history-snapshot", "messageId": uuid, "snapshot": snapshot,
                                      "isSnapshotUpdate": False}))  # fmt: skip
        self.held += count(text) + 8

    def step(self, *calls: Call, text: str = "", thought: str = "") -> list[str]:
        """Let the assistant answer once: thought, words, calls; return what the tools said."""
        self.steps += 1
        self.pause(number(2_400, 13_000, "think", self.steps) / 1000)
        blocks: list[dict[str, Any]] = []
        if thought:
            signature = b64encode(b"".join(digest("seal", self.steps, turn) for turn in range(12))).decode()
            blocks.append({"type": "thinking", "thinking": thought, "signature": signature})
        if text:
            blocks.append({"type": "text", "text": text})
        for place, (tool, given) in enumerate(calls):
            name = f"toolu_01{b64encode(digest('call', self.steps, place), b'Az').decode()[:22]}"
            blocks.append({"type": "tool_use", "id": name, "name": tool, "input": given, "caller": {"type": "direct"}})
        answer = self.answer(blocks)
        apart = len(calls) > 1 and self.steps % 3 == 0
        open_calls = [(block, self.said(answer, block, apart)) for block in blocks] if apart else []
        results = [self.result(block, uuid) for block, uuid in open_calls if block["type"] == "tool_use"]
        for block in [] if apart else blocks:
            uuid = self.said(answer, block, apart)
            results += [self.result(block, uuid)] if block["type"] == "tool_use" else []
        return results

    def answer(self, blocks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the API message around ``blocks``, with the usage that a provider would report."""
        prompt = FRAME + round(FACTOR * self.held)
        warm = self.cached if (self.now - self.asked).total_seconds() < COLD else 0
        size = sum(count(json.dumps(block.get("input") or block.get("text") or block.get("thinking"))) for block in blocks)
        self.held += size + 8
        self.cached, self.asked = prompt - 3, self.now
        usage = {"input_tokens": 3, "cache_creation_input_tokens": prompt - 3 - warm, "cache_read_input_tokens": warm,
                 "cache_creation": {"ephemeral_5m_input_tokens": prompt - 3 - warm, "ephemeral_1h_input_tokens": 0},
                 "output_tokens": round(FACTOR * size), "service_tier": "standard"}  # fmt: skip
        stop = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
        return {"model": "claude-sonnet-4-5-20250929", "id": f"msg_01{digest('message', self.steps).hex()[:22]}",
                "type": "message", "role": "assistant", "stop_reason": stop, "stop_sequence": None, "usage": usage}  # fmt: skip

    def said(self, answer: dict[str, Any], block: dict[str, Any], apart: bool) -> str:  # noqa: FBT001
        """Write one block as a line of its own, and now and then what a hook or a running command says meanwhile."""
        self.pause(number(300, 1_900, "block", len(self.lines)) / 1000)
        request = f"req_011{digest('request', self.steps).hex()[:21]}"
        uuid = self.line("assistant", message={**answer, "content": [block]}, requestId=request)
        if block["type"] == "tool_use" and (apart or number(0, 5, "hook", uuid) == 0):
            data = {"type": "hook_progress", "hookEvent": "PreToolUse", "hookName": f"PreToolUse:{block['name']}",
                    "command": "callback"}  # fmt: skip
            self.line("progress", data=data, toolUseID=block["id"], parentToolUseID=block["id"])
        return uuid

    def result(self, block: dict[str, Any], uuid: str) -> str:
        """Run the tool of a call, write its result under the call's line, remember what it showed."""
        output, failed = self.shop.use(block["name"], block["input"])
        self.pause(number(40, 2_200, "tool", uuid) / 1000)
        told: dict[str, Any] = {"tool_use_id": block["id"], "type": "tool_result", "content": output}
        twin: Any = f"Error: {output}" if failed else {"type": "text"}
        if block["name"] == "Bash" or failed:
            told["is_error"] = failed
        if block["name"] == "Bash" and not failed:
            twin = {"stdout": output, "stderr": "", "interrupted": False, "isImage": False, "noOutputExpected": False}
        self.parent = uuid
        more = {"toolUseResult": twin} if len(output) < 2_000 else {}
        self.line("user", message={"role": "user", "content": [told]}, **more, sourceToolAssistantUUID=uuid)
        self.held += count(output) + 8
        path = block["input"].get("file_path", "").removeprefix(HOME + "/")
        if block["name"] == "Read" and path.endswith(".py"):
            for name in outline(path, self.shop.text(path)):
                if name.text in output and self.shown.get(name.name, name).path == path:
                    self.shown[name.name] = name
        self.seen |= {name: self.steps for name in self.shown if name in output}
        return output

    def recall(self, words: set[str], low: int = 20, high: int = 100) -> list[Name]:
        """Return the names among ``words`` last shown between ``low`` and ``high`` steps ago, the oldest first."""
        old = [name for name in sorted(words & self.seen.keys()) if low <= self.steps - self.seen[name] <= high]
        return [self.shown[name] for name in sorted(old, key=self.seen.__getitem__)]
