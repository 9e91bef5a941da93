"""``holdfast agent``: a task over HTTP against the strict provider, a prompt, and whatever ends either."""

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
LOOK = ScriptedAnswer("I look.", (("read", {"path": "app.py"}),))
MEND = ScriptedAnswer(
    "", (("edit", {"path": "app.py", "old": " + 1", "new": ""}), ("bash", {"command": "echo ran >> ran"}))
)
DONE = ScriptedAnswer("It doubles now.")


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


def results(home, key):
    """Return what every tool of a session said."""
    with open_store(str(home / "store" / "holdfast.db")) as store:
        said = [
            entry.body.sized_message.message for entry in store.read_path(key) if isinstance(entry.body, MessageEntry)
        ]
    return [get_result_text(result) for message in said for result in message.results]


@contextmanager
def model(*script, faults=(), **limits):
    """Yield the provider that says ``script``, and the options that lead to it."""
    provider = Provider(ProviderSettings(**limits), script)
    with serve_provider(provider, faults) as url:
        yield provider, ("--model", MODEL, "--base-url", url, "--dir", "work", "--session", "task")


# -- a task ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", STRICTEST_MODELS)
def test_a_task(run, folder, api):
    """The work is done, its words are on standard output, the calls and the state of the context beside them."""
    with model(LOOK, MEND, DONE) as (provider, options):
        more = ("--api", api, "--model", STRICTEST_MODELS[api], "--allow-bash")
        done = run("agent", "Mend double.", *options, *more)
    assert (done.exit_code, done.stdout) == (0, "I look.\nIt doubles now.\n"), done.output
    assert (folder / "app.py").read_text() == "def double(x):\n    return x + x\n"
    assert (folder / "ran").read_text() == "ran\n"
    for told in ("read app.py", "edit app.py", "bash echo ran", "session task"):
        assert told in done.stderr
    assert re.search(r"context ~[\d,]+ of [\d,]+ tokens \(\d+%\) · 0 compactions · cache \d+% · \$\d", done.stderr)
    assert all(isinstance(one.reply, ModelAnswer) for one in provider.requests)


