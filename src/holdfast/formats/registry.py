"""The forms of tools in which a log can be written: who writes each, and who reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdfast.formats.base import Recording
from holdfast.formats.claude_code import read as claude_code
from holdfast.formats.claude_code import write as claude_write
from holdfast.formats.codex import read as codex
from holdfast.formats.codex import write as codex_write
from holdfast.formats.gemini_cli import read as gemini_cli
from holdfast.formats.gemini_cli import write as gemini_cli_write
from holdfast.formats.opencode import read as opencode
from holdfast.formats.opencode import write as opencode_write
from holdfast.formats.pi import read as pi
from holdfast.formats.pi import write as pi_write


class Form(NamedTuple):
    """A tool's form."""

    write: Callable[[Recording], bytes]
    read: Callable[[bytes], Recording]
    is_one: bool = True
    """Whether a file holds one conversation, without those of its sub-agents."""


TOOLS: Mapping[str, Form] = {
    "claude-code": Form(claude_write.write, claude_code.read, is_one=False),
    "codex": Form(codex_write.write, codex.read),
    "gemini-cli": Form(gemini_cli_write.write, gemini_cli.read),
    "opencode-json": Form(opencode_write.write, opencode.read),
    "pi": Form(pi_write.write, pi.read),
}
"""Every form of a tool that is text."""
