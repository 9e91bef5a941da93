"""``holdfast agent``: tasks over HTTP against the strict provider, the prompt, and what ends either."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest

from holdfast import events
from holdfast.agent.loop import LOST_RESULT_TEXT, NOT_RUN_RESULT_TEXT, STOPPED_RESULT_TEXT
from holdfast.cli.agent.agent_thread import HANDLED_SIGNALS, handle_termination
from holdfast.cli.agent.meter import SessionCost
from holdfast.cli.agent.screen import AgentScreen
from holdfast.config import get_target
from holdfast.messages.message import get_result_text
from holdfast.state.costs import compute_cost
from holdfast.state.entries import MessageEntry, Usage
from holdfast.state.target import Prices
from holdfast.store.open_store import open_store
from holdfast.testing.provider import Fault, ModelAnswer, Provider, ProviderSettings, ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.server.local_server import serve_provider

MODEL = STRICTEST_MODELS["anthropic"]
READ_ANSWER = ScriptedAnswer("I look.", (("read", {"path": "app.py"}),))
EDIT_ANSWER = ScriptedAnswer(
    "", (("edit", {"path": "app.py", "old": " + 1", "new": ""}), ("bash", {"command": "echo ran >> ran"}))
)
LAST_ANSWER = ScriptedAnswer("It doubles now.")


@pytest.fixture(autouse=True)
def folder(home, monkeypatch):
    """Return the folder that the agent works in; no key is set."""
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_BASE_URL")):
            monkeypatch.delenv(name)
    inside = home / "work"
    inside.mkdir()
    (inside / "app.py").write_text("def double(x):\n    return x + x + 1\n")
    return inside


def read_tool_results(home, key):
    """Return the text of every tool result of a session."""
    with open_store(str(home / "store" / "holdfast.db")) as store:
        messages = [
            entry.body.sized_message.message for entry in store.read_path(key) if isinstance(entry.body, MessageEntry)
        ]
    return [get_result_text(result) for message in messages for result in message.results]


@contextmanager
def serve_model(*script, faults=(), **limits):
    """Yield a provider that answers with ``script``, and the options that lead to it."""
    provider = Provider(ProviderSettings(**limits), script)
    with serve_provider(provider, faults) as url:
        yield provider, ("--model", MODEL, "--base-url", url, "--dir", "work", "--session", "task")


# -- a task ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_agent_completes_a_task(run, folder, api):
    """The answer's text goes to standard output, the calls and the state of the context to standard error."""
    with serve_model(READ_ANSWER, EDIT_ANSWER, LAST_ANSWER) as (provider, options):
        more = ("--api", api, "--model", STRICTEST_MODELS[api], "--allow-bash")
        result = run("agent", "Mend double.", *options, *more)
    assert (result.exit_code, result.stdout) == (0, "I look.\nIt doubles now.\n"), result.output
    assert (folder / "app.py").read_text() == "def double(x):\n    return x + x\n"
    assert (folder / "ran").read_text() == "ran\n"
    for word in ("read app.py", "edit app.py", "bash echo ran", "session task"):
        assert word in result.stderr
    assert re.search(r"context ~[\d,]+ of [\d,]+ tokens \(\d+%\) · 0 compactions · cache \d+% · \$\d", result.stderr)
    assert all(isinstance(request.reply, ModelAnswer) for request in provider.requests)