def test_a_task_for_programs(run, home):
    """With --json one object tells how it ended, and nothing else is printed."""
    with model(LOOK, MEND, DONE) as (provider, options):
        done = run("agent", "Mend double.", *options, "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, done.stderr) == (0, "")
    assert {key: told[key] for key in ("session", "outcome", "steps", "text", "why")} == {
        "session": "task",
        "outcome": "done",
        "steps": 3,
        "text": "It doubles now.",
        "why": "",
    }
    assert told["input"] == sum(one.tokens for one in provider.requests)
    assert 0 < told["tokens"] < told["window"]
    assert "did not allow" in results(home, "task")[2], "nobody could be asked"
    assert run("ls").output.count("Mend double.") == 1


def test_mistakes_of_the_model(run, home, folder):
    """Unknown tools, broken arguments and ways out of the folder are results; the work goes on to its end."""
    calls = (
        ("fly", {}),
        ("read", {"file": "app.py"}),
        ("write", {"path": "../mine", "text": "x"}),
        ("read", {"path": "/etc/passwd"}),
        ("grep", {"pattern": "("}),
    )
    with model(ScriptedAnswer("", calls), DONE) as (_, options):
        assert run("agent", "Go.", *options).exit_code == 0
    whys = ("no tool 'fly'", "unknown field `file`", "outside", "outside", "not a regular expression")
    assert all(why in text for text, why in zip(results(home, "task"), whys, strict=True))
    assert not (home / "mine").exists()


def test_a_small_window(run, folder):
    """Far more is read than the window holds; what became of the context is told."""
    (folder / "log.txt").write_text("".join(f"line {n} {n * 7919}\n" for n in range(4_000)))
    script = [
        ScriptedAnswer("", (("read", {"path": "log.txt", "lines": f"{n * 300 + 1}-{n * 300 + 300}"}),))
        for n in range(12)
    ]
    with model(*script, DONE, window=32_000) as (provider, options):
        done = run("agent", "Read it all.", *options, "--window", "32000")
    assert done.exit_code == 0, done.output
    assert all(one.tokens <= 32_000 for one in provider.requests)
    assert "compacted: " in done.stderr


def test_a_result_that_was_not_sent_yet_does_not_overfill_the_window(run, folder):
    """What is said and was not reduced yet is no share of the window: it does not go out so."""
    (folder / "log.txt").write_text("".join(f"line {n} {n * 7919}\n" for n in range(9_000)))
    with model(ScriptedAnswer("", (("read", {"path": "log.txt"}),)), DONE, window=32_000) as (_, options):
        given = (*options, "--window", "32000")
        done = run("agent", "Read it.", *given, "--steps", "1")
        told = run("agent", *given, given="/context\n")
    for shown in (done.stderr, told.stdout):
        assert "(over the window: will be reduced before sending)" in shown
    assert not re.search(r"[1-9]\d{2}%", done.stderr.replace("100%", "") + told.output.replace("100%", ""))


def test_the_limit_of_steps(run):
    """A task that takes too many answers ends with exit code 1, and an empty task goes on with it."""
    with model(LOOK, MEND, DONE) as (_, options):
        done = run("agent", "Mend double.", *options, "--steps", "2")
        assert done.exit_code == 1
        assert "steps: the limit of 2 steps is reached" in done.stderr
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
        (["--model", MODEL, "--base-url", "http://127.0.0.1:9", "--store", "~nobody-here/x"], "the home folder is unknown"),
        (["--model", MODEL, "--base-url", "http://127.0.0.1:9", "--policy", "hope"], "hope"),
        (["--model", MODEL, "--base-url", "http://127.0.0.1:9"], "check the address"),
        (["--model", MODEL, "--base-url", "http://127.0.0.1:9", "--window", "3000"], "3,000"),
        ([], "Missing option '--model'"),
    ],
)
def test_what_cannot_work(run, home, options, why):
    """No key, no folder, no provider, no room: exit code 2, what to do, and no traceback."""
    (home / "holdfast.toml").write_text("[policy.retry]\nmax_retries = 0\n")
    done = run("agent", "Go.", *options)
    assert done.exit_code == 2, done.output
    assert why in done.stderr
    assert "Traceback" not in done.output


