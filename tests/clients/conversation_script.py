"""What a conversation is about: its turns, and a model that does what the newest turn wants."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from msgspec import Struct

from holdfast.testing.provider.answers.script import list_tool_names
from holdfast.testing.provider.calls import ScriptedAnswer
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.request_pieces import PromptBlock

SYLLABLES = (
    "kel",
    "po",
    "hol",
    "da",
    "fast",
    "tide",
    "rok",
    "mir",
    "sand",
    "ul",
    "wra",
    "ck",
    "bri",
    "ne",
    "sur",
    "ge",
)
SYLLABLES_A_WORD = 5
LINES = 150
"""Of the tool's output: about 2,000 tokens, and below what any client cuts."""
SUMMARY = """\
<summary>
## Goal
Read the words of every turn.
## Progress
The turns so far were read, and each log was written.
## Next steps
Go on with the newest turn.
## Critical context
Nothing else.
</summary>"""


class Turn(Struct, frozen=True):
    """What the user says once: a text that no other turn has, and a command that the model is to run for it."""

    number: int
    name: str
    text: str
    lines: int
    """That the command prints."""

    @property
    def command(self) -> str:
        """The command of the shell that the model is to run."""
        return f"seq -f 'line %05g of the log that {self.name} wrote' 1 {self.lines}"

    @property
    def output(self) -> str:
        """What the command prints."""
        return "".join(f"line {number:05} of the log that {self.name} wrote\n" for number in range(1, self.lines + 1))


def turn(number: int, words: int, lines: int = LINES) -> Turn:
    """Return turn ``number`` with so many long words; the same number gives the same turn."""
    drawn = Random(number)
    said = [_word(drawn) for _ in range(words)]
    name = f"turn-{number:03}-{_word(drawn)}"
    text = f"{name}: please read these words: {' '.join(said)} and that was {name}."
    return Turn(number, name, text, lines)


def _word(drawn: Random) -> str:
    return "".join(drawn.choices(SYLLABLES, k=SYLLABLES_A_WORD))


class Model:
    """Runs the command of the newest turn once, then says that it is done; to anything else it writes a summary."""

    def __init__(self, tool: str = "", argument: str = "command") -> None:
        self.tool, self.argument = tool, argument
        self.turn: Turn | None = None

    def choose_next_answer(self, request: ProviderRequest, blocks: Sequence[PromptBlock]) -> ScriptedAnswer:
        """Return the next answer."""
        newest = [block.rendering.text for block in _newest(blocks)]
        name = self.turn.name if self.turn else ""
        if not name or not any(name in block.rendering.text for block in blocks) or _summarises(newest):
            return ScriptedAnswer(SUMMARY)
        if self.tool in list_tool_names(request) and any(name in text for text in newest if _is_words(text)):
            return ScriptedAnswer("", ((self.tool, self._arguments()),))
        return ScriptedAnswer(f"done {name}")

    def _arguments(self) -> dict[str, Any]:
        described = {"description": "write the log"} if self.tool in DESCRIBED else {}
        return {self.argument: self.turn.command if self.turn else "", **described}


DESCRIBED = ("Bash", "bash", "run_shell_command")
"""Tools that take a description beside their command."""
_ANSWERS = ("assistant", "model", "function_call", "reasoning")
_RESULTS = ("tool_result", "function_call_output")


def _newest(blocks: Sequence[PromptBlock]) -> list[PromptBlock]:
    """Return the words behind the last answer; nothing where a tool's result is among them."""
    last = max((at for at, block in enumerate(blocks) if block.role in _ANSWERS), default=-1)
    behind = [block for block in blocks[last + 1 :] if block.section == "messages"]
    return [] if any(_is_result(block) for block in behind) else behind


def _is_result(block: PromptBlock) -> bool:
    is_gemini = isinstance(block.value, dict) and "functionResponse" in block.value
    return block.kind in _RESULTS or block.role == "tool" or is_gemini


def _is_words(text: str) -> bool:
    return "please read these words" in text


def _summarises(newest: Sequence[str]) -> bool:
    return any(
        sign in text for text in newest for sign in ("Respond with TEXT ONLY", "CONTEXT CHECKPOINT", "<state_snapshot>")
    )