def test_agent_json_prints_one_object(run, home):
    """With --json one object says how the task ended, and nothing else is printed."""
    with serve_model(READ_ANSWER, EDIT_ANSWER, LAST_ANSWER) as (provider, options):
        result = run("agent", "Mend double.", *options, "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (0, "")
    assert {key: report[key] for key in ("session", "outcome", "steps", "text", "why")} == {
        "session": "task",
        "outcome": "done",
        "steps": 3,
        "text": "It doubles now.",
        "why": "",
    }
    assert report["input"] == sum(request.tokens for request in provider.requests)
    assert 0 < report["tokens"] < report["window"]
    assert "did not allow" in read_tool_results(home, "task")[2], "nobody could be asked"
    assert run("ls").output.count("Mend double.") == 1


def test_agent_answers_the_models_mistakes_with_results(run, home, folder):
    """Unknown tools, broken arguments and outside paths give error results, and the task runs to its end."""
    calls = (
        ("fly", {}),
        ("read", {"file": "app.py"}),
        ("write", {"path": "../mine", "text": "x"}),
        ("read", {"path": "/etc/passwd"}),
        ("grep", {"pattern": "("}),
    )
    with serve_model(ScriptedAnswer("", calls), LAST_ANSWER) as (_, options):
        assert run("agent", "Go.", *options).exit_code == 0
    whys = ("no tool 'fly'", "unknown field `file`", "outside", "outside", "not a regular expression")
    assert all(why in text for text, why in zip(read_tool_results(home, "task"), whys, strict=True))
    assert not (home / "mine").exists()


def test_agent_fits_a_small_window_and_reports_compactions(run, folder):
    """A task reads far more than the window holds, every request fits, and compactions are reported."""
    (folder / "log.txt").write_text("".join(f"line {n} {n * 7919}\n" for n in range(4_000)))
    script = [
        ScriptedAnswer("", (("read", {"path": "log.txt", "lines": f"{n * 300 + 1}-{n * 300 + 300}"}),))
        for n in range(12)
    ]
    with serve_model(*script, LAST_ANSWER, window=32_000) as (provider, options):
        result = run("agent", "Read it all.", *options, "--window", "32000")
    assert result.exit_code == 0, result.output
    assert all(request.tokens <= 32_000 for request in provider.requests)
    assert "compacted: " in result.stderr


def test_agent_context_marks_an_unreduced_result_over_the_window(run, folder):
    """A result that will be reduced before it is sent is shown as over the window, not as a share above 100%."""
    (folder / "log.txt").write_text("".join(f"line {n} {n * 7919}\n" for n in range(9_000)))
    with serve_model(ScriptedAnswer("", (("read", {"path": "log.txt"}),)), LAST_ANSWER, window=32_000) as (_, options):
        with_window = (*options, "--window", "32000")
        result = run("agent", "Read it.", *with_window, "--steps", "1")
        context = run("agent", *with_window, stdin="/context\n")
    for output in (result.stderr, context.stdout):
        assert "(over the window: will be reduced before sending)" in output
    assert not re.search(r"[1-9]\d{2}%", result.stderr.replace("100%", "") + context.output.replace("100%", ""))


def test_agent_exits_1_at_its_step_limit_and_resumes(run):
    """A task that needs more steps exits with 1, and an empty task resumes it."""
    with serve_model(READ_ANSWER, EDIT_ANSWER, LAST_ANSWER) as (_, options):
        result = run("agent", "Mend double.", *options, "--steps", "2")
        assert result.exit_code == 1
        assert "steps: the limit of 2 steps is reached" in result.stderr
        assert run("agent", "", *options).stdout == "It doubles now.\n"


# -- wrong use ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--model", MODEL], "set ANTHROPIC_API_KEY"),
        (["--model", "gemini-3-pro-preview"], "set GEMINI_API_KEY or GOOGLE_API_KEY"),
        (["--model", MODEL, "--base-url", "nowhere"], "is not an address"),
        (["--model", MODEL, "--base-url", "http://"], "is not an address"),
        (["--model", MODEL, "--base-url", "http://[::1"], "is not an address"),
        (["--model", MODEL, "--base-url", "http://127.0.0.1:99999"], "is not an address"),
        (["--model", MODEL, "--base-url", "http://127.0.0.1:9", "--dir", "gone"], "'gone' is not a folder"),
        (["--model", MODEL, "--base-url", "http://127.0.0.1:9", "--dir", "~nobody-here"], "the home folder is unknown"),
        (["--model", MODEL, "--base-url", "http://127.0.0.1:9", "--skills", "gone"], "give one for --skills"),
        (
            ["--model", MODEL, "--base-url", "http://127.0.0.1:9", "--store", "~nobody-here/x"],
            "the home folder is unknown",
        ),
        (["--model", MODEL, "--base-url", "http://127.0.0.1:9", "--policy", "hope"], "hope"),
        (["--model", MODEL, "--base-url", "http://127.0.0.1:9"], "check the address"),
        (["--model", MODEL, "--base-url", "http://127.0.0.1:9", "--window", "3000"], "3,000"),
        ([], "Missing option '--model'"),
    ],
)
def test_agent_exits_2_for_unusable_options(run, home, options, why):
    """A missing key, folder, provider or useful window exits with 2 and advice, without a traceback."""
    (home / "holdfast.toml").write_text("[policy.retry]\nmax_retries = 0\n")
    result = run("agent", "Go.", *options)
    assert result.exit_code == 2, result.output
    assert why in result.stderr
    assert "Traceback" not in result.output


