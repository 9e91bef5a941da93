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
from holdfast.agent.loop import MAX_AGENT_STEPS, TaskOutcome
from holdfast.cli.agent.agent_thread import AgentConfiguration, AgentTerminal, open_agent_terminal
from holdfast.cli.agent.prompt import print_outcome, run_interactive_prompt
from holdfast.cli.agent.screen import AgentScreen
from holdfast.cli.files.user_paths import store_option
from holdfast.cli.output.errors import INTERRUPTED, CommandError
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.terminal import clean_single_line, make_json_option, print_json
from holdfast.cli.provider_access import get_api_url, make_auth_headers
from holdfast.config import Catalog
from holdfast.providers.registry import API_NAMES, DEFAULT_API
from holdfast.state.target import Target
from holdfast.store.open_store import expand_home

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
DEFAULT_POLICY = "holdfast"
"""The policy, unless another one is named."""
TITLE_LENGTH = 80
"""Characters of the task that become the session's title."""
_EXIT_CODES = {"done": 0, "steps": 1, "repeating": 1, "error": 2, "aborted": INTERRUPTED}


class AgentOptions(Struct, frozen=True):
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
@click.option("--api", type=click.Choice(API_NAMES), help="The API that is spoken. [default: the model's]")
@click.option(
    "--dir", "folder", metavar="DIR", default=".", help="The folder it works in, and never leaves. [default: this one]"
)
@click.option("--allow-bash", is_flag=True, help="Let it run any shell command; else each one is asked for.")
@click.option("--session", metavar="KEY", help="Go on with this session, or give a new one this name.")
@click.option(
    "--policy", metavar="NAME", default=DEFAULT_POLICY, show_default=True, help="Who keeps the context small."
)
@click.option("--window", type=IntegerParamType(1), help="The model's window in tokens. [default: the model's]")
@click.option(
    "--steps",
    type=IntegerParamType(1),
    default=MAX_AGENT_STEPS,
    show_default=True,
    help="Answers that one task may take.",
)
@click.option("--summary-model", metavar="NAME", help="The model that writes summaries. [default: none is needed]")
@click.option(
    "--skills", metavar="DIR", multiple=True, help="A folder of skills beside the project's own. Again for more."
)
@store_option
@make_json_option("how it ended")
def command(**given: Any) -> None:
    """Let a model work on TASK in a folder, with tools for files, search and the shell.

    Without TASK there is a prompt; an empty one goes on with a session that was stopped. Everything is in the store
    before it is sent, so that whatever ends the work, it goes on from there, and no tool runs twice. The context is
    kept inside of the window for as long as it takes. ^C stops what runs, a second one leaves.
    """
    options = AgentOptions(**given)
    if options.as_json and options.task is None:
        raise CommandError("--json tells how a task ended; give a TASK too")
    if options.task == "" and not options.session:
        raise CommandError(
            "an empty TASK goes on with a session; name one of `holdfast ls` with --session, or give a TASK"
        )
    agent_configuration, screen = _make_agent_setup(options), AgentScreen(quiet=options.as_json)
    with open_agent_terminal(agent_configuration, screen) as there:
        if options.task is None:
            run_interactive_prompt(there)
            return
        code = _run_task(there, options.task, as_json=options.as_json)
    click.get_current_context().exit(code)


def _run_task(terminal: AgentTerminal, task: str, *, as_json: bool) -> int:
    """Work on one task; return the exit code."""
    if task and not terminal.session.journal.state.history.sized_messages:
        terminal.store.update_session_info(
            terminal.session.key, title=clean_single_line(task, TITLE_LENGTH), cwd=str(terminal.order.folder)
        )
    outcome = terminal.run_task(task)
    if as_json:
        print_json(_make_outcome_record(terminal, outcome))
    else:
        print_outcome(terminal, outcome)
        terminal.screen.print_note(f"session {terminal.session.key}")
    return _EXIT_CODES[outcome.stop]


def _make_outcome_record(terminal: AgentTerminal, outcome: TaskOutcome) -> dict[str, Any]:
    report, cost = terminal.session.report(), terminal.get_cost()
    return {
        "session": terminal.session.key,
        "outcome": outcome.stop,
        "steps": outcome.steps,
        "text": outcome.text,
        "why": outcome.reason,
        "tokens": report.tokens,
        "window": report.window,
        "compactions": report.compaction_count,
        "input": cost.input,
        "output": cost.output,
        "cache_hit": round(cost.cache_hit, 4),
        "usd": None if cost.usd is None else round(cost.usd, 6),
    }


# -- what is asked for -------------------------------------------------------------------------------------------------


def _make_agent_setup(options: AgentOptions) -> AgentConfiguration:
    configuration = config.load_configuration()
    api = options.api or _choose_api(configuration.catalog, options.model)
    url = _get_server_url(api, options.base_url)
    key, folder = options.session or uuid.uuid4().hex[:12], _resolve_folder(options.folder, "--dir")
    is_alone = options.task is not None
    return AgentConfiguration(
        target=_get_agent_target(api, options.model, configuration.catalog, options.window),
        url=url,
        headers=make_auth_headers(api, url),
        folder=folder,
        policy=configuration.build_policy(options.policy),
        session_key=key,
        resume_command=_make_resume_command(options, key, folder),
        store=options.store,
        skills=tuple(str(_resolve_folder(skill_path, "--skills")) for skill_path in options.skills),
        summary_target=_get_agent_target(api, options.summary_model, configuration.catalog)
        if options.summary_model
        else None,
        catalog=configuration.catalog,
        must_exist=options.task == "",
        has_task=bool(options.task),
        steps=options.steps,
        is_streaming=not is_alone,
        allows_all=options.allow_bash,
        can_ask=not options.as_json and sys.stdin is not None and (sys.stdin.isatty() or not is_alone),
    )


def _make_resume_command(options: AgentOptions, key: str, folder: Path) -> str:
    """Return the command that goes on with the session where and as it is now."""
    option_values: dict[str, str | int | None] = {
        "--session": key,
        "--model": options.model,
        "--api": options.api,
        "--base-url": options.base_url,
        "--dir": None if folder == Path.cwd() else str(folder),
        "--window": options.window,
        "--policy": None if options.policy == DEFAULT_POLICY else options.policy,
        "--steps": None if options.steps == MAX_AGENT_STEPS else options.steps,
        "--summary-model": options.summary_model,
        "--store": options.store,
    }
    words = [word for name, value in option_values.items() if value is not None for word in (name, str(value))]
    words += [word for skill_path in options.skills for word in ("--skills", skill_path)]
    return shlex.join(["holdfast", "agent", *words, *(["--allow-bash"] if options.allow_bash else [])])


def _get_server_url(api: str, option: str | None) -> str:
    """Return where ``api`` is reached. Raises ``CommandError`` for what is no address of a server."""
    url = get_api_url(api, option)
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an end, a port that is none
        is_one = False
    if not is_one:
        raise CommandError(f"{url!r} is no address; give one like http://127.0.0.1:8080")
    return url


def _choose_api(catalog: Catalog, model: str) -> str:
    """Return the API that ``model`` is called by; one that nobody knows is served by what most servers speak."""
    api = catalog.find_api(model)
    return api if api in API_NAMES else DEFAULT_API


def _get_agent_target(api: str, model: str, catalog: Catalog, window: int | None = None) -> Target:
    return config.get_target(api, model, window=window, catalog=catalog)


def _resolve_folder(path: str, option: str) -> Path:
    folder = expand_home(path)
    if not folder.is_dir():
        raise CommandError(f"{path!r} is no folder; give one for {option}")
    return folder.resolve()
