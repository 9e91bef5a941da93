"""Run the real pi over its RPC mode, with a home of its own, against the strict provider and ``holdfast serve``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

EXTENSION = Path(__file__).parents[2] / "integrations" / "hosts" / "pi"
MODEL = "claude-sonnet-4-5"
THINKING_MODEL = "claude-fable-5-2"
"""A model that pi knows, and whose thinking is bound to everything before it."""
NO_SERVER = "http://127.0.0.1:9"
"""An address at which nothing listens."""
STEERING_EXTENSION = """\
// What a user does with the keys of the tree view, as a command: go back to an entry of the session.
export default pi => pi.registerCommand("go-to", {
  description: "Go to an entry of the tree",
  handler: async (id, ctx) => { await ctx.navigateTree(id, { summarize: false }); },
});
"""


@contextmanager
def run_provider(window, *options):
    """Start the strict provider; yield it. Its requests can be read once it is stopped."""
    command = [sys.executable, "-m", "holdfast", "provider", "--window", str(window), "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield StrictProvider(process)
        finally:
            process.kill()


class StrictProvider:
    """The strict provider in a process of its own."""

    def __init__(self, process):
        self._process = process
        assert process.stdout is not None
        self.url = json.loads(process.stdout.readline())["url"]

    def stop(self):
        """Stop it and return the requests that it got for answers of the model."""
        self._process.terminate()
        assert self._process.stdout is not None
        lines = [json.loads(line) for line in self._process.stdout if line.startswith("{")]
        return [line for line in lines if line.get("path", "").endswith(("/messages", "/completions", "/responses"))]


@contextmanager
def run_serve(home):
    """Start ``holdfast serve`` with a store in ``home``; yield its address and its process."""
    command = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--store", str(home / "store.db"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"], process
        finally:
            process.kill()


class PiHome:
    """A home folder for pi, whose models are asked at the strict provider."""

    def __init__(self, pi, folder, provider_url, window):
        self.pi = pi
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        agent = folder / ".pi" / "agent"
        agent.mkdir(parents=True, exist_ok=True)
        limits = {"contextWindow": window, "maxTokens": 2_000}
        model = {"id": MODEL, "reasoning": False, "input": ["text", "image"], **limits}
        providers = {
            "strict": {"baseUrl": provider_url, "apiKey": "k", "api": "anthropic-messages", "models": [model]},
            "anthropic": {"baseUrl": provider_url, "apiKey": "k", "modelOverrides": {THINKING_MODEL: limits}},
            "chat": {"baseUrl": f"{provider_url}/v1", "apiKey": "k", "api": "openai-completions", "models": [model]},
        }
        (agent / "models.json").write_text(json.dumps({"providers": providers}), "utf-8")
        self.steering = folder / "steering.js"
        self.steering.write_text(STEERING_EXTENSION, "utf-8")

    def make_command(self, *arguments, provider="strict"):
        """Return the command of pi with a model of the tests."""
        model = THINKING_MODEL if provider == "anthropic" else MODEL
        return [str(self.pi), "--provider", provider, "--model", model, *map(str, arguments)]

    def make_environment(self, server_url):
        """Return the variables for pi: its own Node first, and no way to the network."""
        return {
            "HOME": str(self.folder),
            "PATH": os.pathsep.join([str(self.pi.parent), os.environ.get("PATH", os.defpath)]),
            "PI_OFFLINE": "1",
            "PI_TELEMETRY": "0",
            "PI_SKIP_VERSION_CHECK": "1",
            "HOLDFAST_URL": server_url,
        }

    def run(self, *arguments, server_url=NO_SERVER, command=None):
        """Run pi to its end and return the finished process."""
        return subprocess.run(
            command or self.make_command(*arguments),
            cwd=self.work,
            env=self.make_environment(server_url),
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )

    @contextmanager
    def open(self, *arguments, server_url=NO_SERVER, extension=EXTENSION, provider="strict"):
        """Start pi in RPC mode with the extension, and yield its session."""
        loaded = ["-e", self.steering] if extension is None else ["-e", self.steering, "-e", extension]
        command = self.make_command("--mode", "rpc", *loaded, *arguments, provider=provider)
        errors = (self.folder / "pi.stderr").open("a")
        with (
            errors,
            subprocess.Popen(
                command,
                cwd=self.work,
                env=self.make_environment(server_url),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as process,
        ):
            try:
                yield PiSession(process, self.folder / "pi.stderr")
                process.stdin.close()
                process.wait(30)
            finally:
                process.kill()


class PiSession:
    """A running pi in RPC mode."""

    def __init__(self, process, errors):
        self._process = process
        self._errors = errors
        self.notices = []
        self.status = ""
        self.compactions = []
        """The results of pi's own compactions, as pi reports them."""

    def ask(self, **command):
        """Send a command and return the data of its response."""
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        record = self._read_until("response")
        assert record["success"], record
        return record.get("data")

    def prompt(self, text):
        """Send a prompt and wait until pi is done with it."""
        data = self.ask(type="prompt", message=text)
        if data["disposition"] != "handled":
            self._read_until("agent_settled")

    def work(self, step, lines=300, **arguments):
        """Let the model call a tool whose result has ``lines`` lines: about ten tokens each."""
        script = f"for i in $(seq 1 {lines}); do echo step {step} line $i $((i*7919%1009)) ms; done"
        call = json.dumps({"command": script, **arguments})
        self.prompt(f"Step {step}: never rename file_{step}.py.\ncall bash {call}")

    def get_last_text(self):
        """Return the text of the newest answer."""
        return self.ask(type="get_last_assistant_text")["text"]

    def _read_until(self, kind):
        for line in self._process.stdout:
            record = json.loads(line)
            self._note(record)
            if record["type"] == kind:
                return record
        raise AssertionError(self._errors.read_text("utf-8")[-2_000:])

    def _note(self, record):
        assert record["type"] != "extension_error", record
        if record.get("method") == "notify":
            self.notices.append(record["message"])
        elif record.get("method") == "setStatus":
            self.status = record["statusText"]
        elif record["type"] == "compaction_end":
            self.compactions.append(record)