def test_agent_reports_a_refused_key_without_printing_it(run, monkeypatch):
    """The provider's own error is printed, and the key is not."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-SECRET")
    with serve_model(faults=[Fault("401", "head", 0)]) as (_, options):
        result = run("agent", "Go.", *options)
    assert result.exit_code == 2
    assert "401" in result.stderr
    assert "SECRET" not in result.output


def test_agent_reports_each_retry_of_an_unreachable_provider(run, home):
    """Each retry says what went wrong, so a wrong address is visible while it waits."""
    (home / "holdfast.toml").write_text("[policy.retry]\nmax_retries = 1\nbase_seconds = 0.01\n")
    result = run("agent", "Go.", "--model", MODEL, "--base-url", "http://127.0.0.1:9")
    assert result.exit_code == 2
    assert re.search(r"network: again in [\d.]+ s \(try 2\): .*127\.0\.0\.1:9", result.stderr), result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name one from `holdfast ls` with --session, or give a TASK"),
        (["--session", "misspelt"], "there is no session 'misspelt' to resume"),
    ],
)
def test_agent_exits_2_when_there_is_no_session_to_resume(run, options, message):
    """An empty task needs an existing session; none is created for it, and an unknown one is named."""
    with serve_model() as (_, model_options):
        result = run("agent", "", *model_options[:-2], *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "misspelt" not in run("ls").output


@pytest.mark.parametrize(
    ("key", "name", "task", "goes_on"),
    [
        ("fix-login", "fix", "Other.", False),
        ("fix-login", "fix", "", True),
        ("fix-login", "fix-login", "Other.", True),
        ("4d5600aa11ff", "4d56", "Other.", True),
        ("added-later", "add", "Other.", False),
    ],
)
def test_agent_resolves_the_session_option(run, home, key, name, task, goes_on):
    """With a task, the prefix of a chosen name is a new name; the prefix of a generated id is that id."""
    with serve_model(ScriptedAnswer("Old."), ScriptedAnswer("New.")) as (_, options):
        assert run("agent", "First.", *options[:-1], key).exit_code == 0
        result = run("agent", task, *options[:-1], name)
    assert result.exit_code == 0
    assert f"session {key if goes_on else name}\n" in result.stderr


def test_agent_reports_an_empty_answer(run):
    """An answer without text is reported."""
    with serve_model(faults=[Fault("empty", "head", 1)]) as (_, options):
        result = run("agent", "Go.", *options)
    assert (result.exit_code, "ended without any text" in result.stderr) == (0, True), result.output


def test_agent_json_without_a_task_exits_2(run):
    """The interactive prompt has no single outcome to print as JSON."""
    result = run("agent", "--model", MODEL, "--json")
    assert (result.exit_code, "give a TASK too" in result.stderr) == (2, True)


# -- the prompt --------------------------------------------------------------------------------------------------------


def test_agent_prompt_answers_input_and_slash_commands(run, home):
    """Typed text is answered, slash commands show and change the context, and the session is kept."""
    typed = """
