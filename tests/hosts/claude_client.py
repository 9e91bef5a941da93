"""The real Claude Code with our plugin, in a home of its own, offline against the strict provider."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "integrations" / "hosts" / "claude-code"
SESSION = ROOT / "examples" / "long-session.jsonl"
SESSION_ID = "a21116fc-35bd-4653-95cf-238f307d23d0"
HOLDFAST_FOLDER = Path(sys.executable).parent
"""The folder of the program ``holdfast`` that is tested."""


@dataclass
class ClaudeClient:
    """Runs Claude Code; what it knows and writes is in ``home``."""

    program: str
    home: Path
    provider_url: str = ""
    plugins: list[Path] = field(default_factory=list)
    path: str = ""
    """What the client finds programs by; by default also the Holdfast that is tested."""

    @property
    def project(self):
        """The folder that the client works in."""
        folder = self.home / "project"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def log_path(self):
        """The client's debug log."""
        return self.home / "debug.log"

    def build_environment(self, **variables):
        """Return the environment of the client: nothing of this process but where programs are."""
        return {
            "HOME": str(self.home),
            "PATH": self.path or os.pathsep.join([str(HOLDFAST_FOLDER), os.environ.get("PATH", os.defpath)]),
            "ANTHROPIC_BASE_URL": self.provider_url,
            "ANTHROPIC_API_KEY": "sk-test",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "HOLDFAST_URL": "",  # no server of the machine that the tests run on
            **variables,
        }

    def build_command(self, *arguments):
        """Return the command line with the plugins and the debug log."""
        plugin_options = [option for plugin in self.plugins for option in ("--plugin-dir", str(plugin))]
        return [self.program, *plugin_options, "--debug-file", str(self.log_path), *map(str, arguments)]

    def run(self, *arguments, wrapper=(), **variables):
        """Run the client to its end, which must be a good one, and return the finished process."""
        command = [*wrapper, *self.build_command(*arguments)]
        ran = self._run(command, **variables)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran

    def run_plugin_command(self, *arguments):
        """Run ``claude plugin …`` and return the finished process, whatever its exit code."""
        return self._run([self.program, "plugin", *map(str, arguments)])

    def _run(self, command, **variables):
        return subprocess.run(
            command,
            cwd=self.project,
            env=self.build_environment(**variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )

    def get_transcript_path(self, session_id=SESSION_ID):
        """Return where the client keeps the transcript of a session."""
        folder = re.sub(r"[^A-Za-z0-9]", "-", str(self.project))
        return self.home / ".claude" / "projects" / folder / f"{session_id}.jsonl"

    def place_session(self):
        """Put the example session, of 306,400 tokens, where the client resumes it from; return its transcript."""
        transcript = self.get_transcript_path()
        transcript.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SESSION, transcript)
        return transcript

    def read_log(self):
        """Return the client's debug log so far."""
        return self.log_path.read_text("utf-8", "replace") if self.log_path.exists() else ""

    def wait_for_log(self, pattern, seconds=30):
        """Wait until a line of the debug log matches."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.read_log()):
            assert time.monotonic() < deadline, f"{pattern} is not in the log: {self.read_log()[-3_000:]}"
            time.sleep(0.05)

    def list_said_lines(self):
        """Return the lines that our plugin said to the person."""
        return re.findall(r"\[holdfast\] \$\.ui\.log: (.*)", self.read_log())

    def list_recorded_sessions(self):
        """Return the ids of the sessions in the client's store."""
        command = [sys.executable, "-m", "holdfast", "ls", "--json"]
        ran = subprocess.run(command, env=self.build_environment(), capture_output=True, text=True, check=False)
        return [session["key"] for session in json.loads(ran.stdout or "[]")]

    def list_compactions(self):
        """Return the tokens of messages before and after each compaction by Holdfast, from the debug log."""
        notices = re.findall(r"Holdfast compacted: ([\d,]+) → ([\d,]+) tokens", self.read_log())
        return [(int(before.replace(",", "")), int(after.replace(",", ""))) for before, after in notices]


def write_program(folder, name, script):
    """Write a shell script into ``folder`` that is found as the program ``name``; return the folder as a path."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    program.chmod(0o755)
    return str(folder)


def get_user_text(row):
    """Return the text of a user's row of a transcript, or an empty string."""
    content = row.get("message", {}).get("content", "") if row.get("type") == "user" else ""
    return content if isinstance(content, str) else ""


def read_rows(transcript):
    """Return the rows of a transcript."""
    return [json.loads(line) for line in transcript.read_text("utf-8").splitlines()]
