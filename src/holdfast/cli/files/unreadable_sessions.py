"""Find sessions of known tools on this machine that cannot be read, within a time limit."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from holdfast.cli.files.recordings import iter_recordings
from holdfast.cli.files.user_paths import SessionTool, list_session_files
from holdfast.cli.output.errors import EXPECTED_ERRORS, describe_error, prefix_file_name
from holdfast.store.open_store import expand_home

SCAN_SECONDS = 5.0
"""Seconds that all tools together may take. Chosen by judgement: who asks for a check waits that long; a session of a
few megabytes takes some tens of milliseconds."""
_MAX_COUNTED_FILES = 100_000
"""Files of a tool without a reader that are counted; more are many too."""
_KNOWN_FORMATS = re.compile(r"[.;] Understood are .*$", re.DOTALL)
_NO_READER = "Holdfast has no reader for them"
_COMPRESSED = "they are compressed; unpack one with zstd -d and import what that writes"


class UnreadableSessions(Struct, frozen=True):
    """Sessions of a tool that cannot be read for the same reason: how many, and one of them."""

    tool: str
    reason: str
    count: int
    example: str


class SessionScan(Struct, frozen=True):
    """What a look at the sessions of one tool gave."""

    total: int
    """Files that were found."""
    looked_at: int
    """Files that were read before the time was over, the newest first."""
    unreadable: tuple[UnreadableSessions, ...] = ()


class UnreadTool(NamedTuple):
    """A tool that has no reader: its folder below the home folder, and the pattern of its sessions there."""

    name: str
    folder: str
    pattern: str


_UNREAD_TOOLS = (
    UnreadTool("Qwen Code", ".qwen/projects", "*/chats/*.jsonl"),
    UnreadTool("Factory Droid", ".factory/sessions", "**/*.jsonl"),
    UnreadTool("Cursor", ".cursor/projects", "*/agent-transcripts/**/*.jsonl"),
    UnreadTool("Kimi CLI", ".kimi/sessions", "*/*/context.jsonl"),
    UnreadTool("Kimi Code", ".kimi-code/sessions", "*/*/agents/main/wire.jsonl"),
    UnreadTool("Amp", ".local/share/amp/threads", "T-*.json"),
    UnreadTool("Crush", ".local/share/crush", "crush.db"),
    UnreadTool("Continue", ".continue/sessions", "*.json"),
    UnreadTool("Augment", ".augment/sessions", "*.json"),
    UnreadTool("opencode before 1.2", ".local/share/opencode/storage/session", "*/*.json"),
)
"""Places as the tools' own documents name them, or as the reports at ``formats/look_alikes.py`` do."""


class _OutOfTimeError(Exception):
    """The time for looking at sessions is over."""


def scan_session_tool(tool: SessionTool, deadline: float) -> SessionScan:
    """Read the sessions of a tool until ``deadline`` (``time.monotonic``), the newest first."""
    files = list_session_files(tool)
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    looked_at = 0
    for path in files:
        try:
            for reason in _iter_read_errors(path, deadline):
                counts[reason] += 1
                examples.setdefault(reason, str(path))
        except _OutOfTimeError:
            break
        looked_at += 1
    compressed = sorted(tool.folder.glob("**/rollout-*.jsonl.zst")) if tool.name == "Codex" else []
    if compressed:
        counts[_COMPRESSED] = len(compressed)
        examples[_COMPRESSED] = str(compressed[-1])
    groups = [UnreadableSessions(tool.name, reason, count, examples[reason]) for reason, count in counts.most_common()]
    return SessionScan(len(files), looked_at, tuple(groups))


def find_unread_tools() -> Iterator[UnreadableSessions]:
    """Yield the tools without a reader that have sessions on this machine."""
    for tool in _UNREAD_TOOLS:
        folder = expand_home("~") / tool.folder
        count = 0
        example = ""
        for path in folder.glob(tool.pattern):
            count += 1
            example = example or str(path)
            if count >= _MAX_COUNTED_FILES:
                break
        if count:
            yield UnreadableSessions(tool.name, _NO_READER, count, example)


def _iter_read_errors(path: Path, deadline: float) -> Iterator[str]:
    """Read every session in a file, and yield why one cannot be read. Raises ``_OutOfTimeError``."""

    def stop_in_time(_done: int = 0, _size: int = 0) -> None:
        if time.monotonic() > deadline:
            raise _OutOfTimeError

    stop_in_time()
    try:
        for source in iter_recordings(str(path), progress=stop_in_time):
            stop_in_time()
            try:
                source.read()
            except EXPECTED_ERRORS as error:
                yield _describe_reason(path, error)
    except EXPECTED_ERRORS as error:
        yield _describe_reason(path, error)


def _describe_reason(path: Path, error: BaseException) -> str:
    """Return why a session cannot be read, without its name, so that equal reasons are counted together."""
    reason = describe_error(error).replace(f"{path}: ", "").replace(str(path), "it")
    return prefix_file_name("", _KNOWN_FORMATS.sub("", reason))