/branch
Look at it.
/context
/branch
/recall
/compact the tests
/undo
/fly
/help
/quit
never read
"""
    with serve_model(READ_ANSWER, LAST_ANSWER) as (provider, options):
        result = run("agent", *options, stdin=typed)
        again = run("agent", *options, stdin="/branch 0\nAnother way.\n")
    assert (result.exit_code, again.exit_code) == (0, 0)
    assert "I look.\nIt doubles now.\n" in result.stdout
    for words in (
        "next request",
        "window",
        "free",
        "#0 ",
        "Look at it.",
        "there are no messages yet",
        "nothing was stored away yet",
        "/compact",
    ):
        assert words in result.stdout
    for words in ("session task begins", "not compacted", "nothing to undo", "there is no /fly; the commands are"):
        assert words in result.stderr
    assert "continues after 4 messages" in again.stderr
    assert "continues after 1 message" in again.stderr
    assert len(provider.requests) == 3
    assert b"Another way." in provider.requests[-1].incoming.body
    assert b"It doubles" not in provider.requests[-1].incoming.body


def test_agent_help_prints_a_complete_resume_command(run, folder):
    """The command that /help prints leads to the same server, folder, window and store."""
    with serve_model(LAST_ANSWER, ScriptedAnswer("And again.")) as (provider, options):
        with_store = (*options, "--window", "64000", "--store", str(folder.parent / "a store.db"))
        help_text = run("agent", *with_store, stdin="Go.\n/help\n").stdout
        resume_command = shlex.split(re.search("later with: (holdfast .*)", help_text)[1])[1:]
        resumed = run(*resume_command, stdin="More.\n/context\n")
    assert sorted(resume_command) == sorted(
        ["agent", *(str(folder) if word == "work" else word for word in with_store)]
    )
    assert "session task continues after 2 messages" in resumed.stderr
    assert "64,000 tokens" in resumed.stdout
    assert len(provider.requests) == 2


def test_agent_prompt_resumes_an_unfinished_task_on_an_empty_line(run):
    """If a call has no result yet, as after a crash, an empty line resumes the task."""
    with serve_model(READ_ANSWER, LAST_ANSWER, ScriptedAnswer("Once more.")) as (provider, options):
        result = run("agent", *options, stdin="Go.\n/branch 1\n/quit\n")
        again = run("agent", *options, stdin="\n/branch\n")
    assert "#0" not in result.stdout
    assert "its last task was not finished: press Enter on an empty line to resume it" in again.stderr
    assert "Once more." in again.stdout
    assert len(provider.requests) == 3


def test_agent_prompt_compacts_undoes_and_recalls(run, folder):
    """/compact, /undo and /recall work on a session that has something to reduce."""
    (folder / "log.txt").write_text("".join(f"line {n} {n * 7919}\n" for n in range(9_000)))
    reads = [
        ScriptedAnswer("", (("read", {"path": "log.txt", "lines": f"{n * 200 + 1}-{n * 200 + 200}"}),))
        for n in range(5)
    ]
    with serve_model(*reads, ScriptedAnswer("", (("read", {"path": "log.txt"}),)), LAST_ANSWER) as (provider, options):
        run("agent", "Read.", *options, "--window", "32000")
        typed = "/compact\n/undo\n/recall zz\n/recall\n"
        result = run("agent", *options, "--window", "32000", stdin=typed)
        id_ = re.search(r"^(?:> )*([0-9a-f]{6,})", result.stdout, re.MULTILINE)
        assert id_, result.output
        page = run("agent", *options, stdin=f"/recall {id_[1]} 5001-5002\n")
    assert re.search(r"compacted: ~[\d,]+ → ~[\d,]+ tokens \(extract\)", result.stderr), result.stderr
    assert "undone:" in result.stderr
    assert "no text of this session is called 'zz'" in result.stderr
    assert "line 5000 39595000\nline 5001 39602919\n" in page.stdout
    assert "lines 5001-5002 of" in page.stderr
    assert all(isinstance(request.reply, ModelAnswer) for request in provider.requests)


@pytest.mark.parametrize(
    ("typed", "ran"), [("y\nn\n", ["1"]), ("n\ny\n", ["2"]), ("a\n", ["1", "2"]), ("\n\n", []), ("what\nyes\n", ["2"])]
)
def test_agent_prompt_asks_before_each_command(run, folder, typed, ran):
    """Each command needs a yes, or one answer for all; anything else is a no."""
    script = [ScriptedAnswer("", (("bash", {"command": f"echo {n} >> ran"}),)) for n in (1, 2)]
    with serve_model(*script, LAST_ANSWER) as (_, options):
        result = run("agent", *options, stdin=f"Go.\n{typed}/quit\n")
    assert result.exit_code == 0
    assert "the agent wants to run: echo 1 >> ran" in result.stderr
    assert ((folder / "ran").read_text().split() if ran else (folder / "ran").exists()) == (ran or False)


def test_agent_shows_escape_sequences_instead_of_sending_them(run, folder):
    """Escape sequences from a model or a file never reach the terminal as such."""
    (folder / "evil").write_text("\x1b]0;owned\x07\x1b[2J")
    script = [ScriptedAnswer("\x1b[31mred\x1b[0m\u202e", (("read", {"path": "evil"}),)), ScriptedAnswer("\x1b[2Jbye")]
    with serve_model(*script) as (_, options):
        result = run("agent", "Go.", *options)
        typed = run("agent", *options, stdin="again\n")
    assert "\x1b" not in result.output + typed.output
    assert "\u202e" not in result.output


# -- signals -----------------------------------------------------------------------------------------------------------


@contextmanager
def start_agent(task, options, **environment):
    """Yield ``holdfast agent`` as a separate process."""
    words = [sys.executable, "-m", "holdfast", "agent", task, *options, "--allow-bash"]
    env = {**os.environ, "NO_COLOR": "1", **environment}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_file(path):
    """Return the text of ``path`` once it exists and ends in a newline."""
    until = time.monotonic() + 60
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < until
        time.sleep(0.02)
    return path.read_text().strip()


SLOW_ANSWER = ScriptedAnswer(
    "", (("ls", {}), ("bash", {"command": "echo $$ >> pid; sleep 60"}), ("bash", {"command": "echo 2 >> ran"}))
)


@pytest.mark.long
def test_agent_after_sigkill_resumes_without_rerunning_the_command(run, home, folder):
    """After SIGKILL the session opens, the started command's result is unknown, and later calls run."""
    with serve_model(SLOW_ANSWER, LAST_ANSWER) as (provider, options):
        with start_agent("Go.", options) as process:
            shell = int(wait_for_file(folder / "pid"))
            process.kill()
            process.wait()
        with suppress(ProcessLookupError):
            os.killpg(shell, signal.SIGKILL)
        result = run("agent", "", *options, "--allow-bash")
    assert (result.exit_code, result.stdout) == (0, "It doubles now.\n"), result.output
    tool_results = read_tool_results(home, "task")
    assert [tool_results[1], tool_results[2]] == [LOST_RESULT_TEXT, "(no output)\n[exit code 0]"]
    assert (folder / "pid").read_text().split() == [str(shell)], "it was not run again"
    assert (folder / "ran").read_text() == "2\n"
    assert len(provider.requests) == 2


