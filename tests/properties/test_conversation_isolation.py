"""Many conversations at once through one store, each request looked up anew: none ever speaks in another.

A client's session, a subagent of it, a second session of the same model and that of another client ask, are answered
or not, ask again, go back and say something else, sum themselves up, and have titles made, in any order. Beside the
store that all of them share each has one of its own, and journals that nobody ever closes: what the proxy sends must
be what those would.
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

OFTEN = settings(
    max_examples=example_counts.choose(quick=60, ci=500, thorough=10_000),
    deadline=None,
    derandomize=not example_counts.IS_THOROUGH,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    database=None,
)
POLICY = Policy().with_settings(
    window={"min_budget": 0}, results={"append_chars": 9_000, "spill_chars": 2_500, "preview_chars": 600}
)
"""Limits that these texts reach: results are stored away, the longest are cut, older turns give way."""
WINDOW = 4_000
SHARED = "Run the tests."
"""What several say first, and again and again."""
SIZES = [0, 0, 40, 1_800, 4_000, 10_000]
"""Characters that words have beside their own."""


class Line(NamedTuple):
    """What somebody said; ``call`` is the id of the call that is made or answered."""

    role: str
    text: str
    call: str = ""


# -- the clients -------------------------------------------------------------------------------------------------------


def anthropic(lines: list[Line], odd: int) -> list[dict[str, Any]]:
    """Return messages of the Messages API: a marker on the newest words, blocks there and texts before."""
    out = []
    for line in lines:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": line.text}]
        if line.role == "tool":
            blocks = [{"type": "tool_result", "tool_use_id": line.call, "content": line.text}]
        elif line.call:
            blocks.append({"type": "tool_use", "id": line.call, "name": "run", "input": {"n": 1}})
        plain = line.role != "tool" and not line.call and odd % 2
        role = "user" if line.role == "tool" else line.role
        out.append({"role": role, "content": line.text if plain and line is not lines[-1] else blocks})
    if isinstance(out[-1]["content"], list):
        out[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return out


def chat(lines: list[Line], odd: int) -> list[dict[str, Any]]:
    """Return messages of the Chat API behind a system prompt."""
    out: list[dict[str, Any]] = [{"role": "system", "content": "Act as an expert software developer."}]
    for line in lines:
        one: dict[str, Any] = {"role": line.role, "content": line.text}
        if line.role == "tool":
            one["tool_call_id"] = line.call
        elif line.call:
            arguments = '{"n": 1}' if odd % 2 else '{"n":1}'
            one["tool_calls"] = [
                {"id": line.call, "type": "function", "function": {"name": "run", "arguments": arguments}}
            ]
        elif odd % 3 == 0 and line.role == "user":
            one["content"] = [{"type": "text", "text": line.text}]
        out.append(one)
    return out


def responses(lines: list[Line], odd: int) -> list[dict[str, Any]]:
    """Return items of the Responses API; what the client says has other ids each time."""
    out: list[dict[str, Any]] = []
    for place, line in enumerate(lines):
        if line.role == "tool":
            out.append({"type": "function_call_output", "call_id": line.call, "output": line.text})
            continue
        kind_ = "output_text" if line.role == "assistant" else "input_text"
        content = [{"type": kind_, "text": line.text, **({"annotations": []} if odd % 2 else {})}]
        out.append({"type": "message", "id": f"msg_{place}_{odd}", "role": line.role, "content": content})
        if line.call and line.role == "assistant":
            out.append({"type": "function_call", "call_id": line.call, "name": "run", "arguments": '{"n": 1}'})
    return out


def gemini(lines: list[Line], odd: int) -> list[dict[str, Any]]:
    """Return contents of the Gemini API."""
    out = []
    for line in lines:
        parts: list[dict[str, Any]] = [{"text": line.text}]
        if line.role == "tool":
            parts = [{"functionResponse": {"id": line.call, "name": "run", "response": {"output": line.text}}}]
        elif line.call:
            parts.append({"functionCall": {"id": line.call, "name": "run", "args": {"n": 1.0 if odd % 2 else 1}}})
        out.append({"role": "model" if line.role == "assistant" else "user", "parts": parts})
    return out


class Place(NamedTuple):
    """A client: how it says who it is, and in which form it speaks."""

    api: str
    field: str
    form: Callable[[list[Line], int], list[dict[str, Any]]]
    headers: dict[str, str]
    session: str = ""
    """The header that names its session, if it has one."""
    tools: bool = True
    title: str = ""
    """How the system prompt begins under which it has titles made, if it does."""


PLACES = [
    Place(
        "anthropic",
        "messages",
        anthropic,
        {"user-agent": "claude-cli/2.1.197"},
        "x-claude-code-session-id",
        title="Generate a concise, sentence-case title",
    ),
    Place(
        "openai-chat",
        "messages",
        chat,
        {"user-agent": "opencode/1.18.33"},
        "x-session-id",
        title="You are a title generator.",
    ),
    Place("openai-responses", "input", responses, {"user-agent": "codex_exec/0.169.0"}, "thread-id"),
    Place("gemini", "contents", gemini, {"user-agent": "GeminiCLI-tui/0.61.0"}),
    Place("openai-chat", "messages", chat, {"user-agent": "OpenAI/Python 3.54.0"}, tools=False),
]


class Talk:
    """One conversation, as its client and somebody who knows all about it see it."""

    def __init__(self, place: Place, name: str, first: str, session: str, agent: str) -> None:
        self.place, self.name = place, f"<{name}>"
        self.headers = dict(place.headers)
        if place.session:
            self.headers[place.session] = session
        if place.api == "anthropic" and agent:
            self.headers["x-claude-code-agent-id"] = agent
        elif place.session and agent:
            self.headers[place.session] = agent
        self.branches = [[Line("user", first or f"{self.name} begins")]]
        self.at = 0
        self.own = MemoryStore()
        self.journals: dict[int, Journal] = {}
        """The journal of each branch in a store of its own, never closed; the last used is the last."""
        self.kept: dict[int, Journal] = {}
        """The journal of each branch in the store of all, as long as nothing restarts."""
        self.flight: tuple[Journal, Journal] | None = None
        """The journals whose request waits for an answer."""

    @property
    def lines(self) -> list[Line]:
        """What was said on the branch that the client looks at."""
        return self.branches[self.at]

    def body(self, odd: int) -> tuple[ParsedRequest, bytes]:
        """Return the request with the whole conversation."""
        place = self.place
        said: dict[str, Any] = {"model": "m", place.field: place.form(self.lines, odd)}
        if place.tools:
            said["tools"] = [{"name": "run", "input_schema": {"type": "object"}}]
        if place.api == "anthropic":
            said |= {"max_tokens": 900, "system": "You write code."}
        raw = json.dumps(said).encode()
        return measure_parsed_request(parse_request(raw, place.api)), raw

    def title(self) -> ParsedRequest:
        """Return the request for a title that the client makes beside the conversation."""
        form = self.place.form([Line("user", "Generate a title:"), self.branches[0][0]], 1)
        body: dict[str, Any] = {"model": "m", "max_tokens": 900, "messages": form}
        if self.place.api == "anthropic":
            body["system"] = self.place.title
        else:
            form[0]["content"] = self.place.title
        return measure_parsed_request(parse_request(json.dumps(body).encode(), self.place.api))


# -- the proxy ---------------------------------------------------------------------------------------------------------


class World:
    """A store that all share, and what must hold after each step."""

    def __init__(self, talks: list[Talk], *, twins: bool) -> None:
        self.talks = talks
        self.store: SessionStore = MemoryStore()
        self.twins = twins
        self.keys: set[str] = set()
        self.count = 0

    def new(self, size: int) -> str:
        """Return words that nobody said before."""
        self.count += 1
        return f"says {self.count} " + f"and {self.count} more " * (size // 12)

    def ask(self, talk: Talk, seed: int) -> None:
        """The client sends its conversation, with something new unless the last request is unanswered."""
        last = talk.lines[-1]
        if last.role == "assistant":
            text = f"{talk.name} {self.new(SIZES[seed % len(SIZES)])}"
            role = "tool" if last.call else "user"
            talk.lines.append(Line(role, SHARED if role == "user" and seed % 3 == 0 else text, last.call))
        lens, _ = talk.body(seed)
        who = identify_client(lens.api, talk.headers, lens)
        assert classify_purpose(who, talk.headers, lens, has_tools_before=bool(self.count)) == "turn"
        journal = self.found(talk, lens, make_session_key(who, lens))
        journal.follow_conversation(lens.messages)
        own = self.known(talk, lens)
        own.follow_conversation(lens.messages)
        assert spoken(journal) == [slot.message for slot in own.state.history.sized_messages]
        self.check_own(talk, lens, journal, own)
        talk.kept[talk.at], talk.flight = journal, (journal, own)

    def found(self, talk: Talk, lens: ParsedRequest, key: str) -> Journal:
        """Return the journal of the branch that a request continues, found as after a restart.

        The session's leaf goes along, unless another request of that session waits for its answer.
        """
        self.keys.add(key)
        leaf = SessionIndexes(self.store).find_leaf(key, lens.messages, POLICY.settings)
        kept = talk.kept.get(talk.at)
        if kept is not None and (not self.twins or talk.place.session):
            assert leaf == kept.leaf, "a restart finds the place"
        aside = any(one.flight is not None and one.flight[0].key == key for one in self.talks)
        if leaf is not None and not aside:
            self.store.set_leaf(key, leaf)
        return Journal.open(self.store, key, POLICY, leaf=leaf if aside else None)

    def known(self, talk: Talk, lens: ParsedRequest) -> Journal:
        """Return the journal of the branch in the conversation's own store, the last used from here on.

        A new branch parts from the one that says most of it, of several from the one talked on last.
        """
        journal = talk.journals.pop(talk.at, None)
        if journal is None:
            said = [*reversed(talk.journals.values())]
            most = max(said, key=lambda one: one.match_conversation(lens.messages).client_count, default=None)
            journal = Journal.open(talk.own, "own", POLICY, leaf=most and most.leaf)
        talk.journals[talk.at] = journal
        return journal

    def check_own(self, talk: Talk, lens: ParsedRequest, journal: Journal, own: Journal) -> None:
        """What goes out is what the conversation alone would send, and holds no word of another.

        Where nothing tells whose the first words are, several are branches of one session: what its model counted for
        one of them is known to all, and to this conversation alone it is told here.
        """
        if self.twins and not talk.place.session:
            own.state = replace_model_stats(own.state, list_nonempty_model_stats(journal.state))
        where = get_target(lens.api, "m", window=WINDOW, setup=RequestSetup("f", 100))
        sent = body(lens, journal.prepare_request(where))
        assert sent == body(lens, own.prepare_request(where))
        words = sent.decode()
        assert not any(other.name in words for other in self.talks if other is not talk)

    def go(self, talk: Talk, seed: int) -> None:
        """The client asks, or is answered."""
        (self.ask if talk.flight is None else self.answer)(talk, seed)

    def answer(self, talk: Talk, seed: int) -> None:
        """The model answers; the answer may be lost on its way into the log, though the client has it."""
        assert talk.flight is not None
        text = SHARED if seed % 5 == 0 else f"{talk.name} {self.new(40)}"
        call = f"call_{talk.name[1:-1]}_{self.count}" if talk.place.tools and seed % 2 else ""
        parts = (Text(text), *((ToolCall(call, "run", '{"n":1}'),) if call else ()))
        for journal in talk.flight if seed % 4 else ():
            journal.record_answer(Message("assistant", parts), Usage(journal.state.last_request.tokens, 20))
        self.store.set_leaf(talk.flight[0].key, talk.flight[0].leaf)
        talk.lines.append(Line("assistant", text, call))
        talk.flight = None

    def fork(self, talk: Talk, seed: int) -> None:
        """The user goes back, unless they wait, and says something else in place of what was said."""
        said = [place for place, line in enumerate(talk.lines) if line.role == "user" and place]
        if talk.flight is not None or not said or len(talk.branches) > 2:
            return
        place = said[seed % len(said)]
        talk.branches.append([*talk.lines[:place], Line("user", f"{talk.name} {self.new(0)}")])
        talk.at = len(talk.branches) - 1

    def compact(self, talk: Talk, _seed: int) -> None:
        """A thread of Codex sums itself up, and goes on behind words of its own: a branch of the same session."""
        if talk.place.session == "thread-id" and talk.flight is None and len(talk.branches) < 3:
            talk.branches.append([Line("user", f"{talk.name} {self.new(0)}")])
            talk.at = len(talk.branches) - 1

    def back(self, talk: Talk, seed: int) -> None:
        """The user looks at another branch, and goes on there next."""
        if talk.flight is None:
            talk.at = seed % len(talk.branches)

    def title(self, talk: Talk, _seed: int) -> None:
        """A title is made: that is no turn, before the first one and later."""
        if talk.place.title:
            lens = talk.title()
            who = identify_client(lens.api, talk.headers, lens)
            assert classify_purpose(who, talk.headers, lens, has_tools_before=bool(talk.kept)) == "side"

    def restart(self, talk: Talk, _seed: int) -> None:
        """The proxy dies and comes again: answers on their way are lost, and all journals."""
        for one in self.talks:
            one.flight = None
            one.kept.clear()
        del talk

    def check_all(self) -> None:
        """There are the sessions of these conversations, and no other."""
        assert {info.key for info in self.store.list_sessions()} == self.keys


def body(lens: ParsedRequest, prepared: PreparedRequest) -> bytes:
    """Return the bytes that go to the provider."""
    return render_request(lens, prepared.messages, prepared.plan.options)


def spoken(journal: Journal) -> list[Message]:
    """Return the messages of a branch."""
    return [slot.message for slot in journal.state.history.sized_messages]


WHAT = [*["go"] * 12, "ask", "fork", "fork", "compact", "back", "title", "restart"]
steps = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 0, 1, 1, 2, 2, 3]), st.sampled_from(WHAT), st.integers(0, 59)),
    min_size=18,
    max_size=26,
)


COUNTED_BESIDE = [
    *[(0, "go", 0)] * 3,
    (0, "go", 1),
    *[(0, "go", 0)] * 9,
    (0, "go", 1),
    (0, "go", 0),
    *[(1, "go", 0)] * 2,
    (1, "go", 10),
]
"""A count for one conversation, then a result of another that is shown as short as that count says."""
SUMMED_UP = [
    *[(0, "go", 0)] * 9,
    *[(1, "go", 0)] * 3,
    *[(1, "go", 1), (1, "go", 0), (1, "go", 1)],
    (1, "compact", 0),
    *[(1, "go", 0), (1, "go", 0), (1, "go", 10)],
]
"""A count that a model told, then a thread that goes on in other words, where a text is shown as that count says."""


@OFTEN
@given(one=st.integers(0, 4), other=st.integers(0, 4), twins=st.booleans(), steps=steps)
@example(one=3, other=0, twins=True, steps=COUNTED_BESIDE)
@example(one=2, other=0, twins=False, steps=SUMMED_UP)
def test_no_conversation_speaks_in_another(one, other, twins, steps):
    """Each request is what its own conversation alone would send, after a restart and without one, in any order."""
    talks = []
    cast = [("main", "s1", ""), ("sub", "s1", "a1"), ("second", "s2", "")]
    for number, (place, names) in enumerate([(PLACES[one], cast), (PLACES[other], cast[:1])]):
        for name, session, agent in names:
            talks.append(
                Talk(
                    place,
                    f"{name}-{number}",
                    SHARED if twins else "",
                    f"{session}-{number}",
                    agent and f"{agent}-{number}",
                )
            )
    world = World(talks, twins=twins)
    for who, what, seed in steps:
        getattr(world, what)(talks[who], seed)
    world.check_all()