def test_a_key_that_the_provider_refuses(run, monkeypatch):
    """The provider's own words are told, and the key is not."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-SECRET")
    with model(faults=[Fault("401", "head", 0)]) as (_, options):
        done = run("agent", "Go.", *options)
    assert done.exit_code == 2
    assert "401" in done.stderr
    assert "SECRET" not in done.output


def test_a_provider_that_is_not_there(run, home):
    """Each try says what went wrong, so that nobody waits for a wrong address without knowing it."""
    (home / "holdfast.toml").write_text("[policy.retry]\nmax_retries = 1\nbase_seconds = 0.01\n")
    done = run("agent", "Go.", "--model", MODEL, "--base-url", "http://127.0.0.1:9")
    assert done.exit_code == 2
    assert re.search(r"network: again in [\d.]+ s \(try 2\): .*127\.0\.0\.1:9", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "name one from `holdfast ls` with --session, or give a TASK"),
        (["--session", "misspelt"], "there is no session 'misspelt' to resume"),
    ],
)
def test_nothing_to_go_on_with(run, options, said):
    """An empty task wants a session that is there; none is begun for it, and one that is none is named."""
    with model() as (_, given):
        done = run("agent", "", *given[:-2], *options)
    assert done.exit_code == 2
    assert said in done.stderr
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
def test_the_name_of_a_session(run, home, key, name, task, goes_on):
    """With a task the beginning of a name that somebody chose is a new name; that of an id is the id, as everywhere."""
    with model(ScriptedAnswer("Old."), ScriptedAnswer("New.")) as (_, options):
        assert run("agent", "First.", *options[:-1], key).exit_code == 0
        done = run("agent", task, *options[:-1], name)
    assert done.exit_code == 0
    assert f"session {key if goes_on else name}\n" in done.stderr


def test_an_answer_without_a_word(run):
    """Silence of the model is told."""
    with model(faults=[Fault("empty", "head", 1)]) as (_, options):
        done = run("agent", "Go.", *options)
    assert (done.exit_code, "ended without any text" in done.stderr) == (0, True), done.output


def test_json_wants_a_task(run):
    """A prompt has no one outcome to tell."""
    done = run("agent", "--model", MODEL, "--json")
    assert (done.exit_code, "give a TASK too" in done.stderr) == (2, True)


# -- the prompt --------------------------------------------------------------------------------------------------------


def test_a_prompt(run, home):
    """What is typed is answered; words with a slash tell and change the context; the session stays."""
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
    with model(LOOK, DONE) as (provider, options):
        done = run("agent", *options, given=typed)
        again = run("agent", *options, given="/branch 0\nAnother way.\n")
    assert (done.exit_code, again.exit_code) == (0, 0)
    assert "I look.\nIt doubles now.\n" in done.stdout
    for told in (
        "next request",
        "window",
        "free",
        "#0 ",
        "Look at it.",
        "there are no messages yet",
        "nothing was stored away yet",
        "/compact",
    ):
        assert told in done.stdout
    for told in ("session task begins", "not compacted", "nothing to undo", "there is no /fly; the commands are"):
        assert told in done.stderr
    assert "continues after 4 messages" in again.stderr
    assert "continues after 1 message" in again.stderr
    assert len(provider.requests) == 3
    assert b"Another way." in provider.requests[-1].incoming.body
    assert b"It doubles" not in provider.requests[-1].incoming.body


def test_the_command_that_comes_back_is_whole(run, folder):
    """What /help says goes on with the session leads to the same server, folder, window and store."""
    with model(DONE, ScriptedAnswer("And again.")) as (provider, options):
        given = (*options, "--window", "64000", "--store", str(folder.parent / "a store.db"))
        told = run("agent", *given, given="Go.\n/help\n").stdout
        again = shlex.split(re.search("later with: (holdfast .*)", told)[1])[1:]
        back = run(*again, given="More.\n/context\n")
    assert sorted(again) == sorted(["agent", *(str(folder) if word == "work" else word for word in given)])
    assert "session task continues after 2 messages" in back.stderr
    assert "64,000 tokens" in back.stdout
    assert len(provider.requests) == 2


def test_an_empty_line_goes_on(run):
    """Where a call has no result yet, as after a crash in a tool, an empty line goes on with it."""
    with model(LOOK, DONE, ScriptedAnswer("Once more.")) as (provider, options):
        done = run("agent", *options, given="Go.\n/branch 1\n/quit\n")
        again = run("agent", *options, given="\n/branch\n")
    assert "#0" not in done.stdout
    assert "its last task was not finished: press Enter on an empty line to resume it" in again.stderr
    assert "Once more." in again.stdout
    assert len(provider.requests) == 3


def test_what_gave_way_is_read_back_and_taken_back(run, folder):
    """/compact, /undo and /recall work on a session that has something to reduce."""
    (folder / "log.txt").write_text("".join(f"line {n} {n * 7919}\n" for n in range(9_000)))
    reads = [
        ScriptedAnswer("", (("read", {"path": "log.txt", "lines": f"{n * 200 + 1}-{n * 200 + 200}"}),))
        for n in range(5)
    ]
    with model(*reads, ScriptedAnswer("", (("read", {"path": "log.txt"}),)), DONE) as (provider, options):
        run("agent", "Read.", *options, "--window", "32000")
        typed = "/compact\n/undo\n/recall zz\n/recall\n"
        done = run("agent", *options, "--window", "32000", given=typed)
        id_ = re.search(r"^(?:> )*([0-9a-f]{6,})", done.stdout, re.MULTILINE)
        assert id_, done.output
        page = run("agent", *options, given=f"/recall {id_[1]} 5001-5002\n")
    assert re.search(r"compacted: ~[\d,]+ → ~[\d,]+ tokens \(extract\)", done.stderr), done.stderr
    assert "undone:" in done.stderr
    assert "no text of this session is called 'zz'" in done.stderr
    assert "line 5000 39595000\nline 5001 39602919\n" in page.stdout
    assert "lines 5001-5002 of" in page.stderr
    assert all(isinstance(one.reply, ModelAnswer) for one in provider.requests)


@pytest.mark.parametrize(
    ("typed", "ran"), [("y\nn\n", ["1"]), ("n\ny\n", ["2"]), ("a\n", ["1", "2"]), ("\n\n", []), ("what\nyes\n", ["2"])]
)
def test_a_command_is_asked_for(run, folder, typed, ran):
    """Each command waits for a yes, all of them for one; anything else is a no."""
    script = [ScriptedAnswer("", (("bash", {"command": f"echo {n} >> ran"}),)) for n in (1, 2)]
    with model(*script, DONE) as (_, options):
        done = run("agent", *options, given=f"Go.\n{typed}/quit\n")
    assert done.exit_code == 0
    assert "the agent wants to run: echo 1 >> ran" in done.stderr
    assert ((folder / "ran").read_text().split() if ran else (folder / "ran").exists()) == (ran or False)


def test_nothing_steers_the_terminal(run, folder):
    """Escape sequences that a model or a file says are shown as such."""
    (folder / "evil").write_text("\x1b]0;owned\x07\x1b[2J")
    script = [ScriptedAnswer("\x1b[31mred\x1b[0m\u202e", (("read", {"path": "evil"}),)), ScriptedAnswer("\x1b[2Jbye")]
    with model(*script) as (_, options):
        done = run("agent", "Go.", *options)
        typed = run("agent", *options, given="again\n")
    assert "\x1b" not in done.output + typed.output
    assert "\u202e" not in done.output


# -- whatever ends it --------------------------------------------------------------------------------------------------


@contextmanager
def started(task, options, **environment):
    """Yield the program as a process of its own."""
    words = [sys.executable, "-m", "holdfast", "agent", task, *options, "--allow-bash"]
    env = {**os.environ, "NO_COLOR": "1", **environment}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def begun(path):
    """Return the text of ``path`` once it is there."""
    until = time.monotonic() + 60
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < until
        time.sleep(0.02)
    return path.read_text().strip()


SLOW = ScriptedAnswer(
    "", (("ls", {}), ("bash", {"command": "echo $$ >> pid; sleep 60"}), ("bash", {"command": "echo 2 >> ran"}))
)


@pytest.mark.long
def test_a_kill_in_the_middle_of_a_command(run, home, folder):
    """After kill -9 the session opens, tells that the command's effects are unknown, and does what had not begun."""
    with model(SLOW, DONE) as (provider, options):
        with started("Go.", options) as process:
            shell = int(begun(folder / "pid"))
            process.kill()
            process.wait()
        with suppress(ProcessLookupError):
            os.killpg(shell, signal.SIGKILL)
        done = run("agent", "", *options, "--allow-bash")
    assert (done.exit_code, done.stdout) == (0, "It doubles now.\n"), done.output
    told = results(home, "task")
    assert [told[1], told[2]] == [LOST_RESULT_TEXT, "(no output)\n[exit code 0]"]
    assert (folder / "pid").read_text().split() == [str(shell)], "it was not run again"
    assert (folder / "ran").read_text() == "2\n"
    assert len(provider.requests) == 2