@pytest.mark.long
def test_agent_interrupt_ends_the_command_and_exits_130(has_ended, run, home, folder):
    """^C ends the command and the task with exit code 130 and no traceback; an empty task resumes it."""
    with serve_model(SLOW_ANSWER, LAST_ANSWER) as (_, options):
        with start_agent("Go.", options) as process:
            shell = int(wait_for_file(folder / "pid"))
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130, stderr
        assert "aborted: stopped" in stderr
        assert "Traceback" not in stderr
        assert "\x1b" not in stderr
        assert has_ended(shell)
        assert read_tool_results(home, "task")[1:] == [STOPPED_RESULT_TEXT, NOT_RUN_RESULT_TEXT]
        assert run("agent", "", *options).stdout == "It doubles now.\n"
    assert not (folder / "ran").exists()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_agent_ends_the_command_on_sigterm_and_sighup(has_ended, run, home, folder, number):
    """A signal that ends the program ends its command, the log records both, and an empty task resumes."""
    with serve_model(SLOW_ANSWER, LAST_ANSWER) as (_, options):
        with start_agent("Go.", options) as process:
            shell = int(wait_for_file(folder / "pid"))
            process.send_signal(number)
            _, stderr = process.communicate(timeout=60)
        assert process.returncode == 128 + number, stderr
        assert f"ended by {number.name}" in stderr
        assert "Traceback" not in stderr
        assert has_ended(shell)
        assert read_tool_results(home, "task")[1:] == [STOPPED_RESULT_TEXT, NOT_RUN_RESULT_TEXT]
        assert run("agent", "", *options).stdout == "It doubles now.\n"


