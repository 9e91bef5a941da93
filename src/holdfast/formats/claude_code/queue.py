"""What the user typed while Claude Code worked: which of it stands in no other line of the transcript.

The tool puts such words into a queue and logs each step: ``enqueue`` with the words, then ``remove`` (given to the
model in the middle of a turn), ``dequeue`` (begins the next turn) or ``popAll`` (taken back into the input line, so
never said). Since early 2026 words given in the middle of a turn are also an ``attachment`` of type
``queued_command``; words that begin a turn become a user line. Whatever has no user line is a message of its own:
agentsview#401 (2026-04-26), simonw/claude-code-transcripts#98 (2026-04-23), claude-code#30623 (2026-03-04).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

LONG_PROMPT = 40
"""Characters from which the same words again are the same prompt, wherever the client wrote them.

Chosen by judgement: people repeat "go on" or "yes, do that" within a session, but hardly a sentence of that length.
"""
_CANCELLING_OPERATIONS = frozenset({"popAll", "cancel", "clear"})
"""``popAll`` is what the tool logs today; the others are read the same way, should a version write them."""
_MACHINE_PREFIXES = ("<task-notification>", "<teammate-message", "<tick>", "<bash-", "<local-command", '{"task_id":')
"""Beginnings of queued texts that programs wrote: ends of background tasks, messages of other agents."""
_SLASH_COMMAND = re.compile(
    r"/(?:[A-Za-z][\w:.-]*\s*\Z|[A-Za-z][\w.-]*:[\w:.-]+(?:\s|\Z)"
    r"|(?:add-dir|agents|bug|clear|compact|config|context|cost|doctor|export|help|hooks|init|login|logout|mcp|memory"
    r"|model|output-style|permissions|plugin|resume|review|rewind|status|todos|usage|vim)(?:\s|\Z))"
)
"""A command of the client itself: one word, or a known command with more words after it.

"/tmp is full, clean it" begins in the same way, and what a user typed must not be lost, so a command that is not known
is taken for words. One of a plugin has a colon in its name.
"""
_PASTE_MARKS = ("[Pasted text #", "[Image #", "[...Truncated text #")
"""What stands in a queued prompt for something pasted."""
_INJECTED_PREFIXES = (*_MACHINE_PREFIXES, "<command-name>", "<command-message>", "[Request interrupted")
"""Beginnings of user lines that are not words of the user."""


class QueuedPrompt(Struct):
    """Words in the queue. ``record`` is the index of the line that holds them."""

    text: str
    record: int
    place: int
    """Index of the line at which the model got them; that of ``record`` before."""
    is_typed: bool = True
    """Whether they are the user's and meant for the model."""
    is_attached: bool = False
    """Whether the line is an attachment."""
    begins_turn: bool = False
    """Whether a turn was begun with them and no answer has come since, so that their user line is due."""
    is_fresh: bool = True
    """Whether no other user line has come since the model got them."""


class PromptQueue:
    """Follows the queue through the lines of a file, given in order."""

    def __init__(self) -> None:
        self._waiting: list[QueuedPrompt] = []
        self._delivered: list[QueuedPrompt] = []
        """Prompts that the model got and that no user line holds yet."""

    def add_operation(self, operation: str, text: str, record: int) -> None:
        """Take a ``queue-operation`` line into account; ``text`` is empty if the line has none."""
        if operation == "enqueue":
            self._waiting.append(QueuedPrompt(text, record, record, is_typed=_is_typed_prompt(text)))
        elif operation in _CANCELLING_OPERATIONS:
            self._take_waiting(text)
        elif operation in ("dequeue", "remove"):
            prompt = self._take_waiting()
            if prompt is not None and prompt.is_typed:
                prompt.place = record
                prompt.begins_turn = operation == "dequeue"
                self._delivered.append(prompt)

    def add_attachment(self, text: str, record: int) -> None:
        """Take words into account that an attachment gave to the model; it stands for the queued ones."""
        for prompts in (self._delivered, self._waiting):
            twin = next((prompt for prompt in prompts if prompt.text == text and not prompt.is_attached), None)
            if twin is not None:
                prompts.remove(twin)
                break
        self._delivered.append(QueuedPrompt(text, record, record, is_attached=True))

    def add_user_line(self, text: str) -> list[int]:
        """Take a user line into account, and return the records of attachments whose words it repeats."""
        if not text or text.startswith(_INJECTED_PREFIXES):
            return []
        repeated = list(self._find_repeated(text))
        if not repeated:
            for prompt in self._delivered:
                prompt.is_fresh = False
            return []
        self._delivered = [prompt for prompt in self._delivered if prompt not in repeated]
        self._waiting = [prompt for prompt in self._waiting if prompt not in repeated]
        return [prompt.record for prompt in repeated]

    def add_answer(self) -> None:
        """Take a line of the model into account."""
        for prompt in self._delivered:
            prompt.begins_turn = False

    def list_unwritten_prompts(self) -> list[QueuedPrompt]:
        """Return the prompts of the user that no user line holds, in the order in which the model got them."""
        waiting = [prompt for prompt in self._waiting if prompt.is_typed]
        return sorted([*self._delivered, *waiting], key=lambda prompt: (prompt.place, prompt.record))

    def _take_waiting(self, text: str = "") -> QueuedPrompt | None:
        """Remove and return the next prompt, or the one with this text; None if nothing waits.

        The tool takes what the user typed before notifications of background tasks.
        """
        if not self._waiting:
            return None
        same_text = [prompt for prompt in self._waiting if text and prompt.text == text]
        typed = [prompt for prompt in self._waiting if not prompt.text.startswith(_MACHINE_PREFIXES)]
        prompt = (same_text or typed or self._waiting)[0]
        self._waiting.remove(prompt)
        return prompt

    def _find_repeated(self, text: str) -> Iterator[QueuedPrompt]:
        """Yield the prompts that a user line with ``text`` holds."""
        prompts = [prompt for prompt in (*self._delivered, *self._waiting) if prompt.is_typed]
        same = [prompt for prompt in prompts if prompt.text == text and (prompt.is_fresh or len(text) >= LONG_PROMPT)]
        # Older versions send everything that waited as one message, a line each.
        joined = [prompt for prompt in prompts if prompt.is_fresh and f"\n{prompt.text}\n" in f"\n{text}\n"]
        if same or joined:
            yield from same or joined
            return
        for prompt in prompts:
            # Pasted texts are written out in the line, and hooks may have added to it.
            is_changed = prompt.text in text or any(mark in prompt.text for mark in _PASTE_MARKS)
            if prompt.begins_turn and is_changed:
                yield prompt
                return


def _is_typed_prompt(text: str) -> bool:
    """Return whether a queued text is the user's own words for the model."""
    return bool(text) and not text.startswith(_MACHINE_PREFIXES) and _SLASH_COMMAND.match(text) is None