@pytest.mark.long
def test_an_interrupt_in_the_middle_of_a_command(has_ended, run, home, folder):
    """^C ends the command and the work, with exit code 130 and without a traceback; an empty task goes on."""
    with model(SLOW, DONE) as (_, options):
        with started("Go.", options) as process:
            shell = int(begun(folder / "pid"))
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130, stderr
        assert "aborted: stopped" in stderr
        assert "Traceback" not in stderr
        assert "\x1b" not in stderr
        assert has_ended(shell)
        assert results(home, "task")[1:] == [STOPPED_RESULT_TEXT, NOT_RUN_RESULT_TEXT]
        assert run("agent", "", *options).stdout == "It doubles now.\n"
    assert not (folder / "ran").exists()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_of_the_program_ends_the_command(has_ended, run, home, folder, number):
    """Who ends the program, or closes its terminal, ends the command with it; the log tells, and the work goes on."""
    with model(SLOW, DONE) as (_, options):
        with started("Go.", options) as process:
            shell = int(begun(folder / "pid"))
            process.send_signal(number)
            _, stderr = process.communicate(timeout=60)
        assert process.returncode == 128 + number, stderr
        assert f"ended by {number.name}" in stderr
        assert "Traceback" not in stderr
        assert has_ended(shell)
        assert results(home, "task")[1:] == [STOPPED_RESULT_TEXT, NOT_RUN_RESULT_TEXT]
        assert run("agent", "", *options).stdout == "It doubles now.\n"