def test_handle_termination_leaves_an_ignored_sighup_alone():
    """Under nohup the task survives the terminal, and after the block every signal has its old handler."""
    handlers_before = {number: signal.getsignal(number) for number in HANDLED_SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handle_termination(AgentScreen(quiet=True)) as end:
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
            assert end.signal_number == signal.SIGTERM
            end.signal_number = 0
        assert [signal.getsignal(number) for number in HANDLED_SIGNALS] == [
            handlers_before[signal.SIGTERM],
            signal.SIG_IGN,
        ]
    finally:
        signal.signal(signal.SIGHUP, handlers_before[signal.SIGHUP])


@pytest.mark.long
@pytest.mark.parametrize("task", ["", "And this."])
def test_agent_exits_2_when_another_agent_works_in_the_session(run, home, folder, monkeypatch, task):
    """A second agent in a session does nothing and says what can be done."""
    monkeypatch.setattr("holdfast.store.locks.LEASE_WAIT", 0.1)
    with serve_model(SLOW_ANSWER, LAST_ANSWER) as (provider, options), start_agent("Go.", options) as process:
        wait_for_file(folder / "pid")
        result = run("agent", task, *options, "--allow-bash")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "another agent is working in session 'task'; wait" in result.stderr
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert read_tool_results(home, "task")[1:] == [STOPPED_RESULT_TEXT, NOT_RUN_RESULT_TEXT]
        assert len(provider.requests) == 1
        assert run("agent", "", *options).exit_code == 0


@pytest.mark.long
def test_agent_second_interrupt_ends_at_once_and_keeps_the_log(has_ended, home, folder):
    """A second ^C does not wait for the command to end, and finished results are in the log."""
    stubborn = "trap '' TERM; echo $$ >> pid; while :; do sleep 0.1; done"
    with (
        serve_model(ScriptedAnswer("", (("bash", {"command": stubborn}),))) as (_, options),
        start_agent("Go.", options) as process,
    ):
        shell = int(wait_for_file(folder / "pid"))
        process.send_signal(signal.SIGINT)
        assert any("^C again" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert has_ended(shell)
    assert read_tool_results(home, "task") == [STOPPED_RESULT_TEXT]


@pytest.mark.timeout(60)
def test_agent_second_interrupt_during_the_first_message_exits(run, monkeypatch):
    """A second ^C that arrives while the first is being reported exits at once, even if the model is silent."""

    class InterruptedScreen(AgentScreen):
        def show_event(self, item):
            super().show_event(item)
            if isinstance(item, events.RequestStarted):
                raise KeyboardInterrupt

        def print_note(self, line, style="dim"):
            raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.engine.engine.CLOSE_TIMEOUT", 600)
    monkeypatch.setattr("holdfast.cli.commands.agent.AgentScreen", InterruptedScreen)
    with serve_model(faults=[Fault("stall", "head", 0)]) as (_, options):
        assert run("agent", "Go.", *options).exit_code != 0


@pytest.mark.long
@pytest.mark.timeout(60)
@pytest.mark.parametrize("event_number", range(1, 14, 2))
def test_agent_interrupt_at_any_event_ends_the_task(run, monkeypatch, event_number):
    """Whatever is being shown when ^C comes, the task ends, and so does the wait for it."""

    class InterruptedScreen(AgentScreen):
        events_left = event_number

        def show_event(self, item):
            super().show_event(item)
            self.events_left -= 1
            if self.events_left == 0:
                raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.commands.agent.AgentScreen", InterruptedScreen)
    with serve_model(READ_ANSWER, LAST_ANSWER) as (_, options):
        assert run("agent", "Go.", *options).exit_code in (0, 130)


@pytest.mark.long
def test_agent_prompt_exits_on_the_second_interrupt():
    """The first ^C at an empty prompt says how to leave, the second leaves with exit code 0."""
    words = [sys.executable, "-m", "holdfast", "agent", "--model", MODEL, "--base-url", "http://127.0.0.1:9"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, env={**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}, **pipes) as process:
        assert process.stdout.read(2) == b"> "
        for expected in (b"> ", b""):
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            assert process.stdout.read(len(expected) or -1) == expected
        assert process.wait(60) == 0
        assert b"^C again leaves" in process.stderr.read()


@pytest.mark.long
def test_agent_prompt_exits_at_once_on_sigterm():
    """SIGTERM while nothing runs ends the program at once."""
    words = [sys.executable, "-m", "holdfast", "agent", "--model", MODEL, "--base-url", "http://127.0.0.1:9"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, env={**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}, **pipes) as process:
        assert process.stdout.read(2) == b"> "
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert b"ended by SIGTERM" in process.stderr.read()


def test_session_cost_adds_the_price_of_each_kind_of_token():
    """Input, cache reads, cache writes and output each have their own price per million tokens."""
    prices = Prices(3.0, 15.0, 0.3, 3.75)
    cost = (
        SessionCost()
        .add_call(Usage(input=600, output=60, cache_read=600), prices)
        .add_call(Usage(400, 40, 0, 200), prices)
    )
    assert cost == SessionCost(1_000, 100, 600, 200, cost.usd)
    assert cost.cache_hit == 0.6
    assert cost.usd == pytest.approx(0.00303)
    assert (SessionCost().cache_hit, SessionCost().usd) == (0.0, 0.0)


def test_session_cost_is_unknown_without_a_price(run):
    """No other model's price stands in: the cost is null in JSON, unknown in text, also in a sum with known costs."""
    with serve_model(LAST_ANSWER) as (_, options):
        unpriced_model = ("--model", "omega-9", "--api", "anthropic")
        result = run("agent", "Go.", *options, *unpriced_model, "--json")
        line = run("agent", *options, *unpriced_model, stdin="/context\n").stdout
    assert json.loads(result.stdout)["usd"] is None
    assert "cache 0% · price unknown" in line
    known, unknown = get_target("anthropic", MODEL).prices, get_target("anthropic", "omega-9").prices
    assert SessionCost().add_call(Usage(600, 60), unknown).add_call(Usage(600, 60), known).usd is None
    assert SessionCost().add_call(Usage(600, 60), known).add_call(Usage(600, 60), unknown).usd is None


SUMMARY = """\
## Goal
Read all of log.txt, part by part, and say what is in it.
## Constraints & Preferences
The file log.txt stays as it is; it is only read.
## Progress
Parts of log.txt were read, a range of lines each time.
## Key Decisions
Ranges of 300 lines are read one after the other.
## Next Steps
Read the lines that are left.
## Critical Context
The newest request of the user is: Read it all.
## Relevant Files
log.txt"""


class ReadingScript:
    """A script that reads a file, part by part, and writes a summary where one is asked for."""

    def __init__(self) -> None:
        self.parts = 0

    def choose_next_answer(self, request, blocks):
        if "tools" not in request.body:
            return ScriptedAnswer(SUMMARY)
        self.parts += 1
        lines = f"{self.parts * 300}-{self.parts * 300 + 299}"
        return LAST_ANSWER if self.parts > 12 else ScriptedAnswer("", (("read", {"path": "log.txt", "lines": lines}),))


def test_agent_counts_the_cost_of_summaries(run, home, folder):
    """The cost of a summary model is in the figures of the agent and of ``stats``, at that model's prices."""
    (folder / "log.txt").write_text("".join(f"line {n} {n * 7919}\n" for n in range(4_000)))
    provider = Provider(ProviderSettings(window=32_000), ReadingScript())
    with serve_provider(provider) as url:
        words = ("--model", MODEL, "--base-url", url, "--dir", "work", "--session", "task", "--window", "32000")
        result = run("agent", "Read it all.", *words, "--summary-model", "claude-haiku-4-5", "--json")
    report = json.loads(result.stdout)
    summaries = [request for request in provider.requests if b"claude-haiku-4-5" in request.incoming.body]
    assert summaries
    assert report["input"] == sum(request.tokens for request in provider.requests)
    stats = json.loads(run("stats", "task", "--json").stdout)
    assert stats["dollars"] == pytest.approx(report["usd"], abs=1e-6)
    assert stats["input"] == report["input"]
    assert stats["answers"] == report["steps"]
    with open_store(str(home / "store" / "holdfast.db")) as store:
        usages = [entry.body.usage for entry in store.read_entries("task", "answer")]
    assert report["usd"] > sum(compute_cost(usage, get_target("anthropic", MODEL).prices) for usage in usages)
