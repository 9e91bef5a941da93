"""The plugin in the real opencode: its own tests, and sessions that outgrow their window, all offline."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import example_counts
import pytest

from holdfast.planning.extract.previous_summary import EXTRACT_OPENING
from holdfast.testing.provider import RefusalReply, ScriptedAnswer
from holdfast.testing.provider.answers.script import list_tool_names

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "integrations" / "hosts" / "opencode"
RULE = "Never restart the server."
WINDOW = 48_000
PROGRAM_VARIABLES = {"opencode": "HOLDFAST_OPENCODE", "node": "HOLDFAST_NODE"}
INSTALL_HINTS = {
    "opencode": "there is no opencode to run the plugin in: set HOLDFAST_OPENCODE to its program, or put opencode on "
    "the PATH (npm install --prefix FOLDER opencode-ai@1.18.33)",
    "node": "there is no node on the PATH to run the plugin's own tests",
}


def find_program(name):
    """Return the path of a program. Without it the test is skipped, or fails with ``HOLDFAST_COUNTS=thorough``."""
    program = os.environ.get(PROGRAM_VARIABLES[name]) or shutil.which(name)
    if program and Path(program).is_file():
        return program
    if example_counts.IS_THOROUGH:
        pytest.fail(INSTALL_HINTS[name])
    pytest.skip(INSTALL_HINTS[name])


def put_holdfast_on_path():
    """Return a PATH on which ``holdfast`` is the one under test."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


@pytest.mark.skipif(not PLUGIN.exists(), reason="these tests also run beside an installed wheel")
def test_plugin_files_say_what_they_are():
    """The licence of the repository, the version of the package, and the entry that opencode looks for."""
    assert (PLUGIN / "LICENSE").read_text("utf-8") == (ROOT / "LICENSE").read_text("utf-8")
    package = json.loads((PLUGIN / "package.json").read_text("utf-8"))
    assert f'version = "{package["version"]}"' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert (PLUGIN / package["exports"]["./server"]).is_file()


@pytest.mark.skipif(not PLUGIN.exists(), reason="these tests also run beside an installed wheel")
@pytest.mark.long
def test_node_runs_the_tests_of_the_plugin():
    """``node --test`` passes: the transcript, the answer, every way to fail open, and the real server."""
    command = [find_program("node"), "--test", "--test-reporter", "tap", "tests/"]
    environment = {**os.environ, "PATH": put_holdfast_on_path()}
    ran = subprocess.run(command, cwd=PLUGIN, env=environment, capture_output=True, text=True, check=False, timeout=110)
    assert ran.returncode == 0, ran.stdout[-4_000:] + ran.stderr
    counts = dict(re.findall(r"^# (pass|fail|skipped) (\d+)$", ran.stdout, re.MULTILINE))
    assert int(counts["pass"]) >= 50
    assert counts["skipped"] == "0"


class Model:
    """Answers opencode's requests: each step reads one log, and each turn ends with a sentence."""

    def __init__(self, steps):
        self.steps = steps
        self.next_step = 0
        self.summary_count = 0
        self.recall = None
        self.thinking = ""

    def choose_next_answer(self, request, _blocks):
        """Return the next answer; a request without tools is opencode's own, for a summary."""
        if not list_tool_names(request):
            self.summary_count += 1
            return ScriptedAnswer(f"Summary {self.summary_count}: the logs are read one by one. {RULE}")
        if self.recall is not None:
            call, self.recall = self.recall, None
            return ScriptedAnswer("", (("recall", call),))
        self.next_step += 1
        if self.next_step % (self.steps + 1) == 0:
            return ScriptedAnswer(f"Turn {self.next_step // (self.steps + 1)} is done.")
        call = {"command": f"cat log-{self.next_step:02}.txt", "description": "Read a log"}
        return ScriptedAnswer("", (("bash", call),), self.thinking)


