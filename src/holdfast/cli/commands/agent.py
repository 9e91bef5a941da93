"""``holdfast agent``: run the reference agent on a task, or at a prompt."""

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
from holdfast.cli.output.terminal import make_json_option, print_json
from holdfast.cli.provider_access import get_api_url, make_auth_headers
from holdfast.config import Catalog
from holdfast.messages.text.single_line import clean_single_line
from holdfast.providers.registry import API_NAMES, DEFAULT_API
from holdfast.state.target import Target
from holdfast.store.open_store import expand_home

EXAMPLES = """\
\b
The key is read from ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, depending on the API; commands that
the agent runs do not see it. Exit codes: 0 done, 1 stopped early, 2 error, 130 interrupted.

\b
Examples:
  holdfast agent "Make the tests pass" --model claude-sonnet-5-5 --allow-bash
  holdfast agent --model gpt-5.1 --dir ~/project
  holdfast agent "" --session 4d56 --model gpt-5.1
  holdfast agent "Tidy the notes" --model qwen3 --base-url http://127.0.0.1:8080/v1 --window 32000
"""
DEFAULT_POLICY = "holdfast"
"""The policy if no other is named."""
TITLE_LENGTH = 80
"""Characters of the task that are used as the session's title."""
_EXIT_CODES = {"done": 0, "steps": 1, "repeating": 1, "error": 2, "aborted": INTERRUPTED}


class AgentOptions(Struct, frozen=True):
    """The options of the command line."""

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
    "--base-url",
    metavar="URL",
    help="The address of its API. [default: its SDK's variable, else the official address]",
)
@click.option("--api", type=click.Choice(API_NAMES), help="The API to use. [default: the model's]")
@click.option(
    "--dir",
    "folder",
    metavar="DIR",
    default=".",
    help="The folder it works in, and never leaves. [default: this one]",
)
@click.option("--allow-bash", is_flag=True, help="Let it run any shell command; without it, you are asked each time.")
@click.option("--session", metavar="KEY", help="Resume this session, or start a new one with this name.")
@click.option(
    "--policy",
    metavar="NAME",
    default=DEFAULT_POLICY,
    show_default=True,
    help="The policy that keeps the context small.",
)
@click.option("--window", type=IntegerParamType(1), help="The model's window in tokens. [default: the model's]")
@click.option(
    "--steps",
    type=IntegerParamType(1),
    default=MAX_AGENT_STEPS,
    show_default=True,
    help="Maximum number of model answers per task.",
)
@click.option(
    "--summary-model",
    metavar="NAME",
    help="The model that writes summaries. [default: summaries need no model]",
)
@click.option(
    "--skills",
    metavar="DIR",
    multiple=True,
    help="A folder of skills in addition to the project's own; may be repeated.",
)
@store_option
@make_json_option("how it ended")
def agent_command(**given: Any) -> None:
    """Let a model work on TASK in a folder, with tools for files, search and the shell.

    Without TASK you get a prompt; an empty TASK resumes a session that was stopped. Everything is stored before it is
    sent, so interrupted work resumes where it stopped and no tool runs twice. The context stays inside the window for
    as long as the work takes. ^C stops the running task, a second ^C leaves.
    """
    options = AgentOptions(**given)
    if options.as_json and options.task is None:
        raise CommandError("--json reports how a task ended; give a TASK too")
    if options.task == "" and not options.session:
        raise CommandError(
            "an empty TASK resumes a session; name one from `holdfast ls` with --session, or give a TASK"
        )
    agent_configuration = _make_agent_setup(options)
    screen = AgentScreen(quiet=options.as_json)
    with open_agent_terminal(agent_configuration, screen) as there:
        if options.task is None:
            run_interactive_prompt(there)
            return
        code = _run_task(there, options.task, as_json=options.as_json)
    click.get_current_context().exit(code)


def _run_task(terminal: AgentTerminal, task: str, *, as_json: bool) -> int:
    """Work on one task and return the exit code."""
    if task and not terminal.session.journal.state.history.sized_messages:
        terminal.store.update_session_info(
            terminal.session.key,
            title=clean_single_line(task, TITLE_LENGTH),
            cwd=str(terminal.order.folder),
        )
    outcome = terminal.run_task(task)
    if as_json:
        print_json(_make_outcome_record(terminal, outcome))
    else:
        print_outcome(terminal, outcome)
        terminal.screen.print_note(f"session {terminal.session.key}")
    return _EXIT_CODES[outcome.stop]


def _make_outcome_record(terminal: AgentTerminal, outcome: TaskOutcome) -> dict[str, Any]:
    report = terminal.session.report()
    cost = terminal.get_cost()
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


# -- configuration -------------------------------------------------------------------------------------------------


def _make_agent_setup(options: AgentOptions) -> AgentConfiguration:
    configuration = config.load_configuration()
    api = options.api or _choose_api(configuration.catalog, options.model)
    url = _get_server_url(api, options.base_url)
    key = options.session or uuid.uuid4().hex[:12]
    folder = _resolve_folder(options.folder, "--dir")
    is_alone = options.task is not None
    summary_target = None
    if options.summary_model:
        summary_target = _get_agent_target(api, options.summary_model, configuration.catalog)
    # With a task somebody may still watch at a terminal; at a prompt somebody types, even into a pipe.
    can_ask = not options.as_json and sys.stdin is not None and (sys.stdin.isatty() or not is_alone)
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
        summary_target=summary_target,
        catalog=configuration.catalog,
        must_exist=options.task == "",
        has_task=bool(options.task),
        steps=options.steps,
        is_streaming=not is_alone,
        allows_all=options.allow_bash,
        can_ask=can_ask,
    )


def _make_resume_command(options: AgentOptions, key: str, folder: Path) -> str:
    """Return the command that resumes the session in this folder with the same options."""
    option_values: dict[str, str | int | None] = {
        "--session": key,
        "--model": options.model,
        "--api": options.api,
        "--base-url": options.base_url,
        "--window": options.window,
        "--summary-model": options.summary_model,
        "--store": options.store,
    }
    # Defaults are left out, so that the command stays short enough to read and paste.
    if folder != Path.cwd():
        option_values["--dir"] = str(folder)
    if options.policy != DEFAULT_POLICY:
        option_values["--policy"] = options.policy
    if options.steps != MAX_AGENT_STEPS:
        option_values["--steps"] = options.steps
    words = ["holdfast", "agent"]
    for name, value in option_values.items():
        if value is not None:
            words += [name, str(value)]
    for skill_path in options.skills:
        words += ["--skills", skill_path]
    if options.allow_bash:
        words.append("--allow-bash")
    return shlex.join(words)


def _get_server_url(api: str, option: str | None) -> str:
    """Return the address of ``api``. Raises ``CommandError`` if it is not the address of a server."""
    url = get_api_url(api, option)
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an unclosed bracket, or a port that is not a number
        is_valid = False
    if not is_valid:
        raise CommandError(f"{url!r} is not an address; give one like http://127.0.0.1:8080")
    return url


def _choose_api(catalog: Catalog, model: str) -> str:
    """Return the API of ``model``; an unknown model gets the API that most servers offer."""
    api = catalog.find_api(model)
    return api if api in API_NAMES else DEFAULT_API


def _get_agent_target(api: str, model: str, catalog: Catalog, window: int | None = None) -> Target:
    return config.get_target(api, model, window=window, catalog=catalog)


def _resolve_folder(path: str, option: str) -> Path:
    folder = expand_home(path)
    if not folder.is_dir():
        raise CommandError(f"{path!r} is not a folder; give one for {option}")
    return folder.resolve()
