"""The session formats of other tools that can be written and read, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdfast.formats.atif import read as atif
from holdfast.formats.atif import write as atif_write
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


class SessionFormat(NamedTuple):
    """The writer and the reader of one tool's session format."""

    write: Callable[[Recording], bytes]
    read: Callable[[bytes], Recording]
    holds_one_conversation: bool = True
    """Whether a file holds a single conversation, without those of its sub-agents."""


SESSION_FORMATS: Mapping[str, SessionFormat] = {
    "atif": SessionFormat(atif_write.write_atif, atif.read_atif, holds_one_conversation=False),
    "claude-code": SessionFormat(
        claude_write.write_claude_code,
        claude_code.read_claude_code,
        holds_one_conversation=False,
    ),
    "codex": SessionFormat(codex_write.write_codex, codex.read_codex),
    "gemini-cli": SessionFormat(gemini_cli_write.write_gemini_cli, gemini_cli.read_gemini_cli),
    "opencode-json": SessionFormat(opencode_write.write_opencode_export, opencode.read_opencode),
    "pi": SessionFormat(pi_write.write_pi, pi.read_pi),
}
"""Every session format that is text. The opencode database is not: ``store/foreign`` writes it."""
