"""Record the three sessions of docs/forgotten-rule.md: a coding agent breaks a rule that it was given early.

    uv run python docs/forgotten_rule.py forgotten-rule.db
    uv run holdfast inspect --store forgotten-rule.db

Nothing leaves this machine: a strict provider answers by a script, refuses any request over 32,000 tokens, and writes
the summaries of the first session, of which the second loses the rule.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

from holdfast import Engine, Message, Policy, Session, Text, ToolCall, ToolResult, get_target
from holdfast.testing.provider import Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.request_pieces import PromptBlock
from holdfast.testing.upstream import ProviderUpstream

API, MODEL, WINDOW = "anthropic", "claude-sonnet-5-5", 32_000
RULE = "Never change a file under vendor/, not even its white space: the license forbids patched copies."
FILES = [
    *("shop/cart.py", "shop/checkout.py", "shop/invoice.py", "shop/refund.py", "shop/voucher.py"),
    *("shop/report.py", "shop/export.py", "shop/stock.py", "shop/tax.py", "shop/mail.py"),
]
ROUNDS = 4
"""How often the agent goes through all files: as often as the sessions need to be compacted twice."""
SUMMARY_HINT = "(what the user wants to have in the end)"
"""A line of the form that a request for a summary asks for."""
READ_BACK = (("recall", {"id": "", "search": "vendor"}),)
VENDOR_FILE = "vendor/money/format.py"
NEXT_ROUNDS = [
    "Good. Now the same files again for the totals.",
    "Next the discounts, again in all files.",
    "Last the rounding of taxes: the exported sums are one cent off. Find out where, and correct it.",
]
"""What the user says after each round but the last."""


def make_schema(*names: str) -> dict[str, object]:
    """Return the schema of a tool whose arguments are all texts."""
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": list(names[:1])}


TOOLS = [
    {"name": "read", "description": "Reads a file.", "input_schema": make_schema("path")},
    {"name": "edit", "description": "Replaces a text in a file.", "input_schema": make_schema("path", "old", "new")},
    {"name": "recall", "description": "Reads back what is not shown.", "input_schema": make_schema("id", "search")},
]
FIELDS = {"max_tokens": 1_000, "tools": TOOLS, "system": "You are a coding agent. Work step by step."}


def write_specification(rule: str) -> str:
    """Return a long pasted specification with ``rule`` in its middle; without it if it is empty."""
    lines = ["Please do what this specification says, and go on until everything is done.", "", "# Amounts in the shop"]
    for number, path in enumerate(FILES, 1):
        lines += [
            f"## {number}. {path}",
            f"Amounts of {path} are stored as cents and shown with two digits and the sign of the currency.",
            f"Rounding is half to even. A total of {path} is the sum of its lines, and tests compare exact text.",
        ]
        if number == len(FILES) // 2 and rule:
            lines += ["## Libraries", "The library for amounts is vendor/money, version 2.3.", rule]
    lines += ["## At the end", "Say what was changed in each file, and what you were not sure of."]
    return "\n".join(lines)


def write_guide() -> str:
    """Return a long guide for contributors with the rule in its middle: a result that is shortened at once."""
    lines = [f"{number}. Guideline {number}: a change has a test, a reason and a reviewer." for number in range(900)]
    lines[450] = f"450. {RULE}"
    return "# CONTRIBUTING\n" + "\n".join(lines)


def write_file(path: str) -> str:
    """Return the text of a file of the shop."""
    return "\n".join(
        f"def line_{number}(cents): return round_half_even(cents * {number} / 100)  # {path}" for number in range(60)
    )


def write_summary(*, is_first: bool) -> str:
    """Return the summary that a model writes: the first quotes the rule, the second drops it to be short."""
    limits = RULE if is_first else "Tests compare exact text."
    done = "the first round" if is_first else "three rounds"
    return f"""## Goal