class Opencode:
    """opencode with a folder, a home and a configuration of its own, whose only provider is a strict one."""

    def __init__(self, folder, strict_provider, *, steps=10, lines=220, window=WINDOW, limit=WINDOW, npm="anthropic"):
        self.folder = folder
        self.program = find_program("opencode")
        self.model = Model(steps)
        self.served = strict_provider(window=window, script=self.model)
        self.session = None
        self.log = ""
        self.project = folder / "project"
        self.project.mkdir(parents=True)
        for number in range(60):
            rows = [
                f"log {number:02}, line {row}: {row * 7919 % 1009} ms for lock-{number}-{row}" for row in range(lines)
            ]
            (self.project / f"log-{number:02}.txt").write_text("\n".join(rows))
        name = "claude-sonnet-4-5" if npm == "anthropic" else "fake-1"
        provider = {
            "npm": f"@ai-sdk/{npm}",
            "options": {"baseURL": f"{self.served.url}/v1", "apiKey": "sk-test"},
            "models": {name: {"name": "Strict", "limit": {"context": limit, "output": 4_000}}},
        }
        self.config = {"share": "disabled", "model": f"strict/{name}", "provider": {"strict": provider}}
        self.variables = {
            "HOME": str(folder),
            "PATH": os.environ.get("PATH", os.defpath),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        }
        for kind in ("CACHE", "CONFIG", "DATA", "STATE"):
            self.variables[f"XDG_{kind}_HOME"] = str(folder / kind.lower())

    def think(self, model):
        """Ask ``model``, which signs its thinking over everything before it."""
        self.model.thinking = "Which lock may it be?"
        (provider,) = self.config["provider"].values()
        limit = next(iter(provider["models"].values()))["limit"]
        options = {"thinking": {"type": "adaptive"}}
        provider["models"] = {model: {"name": "Strict", "limit": limit, "reasoning": True, "options": options}}
        self.config["model"] = f"strict/{model}"

    def use_plugin(self, url):
        """Load the plugin, which asks the server at ``url``."""
        self.config["plugin"] = [str(PLUGIN)]
        self.variables["HOLDFAST_URL"] = url

    def call(self, *arguments, may_fail=False):
        """Run the program and return what it printed."""
        (self.project / "opencode.json").write_text(json.dumps(self.config))
        # A file and not a pipe: opencode ends before a pipe has taken more than 64 KiB.
        with (self.folder / "stdout").open("w+", encoding="utf-8") as out:
            ran = subprocess.run(
                [self.program, *arguments],
                cwd=self.project,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                timeout=110,
            )
            out.seek(0)
            printed = out.read()
        self.log += ran.stderr
        assert may_fail or ran.returncode == 0, printed[-2_000:] + ran.stderr[-4_000:]
        return printed

    def say(self, text):
        """Run one turn of the session.

        opencode ends with an error if the provider refused anything, even if it went on after that.
        """
        known = ["--session", self.session] if self.session else ["--title", "logs"]
        out = self.call(
            "run", "--format", "json", "--print-logs", "--model", self.config["model"], *known, text, may_fail=True
        )
        self.session = json.loads(out.splitlines()[0])["sessionID"]

    def list_requests(self):
        """Return the requests of the session itself, without opencode's own ones for a summary."""
        return [request for request in self.served.provider.requests if b'"tools"' in request.incoming.body]

    def list_refusals(self):
        """Return the replies with which the provider refused a request."""
        replies = [request.reply for request in self.served.provider.requests]
        return [reply.message for reply in replies if isinstance(reply, RefusalReply)]

    def list_stored_results(self):
        """Return the results of all commands in opencode's stored history."""
        exported = json.loads(self.call("export", self.session))
        parts = [part for message in exported["messages"] for part in message["parts"] if part["type"] == "tool"]
        return [part["state"]["output"] for part in parts if part["tool"] == "bash"]


