"""The script of a conversation: its turns, and a model that does what the newest turn asks for."""

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
    """One turn of the user: a unique text, and a command that the model is to run for it."""

    number: int
    name: str
    text: str
    lines: int
    """Lines that the command prints."""

    @property
    def command(self) -> str:
        """The shell command that the model is to run."""
        return f"seq -f 'line %05g of the log that {self.name} wrote' 1 {self.lines}"

    @property
    def output(self) -> str:
        """The command's output."""
        return "".join(f"line {number:05} of the log that {self.name} wrote\n" for number in range(1, self.lines + 1))


def make_turn(number: int, words: int, lines: int = LINES) -> Turn:
    """Return turn ``number`` with ``words`` long words; the same number gives the same turn."""
    random = Random(number)
    words_of_turn = [_make_word(random) for _ in range(words)]
    name = f"turn-{number:03}-{_make_word(random)}"
    text = f"{name}: please read these words: {' '.join(words_of_turn)} and that was {name}."
    return Turn(number, name, text, lines)


def _make_word(random: Random) -> str:
    return "".join(random.choices(SYLLABLES, k=SYLLABLES_A_WORD))


class Model:
    """A model that runs the newest turn's command once and then is done; it answers anything else with a summary."""

    def __init__(self, tool: str = "", argument: str = "command") -> None:
        self.tool, self.argument = tool, argument
        self.turn: Turn | None = None

    def choose_next_answer(self, request: ProviderRequest, blocks: Sequence[PromptBlock]) -> ScriptedAnswer:
        """Return the next answer."""
        newest = [block.rendering.text for block in _get_newest_blocks(blocks)]
        name = self.turn.name if self.turn else ""
        if not name or not any(name in block.rendering.text for block in blocks) or _asks_for_summary(newest):
            return ScriptedAnswer(SUMMARY)
        if self.tool in list_tool_names(request) and any(name in text for text in newest if _asks_to_read(text)):
            return ScriptedAnswer("", ((self.tool, self._arguments()),))
        return ScriptedAnswer(f"done {name}")

    def _arguments(self) -> dict[str, Any]:
        extra_arguments = {"description": "write the log"} if self.tool in DESCRIBED else {}
        return {self.argument: self.turn.command if self.turn else "", **extra_arguments}


DESCRIBED = ("Bash", "bash", "run_shell_command")
"""Tools that need a description besides the command."""
_ANSWERS = ("assistant", "model", "function_call", "reasoning")
_RESULTS = ("tool_result", "function_call_output")


def _get_newest_blocks(blocks: Sequence[PromptBlock]) -> list[PromptBlock]:
    """Return the blocks after the last answer, or none if a tool result is among them."""
    last = max((at for at, block in enumerate(blocks) if block.role in _ANSWERS), default=-1)
    after_answer = [block for block in blocks[last + 1 :] if block.section == "messages"]
    return [] if any(_is_result(block) for block in after_answer) else after_answer


def _is_result(block: PromptBlock) -> bool:
    is_gemini = isinstance(block.value, dict) and "functionResponse" in block.value
    return block.kind in _RESULTS or block.role == "tool" or is_gemini


def _asks_to_read(text: str) -> bool:
    return "please read these words" in text


def _asks_for_summary(newest: Sequence[str]) -> bool:
    return any(
        sign in text for text in newest for sign in ("Respond with TEXT ONLY", "CONTEXT CHECKPOINT", "<state_snapshot>")
    )
