"""Options of ``stats`` and ``ls`` that choose days and sessions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import wraps
from pathlib import PureWindowsPath
from typing import Any

import click
from msgspec import Struct

from holdfast.reports.sessions.session_filter import SessionFilter

_DAYS_BY_WORD = {"today": 0, "yesterday": 1}
_DAYS_BY_UNIT = {"d": 1, "w": 7}
_DAYS_AGO = re.compile(r"([0-9]{1,4})([dw])")
_DATE = re.compile(r"([0-9]{4})-?([0-9]{2})-?([0-9]{2})")


class Day(Struct, frozen=True):
    """A day of the calendar, or so many days before today."""

    calendar_day: date | None = None
    days_ago: int = 0

    def resolve(self, today: date) -> date:
        """Return the day of the calendar."""
        return self.calendar_day or today - timedelta(days=self.days_ago)


def parse_day(context: click.Context, parameter: click.Parameter, text: str | None) -> Day | None:
    """Parse ``2026-11-30``, ``20261130``, ``7d`` (ago), ``2w``, ``today`` or ``yesterday``, for click."""
    if text is None:
        return None
    word = text.strip().lower()
    if word in _DAYS_BY_WORD:
        return Day(days_ago=_DAYS_BY_WORD[word])
    if match := _DAYS_AGO.fullmatch(word):
        return Day(days_ago=int(match[1]) * _DAYS_BY_UNIT[match[2]])
    match = _DATE.fullmatch(word)
    if match is None:
        msg = f"{text!r} is not a day; write 2026-11-30, 7d (seven days ago), today or yesterday"
        raise click.BadParameter(msg, context, parameter)
    try:
        return Day(date(int(match[1]), int(match[2]), int(match[3])))
    except ValueError as error:
        msg = f"{text!r} is not in the calendar; write year-month-day, as 2026-11-30"
        raise click.BadParameter(msg, context, parameter) from error


class SessionOptions(Struct, frozen=True):
    """The values of the options that choose sessions and days."""

    since: Day | None = None
    until: Day | None = None
    is_utc: bool = False
    project: str = ""
    model: str = ""
    tool: str = ""

    @property
    def has_any(self) -> bool:
        """Whether anything was chosen."""
        return self != SessionOptions()

    @property
    def time_zone(self) -> tzinfo | None:
        """Where days begin and end; None is the time zone of this machine."""
        return UTC if self.is_utc else None

    def resolve_days(self) -> tuple[date | None, date | None]:
        """Return the first and the last day, None for no limit; a usage error if they are the wrong way round."""
        today = datetime.now(self.time_zone).date()
        since = None if self.since is None else self.since.resolve(today)
        until = None if self.until is None else self.until.resolve(today)
        if since is not None and until is not None and since > until:
            raise click.UsageError(f"--since {since} is after --until {until}; give the earlier day to --since")
        return since, until

    def build_session_filter(self, session: str = "") -> SessionFilter:
        """Return what sessions must be like; ``session`` is the id of the only one, if one was named."""
        return SessionFilter(session, _make_absolute(self.project), self.model, self.tool)


def session_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to ``command``, which gets their values as one argument, ``chosen``."""

    @wraps(command)
    def collect_options(
        *args: Any,
        since: Day | None,
        until: Day | None,
        is_utc: bool,
        project: str,
        model: str,
        tool: str,
        **kwargs: Any,
    ) -> None:
        command(*args, chosen=SessionOptions(since, until, is_utc, project, model, tool), **kwargs)

    options = (
        click.option(
            "--since",
            callback=parse_day,
            metavar="DAY",
            help="First day: 2026-11-30, 7d (seven days ago), 2w, today or yesterday.",
        ),
        click.option("--until", callback=parse_day, metavar="DAY", help="Last day, which counts as well."),
        click.option("--utc", "is_utc", is_flag=True, help="Days of UTC. [default: of this machine's time zone]"),
        click.option(
            "--project", metavar="FOLDER", default="", help="Only sessions in this folder, or in one below it."
        ),
        click.option(
            "--model", metavar="NAME", default="", help="Only this model; a pattern like 'claude-opus*' is possible."
        ),
        click.option(
            "--tool", metavar="NAME", default="", help="Only sessions of this client, as holdfast ls shows it."
        ),
    )
    # The decorator that is applied last stands first in the help.
    for option in reversed(options):
        collect_options = option(collect_options)
    return collect_options


def _make_absolute(folder: str) -> str:
    """Return ``folder`` as tools record it; an absolute path of another system stays as it is."""
    if not folder or PureWindowsPath(folder).is_absolute():
        return folder
    return os.path.abspath(os.path.expanduser(folder))  # noqa: PTH100, PTH111 -- a text, and no link is followed
