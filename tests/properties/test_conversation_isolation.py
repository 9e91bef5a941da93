"""Many conversations at once through one store, each request looked up anew: none ever contains text of another.

A client's session, a subagent of it, a second session of the same model and one of another client send requests, are
answered or not, retry, go back and write something else, compact themselves, and request titles, in any order. Beside
the shared store each conversation has a store of its own, with journals that are never closed: the proxy must send
what those would send.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import example_counts
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast import Policy
from holdfast.config import get_target
from holdfast.engine.log.journal import Journal, PreparedRequest
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall
from holdfast.providers.requests.parsed_request import ParsedRequest, measure_parsed_request, parse_request
from holdfast.providers.requests.request_body import render_request
from holdfast.proxy.conversation.clients import classify_purpose, identify_client
from holdfast.proxy.conversation.identity import make_session_key
from holdfast.proxy.conversation.index import SessionIndexes
from holdfast.state.calibration.model_stats import list_nonempty_model_stats, replace_model_stats
from holdfast.state.entries import RequestSetup, Usage
from holdfast.store.base import SessionStore
from holdfast.store.memory import MemoryStore

EXAMPLE_SETTINGS = settings(
    max_examples=example_counts.choose(quick=40, ci=200, thorough=10_000),
    deadline=None,
    derandomize=not example_counts.IS_THOROUGH,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    database=None,
)
POLICY = Policy().with_settings(
    window={"min_budget": 0}, results={"append_chars": 9_000, "spill_chars": 2_500, "preview_chars": 600}
)
"""Limits that these texts reach: results are spilled, the longest are cut, older turns are compacted."""
WINDOW = 4_000
SHARED = "Run the tests."
"""A message that several conversations begin with and repeat."""
SIZES = [0, 0, 40, 1_800, 4_000, 10_000]
"""Extra characters of a message."""


class Line(NamedTuple):
    """A message; ``call`` is the id of the call that it makes or answers."""

    role: str
    text: str
    call: str = ""


# -- the clients -------------------------------------------------------------------------------------------------------


def build_anthropic_messages(lines: list[Line], variation: int) -> list[dict[str, Any]]:
    """Return messages of the Messages API, with a cache breakpoint on the last one; earlier ones may be plain text."""
    messages = []
    for line in lines:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": line.text}]
        if line.role == "tool":
            blocks = [{"type": "tool_result", "tool_use_id": line.call, "content": line.text}]
        elif line.call:
            blocks.append({"type": "tool_use", "id": line.call, "name": "run", "input": {"n": 1}})
        plain = line.role != "tool" and not line.call and variation % 2
        role = "user" if line.role == "tool" else line.role
        messages.append({"role": role, "content": line.text if plain and line is not lines[-1] else blocks})
    if isinstance(messages[-1]["content"], list):
        messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return messages


def build_chat_messages(lines: list[Line], variation: int) -> list[dict[str, Any]]:
    """Return messages of the Chat API after a system prompt."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Act as an expert software developer."}]
    for line in lines:
        message: dict[str, Any] = {"role": line.role, "content": line.text}
        if line.role == "tool":
            message["tool_call_id"] = line.call
        elif line.call:
            arguments = '{"n": 1}' if variation % 2 else '{"n":1}'
            message["tool_calls"] = [
                {"id": line.call, "type": "function", "function": {"name": "run", "arguments": arguments}}
            ]
        elif variation % 3 == 0 and line.role == "user":
            message["content"] = [{"type": "text", "text": line.text}]
        messages.append(message)
    return messages


def build_responses_items(lines: list[Line], variation: int) -> list[dict[str, Any]]:
    """Return items of the Responses API; the ids of messages differ in each request."""
    items: list[dict[str, Any]] = []
    for index, line in enumerate(lines):
        if line.role == "tool":
            items.append({"type": "function_call_output", "call_id": line.call, "output": line.text})
            continue
        kind_ = "output_text" if line.role == "assistant" else "input_text"
        content = [{"type": kind_, "text": line.text, **({"annotations": []} if variation % 2 else {})}]
        items.append({"type": "message", "id": f"msg_{index}_{variation}", "role": line.role, "content": content})
        if line.call and line.role == "assistant":
            items.append({"type": "function_call", "call_id": line.call, "name": "run", "arguments": '{"n": 1}'})
    return items