def test_a_hangup_that_nobody_may_hear_is_left_alone():
    """Under nohup the work goes on when the terminal is closed; behind the block every signal does what it did."""
    before = {one: signal.getsignal(one) for one in HANDLED_SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handle_termination(AgentScreen(quiet=True)) as end:
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
            assert end.signal_number == signal.SIGTERM
            end.signal_number = 0
        assert [signal.getsignal(one) for one in HANDLED_SIGNALS] == [before[signal.SIGTERM], signal.SIG_IGN]
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])


@pytest.mark.long
@pytest.mark.parametrize("task", ["", "And this."])
def test_a_second_agent_is_told_that_there_is_one(run, home, folder, monkeypatch, task):
    """While one agent works in a session another one does nothing there, and says what can be done."""
    monkeypatch.setattr("holdfast.store.locks.LEASE_WAIT", 0.1)
    with model(SLOW, DONE) as (provider, options), started("Go.", options) as process:
        begun(folder / "pid")
        done = run("agent", task, *options, "--allow-bash")
        assert (done.exit_code, done.stdout) == (2, "")
        assert "another agent is working in session 'task'; wait" in done.stderr
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert results(home, "task")[1:] == [STOPPED_RESULT_TEXT, NOT_RUN_RESULT_TEXT]
        assert len(provider.requests) == 1
        assert run("agent", "", *options).exit_code == 0


