"""Who asks, in which scope, and what for: told from headers and the first words of what is said.

A family is a name for people and a part of the session's key; a scope is a namespace, never the truth: which branch a
request continues is told by its content alone. What is not surely something else is a turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Literal, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from holdfast.messages.parts import Opaque, Text
from holdfast.providers.registry import form_of
from holdfast.providers.request_body import Lens

Value = TypeVar("Value")
Kind = Literal["turn", "side", "compaction"]
"""What a request is for: the conversation · something beside it · the client's own summary of it."""

AGENTS = frozenset({"claude-code", "codex", "opencode", "pi", "gemini-cli"})
"""Clients whose conversations have tools: what comes without, in a scope that had some, is no turn of them."""
FEW = 3
"""Messages, system prompts aside, of the longest request beside a conversation (opencode's title: 2 [M])."""
SCOPES = (
    ("x-holdfast-session",),
    ("x-claude-code-session-id", "x-claude-code-agent-id"),
    ("thread-id",),
    ("session-id",),
    ("session_id",),
    ("x-session-id",),
    ("x-session-affinity",),
    ("x-openwebui-chat-id",),
)
"""Headers in which clients name their sessions, the surest first [M]; a subagent is a session of its own."""
THREADS = frozenset({("codex", "thread-id")})
"""Families whose header names one conversation, whatever its client makes of it: Codex's own compaction keeps the name,
a new conversation, a fork, a subagent and a review have one of their own [M, S]. A session's id or a key for the cache
is no such name: Codex's subagents share theirs, and applications one for all that they do."""
_SUMMARISER = "You are a context summarization"
"""How the system prompt begins under which opencode's agent and pi's assistant summarise a conversation [M]."""
_PI = ("You are an expert coding assistant", "You are a coding assistant running inside pi", _SUMMARISER)
"""How pi's system prompts begin: before it had a user agent of its own it sent under those of the SDKs [M]."""
_AIDER = "Act as an expert "
"""How aider's begin; it sends through LiteLLM [M]."""
_HANDOVERS: Mapping[str, tuple[str, ...]] = {
    "claude-code": (
        "CRITICAL: Respond with TEXT ONLY",
        "Your task is to create a detailed summary of",
    ),
    "codex": ("You are performing a CONTEXT CHECKPOINT",),
}
"""How the newest words begin that ask for a summary of all before them [M]."""
_TITLES: Mapping[str, tuple[str, ...]] = {
    "opencode": ("You are a title generator",),
    "claude-code": ("Generate a concise, sentence-case title",),
}
"""How the system prompts begin under which a conversation gets its title [M, Claude Code's as others recorded it]."""
_SDK = re.compile(r"(?:Async)?(?:Azure)?(OpenAI|Anthropic)/")
_OLD_USER = re.compile(r"_session_([0-9A-Za-z-]+)\Z")
"""How Claude Code named its session inside ``metadata.user_id`` before that was JSON."""
MOST = 4_096
"""[H] Clients of which it is held that their conversations have tools."""
_EMPTY = 64
"""Bytes in which a list without anything in it stands, whatever the spaces."""
_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)


class Client(Struct, frozen=True):
    """Who asks: a family of clients, and a short digest of its own name for the session, where it has one."""

    family: str
    scope: str = ""
    is_thread: bool = False
    """Whether that name is of one conversation alone, and of all of it, however it begins."""


class _Words(Struct):
    text: str = ""


class _Parts(Struct):
    parts: list[_Words] = []


class _Metadata(Struct):
    user_id: str = ""


class _User(Struct):
    session_id: str = ""


class _Turn(Struct):
    request_kind: str = ""


class _Item(Struct):
    type: str = ""


_SYSTEM: Decoder[str | list[_Words] | _Parts] = Decoder(str | list[_Words] | _Parts)
_METADATA, _USER = Decoder(_Metadata), Decoder(_User)
_TURN, _ITEM, _NAME = Decoder(_Turn), Decoder(_Item), Decoder(str)


def client(api: str, headers: Mapping[str, str], lens: Lens) -> Client:
    """Return who sent ``lens`` to ``api`` under ``headers``, whose names are in lower case."""
    family = _family(api, headers, lens)
    named = next((names for names in SCOPES if any(map(headers.get, names))), ())
    scope = _short(*[headers.get(name, "") for name in named]) if named else _scope_inside(lens)
    return Client(family, scope, any((family, name) in THREADS for name in named))


def kind(who: Client, headers: Mapping[str, str], lens: Lens, *, has_tools_before: bool) -> Kind:
    """Return what the request is for; ``has_tools_before`` = an earlier request of the same scope had tools."""
    if _is_compaction(who, headers, lens):
        return "compaction"
    return "side" if _is_beside(who, lens, has_tools_before=has_tools_before) else "turn"


# -- who ---------------------------------------------------------------------------------------------------------------


def _family(api: str, headers: Mapping[str, str], lens: Lens) -> str:
    agent = headers.get("user-agent", "")
    for family, is_it in _BY_HEADERS:
        if is_it(agent, headers):
            return family
    sdk = _SDK.match(agent)
    if sdk is None:
        return _wrapped("litellm", lens) if agent.startswith("litellm/") else "other"
    if headers.get("x-stainless-lang") == "js":
        return "pi" if _begins(_system(lens), _PI) else f"{sdk[1].lower()}-sdk"
    if "x-stainless-raw-response" in headers and api.startswith("openai"):
        seconds = headers.get("x-stainless-read-timeout", "")
        return _wrapped("litellm", lens) if "." in seconds else "langchain"
    return f"{sdk[1].lower()}-sdk"