def build_gemini_contents(lines: list[Line], variation: int) -> list[dict[str, Any]]:
    """Return contents of the Gemini API."""
    messages = []
    for line in lines:
        parts: list[dict[str, Any]] = [{"text": line.text}]
        if line.role == "tool":
            parts = [{"functionResponse": {"id": line.call, "name": "run", "response": {"output": line.text}}}]
        elif line.call:
            parts.append({"functionCall": {"id": line.call, "name": "run", "args": {"n": 1.0 if variation % 2 else 1}}})
        messages.append({"role": "model" if line.role == "assistant" else "user", "parts": parts})
    return messages


class Client(NamedTuple):
    """A client: its headers, and how it encodes messages."""

    api: str
    field: str
    encode: Callable[[list[Line], int], list[dict[str, Any]]]
    headers: dict[str, str]
    session: str = ""
    """The header that names its session, if it has one."""
    tools: bool = True
    title: str = ""
    """The beginning of the system prompt of its title requests, if it makes any."""


CLIENTS = [
    Client(
        "anthropic",
        "messages",
        build_anthropic_messages,
        {"user-agent": "claude-cli/2.1.197"},
        "x-claude-code-session-id",
        title="Generate a concise, sentence-case title",
    ),
    Client(
        "openai-chat",
        "messages",
        build_chat_messages,
        {"user-agent": "opencode/1.18.33"},
        "x-session-id",
        title="You are a title generator.",
    ),
    Client("openai-responses", "input", build_responses_items, {"user-agent": "codex_exec/0.169.0"}, "thread-id"),
    Client("gemini", "contents", build_gemini_contents, {"user-agent": "GeminiCLI-tui/0.61.0"}),
    Client("openai-chat", "messages", build_chat_messages, {"user-agent": "OpenAI/Python 3.54.0"}, tools=False),
]


class Conversation:
    """One conversation: the client's lines, and the journals that the proxy should match."""

    def __init__(self, client: Client, name: str, first: str, session: str, agent: str) -> None:
        self.client, self.name = client, f"<{name}>"
        self.headers = dict(client.headers)
        if client.session:
            self.headers[client.session] = session
        if client.api == "anthropic" and agent:
            self.headers["x-claude-code-agent-id"] = agent
        elif client.session and agent:
            self.headers[client.session] = agent
        self.branches = [[Line("user", first or f"{self.name} begins")]]
        self.branch_index = 0
        self.own_store = MemoryStore()
        self.own_journals: dict[int, Journal] = {}
        """The journal of each branch in the conversation's own store, never closed; the last used is last."""
        self.shared_journals: dict[int, Journal] = {}
        """The journal of each branch in the shared store, until a restart."""
        self.in_flight: tuple[Journal, Journal] | None = None
        """The shared and the own journal whose request waits for an answer."""

    @property
    def lines(self) -> list[Line]:
        """The messages of the branch that the client shows."""
        return self.branches[self.branch_index]

    def build_request(self, variation: int) -> tuple[ParsedRequest, bytes]:
        """Return the request with the whole conversation, parsed and as bytes."""
        client = self.client
        body: dict[str, Any] = {"model": "m", client.field: client.encode(self.lines, variation)}
        if client.tools:
            body["tools"] = [{"name": "run", "input_schema": {"type": "object"}}]
        if client.api == "anthropic":
            body |= {"max_tokens": 900, "system": "You write code."}
        raw = json.dumps(body).encode()
        return measure_parsed_request(parse_request(raw, client.api)), raw

    def build_title_request(self) -> ParsedRequest:
        """Return the request for a title that the client makes beside the conversation."""
        messages = self.client.encode([Line("user", "Generate a title:"), self.branches[0][0]], 1)
        body: dict[str, Any] = {"model": "m", "max_tokens": 900, "messages": messages}
        if self.client.api == "anthropic":
            body["system"] = self.client.title
        else:
            messages[0]["content"] = self.client.title
        return measure_parsed_request(parse_request(json.dumps(body).encode(), self.client.api))


# -- the proxy ---------------------------------------------------------------------------------------------------------


