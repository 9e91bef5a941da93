"""The recorded session: lines in Claude Code's format, a clock, and which step showed which name.

An API message with several blocks becomes several lines with the same message id and usage. A result's parent is the
line of its call. Ids and times come from counters.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any
from uuid import UUID

from session_tools import HOME, Call, Name, Workshop, outline

from holdfast.messages.size.tokens import estimate_text_tokens

START = datetime(2026, 3, 9, 8, 41, 12, tzinfo=UTC)
"""Start of the session."""
FRAME, FACTOR, COLD = 10_000, 1.25, 300
"""Tokens of system prompt and tools; provider tokens per estimated token; seconds until a prompt cache is cold."""


def digest(*words: object) -> bytes:
    """Return 16 bytes that depend on ``words`` alone."""
    return blake2b("\x00".join(map(str, words)).encode(), digest_size=16).digest()


def number(low: int, high: int, *words: object) -> int:
    """Return a number from ``low`` to ``high`` that depends on ``words`` alone."""
    return low + int.from_bytes(digest(*words)[:6], "big") % (high - low + 1)


@dataclass
class Session:
    """The session so far: its lines, the clock, the size of the prompt, and which step showed which name."""

    shop: Workshop
    lines: list[str] = field(default_factory=list)
    now: datetime = START
    began: datetime = START
    asked: datetime = START - timedelta(days=1)
    steps: int = 0
    held: int = 0
    cached: int = 0
    parent: str | None = None
    shown: dict[str, Name] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    edited: dict[str, int] = field(default_factory=dict)

    def pause(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += timedelta(seconds=seconds)

    def stamp(self) -> str:
        """Return the time in the format's notation."""
        return self.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def line(self, kind: str, **more: object) -> str:
        """Write a line and return its id. Its parent is the previous line unless it names another."""
        uuid = str(UUID(bytes=digest("line", len(self.lines)), version=4))
        line = {
            "parentUuid": self.parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": HOME,
            "sessionId": str(UUID(bytes=digest("session"), version=4)),
            "version": "2.1.39",
            "gitBranch": "public-surface",
            "slug": "patient-tidal-kelp",
            "type": kind,
            **more,
            "uuid": uuid,
            "timestamp": self.stamp(),
        }
        self.lines.append(json.dumps(line, ensure_ascii=False))
        self.parent = uuid
        return uuid

    def user(self, text: str, wait: float = 48) -> None:
        """Add a user message after ``wait`` seconds."""
        if self.lines:
            took = round((self.now - self.began).total_seconds() * 1000)
            self.line("system", subtype="turn_duration", durationMs=took, isMeta=False)
        self.pause(wait)
        self.began = self.now
        uuid = self.line("user", message={"role": "user", "content": text}, todos=[], permissionMode="acceptEdits")
        snapshot = {"messageId": uuid, "trackedFileBackups": {}, "timestamp": self.stamp()}
        self.lines.append(
            json.dumps(
                {"type": "file-history-snapshot", "messageId": uuid, "snapshot": snapshot, "isSnapshotUpdate": False}
            )
        )
        self.held += estimate_text_tokens(text) + 8

    def step(self, *calls: Call, text: str = "", thought: str = "") -> list[str]:
        """Add one answer of the assistant (thinking, text, calls); return the results of its calls."""
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
        size = sum(
            estimate_text_tokens(json.dumps(block.get("input") or block.get("text") or block.get("thinking")))
            for block in blocks
        )
        self.held += size + 8
        self.cached, self.asked = prompt - 3, self.now
        usage = {
            "input_tokens": 3,
            "cache_creation_input_tokens": prompt - 3 - warm,
            "cache_read_input_tokens": warm,
            "cache_creation": {"ephemeral_5m_input_tokens": prompt - 3 - warm, "ephemeral_1h_input_tokens": 0},
            "output_tokens": round(FACTOR * size),
            "service_tier": "standard",
        }
        stop = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
        return {
            "model": "claude-sonnet-4-5-20250929",
            "id": f"msg_01{digest('message', self.steps).hex()[:22]}",
            "type": "message",
            "role": "assistant",
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": usage,
        }

    def said(self, answer: dict[str, Any], block: dict[str, Any], apart: bool) -> str:
        """Write a block as a line of its own, sometimes with the output of a hook or a running command."""
        self.pause(number(300, 1_900, "block", len(self.lines)) / 1000)
        request = f"req_011{digest('request', self.steps).hex()[:21]}"
        uuid = self.line("assistant", message={**answer, "content": [block]}, requestId=request)
        if block["type"] == "tool_use" and (apart or number(0, 5, "hook", uuid) == 0):
            data = {
                "type": "hook_progress",
                "hookEvent": "PreToolUse",
                "hookName": f"PreToolUse:{block['name']}",
                "command": "callback",
            }
            self.line("progress", data=data, toolUseID=block["id"], parentToolUseID=block["id"])
        return uuid

    def result(self, block: dict[str, Any], uuid: str) -> str:
        """Run a call's tool, write its result below the call's line, and remember the names that it showed."""
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
        self.held += estimate_text_tokens(output) + 8
        path = block["input"].get("file_path", "").removeprefix(HOME + "/")
        if block["name"] == "Read" and path.endswith(".py") and not failed:
            for name in outline(path, self.shop.text(path)):
                if name.text in output and self.shown.get(name.name, name).path == path:
                    self.shown[name.name] = name
        self.seen |= {name: self.steps for name, at in self.shown.items() if at.text in output}
        return output

    def recall(self, words: set[str], low: int = 20, high: int = 100) -> list[Name]:
        """Return names among ``words``, the oldest first, last defined on screen ``low`` to ``high`` steps ago."""
        old = [name for name in sorted(words & self.seen.keys()) if low <= self.steps - self.seen[name] <= high]
        return [self.shown[name] for name in sorted(old, key=self.seen.__getitem__)]
