"""Command line clients: how each is pointed at a server, started for one turn, and its output parsed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conversation_script import Turn
from msgspec import Struct

PATIENCE = 240
"""Seconds for one turn: opencode takes 14 to start, and a client that tries again waits longer each time."""


class ClientPlace(Struct, frozen=True):
    """Where a client lives during one run."""

    clients_folder: Path
    """The folder with ``node_modules`` and the virtual environments."""
    home: Path
    work: Path
    url: str
    """Of the server it talks to, without ``/v1``."""
    compacts_at: int = 0
    """Tokens at which the client is configured to compact by itself; 0 = it is not configured."""

    @property
    def program(self) -> Path:
        """Return where the programs of the npm clients are."""
        return self.clients_folder / "node_modules" / ".bin"


class Answer(Struct, frozen=True):
    """The client's output for one turn."""

    text: str = ""
    error: str = ""
    """The error the user saw, or empty."""
    session: str = ""
    """The client's own session id, for the next turn."""


class Terminal(Struct, frozen=True):
    """A client that is started once a turn."""

    arguments: Callable[[ClientPlace, str, str], list[str]]
    """Given place, text and the session to continue (empty = a new one)."""
    variables: Callable[[ClientPlace], Mapping[str, str]]
    read: Callable[[str, str], Answer]
    """Given standard output and standard error."""
    prepare: Callable[[ClientPlace], None] = lambda place: None
    compact: str = ""
    """The user's command for a compaction; empty if compaction is only configured."""


class TerminalConversation:
    """A conversation with a client that is started once a turn."""

    def __init__(self, terminal: Terminal, place: ClientPlace) -> None:
        self._terminal, self._place, self._session = terminal, place, ""
        subprocess.run(["git", "init", "-q", str(place.work)], check=True)
        terminal.prepare(place)

    def compact(self) -> Answer:
        """Let the client compact, if it has a command for it."""
        command = self._terminal.compact
        return self._run_turn(command) if command else Answer()

    def say(self, turn: Turn) -> Answer:
        """Return the client's answer."""
        return self._run_turn(turn.text)

    def _run_turn(self, text: str) -> Answer:
        arguments = self._terminal.arguments(self._place, text, self._session)
        with subprocess.Popen(arguments, **self._options()) as running:
            try:
                out, err = running.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                return Answer(error=f"no answer within {PATIENCE} seconds")
        try:
            answer = self._terminal.read(out, err)
        except (ValueError, KeyError, IndexError) as error:
            return Answer(error=f"unreadable ({error!r}): {out[-300:]} {err[-300:]}")
        self._session = answer.session or self._session or "last"
        return answer

    def close(self) -> None:
        """Do nothing: each turn was a separate process that has ended."""

    def _options(self) -> dict[str, Any]:
        # The Node that was installed with the clients comes first: the machine's own may be too old for them.
        path = os.pathsep.join((str(self._place.program), os.environ["PATH"]))
        own = {"PATH": path, "HOME": str(self._place.home)}
        variables = {**own, **self._terminal.variables(self._place)}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return {"cwd": self._place.work, "env": variables, "start_new_session": True, **pipes}


