"""Requests of real clients that lie beside the checkout, where they do: who sent each, what for, in which session."""

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
ELIDED = re.compile(r"<\d+ chars: (.*)>", re.DOTALL)
WAYS = {
    "/chat/completions": "openai-chat",
    "/responses": "openai-responses",
    "/v1/messages": "anthropic",
    "/models/": "gemini",
}
ASKED = re.compile(r"/(?:chat/completions|responses|messages)\Z|enerateContent\Z")
"""Where a path ends that asks for an answer."""
KINDS = {
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
"""Who sent the requests of each file, and what for."""

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
"""Sessions that the turns of a file make: Codex says the same first words behind its summary, the others do not."""
SETTINGS = Policy().settings


def whole(value):
    """Return a recorded value with its elided texts as what is left of them."""
    if isinstance(value, dict):
        return {key: whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    cut = ELIDED.fullmatch(value) if isinstance(value, str) else None
    return value if cut is None else cut[1]


def requests(name):
    """Return headers and opened body of each request in a file that asks for an answer."""
    for line in (SHAPES / f"req-{name}.jsonl").read_text().splitlines():
        told = json.loads(line)
        if told["body"] is not None and ASKED.search(told["path"].partition("?")[0]):
            api = next(api for way, api in WAYS.items() if way in told["path"])
            headers = {name.lower(): value for name, value in told["headers"].items()}
            yield headers, measure_parsed_request(parse_request(json.dumps(whole(told["body"])).encode(), api))


def turns(name):
    """Return who sent each turn in a file, and the turn."""
    had_tools = False
    for headers, lens in requests(name):
        who = identify_client(lens.api, headers, lens)
        if classify_purpose(who, headers, lens, has_tools_before=had_tools) == "turn":
            yield who, lens
        had_tools |= has_tools(lens)


if SHAPES.is_dir():

    @pytest.mark.parametrize("name", KINDS)
    def test_client_and_kind(name):
        """Each recorded client is known, and so is what each of its requests is for."""
        family, kinds = KINDS[name]
        had_tools, told = False, []
        for headers, lens in requests(name):
            who = identify_client(lens.api, headers, lens)
            assert who.family == family
            told.append(classify_purpose(who, headers, lens, has_tools_before=had_tools))
            had_tools |= has_tools(lens)
        assert " ".join(told) == kinds

    def test_every_recording_is_looked_at():
        """No recorded client is left out."""
        assert {path.name[4:-6] for path in SHAPES.glob("req-*.jsonl")} == {*KINDS, "python-sdks"}

    def test_sdks():
        """The SDKs and what is built on them are told apart, have no scope of their own, and ask for turns alone."""
        told = [(identify_client(lens.api, headers, lens), headers, lens) for headers, lens in requests("python-sdks")]
        assert {one.scope for one, _, _ in told} == {""}
        assert Counter(one.family for one, _, _ in told) == SDKS
        assert {classify_purpose(one, headers, lens, has_tools_before=True) for one, headers, lens in told} == {"turn"}

    def test_each_conversation_is_a_session():
        """All recorded conversations at once, each request looked up anew: none is mixed with another.

        Two of the same client have sessions of their own, and whatever grew is a branch of one.
        """
        store, keys = MemoryStore(), {}
        waiting = {name: list(turns(name)) for name in KINDS}
        while any(waiting.values()):
            for name, rest in waiting.items():
                for who, lens in rest[:1]:
                    key = make_session_key(who, lens)
                    keys.setdefault(key, set()).add(name)
                    leaf = SessionIndexes(store).find_leaf(key, lens.messages, SETTINGS)
                    journal = Journal.open(store, key, leaf=leaf)
                    journal.follow_conversation(lens.messages)
                    assert [slot.raw for slot in build_projection(journal.state)] == [
                        slot.raw for slot in lens.messages
                    ], name
                del rest[:1]
        assert all(len(names) == 1 for names in keys.values())
        for name in KINDS:
            for who, lens in turns(name):
                again = store.open_state(
                    make_session_key(who, lens),
                    SessionIndexes(store).find_leaf(make_session_key(who, lens), lens.messages, SETTINGS),
                )
                assert match_known_prefix(
                    again.history.sized_messages.slice(), lens.messages, SETTINGS
                ).client_count == len(lens.messages)

    @pytest.mark.parametrize(("name", "sessions"), SESSIONS.items())
    def test_one_session_until_its_client_compacts(name, sessions):
        """The requests of a conversation are of one session; what a client begins anew after its summary is another."""
        assert len({make_session_key(who, lens) for who, lens in turns(name)}) == sessions
