"""``holdfast agent``: the reference agent on a task, or at a prompt."""

from __future__ import annotations

import shlex
import sys
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from msgspec import Struct

from holdfast import config
from holdfast.agent.loop import STEPS, Outcome
from holdfast.cli.agent.desk import Desk, Order, desk
from holdfast.cli.agent.prompt import ended, talk
from holdfast.cli.agent.screen import Screen
from holdfast.cli.output.errors import INTERRUPTED, Stopped
from holdfast.cli.output.ranges import Whole
from holdfast.cli.output.terminal import clean, json_option, say_json
from holdfast.cli.places import store_option
from holdfast.cli.providers import address, headers
from holdfast.config import Catalog
from holdfast.providers.recognize import APIS
from holdfast.state.target import Target
from holdfast.store import at_home

EXAMPLES = """\
\b
The key is read from ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, as the API wants it; commands that
the agent runs do not see it. Exit codes: 0 done, 1 stopped before it was done, 2 an error, 130 interrupted.

\b
Examples:
  holdfast agent "Make the tests pass" --model claude-sonnet-4-5 --allow-bash
  holdfast agent --model gpt-5.1 --dir ~/project
  holdfast agent "" --session 4d56 --model gpt-5.1
  holdfast agent "Tidy the notes" --model qwen3 --base-url http://127.0.0.1:8080/v1 --window 32000
"""
DEFAULT = "holdfast"
"""The policy, unless another one is named."""
TITLE = 80
"""Characters of the task that become the session's title."""
_CODES = {"done": 0, "steps": 1, "repeating": 1, "error": 2, "aborted": INTERRUPTED}


class Asked(Struct, frozen=True):
    """The command line."""

    task: str | None
    model: str
    base_url: str | None
    api: str | None
    folder: str
    allow_bash: bool
    session: str | None
    policy: str
    window: int | None
    steps: int
    summary_model: str | None
    skills: tuple[str, ...]
    store: str | None
    as_json: bool


@click.command("agent", epilog=EXAMPLES)
@click.argument("task", required=False)
@click.option("--model", required=True, help="The model that works.")
@click.option(
    "--base-url", metavar="URL", help="Where its API is. [default: as its SDK's variable says, else its maker]"
)
@click.option("--api", type=click.Choice(APIS), help="The API that is spoken. [default: the model's]")
@click.option(
    "--dir", "folder", metavar="DIR", default=".", help="The folder it works in, and never leaves. [default: this one]"
)
@click.option("--allow-bash", is_flag=True, help="Let it run any shell command; else each one is asked for.")
@click.option("--session", metavar="KEY", help="Go on with this session, or give a new one this name.")
@click.option("--policy", metavar="NAME", default=DEFAULT, show_default=True, help="Who keeps the context small.")
@click.option("--window", type=Whole(1), help="The model's window in tokens. [default: the model's]")
@click.option("--steps", type=Whole(1), default=STEPS, show_default=True, help="Answers that one task may take.")
@click.option("--summary-model", metavar="NAME", help="The model that writes summaries. [default: none is needed]")
@click.option(
    "--skills", metavar="DIR", multiple=True, help="A folder of skills beside the project's own. Again for more."
)
@store_option
@json_option("how it ended")
def command(**given: Any) -> None:
    """Let a model work on TASK in a folder, with tools for files, search and the shell.

    Without TASK there is a prompt; an empty one goes on with a session that was stopped. Everything is in the store
    before it is sent, so that whatever ends the work, it goes on from there, and no tool runs twice. The context is
    kept inside of the window for as long as it takes. ^C stops what runs, a second one leaves.
    """
    asked = Asked(**given)
    if asked.as_json and asked.task is None:
        raise Stopped("--json tells how a task ended; give a TASK too")
    if asked.task == "" and not asked.session:
        raise Stopped("an empty TASK goes on with a session; name one of `holdfast ls` with --session, or give a TASK")
    order, screen = _order(asked), Screen(quiet=asked.as_json)
    with desk(order, screen) as there:
        if asked.task is None:
            talk(there)
            return
        code = _once(there, asked.task, as_json=asked.as_json)
    click.get_current_context().exit(code)


