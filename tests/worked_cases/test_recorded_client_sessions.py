"""Recorded requests of real clients, where present: which client sent each, its purpose and its session."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from holdfast import Policy
from holdfast.engine.log.conversation_diff import match_known_prefix
from holdfast.engine.log.journal import Journal
from holdfast.providers.requests.parsed_request import measure_parsed_request, parse_request
from holdfast.proxy.conversation.clients import classify_purpose, has_tools, identify_client
from holdfast.proxy.conversation.identity import make_session_key
from holdfast.proxy.conversation.index import SessionIndexes
from holdfast.state.view import build_projection
from holdfast.store.memory import MemoryStore

SHAPES = Path(__file__).parents[3] / "shared" / "shapes"
ELIDED_RE = re.compile(r"<\d+ chars: (.*)>", re.DOTALL)
APIS_BY_PATH = {
    "/chat/completions": "openai-chat",
    "/responses": "openai-responses",
    "/v1/messages": "anthropic",
    "/models/": "gemini",
}
ANSWER_PATH_RE = re.compile(r"/(?:chat/completions|responses|messages)\Z|enerateContent\Z")
"""The end of a path that requests an answer."""
RECORDINGS = {
    "aider": ("aider", "turn"),
    "big-output-claude-code": ("claude-code", "turn turn"),
    "big-output-codex": ("codex", "turn turn"),
    "big-output-gemini": ("gemini-cli", "turn turn"),
    "big-output-opencode": ("opencode", "side turn turn"),
    "big-output-pi": ("pi", "turn turn"),
    "claude-code-overflow-compacts": ("claude-code", "turn turn turn compaction turn"),
    "claude-code-overflow-fails": ("claude-code", "turn turn turn compaction compaction compaction"),
    "claude-code-tool": ("claude-code", "turn turn turn"),
    "codex-custom-provider": ("codex", "turn turn"),
    "codex-local-compaction": ("codex", "turn compaction turn"),
    "codex-openai-remote-compaction": ("codex", "turn compaction turn"),
    "codex-openai-ws404": ("codex", "turn compaction"),
    "codex-overflow": ("codex", "turn turn turn"),
    "gemini-cli": ("gemini-cli", "turn turn"),
    "opencode": ("opencode", "side turn turn"),
    "opencode-overflow": ("opencode", "side turn turn turn compaction turn compaction turn"),
    "pi": ("pi", "turn turn turn turn turn turn"),
    "pi-overflow": ("pi", "turn compaction turn compaction turn compaction turn"),
    "simonw-llm": ("openai-sdk", "turn turn"),
}
"""The client of each file, and the purposes of its requests."""

SDKS = {"anthropic-sdk": 3, "openai-sdk": 5, "google-genai": 2, "litellm": 3, "langchain": 2}
SESSIONS = {
    "aider": 1,
    "claude-code-tool": 1,
    "claude-code-overflow-compacts": 2,
    "codex-overflow": 1,
    "codex-local-compaction": 1,
    "codex-openai-remote-compaction": 1,
    "gemini-cli": 1,
    "opencode-overflow": 2,
    "pi-overflow": 2,
    "simonw-llm": 1,
}
"""The number of sessions in each file: Codex keeps its first message after a compaction, the others do not."""
SETTINGS = Policy().settings


def restore_elided(value):
    """Return a recorded value with its elided texts replaced by what is left of them."""
    if isinstance(value, dict):
        return {key: restore_elided(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [restore_elided(inner) for inner in value]
    elided = ELIDED_RE.fullmatch(value) if isinstance(value, str) else None
    return value if elided is None else elided[1]


def iter_requests(name):
    """Yield headers and parsed body of each request in a file that requests an answer."""
    for line in (SHAPES / f"req-{name}.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["body"] is not None and ANSWER_PATH_RE.search(record["path"].partition("?")[0]):
            api = next(api for path_part, api in APIS_BY_PATH.items() if path_part in record["path"])
            headers = {name.lower(): value for name, value in record["headers"].items()}
            yield (
                headers,
                measure_parsed_request(parse_request(json.dumps(restore_elided(record["body"])).encode(), api)),
            )


def iter_turns(name):
    """Yield the client identity and the parsed body of each turn in a file."""
    had_tools = False
    for headers, parsed in iter_requests(name):
        identity = identify_client(parsed.api, headers, parsed)
        if classify_purpose(identity, headers, parsed, has_tools_before=had_tools) == "turn":
            yield identity, parsed
        had_tools |= has_tools(parsed)


if SHAPES.is_dir():

    @pytest.mark.parametrize("name", RECORDINGS)
    def test_identify_client_and_purpose_of_recorded_requests(name):
        """Each recorded client is identified, and each of its requests is classified by purpose."""
        family, kinds = RECORDINGS[name]
        had_tools, purposes = False, []
        for headers, parsed in iter_requests(name):
            identity = identify_client(parsed.api, headers, parsed)
            assert identity.family == family
            purposes.append(classify_purpose(identity, headers, parsed, has_tools_before=had_tools))
            had_tools |= has_tools(parsed)
        assert " ".join(purposes) == kinds

    def test_every_recording_is_covered():
        """No recorded client is left out."""
        assert {path.name[4:-6] for path in SHAPES.glob("req-*.jsonl")} == {*RECORDINGS, "python-sdks"}

    def test_identify_client_tells_sdks_apart():
        """SDKs and libraries built on them are told apart, have no scope, and send turns only."""
        requests = [
            (identify_client(parsed.api, headers, parsed), headers, parsed)
            for headers, parsed in iter_requests("python-sdks")
        ]
        assert {identity.scope for identity, _, _ in requests} == {""}
        assert Counter(identity.family for identity, _, _ in requests) == SDKS
        assert {
            classify_purpose(identity, headers, parsed, has_tools_before=True) for identity, headers, parsed in requests
        } == {"turn"}

    def test_find_leaf_keeps_recorded_conversations_apart():
        """Replayed all at once, with each request looked up anew, no recorded conversation is mixed with another.

        Two of the same client have sessions of their own, and a longer request is a branch of the same session.
        """
        store, keys = MemoryStore(), {}
        remaining = {name: list(iter_turns(name)) for name in RECORDINGS}
        while any(remaining.values()):
            for name, turns in remaining.items():
                for identity, parsed in turns[:1]:
                    key = make_session_key(identity, parsed)
                    keys.setdefault(key, set()).add(name)
                    leaf = SessionIndexes(store).find_leaf(key, parsed.messages, SETTINGS)
                    journal = Journal.open(store, key, leaf=leaf)
                    journal.follow_conversation(parsed.messages)
                    assert [sized.raw for sized in build_projection(journal.state)] == [
                        sized.raw for sized in parsed.messages
                    ], name
                del turns[:1]
        assert all(len(names) == 1 for names in keys.values())
        for name in RECORDINGS:
            for identity, parsed in iter_turns(name):
                state = store.open_state(
                    make_session_key(identity, parsed),
                    SessionIndexes(store).find_leaf(make_session_key(identity, parsed), parsed.messages, SETTINGS),
                )
                assert match_known_prefix(
                    state.history.sized_messages.slice(), parsed.messages, SETTINGS
                ).client_count == len(parsed.messages)

    @pytest.mark.parametrize(("name", "sessions"), SESSIONS.items())
    def test_make_session_key_is_stable_until_the_client_compacts(name, sessions):
        """The requests of a conversation belong to one session; a conversation restarted after a summary is another."""
        assert len({make_session_key(identity, parsed) for identity, parsed in iter_turns(name)}) == sessions