class SharedStore:
    """The store that all conversations share, and what must hold after each step."""

    def __init__(self, conversations: list[Conversation], *, shares_first_message: bool) -> None:
        self.conversations = conversations
        self.store: SessionStore = MemoryStore()
        self.shares_first_message = shares_first_message
        self.session_keys: set[str] = set()
        self.text_count = 0

    def make_text(self, size: int) -> str:
        """Return a text that no message has had before."""
        self.text_count += 1
        return f"says {self.text_count} " + f"and {self.text_count} more " * (size // 12)

    def ask(self, conversation: Conversation, seed: int) -> None:
        """Send the conversation, with a new message unless the last request is unanswered."""
        last = conversation.lines[-1]
        if last.role == "assistant":
            text = f"{conversation.name} {self.make_text(SIZES[seed % len(SIZES)])}"
            role = "tool" if last.call else "user"
            conversation.lines.append(Line(role, SHARED if role == "user" and seed % 3 == 0 else text, last.call))
        parsed, _ = conversation.build_request(seed)
        identity = identify_client(parsed.api, conversation.headers, parsed)
        assert (
            classify_purpose(identity, conversation.headers, parsed, has_tools_before=bool(self.text_count)) == "turn"
        )
        journal = self.find_journal(conversation, parsed, make_session_key(identity, parsed))
        journal.follow_conversation(parsed.messages)
        own = self.find_own_journal(conversation, parsed)
        own.follow_conversation(parsed.messages)
        assert list_messages(journal) == [sized.message for sized in own.state.history.sized_messages]
        self.check_request(conversation, parsed, journal, own)
        conversation.shared_journals[conversation.branch_index], conversation.in_flight = journal, (journal, own)

    def find_journal(self, conversation: Conversation, parsed: ParsedRequest, key: str) -> Journal:
        """Return the journal of the branch that a request continues, looked up as after a restart.

        The session's leaf moves there, unless another request of that session waits for its answer.
        """
        self.session_keys.add(key)
        leaf = SessionIndexes(self.store).find_leaf(key, parsed.messages, POLICY.settings)
        known_journal = conversation.shared_journals.get(conversation.branch_index)
        if known_journal is not None and (not self.shares_first_message or conversation.client.session):
            assert leaf == known_journal.leaf, "a restart finds the same branch"
        has_sibling_in_flight = any(
            other.in_flight is not None and other.in_flight[0].key == key for other in self.conversations
        )
        if leaf is not None and not has_sibling_in_flight:
            self.store.set_leaf(key, leaf)
        return Journal.open(self.store, key, POLICY, leaf=leaf if has_sibling_in_flight else None)

    def find_own_journal(self, conversation: Conversation, parsed: ParsedRequest) -> Journal:
        """Return the journal of the branch in the conversation's own store and mark it as last used.

        A new branch forks from the branch that shares most messages with it, of several from the last used.
        """
        journal = conversation.own_journals.pop(conversation.branch_index, None)
        if journal is None:
            candidates = [*reversed(conversation.own_journals.values())]
            closest = max(
                candidates,
                key=lambda candidate: candidate.match_conversation(parsed.messages).client_count,
                default=None,
            )
            journal = Journal.open(conversation.own_store, "own", POLICY, leaf=closest and closest.leaf)
        conversation.own_journals[conversation.branch_index] = journal
        return journal

    def check_request(self, conversation: Conversation, parsed: ParsedRequest, journal: Journal, own: Journal) -> None:
        """Check that the request is what the conversation alone would send and has no text of another.

        Conversations with the same first message are branches of one session, so usage reported for one of them is
        known to all; here the own journal gets the same model statistics.
        """
        if self.shares_first_message and not conversation.client.session:
            own.state = replace_model_stats(own.state, list_nonempty_model_stats(journal.state))
        target = get_target(parsed.api, "m", window=WINDOW, setup=RequestSetup("f", 100))
        sent = render_body(parsed, journal.prepare_request(target))
        assert sent == render_body(parsed, own.prepare_request(target))
        text = sent.decode()
        assert not any(other.name in text for other in self.conversations if other is not conversation)

    def go(self, conversation: Conversation, seed: int) -> None:
        """Send a request, or answer the one in flight."""
        (self.ask if conversation.in_flight is None else self.answer)(conversation, seed)

    def answer(self, conversation: Conversation, seed: int) -> None:
        """Answer the request; the answer may be missing in the log although the client has it."""
        assert conversation.in_flight is not None
        text = SHARED if seed % 5 == 0 else f"{conversation.name} {self.make_text(40)}"
        call = f"call_{conversation.name[1:-1]}_{self.text_count}" if conversation.client.tools and seed % 2 else ""
        parts = (Text(text), *((ToolCall(call, "run", '{"n":1}'),) if call else ()))
        for journal in conversation.in_flight if seed % 4 else ():
            journal.record_answer(Message("assistant", parts), Usage(journal.state.last_request.tokens, 20))
        self.store.set_leaf(conversation.in_flight[0].key, conversation.in_flight[0].leaf)
        conversation.lines.append(Line("assistant", text, call))
        conversation.in_flight = None

    def fork(self, conversation: Conversation, seed: int) -> None:
        """Go back to an earlier user message and replace it, unless a request is in flight."""
        user_indexes = [index for index, line in enumerate(conversation.lines) if line.role == "user" and index]
        if conversation.in_flight is not None or not user_indexes or len(conversation.branches) > 2:
            return
        index = user_indexes[seed % len(user_indexes)]
        conversation.branches.append(
            [*conversation.lines[:index], Line("user", f"{conversation.name} {self.make_text(0)}")]
        )
        conversation.branch_index = len(conversation.branches) - 1

    def compact(self, conversation: Conversation, _seed: int) -> None:
        """Compact a Codex thread on the client's side: it continues after a new first message in the same session."""
        if (
            conversation.client.session == "thread-id"
            and conversation.in_flight is None
            and len(conversation.branches) < 3
        ):
            conversation.branches.append([Line("user", f"{conversation.name} {self.make_text(0)}")])
            conversation.branch_index = len(conversation.branches) - 1

    def back(self, conversation: Conversation, seed: int) -> None:
        """Switch to another branch of the conversation."""
        if conversation.in_flight is None:
            conversation.branch_index = seed % len(conversation.branches)

    def title(self, conversation: Conversation, _seed: int) -> None:
        """Request a title, which is never classified as a turn."""
        if conversation.client.title:
            parsed = conversation.build_title_request()
            identity = identify_client(parsed.api, conversation.headers, parsed)
            assert (
                classify_purpose(
                    identity, conversation.headers, parsed, has_tools_before=bool(conversation.shared_journals)
                )
                == "side"
            )

    def restart(self, conversation: Conversation, _seed: int) -> None:
        """Restart the proxy: answers in flight and all open journals are lost."""
        for other in self.conversations:
            other.in_flight = None
            other.shared_journals.clear()
        del conversation

    def check_all(self) -> None:
        """Check that the store has the sessions of these conversations and no others."""
        assert {info.key for info in self.store.list_sessions()} == self.session_keys


def render_body(parsed: ParsedRequest, prepared: PreparedRequest) -> bytes:
    """Return the bytes that are sent to the provider."""
    return render_request(parsed, prepared.messages, prepared.plan.options)


def list_messages(journal: Journal) -> list[Message]:
    """Return the messages of a journal's branch."""
    return [sized.message for sized in journal.state.history.sized_messages]


ACTIONS = [*["go"] * 12, "ask", "fork", "fork", "compact", "back", "title", "restart"]
steps = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 0, 1, 1, 2, 2, 3]), st.sampled_from(ACTIONS), st.integers(0, 59)),
    min_size=18,
    max_size=26,
)


