"""The report of ``holdfast replay --losses`` as rich renderables; nothing is printed here."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table
from rich.text import Text

from holdfast.messages.text.counts import format_count
from holdfast.replay.losses import LossReport, LossStep, LostFact
from holdfast.replay.report import format_tokens_short

BAR_CELLS = 20
"""Cells of a bar that stands for all facts of its group."""
FACTS_PER_STEP = 4
"""Facts told of each of the worst steps; --json has them all."""
MAX_NAME_CHARS = 40
"""Characters of a name; longer ones are paths and URLs."""
TABLE_TITLES = {
    "kind": "kind of name",
    "age": "tokens since it last stood",
    "mentions": "named by",
    "source": "where it last stood",
    "place": "place in the log",
}
"""The tables of a loss report with their titles, in the order in which they are shown."""
_BAD_STYLE, _DIM_STYLE = "red", "dim"


def make_loss_heading(policy: str, report: LossReport) -> Text:
    """Return one sentence: how many facts were lost, and of how many the name is known."""
    needed, lost = report.count.needed, report.count.lost
    if not needed:
        return Text.assemble((policy, "bold"), ": no fact was used again that the newest messages did not show")
    if not lost:
        return Text.assemble((policy, "bold"), f": none of the {format_count(needed, 'fact')} used again was lost")
    sentence = f": {lost:,} of the {needed:,} facts used again were lost ({lost / needed:.1%})"
    known = ""
    if report.names_known:
        known = f"; of {report.names_known:,} of them the name alone was still there"
    return Text.assemble((policy, "bold"), sentence, known)


def make_loss_table(report: LossReport) -> Table | None:
    """Return the lost facts by kind, age, mentions, source and place, or None if nothing was lost."""
    if not report.count.lost:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("facts", no_wrap=True)
    for name in ("needed", "lost", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("lost of all needed", no_wrap=True)
    for key, title in TABLE_TITLES.items():
        table.add_row(Text(title, style="bold"))
        for group, count in report.tables.get(key, {}).items():
            share = count.lost / count.needed
            table.add_row(f"  {group}", f"{count.needed:,}", f"{count.lost:,}", f"{share:.0%}", _draw_share(share))
    return table


def _draw_share(share: float) -> Text:
    """Draw a bar that is as full as ``share``; any loss fills a cell."""
    cells = max(round(share * BAR_CELLS), int(share > 0))
    return Text.assemble(("█" * cells, _BAD_STYLE), ("░" * (BAR_CELLS - cells), _DIM_STYLE))


def make_worst_steps(report: LossReport, clean: Callable[[str, int], str], width: int, *, names_files: bool) -> Text:
    """Return the worst steps, each with what it missed and where that had stood; empty without losses.

    ``clean`` makes a text safe for a terminal and cuts it. With ``names_files`` the session of each step is told.
    """
    out = Text()
    if not report.worst_steps:
        return out
    out.append("the steps that missed most", style="bold")
    for step in report.worst_steps:
        out.append("\n")
        out.append_text(_describe_step(step, clean, width, names_files=names_files))
    return out


def _describe_step(step: LossStep, clean: Callable[[str, int], str], width: int, *, names_files: bool) -> Text:
    file = f"{clean(step.file, MAX_NAME_CHARS)}, " if names_files else ""
    head = f"{file}answer {step.answer:,} (message {step.message:,}) missed {format_count(len(step.facts), 'fact')}: "
    out = Text(head)
    out.append(clean(step.action, max(width - len(head), MAX_NAME_CHARS)), style=_DIM_STYLE)
    for fact in step.facts[:FACTS_PER_STEP]:
        out.append(f"\n  {_describe_fact(fact, clean)}")
    hidden_count = len(step.facts) - FACTS_PER_STEP
    if hidden_count > 0:
        out.append(f"\n  and {hidden_count:,} more", style=_DIM_STYLE)
    return out


def _describe_fact(fact: LostFact, clean: Callable[[str, int], str]) -> str:
    source = fact.source
    if fact.tool:
        source = f"{source} of {clean(fact.tool, MAX_NAME_CHARS)}"
    age = format_tokens_short(fact.age)
    known = ", name known" if fact.name_known else ""
    return f"{clean(fact.name, MAX_NAME_CHARS)}: {source} in message {fact.message:,}, {age} tokens before{known}"