@contextmanager
def serve_holdfast(folder, port=0):
    """Serve Holdfast with a store of its own and yield its address."""
    command = [sys.executable, "-m", "holdfast", "serve", "--port", str(port), "--json"]
    command += ["--store", str(folder / "store.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
            process.communicate(timeout=30)


def read_shown_messages(request):
    """Return the messages of a request as texts, without the marks that only say what to cache."""

    def strip(value):
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if key != "cache_control"}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return [json.dumps(strip(message)) for message in json.loads(request.incoming.body)["messages"]]


def count_breaks(requests):
    """Return how many requests do not go on just where the one before ended."""
    shown = [read_shown_messages(request) for request in requests]
    return sum(later[: len(earlier)] != earlier for earlier, later in pairwise(shown))


@pytest.mark.long
@pytest.mark.parametrize("npm", ["anthropic", "openai-compatible"])
def test_a_session_of_several_windows_goes_on(tmp_path, strict_provider, npm):
    """With the plugin no request is refused, opencode writes no summary, and between two compactions each request goes
    on after the last byte of the one before, in three processes. opencode's history keeps every result whole, and what
    is not shown can be read back.
    """
    opencode = Opencode(tmp_path, strict_provider, npm=npm)
    with serve_holdfast(tmp_path) as url:
        opencode.use_plugin(url)
        opencode.say(f"Find out which lock is slow. {RULE}")
        opencode.say("Go on with the next logs.")
        opencode.model.recall = {"id": "", "lines": "", "chars": "", "search": "lock-2-77", "page": 1}
        opencode.say("Go on with the rest.")
    requests = opencode.list_requests()
    assert opencode.list_refusals() == []
    assert opencode.model.summary_count == 0
    assert max(request.tokens for request in requests) < WINDOW - 4_000
    compactions = re.findall(r"Holdfast compacted: requests show ([\d,]+) of ([\d,]+) tokens", opencode.log)
    assert len(compactions) >= 2
    assert count_breaks(requests) == len(compactions)
    newest = requests[-1].incoming.body.decode()
    assert EXTRACT_OPENING in newest
    assert RULE in newest
    assert "Holdfast does not help" not in opencode.log
    stored_results = opencode.list_stored_results()
    assert len(stored_results) == 30
    assert all(re.search(r"lock-\d+-219$", result) for result in stored_results)
    assert any(
        b"lock-2-77" in request.incoming.body and b"found in this conversation" in request.incoming.body
        for request in requests
    )


@pytest.mark.long
def test_the_same_session_without_the_plugin(tmp_path, strict_provider):
    """Without the plugin the session comes to an end: each turn is refused for its length, and opencode, which does not
    know the provider's words for it, does not compact.
    """
    opencode = Opencode(tmp_path, strict_provider)
    for text in (f"Find out which lock is slow. {RULE}", "Go on with the next logs.", "Go on with the rest."):
        opencode.say(text)
    refusals = opencode.list_refusals()
    assert len(refusals) == 3
    assert "exceed context limit" in refusals[0]
    assert opencode.model.next_step == 10


@pytest.mark.long
def test_without_a_server_opencode_goes_on_as_without_the_plugin(tmp_path, strict_provider):
    """No server at the address: the session is as ever, and one line of the log says what to start."""
    opencode = Opencode(tmp_path, strict_provider, steps=3, lines=20)
    opencode.use_plugin("http://127.0.0.1:9")
    opencode.say("Find out which lock is slow.")
    opencode.say("Go on.")
    assert len(opencode.list_requests()) == 8
    assert count_breaks(opencode.list_requests()) == 0
    said = re.findall(r"Holdfast does not help here \(nothing answers at [^\n]*", opencode.log)
    assert len(said) == 2  # once in each process
    assert "start `holdfast serve`" in said[0]


@pytest.mark.long
def test_another_server_on_the_same_store_shows_the_same(tmp_path, strict_provider):
    """opencode and the server both start anew in the middle of a session: what was decided before still holds."""
    opencode = Opencode(tmp_path, strict_provider)
    with serve_holdfast(tmp_path) as url:
        opencode.use_plugin(url)
        opencode.say(f"Find out which lock is slow. {RULE}")
    port = int(url.rpartition(":")[2])
    with serve_holdfast(tmp_path, port):
        opencode.say("Go on with the next logs.")
    requests = opencode.list_requests()
    compactions = re.findall(r"Holdfast compacted", opencode.log)
    assert opencode.list_refusals() == []
    assert count_breaks(requests) == len(compactions)


@pytest.mark.long
def test_a_summary_of_opencode_is_written_from_an_extract(tmp_path, strict_provider):
    """Where opencode believes in a larger window than there is, the provider refuses, and opencode writes a summary: of
    Holdfast's extract. After it the session goes on.
    """
    opencode = Opencode(tmp_path, strict_provider, limit=200_000, npm="openai-compatible")
    with serve_holdfast(tmp_path) as url:
        opencode.use_plugin(url)
        opencode.say(f"Find out which lock is slow. {RULE}")
        opencode.say("Go on with the next logs.")
    all_requests = opencode.served.provider.requests
    summaries = [request for request in all_requests if b'"tools"' not in request.incoming.body]
    assert opencode.list_refusals() != []
    assert len(summaries) >= 1
    assert all(not isinstance(request.reply, RefusalReply) for request in summaries)
    assert EXTRACT_OPENING in json.loads(summaries[0].incoming.body)["messages"][-1]["content"]
    assert opencode.model.next_step == 22


@pytest.mark.long
def test_a_refusal_that_opencode_does_not_know_is_followed_by_a_compaction(tmp_path, strict_provider):
    """A turn that ends with a refusal for its length, in words that opencode does not know, is not the end of the
    session: the next one is sent compacted.
    """
    opencode = Opencode(tmp_path, strict_provider, limit=200_000)
    with serve_holdfast(tmp_path) as url:
        opencode.use_plugin(url)
        opencode.say(f"Find out which lock is slow. {RULE}")
        opencode.say("Go on.")
    refusals = opencode.list_refusals()
    assert len(refusals) == 1
    assert "exceed context limit" in refusals[0]
    assert "Holdfast compacted" in opencode.log
    assert opencode.model.next_step > 10


@pytest.mark.long
def test_thinking_that_was_signed_before_a_compaction_stops_no_request(tmp_path, strict_provider):
    """opencode asks the provider to drop thinking that no longer fits its history, and thinking since then stays."""
    opencode = Opencode(tmp_path, strict_provider)
    opencode.think("claude-opus-5-5")
    with serve_holdfast(tmp_path) as url:
        opencode.use_plugin(url)
        opencode.say(f"Find out which lock is slow. {RULE}")
        opencode.say("Go on.")
    assert opencode.list_refusals() == []
    assert "Holdfast compacted" in opencode.log
    newest = opencode.list_requests()[-1]
    assert newest.incoming.body.count(b'"type":"thinking"') >= 2
    assert len(newest.reply.dropped_blocks) <= 1


@pytest.mark.long
@pytest.mark.parametrize("window", [400_000, 200_000])
def test_a_recorded_session_goes_on_in_opencode(tmp_path, strict_provider, window):
    """A session of 306,400 tokens goes on with an extract in its first request, and no model writes a summary.

    With a window that it is larger than, opencode itself compacts first: by its own count of the newest answer, and of
    an extract.
    """
    opencode = Opencode(tmp_path, strict_provider, steps=1, window=window, limit=window)
    opencode.session = write_example_session(tmp_path)["info"]["id"]
    opencode.call("import", str(tmp_path / "session.json"))
    with serve_holdfast(tmp_path) as url:
        opencode.use_plugin(url)
        opencode.say("Go on.")
    requests = opencode.served.provider.requests
    assert opencode.list_refusals() == []
    assert opencode.model.summary_count == (window == 200_000)
    assert requests[0].tokens < 60_000
    assert EXTRACT_OPENING in requests[0].incoming.body.decode()
    assert "never change the public names" in requests[0].incoming.body.decode()
    assert opencode.model.next_step == 2


def write_example_session(folder):
    """Write the example session as a file that opencode imports, and return it."""
    store = ["--store", str(folder / "example.db")]
    path = folder / "session.json"
    for arguments in (
        ["import", str(ROOT / "examples" / "long-session.jsonl")],
        ["export", "a21116fc", "--format", "opencode-json", "-o", str(path)],
    ):
        command = [sys.executable, "-m", "holdfast", *arguments, *store]
        subprocess.run(command, check=True, capture_output=True, timeout=110)
    return json.loads(path.read_text("utf-8"))