- Show amounts in the shop with two digits, as the user's specification says.
## Constraints & Preferences
- Amounts are cents, rounded half to even.
- {limits}
## Progress
### Done
- shop/cart.py to shop/mail.py: {done}.
### In Progress
- The next round over the same files: totals, discounts, taxes.
### Blocked
- (none)
## Key Decisions
- Totals are sums of rounded lines, because the specification asks for it.
## Next Steps
- Go on with the files in their order.
## Critical Context
- The library for amounts is vendor/money, version 2.3.
## Relevant Files
- {", ".join(FILES)}"""


class ScriptedAgent:
    """The model: it reads and edits all files in turn, breaks the rule, and reads the rule back when asked about it."""

    def __init__(self, *, reads_guide: bool) -> None:
        self._reads_guide = reads_guide
        self._steps = self._list_steps()

    def choose_next_answer(self, request: ProviderRequest, blocks: Sequence[PromptBlock]) -> ScriptedAnswer:
        """Return a summary where one is asked for, and else the next step of the work."""
        del request
        shown = "\n".join(block.rendering.text for block in blocks)
        if SUMMARY_HINT in shown:
            return ScriptedAnswer(write_summary(is_first=NEXT_ROUNDS[1] not in shown))
        if not self._steps:
            return ScriptedAnswer("There is nothing left to do.")
        step = self._steps.pop(0)
        if step.calls == READ_BACK:
            # The search before it listed the messages with the words, the newest first: the guide is the last.
            ids = re.findall(r'recall\(id="([0-9a-f]{32})"', shown)
            return ScriptedAnswer(step.text, (("recall", {"id": ids[-1], "search": "vendor"}),))
        return step

    def _list_steps(self) -> list[ScriptedAnswer]:
        steps = []
        if self._reads_guide:
            steps.append(ScriptedAnswer("First the guide.", (("read", {"path": "CONTRIBUTING.md"}),)))
        for number in range(ROUNDS):
            for path in FILES:
                steps.append(ScriptedAnswer(f"Round {number + 1}: {path}.", (("read", {"path": path}),)))
                change = {"path": path, "old": f"line_{number}", "new": f"total_{number}"}
                steps.append(ScriptedAnswer("", (("edit", change),)))
            if number < ROUNDS - 1:
                steps.append(ScriptedAnswer(f"Round {number + 1} is done."))
        patch = {"path": VENDOR_FILE, "old": "ROUND_HALF_UP", "new": "ROUND_HALF_EVEN"}
        steps.append(ScriptedAnswer("The library rounds the other way, so I correct it there.", (("edit", patch),)))
        steps.append(ScriptedAnswer(f"Done: ten files of shop/ and {VENDOR_FILE} are changed."))
        if self._reads_guide:
            steps.append(ScriptedAnswer("I look it up.", (("recall", {"search": "vendor license"}),)))
            steps.append(ScriptedAnswer("", READ_BACK))
            steps.append(
                ScriptedAnswer(f"You are right, the guide forbids it. I should not have changed {VENDOR_FILE}.")
            )
        else:
            steps.append(ScriptedAnswer("I was not aware of such a rule."))
        return steps


async def run_call(session: Session, call: ToolCall) -> ToolResult:
    """Return the result of a call."""
    arguments = json.loads(call.arguments)
    if call.name == "recall":
        text = (await session.answer_recall(arguments)).text
    elif call.name == "edit":
        text = f"1 place of {arguments['path']} was changed."
    elif arguments["path"] == "CONTRIBUTING.md":
        text = write_guide()
    else:
        text = write_file(arguments["path"])
    return ToolResult(call.id, call.name, (Text(text),))


async def record_session(store: str, name: str, title: str, policy: Policy, *, reads_guide: bool, writer: str) -> None:
    """Record one session: the work, then the user's question about the broken rule. ``writer`` writes summaries."""
    provider = Provider(ProviderSettings(window=WINDOW, tokenizer="words"), ScriptedAgent(reads_guide=reads_guide))
    target = get_target(API, MODEL, window=WINDOW)
    upstream = ProviderUpstream(provider)
    async with Engine.open(
        store, upstream=upstream, target=target, policy=policy, fields=FIELDS, summary_model=writer
    ) as engine:
        session = await engine.session(name)
        store_of_session = session.resources.store
        await session.resources.run_in_worker(
            lambda: store_of_session.update_session_info(name, title=title, model=MODEL, cwd="/srv/shop")
        )
        rule = "Read CONTRIBUTING.md first: its rules hold." if reads_guide else RULE
        questions = [write_specification(rule), *NEXT_ROUNDS, f"You changed {VENDOR_FILE}. Why? It was forbidden."]
        for question in questions:
            answer = await session.ask(question)
            while answer.message.calls:
                results = [await run_call(session, call) for call in answer.message.calls]
                await session.append(Message("tool", tuple(results)))
                answer = await session.ask()


async def record_all(store: str) -> None:
    """Record the three sessions into ``store``."""
    summary_alone = Policy().with_settings(summary={"supplement": False})
    await record_session(store, "forgotten", "Amounts with two digits", summary_alone, reads_guide=False, writer=MODEL)
    await record_session(store, "ignored", "Amounts, second try", Policy(), reads_guide=False, writer="")
    await record_session(store, "guide", "Amounts, with our guide", Policy(), reads_guide=True, writer="")


if __name__ == "__main__":
    if len(sys.argv) != 2 or Path(sys.argv[1]).exists():
        sys.exit("Give the path of a new store: python docs/forgotten_rule.py forgotten-rule.db")
    anyio.run(record_all, sys.argv[1])