def _once(there: Desk, task: str, *, as_json: bool) -> int:
    """Work on one task; return the exit code."""
    if task and not there.session.journal.branch.slots:
        there.store.describe(there.session.key, title=clean(task, TITLE), cwd=str(there.order.folder))
    outcome = there.work(task)
    if as_json:
        say_json(_record(there, outcome))
    else:
        ended(there, outcome)
        there.screen.note(f"session {there.session.key}")
    return _CODES[outcome.stop]


def _record(there: Desk, outcome: Outcome) -> dict[str, Any]:
    report, cost = there.session.report(), there.spent()
    return {
        "session": there.session.key,
        "outcome": outcome.stop,
        "steps": outcome.steps,
        "text": outcome.text,
        "why": outcome.why,
        "tokens": report.tokens,
        "window": report.window,
        "compactions": report.compactions,
        "input": cost.input,
        "output": cost.output,
        "cache_hit": round(cost.cache_hit, 4),
        "usd": None if cost.usd is None else round(cost.usd, 6),
    }


# -- what is asked for -------------------------------------------------------------------------------------------------


def _order(asked: Asked) -> Order:
    known = config.configuration()
    api = asked.api or _api(known.catalog, asked.model)
    url = _address(api, asked.base_url)
    key, folder = asked.session or uuid.uuid4().hex[:12], _folder(asked.folder, "--dir")
    is_alone = asked.task is not None
    return Order(
        target=_target(api, asked.model, known.catalog, asked.window),
        url=url,
        headers=headers(api, url),
        folder=folder,
        policy=known.policy(asked.policy),
        key=key,
        again=_again(asked, key, folder),
        store=asked.store,
        skills=tuple(str(_folder(one, "--skills")) for one in asked.skills),
        writer=_target(api, asked.summary_model, known.catalog) if asked.summary_model else None,
        catalog=known.catalog,
        goes_on=asked.task == "",
        has_task=bool(asked.task),
        steps=asked.steps,
        streams=not is_alone,
        allow=asked.allow_bash,
        asks=not asked.as_json and sys.stdin is not None and (sys.stdin.isatty() or not is_alone),
    )


def _again(asked: Asked, key: str, folder: Path) -> str:
    """Return the command that goes on with the session where and as it is now."""
    wanted: dict[str, str | int | None] = {
        "--session": key,
        "--model": asked.model,
        "--api": asked.api,
        "--base-url": asked.base_url,
        "--dir": None if folder == Path.cwd() else str(folder),
        "--window": asked.window,
        "--policy": None if asked.policy == DEFAULT else asked.policy,
        "--steps": None if asked.steps == STEPS else asked.steps,
        "--summary-model": asked.summary_model,
        "--store": asked.store,
    }
    words = [word for name, value in wanted.items() if value is not None for word in (name, str(value))]
    words += [word for one in asked.skills for word in ("--skills", one)]
    return shlex.join(["holdfast", "agent", *words, *(["--allow-bash"] if asked.allow_bash else [])])


def _address(api: str, given: str | None) -> str:
    """Return where ``api`` is reached. Raises ``Stopped`` for what is no address of a server."""
    url = address(api, given)
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an end, a port that is none
        is_one = False
    if not is_one:
        raise Stopped(f"{url!r} is no address; give one like http://127.0.0.1:8080")
    return url


def _api(catalog: Catalog, model: str) -> str:
    """Return the API that ``model`` is called by; one that nobody knows is served by what most servers speak."""
    known = catalog.api(model)
    return known if known in APIS else "openai-chat"


def _target(api: str, model: str, catalog: Catalog, window: int | None = None) -> Target:
    return config.target(api, model, window=window, catalog=catalog)


def _folder(given: str, option: str) -> Path:
    folder = at_home(given)
    if not folder.is_dir():
        raise Stopped(f"{given!r} is no folder; give one for {option}")
    return folder.resolve()