RESULT_AFTER_FOREIGN_COUNT = [
    *[(0, "go", 0)] * 3,
    (0, "go", 1),
    *[(0, "go", 0)] * 9,
    (0, "go", 1),
    (0, "go", 0),
    *[(1, "go", 0)] * 2,
    (1, "go", 10),
]
"""Usage reported in one conversation, then a result of another whose shown length depends on that usage."""
THREAD_AFTER_COMPACTION = [
    *[(0, "go", 0)] * 9,
    *[(1, "go", 0)] * 3,
    *[(1, "go", 1), (1, "go", 0), (1, "go", 1)],
    (1, "compact", 0),
    *[(1, "go", 0), (1, "go", 0), (1, "go", 10)],
]
"""Usage reported in a thread, then its compacted continuation, where a shown length depends on that usage."""


@EXAMPLE_SETTINGS
@given(first=st.integers(0, 4), second=st.integers(0, 4), shares_first_message=st.booleans(), steps=steps)
@example(first=3, second=0, shares_first_message=True, steps=RESULT_AFTER_FOREIGN_COUNT)
@example(first=2, second=0, shares_first_message=False, steps=THREAD_AFTER_COMPACTION)
def test_proxy_keeps_conversations_apart(first, second, shares_first_message, steps):
    """Each request is what its own conversation alone would send, with and without a restart, in any order."""
    conversations = []
    cast = [("main", "s1", ""), ("sub", "s1", "a1"), ("second", "s2", "")]
    for number, (client, names) in enumerate([(CLIENTS[first], cast), (CLIENTS[second], cast[:1])]):
        for name, session, agent in names:
            conversations.append(
                Conversation(
                    client,
                    f"{name}-{number}",
                    SHARED if shares_first_message else "",
                    f"{session}-{number}",
                    agent and f"{agent}-{number}",
                )
            )
    store = SharedStore(conversations, shares_first_message=shares_first_message)
    for index, action, seed in steps:
        getattr(store, action)(conversations[index], seed)
    store.check_all()
