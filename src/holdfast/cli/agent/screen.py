"""The terminal output of an agent at work: its words, a line for each call, and changes of the context."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click
from rich.text import Text

from holdfast import events
from holdfast.agent.loop import TextDelivered, ToolFinished, ToolStarted
from holdfast.cli.output.terminal import make_console, print_line, print_wrapped
from holdfast.messages.message import get_result_text
from holdfast.messages.references import decode_call_arguments
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.reports.requests.request_size import format_tokens
from holdfast.state.costs import divide_or_zero

_TERMINAL_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control a terminal, except line ends and tabs; and lone surrogates, which cannot be printed."""
_SHOWN_ARGUMENTS = ("command", "path", "pattern", "folder", "id", "search")
"""The first of these arguments that a call has is shown to stand for the call."""
_LINE_LENGTH = 200
"""Characters of a call, a result or an error that are shown."""


class AgentScreen:
    """Prints the model's words on standard output and everything else on standard error; nothing if ``quiet``."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.share = 0.0
        """How much of the window the last request took."""
        self._out = make_console(stderr=True)
        self._is_amid = False
        self._why = ""
        """What was said at the last refusal."""

    def show_event(self, item: object) -> None:
        """Show one event."""
        if isinstance(item, events.RequestStarted):
            self.share = divide_or_zero(item.tokens, item.window)
        if isinstance(item, events.RequestRefused):
            self._why = item.why
        if self.quiet:
            return
        if isinstance(item, TextDelivered):
            self._print_words(item)
            return
        line = _format_event(item)
        if isinstance(item, events.RetryScheduled):
            # The event does not say why the request failed; the refusal before it does.
            line = f"{line}: {clean_single_line(self._why, _LINE_LENGTH)}"
        if line is not None:
            self._start_new_line()
            print_line(self._out, Text(f"{min(1, self.share):4.0%}  {line}", style="dim"))

    def print_note(self, line: str, style: str = "dim") -> None:
        """Print the whole line on standard error, beside the model's words."""
        if not self.quiet:
            self._start_new_line()
            print_wrapped(self._out, Text(clean_single_line(line), style=style))

    def print_text(self, text: str) -> None:
        """Print ``text`` on standard output without characters that control a terminal."""
        click.echo(_TERMINAL_CONTROLS.sub("\ufffd", text))

    def _start_new_line(self) -> None:
        """End the model's unfinished line, if there is one."""
        if self._is_amid:
            click.echo()
            self._is_amid = False

    def _print_words(self, words: TextDelivered) -> None:
        click.echo(_TERMINAL_CONTROLS.sub("\ufffd", words.text), nl=words.is_end)
        self._is_amid = not words.is_end


def _format_event(item: object) -> str | None:
    """Format an event on one line, or return None for events that are not shown."""
    match item:
        case ToolStarted(call):
            return f"{call.name} {_format_arguments(decode_call_arguments(call))}".rstrip()
        case ToolFinished(_, result):
            prefix = "failed: " if result.is_error else ""
            return f"  {prefix}{_format_result(get_result_text(result))}"
        case events.CompactionEnded(outcome="compacted", author=by, tokens_before=before, tokens_after=after):
            return f"compacted: {format_tokens(before)} → {format_tokens(after)} tokens ({by})"
        case events.CompactionEnded(why=why):
            return f"not compacted: {why}"
        case events.EditsDecided(rule=rule, edit_count=edits, saves=saves):
            return f"{rule}: {edits} shown shorter, {format_tokens(saves)} tokens less"
        case events.RetryScheduled(kind=kind, seconds=seconds, attempt=attempt):
            return f"{kind}: again in {seconds:.1f} s (try {attempt + 1})"
        case events.ShrinkStarted(overflow_step=step):
            return f"too large for the provider: {step}"
        case events.NoticeGiven(rule=rule, why=why) | events.HookFailed(hook=rule, why=why):
            return f"{rule}: {why}"
    return None


def _format_arguments(arguments: Any) -> str:
    if not isinstance(arguments, Mapping):
        return clean_single_line(str(arguments), _LINE_LENGTH)
    for name in _SHOWN_ARGUMENTS:
        if arguments.get(name):
            return clean_single_line(str(arguments[name]), _LINE_LENGTH)
    return ""


def _format_result(text: str) -> str:
    """Return the first line of a result, and how many more there are."""
    first, _, rest = text.strip().partition("\n")
    line = clean_single_line(first, _LINE_LENGTH)
    if rest:
        line += f" … {format_count(rest.count(chr(10)) + 1, 'more line')}"
    return line