def _parse_events(text: str) -> list[dict[str, Any]]:
    """Return the lines that are JSON objects."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines]


def _explain_silence(text: str, error: str) -> str:
    """Return the error of a client that printed no answer, or an empty text."""
    return "" if text else (error.strip()[-300:] or "an empty answer")


# -- Claude Code -------------------------------------------------------------------------------------------------------


def _claude(place: ClientPlace, text: str, session: str) -> list[str]:
    known = ["--resume", session] if session else []
    flags = ["--output-format", "json", "--dangerously-skip-permissions"]
    return [str(place.program / "claude"), *flags, *known, "-p", text]


def _claude_variables(place: ClientPlace) -> dict[str, str]:
    return {
        "IS_SANDBOX": "1",
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_API_KEY": "sk-ant-fake",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "2",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


def _claude_read(out: str, err: str) -> Answer:
    events = _parse_events(out)
    if not events:
        return Answer(error=_explain_silence("", err or out))
    result = events[-1]
    text = str(result.get("result", ""))
    return Answer(text, text if result.get("is_error") else "", str(result.get("session_id", "")))


# -- Codex -------------------------------------------------------------------------------------------------------------


def _codex(place: ClientPlace, text: str, session: str) -> list[str]:
    known = ["resume", session] if session else []
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
    return [str(place.program / "codex"), "exec", *flags, *known, text]


def _codex_configured(place: ClientPlace, model: str) -> None:
    folder = place.home / ".codex"
    folder.mkdir(parents=True, exist_ok=True)
    limit = f"model_auto_compact_token_limit={place.compacts_at}\n" if place.compacts_at else ""
    quiet = '[analytics]\nenabled=false\n[otel]\nexporter="none"\n'
    (folder / "config.toml").write_text(f"{limit}{model}{quiet}")


def _codex_own(place: ClientPlace) -> None:
    provider = f'[model_providers.fake]\nname="Fake"\nbase_url="{place.url}/v1"\nenv_key="CODEX_API_KEY"\n'
    _codex_configured(place, f'model="fake-1"\nmodel_provider="fake"\n{provider}wire_api="responses"\n')


def _codex_built_in(place: ClientPlace) -> None:
    _codex_configured(place, f'model="gpt-5.1-codex"\nopenai_base_url="{place.url}/v1"\n')


def _codex_read(out: str, err: str) -> Answer:
    events = _parse_events(out)
    session = next((event["thread_id"] for event in events if event["type"] == "thread.started"), "")
    texts = [event["item"].get("text", "") for event in events if _is_message(event)]
    failed = [event for event in events if event["type"] in ("error", "turn.failed")]
    error = json.dumps(failed[-1]) if failed else _explain_silence("".join(texts), err)
    return Answer(texts[-1] if texts else "", error, session)


def _is_message(event: Mapping[str, Any]) -> bool:
    return event["type"] == "item.completed" and event["item"].get("type") == "agent_message"


# -- opencode ----------------------------------------------------------------------------------------------------------


def _opencode(place: ClientPlace, text: str, session: str) -> list[str]:
    known = ["--session", session] if session else []
    return [str(place.program / "opencode"), "run", "--format", "json", *known, text]


def _opencode_configured(place: ClientPlace) -> None:
    limit = {"context": place.compacts_at or 200_000, "output": 8_000}
    models = {"fake-1": {"name": "Fake 1", "limit": limit}}
    options = {"baseURL": f"{place.url}/v1", "apiKey": "sk-fake"}
    provider = {"fake": {"npm": "@ai-sdk/openai-compatible", "options": options, "models": models}}
    named = {"model": "fake/fake-1", "small_model": "fake/fake-1"}
    settings = {"share": "disabled", "autoupdate": False, **named, "provider": provider}
    (place.work / "opencode.json").write_text(json.dumps(settings))


def _opencode_read(out: str, err: str) -> Answer:
    events = _parse_events(out)
    session = next((event["sessionID"] for event in events if "sessionID" in event), "")
    texts = [event["part"]["text"] for event in events if event.get("type") == "text"]
    failed = [event for event in events if event.get("type") == "error"]
    error = json.dumps(failed[-1].get("error")) if failed else _explain_silence("".join(texts), err)
    return Answer(texts[-1] if texts else "", error, session)


# -- pi ----------------------------------------------------------------------------------------------------------------


def _pi(provider: str, model: str) -> Callable[[ClientPlace, str, str], list[str]]:
    def arguments(place: ClientPlace, text: str, session: str) -> list[str]:
        flags = ["-p", "--provider", provider, "--model", model]
        return ["node", str(place.program / "pi"), *flags, *(["-c"] if session else []), text]

    return arguments


PI_BUILT_IN = "anthropic"
"""A provider whose models pi knows: its requests have more fields than those to a user's own server."""


