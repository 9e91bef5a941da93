"""What a person sees of an agent at work: its words, a line for each call, and what became of the context."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click
from rich.text import Text

from holdfast import events
from holdfast.agent.loop import Called, Returned, Spoke
from holdfast.cli.output.terminal import clean, console, many, say_line, say_whole
from holdfast.cli.reports.request_size import about
from holdfast.messages.message import result_text
from holdfast.messages.references import arguments
from holdfast.state.costs import share

_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What steers a terminal, but for line ends and tabs; and halves of characters."""
_WHAT = ("command", "path", "pattern", "folder", "id", "search")
"""Arguments of which the first that is given stands for the call."""
_LINE = 200
"""Characters of a call that are looked at."""


class Screen:
    """Shows what happens: the model's words on standard output, all else on standard error; nothing if ``quiet``."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.share = 0.0
        """How much of the window the last request took."""
        self._out = console(stderr=True)
        self._is_amid = False
        self._why = ""
        """What was said at the last refusal."""

    def show(self, item: object) -> None:
        """Show one thing that happened."""
        if isinstance(item, events.Sending):
            self.share = share(item.tokens, item.window)
        if isinstance(item, events.Refused):
            self._why = item.why
        if self.quiet:
            return
        if isinstance(item, Spoke):
            self._speak(item)
            return
        line = f"{_line(item)}: {clean(self._why, _LINE)}" if isinstance(item, events.Retrying) else _line(item)
        if line is not None:
            self._begin()
            say_line(self._out, Text(f"{min(1, self.share):4.0%}  {line}", style="dim"))

    def note(self, line: str, style: str = "dim") -> None:
        """Show all of a line beside what the model says."""
        if not self.quiet:
            self._begin()
            say_whole(self._out, Text(clean(line), style=style))

    def text(self, text: str) -> None:
        """Print ``text`` on standard output, with nothing in it that steers a terminal."""
        click.echo(_STEERING.sub("\ufffd", text))

    def _begin(self) -> None:
        """Begin a line of its own."""
        if self._is_amid:
            click.echo()
            self._is_amid = False

    def _speak(self, said: Spoke) -> None:
        click.echo(_STEERING.sub("\ufffd", said.text), nl=said.ends)
        self._is_amid = not said.ends


def _line(item: object) -> str | None:
    """Return what happened on one line; nothing for what nobody wants to know."""
    match item:
        case Called(call):
            return f"{call.name} {_what(arguments(call))}".rstrip()
        case Returned(_, result):
            return f"  {'failed: ' if result.is_error else ''}{_short(result_text(result))}"
        case events.Compacted(outcome="compacted", by=by, before=before, after=after):
            return f"compacted: {about(before)} → {about(after)} tokens ({by})"
        case events.Compacted(why=why):
            return f"not compacted: {why}"
        case events.Decided(rule=rule, edits=edits, saves=saves):
            return f"{rule}: {edits} shown shorter, {about(saves)} tokens less"
        case events.Retrying(kind=kind, seconds=seconds, attempt=attempt):
            return f"{kind}: again in {seconds:.1f} s (try {attempt + 1})"
        case events.Pressed(rung=rung):
            return f"too large for the provider: {rung}"
        case events.Noticed(rule=rule, why=why) | events.HookFailed(hook=rule, why=why):
            return f"{rule}: {why}"
    return None


def _what(given: Any) -> str:
    if not isinstance(given, Mapping):
        return clean(str(given), _LINE)
    told = next((given[name] for name in _WHAT if given.get(name)), "")
    return clean(str(told), _LINE)


def _short(text: str) -> str:
    """Return the first line of a result, and how many more there are."""
    first, _, rest = text.strip().partition("\n")
    more = f" … {many(rest.count(chr(10)) + 1, 'more line')}" if rest else ""
    return f"{clean(first, _LINE)}{more}"