@pytest.mark.long
def test_two_interrupts(has_ended, home, folder):
    """A second ^C does not wait for the work to end in order, and what was done is in the log all the same."""
    stubborn = "trap '' TERM; echo $$ >> pid; while :; do sleep 0.1; done"
    with (
        model(ScriptedAnswer("", (("bash", {"command": stubborn}),))) as (_, options),
        started("Go.", options) as process,
    ):
        shell = int(begun(folder / "pid"))
        process.send_signal(signal.SIGINT)
        assert any("^C again" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert has_ended(shell)
    assert results(home, "task") == [STOPPED_RESULT_TEXT]


@pytest.mark.timeout(60)
def test_two_interrupts_at_once(run, monkeypatch):
    """A second ^C that comes while the first is being told leaves at once too, though the model says nothing."""

    class Hasty(AgentScreen):
        def show_event(self, item):
            super().show_event(item)
            if isinstance(item, events.RequestStarted):
                raise KeyboardInterrupt

        def print_note(self, line, style="dim"):
            raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.engine.engine.CLOSE_TIMEOUT", 600)
    monkeypatch.setattr("holdfast.cli.commands.agent.AgentScreen", Hasty)
    with model(faults=[Fault("stall", "head", 0)]) as (_, options):
        assert run("agent", "Go.", *options).exit_code != 0


@pytest.mark.long
@pytest.mark.timeout(60)
@pytest.mark.parametrize("most", range(1, 14, 2))
def test_an_interrupt_whenever_it_comes(run, monkeypatch, most):
    """Whatever is being shown when ^C comes, the work ends, and so does the wait for it."""

    class Hasty(AgentScreen):
        left = most

        def show_event(self, item):
            super().show_event(item)
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.commands.agent.AgentScreen", Hasty)
    with model(LOOK, DONE) as (_, options):
        assert run("agent", "Go.", *options).exit_code in (0, 130)


@pytest.mark.long
def test_interrupts_at_the_prompt():
    """The first ^C at an empty prompt says how to leave, the second leaves, with exit code 0."""
    words = [sys.executable, "-m", "holdfast", "agent", "--model", MODEL, "--base-url", "http://127.0.0.1:9"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, env={**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}, **pipes) as process:
        assert process.stdout.read(2) == b"> "
        for wanted in (b"> ", b""):
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            assert process.stdout.read(len(wanted) or -1) == wanted
        assert process.wait(60) == 0
        assert b"^C again leaves" in process.stderr.read()


@pytest.mark.long
def test_the_end_of_the_program_at_the_prompt():
    """Who ends the program while nothing runs ends it at once."""
    words = [sys.executable, "-m", "holdfast", "agent", "--model", MODEL, "--base-url", "http://127.0.0.1:9"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, env={**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}, **pipes) as process:
        assert process.stdout.read(2) == b"> "
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert b"ended by SIGTERM" in process.stderr.read()


def test_what_was_spent():
    """Each kind of token has its price, for a million of them: plain input, read from the cache, written, output."""
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


def test_what_nobody_told_a_price_of_is_not_known(run):
    """No other model's price stands in: nothing in JSON and words for people, of the sum with others too."""
    with model(DONE) as (_, options):
        given = ("--model", "omega-9", "--api", "anthropic")
        told = run("agent", "Go.", *options, *given, "--json")
        line = run("agent", *options, *given, given="/context\n").stdout
    assert json.loads(told.stdout)["usd"] is None
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


class Summing:
    """A script that reads a file, part by part, and writes a summary where one is asked for."""

    def __init__(self) -> None:
        self.parts = 0

    def choose_next_answer(self, request, blocks):
        if "tools" not in request.body:
            return ScriptedAnswer(SUMMARY)
        self.parts += 1
        lines = f"{self.parts * 300}-{self.parts * 300 + 299}"
        return DONE if self.parts > 12 else ScriptedAnswer("", (("read", {"path": "log.txt", "lines": lines}),))


def test_summaries_cost_too(run, home, folder):
    """What a model's summaries cost is in the agent's figures and in those of ``stats``, at that model's prices."""
    (folder / "log.txt").write_text("".join(f"line {n} {n * 7919}\n" for n in range(4_000)))
    provider = Provider(ProviderSettings(window=32_000), Summing())
    with serve_provider(provider) as url:
        words = ("--model", MODEL, "--base-url", url, "--dir", "work", "--session", "task", "--window", "32000")
        done = run("agent", "Read it all.", *words, "--summary-model", "claude-haiku-4-5", "--json")
    told = json.loads(done.stdout)
    summaries = [one for one in provider.requests if b"claude-haiku-4-5" in one.incoming.body]
    assert summaries
    assert told["input"] == sum(one.tokens for one in provider.requests)
    stats = json.loads(run("stats", "task", "--json").stdout)
    assert stats["dollars"] == pytest.approx(told["usd"], abs=1e-6)
    assert stats["input"] == told["input"]
    assert stats["answers"] == told["steps"]
    with open_store(str(home / "store" / "holdfast.db")) as store:
        own = [entry.body.usage for entry in store.read_entries("task", "answer")]
    assert told["usd"] > sum(compute_cost(usage, get_target("anthropic", MODEL).prices) for usage in own)