def _pi_configured(place: ClientPlace) -> None:
    model = {"id": "fake-1", "contextWindow": place.compacts_at or 200_000, "maxTokens": 8_000, "input": ["text"]}
    model |= {"reasoning": False, "cost": {"input": 1, "output": 2, "cacheRead": 0.1, "cacheWrite": 1}}
    apis = {"chat": "openai-completions", "messages": "anthropic-messages", "responses": "openai-responses"}
    providers = {
        name: {
            "baseUrl": place.url + ("" if name == "messages" else "/v1"),
            "apiKey": "k",
            "api": api,
            "models": [model],
        }
        for name, api in apis.items()
    }
    providers[PI_BUILT_IN] = {"baseUrl": place.url}
    folder = place.home / ".pi" / "agent"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "models.json").write_text(json.dumps({"providers": providers}))


def _plain(out: str, err: str) -> Answer:
    return Answer(out.strip(), _explain_silence(out.strip(), err))


def pi(provider: str, model: str = "fake-1") -> Terminal:
    """Return pi with a user's own server (``chat``, ``messages`` or ``responses``) or a provider that it knows."""
    quiet = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1", "ANTHROPIC_API_KEY": "k"}
    return Terminal(_pi(provider, model), lambda place: quiet, _plain, _pi_configured)


# -- Gemini CLI --------------------------------------------------------------------------------------------------------


def _gemini(place: ClientPlace, text: str, session: str) -> list[str]:
    flags = [
        "--yolo",
        "-m",
        "gemini-2.5-flash",
        "--output-format",
        "json",
        *(["--resume", "latest"] if session else []),
    ]
    return ["node", str(place.program / "gemini"), *flags, "-p", text]


def _gemini_configured(place: ClientPlace) -> None:
    folder = place.home / ".gemini"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
    }
    (folder / "settings.json").write_text(json.dumps(settings))


def _gemini_variables(place: ClientPlace) -> dict[str, str]:
    trusted = {"GEMINI_CLI_TRUST_WORKSPACE": "true"}
    return {"GEMINI_API_KEY": "fake", "GOOGLE_GEMINI_BASE_URL": place.url, **trusted}


def _gemini_read(out: str, err: str) -> Answer:
    start = out.find("{")
    result = json.loads(out[start:]) if start >= 0 else {}
    text = str(result.get("response") or "")
    error = json.dumps(result["error"]) if result.get("error") else _explain_silence(text, err)
    return Answer(text, error)


# -- llm ---------------------------------------------------------------------------------------------------------------


def _llm(place: ClientPlace, text: str, session: str) -> list[str]:
    return [str(place.clients_folder / "venv" / "bin" / "llm"), "-m", "fake-1", *(["-c"] if session else []), text]


def _llm_configured(place: ClientPlace) -> None:
    model = f"- model_id: fake-1\n  model_name: fake-1\n  api_base: {place.url}/v1\n"
    (place.home / "extra-openai-models.yaml").write_text(model)


def _llm_read(out: str, err: str) -> Answer:
    return Answer(out.strip(), err.strip() if re.search(r"(?m)^Error", err) else _explain_silence(out.strip(), err))


GEMINI = Terminal(_gemini, _gemini_variables, _gemini_read, _gemini_configured)
TERMINALS: Mapping[str, Terminal] = {
    "claude": Terminal(_claude, _claude_variables, _claude_read, compact="/compact"),
    "codex": Terminal(_codex, lambda place: {"CODEX_API_KEY": "sk-fake"}, _codex_read, _codex_own),
    "codex-openai": Terminal(_codex, lambda place: {"CODEX_API_KEY": "sk-fake"}, _codex_read, _codex_built_in),
    "opencode": Terminal(
        _opencode,
        lambda place: {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        },
        _opencode_read,
        _opencode_configured,
    ),
    "pi-chat": pi("chat"),
    "pi-anthropic": pi("messages"),
    "pi-claude": pi(PI_BUILT_IN, "claude-opus-5-5"),
    "pi-responses": pi("responses"),
    "gemini": GEMINI,
    "gemini-tools": GEMINI,
    "llm": Terminal(
        _llm, lambda place: {"LLM_USER_PATH": str(place.home), "OPENAI_API_KEY": "k"}, _llm_read, _llm_configured
    ),
}
"""Clients of the command line, by name."""