_BY_HEADERS: tuple[tuple[str, Callable[[str, Mapping[str, str]], bool]], ...] = (
    ("claude-code", lambda agent, told: agent.startswith("claude-cli/") or "x-claude-code-session-id" in told),
    ("codex", lambda agent, told: _is_codex(agent, told.get("originator", ""), told)),
    ("opencode", lambda agent, _: agent.startswith("opencode/")),
    ("pi", lambda agent, _: agent == "pi" or agent.startswith(("pi/", "pi ("))),
    ("gemini-cli", lambda agent, _: agent.startswith("GeminiCLI")),
    ("langchain", lambda agent, _: agent.startswith("langchain")),
    ("google-genai", lambda agent, told: "google-genai-sdk" in told.get("x-goog-api-client", agent)),
)
"""Families that say who they are, and how [M]."""


def _is_codex(agent: str, originator: str, told: Mapping[str, str]) -> bool:
    """Return whether it is Codex, also where another program runs it as its server: it says that one's name then."""
    return "x-codex-turn-metadata" in told or any(name.startswith("codex") for name in (agent, originator))


def _wrapped(family: str, lens: Lens) -> str:
    """Return aider where its words stand in what ``family`` sends."""
    return "aider" if _begins(_system(lens), (_AIDER,)) else family


def _scope_inside(lens: Lens) -> str:
    """Return a digest of the session's name that stands in the body itself, or nothing."""
    named = _named(lens)
    return _short(named) if named else ""


def _short(*names: str) -> str:
    return blake2b("\0".join(names).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _named(lens: Lens) -> str:
    """Return the name of the session that stands in the body itself."""
    key = _read(_NAME, lens.fields.get("prompt_cache_key")) or ""
    metadata = _read(_METADATA, lens.fields.get("metadata"))
    if key or metadata is None:
        return key
    user = _read(_USER, metadata.user_id.encode("utf-8", "surrogatepass"))
    old = _OLD_USER.search(metadata.user_id)
    return user.session_id if user is not None else old[1] if old is not None else ""


# -- what for ----------------------------------------------------------------------------------------------------------


def _is_compaction(who: Client, headers: Mapping[str, str], lens: Lens) -> bool:
    turn = _read(_TURN, headers.get("x-codex-turn-metadata", "").encode("utf-8", "surrogatepass"))
    if turn is not None and turn.request_kind:
        return turn.request_kind == "compaction"
    if _is_triggered(lens) or _begins(_newest(lens), _HANDOVERS.get(who.family, ())):
        return True
    return who.family in {"opencode", "pi"} and not has_tools(lens) and _begins(_system(lens), (_SUMMARISER,))


def _is_triggered(lens: Lens) -> bool:
    """Whether the last item asks the provider itself to compact."""
    last = lens.slots[-1].message.parts if lens.slots else ()
    item = _read(_ITEM, last[0].raw) if len(last) == 1 and isinstance(last[0], Opaque) else None
    return item is not None and item.type == "compaction_trigger"


def _is_beside(who: Client, lens: Lens, *, has_tools_before: bool) -> bool:
    if who.family not in AGENTS or has_tools(lens):
        return False
    said = sum(slot.message.role != "system" for slot in lens.slots)
    if said > FEW:
        return False
    if _begins(_system(lens), _TITLES.get(who.family, ())) or lens.asked_output == 1:
        return True
    return has_tools_before and bool(who.scope)


def has_tools(lens: Lens) -> bool:
    """Return whether the model is offered any tool."""
    tools = memoryview(lens.fields.get("tools", b"null"))[:_EMPTY].tobytes()
    return b"".join(tools.split()) not in (b"null", b"[]")


class Tooled:
    """The clients, by their scopes, whose conversations have tools: those that were seen last."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._seen: dict[Client, None] = {}

    def had(self, who: Client, lens: Lens) -> bool:
        """Whether an earlier request of ``who`` had tools; from now on this one counts too."""
        before = who in self._seen
        if has_tools(lens):
            self._seen[who] = None
            while len(self._seen) > self._most:
                del self._seen[next(iter(self._seen))]
        return before


# -- words -------------------------------------------------------------------------------------------------------------


def _begins(texts: Iterator[str], words: tuple[str, ...]) -> bool:
    return bool(words) and any(text.lstrip().startswith(words) for text in texts)


def _system(lens: Lens) -> Iterator[str]:
    """Yield the texts of the system prompt, where its API has a field for it and where it is the first message."""
    for name in (*form_of(lens.api).system, "instructions"):
        said = _read(_SYSTEM, lens.fields.get(name))
        if isinstance(said, str):
            yield said
        elif said is not None:
            yield from (one.text for one in (said.parts if isinstance(said, _Parts) else said))
    if lens.slots and lens.slots[0].message.role == "system":
        yield lens.slots[0].message.text


def _newest(lens: Lens) -> Iterator[str]:
    """Yield the last text of the newest message, where a user said it."""
    said = next((slot.message for slot in reversed(lens.slots) if slot.message.role != "system"), None)
    if said is not None and said.role == "user":
        yield from [part.text for part in said.parts if isinstance(part, Text)][-1:]


def _read(decoder: Decoder[Value], raw: Raw | bytes | None) -> Value | None:
    """Return what ``raw`` says, or nothing where it is nothing of that form."""
    try:
        return None if raw is None else decoder.decode(raw)
    except _UNREADABLE:
        return None
