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
from holdfast.providers.registry import get_api_spec
from holdfast.providers.requests.request_body import ParsedRequest

Value = TypeVar("Value")
RequestPurpose = Literal["turn", "side", "compaction"]
"""What a request is for: the conversation · something beside it · the client's own summary of it."""

AGENTS = frozenset({"claude-code", "codex", "opencode", "pi", "gemini-cli"})
"""Clients whose conversations have tools: what comes without, in a scope that had some, is no turn of them."""
MAX_SIDE_MESSAGES = 3
"""Messages, system prompts aside, of the longest request beside a conversation (opencode's title: 2 [M])."""
SESSION_HEADERS = (
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
THREAD_HEADERS = frozenset({("codex", "thread-id")})
"""Families whose header names one conversation, whatever its client makes of it: Codex's own compaction keeps the name,
a new conversation, a fork, a subagent and a review have one of their own [M, S]. A session's id or a key for the cache
is no such name: Codex's subagents share theirs, and applications one for all that they do."""
_SUMMARIZER_PROMPT = "You are a context summarization"
"""How the system prompt begins under which opencode's agent and pi's assistant summarise a conversation [M]."""
_PI_PROMPTS = ("You are an expert coding assistant", "You are a coding assistant running inside pi", _SUMMARIZER_PROMPT)
"""How pi's system prompts begin: before it had a user agent of its own it sent under those of the SDKs [M]."""
_AIDER_PROMPT = "Act as an expert "
"""How aider's begin; it sends through LiteLLM [M]."""
_COMPACTION_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "claude-code": (
        "CRITICAL: Respond with TEXT ONLY",
        "Your task is to create a detailed summary of",
    ),
    "codex": ("You are performing a CONTEXT CHECKPOINT",),
}
"""How the newest words begin that ask for a summary of all before them [M]."""
_TITLE_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "opencode": ("You are a title generator",),
    "claude-code": ("Generate a concise, sentence-case title",),
}
"""How the system prompts begin under which a conversation gets its title [M, Claude Code's as others recorded it]."""
_SDK_PATTERN = re.compile(r"(?:Async)?(?:Azure)?(OpenAI|Anthropic)/")
_OLD_USER_ID_PATTERN = re.compile(r"_session_([0-9A-Za-z-]+)\Z")
"""How Claude Code named its session inside ``metadata.user_id`` before that was JSON."""
MAX_TOOL_CLIENTS = 4_096
"""[H] Clients of which it is held that their conversations have tools."""
_EMPTY_LIST_BYTES = 64
"""Bytes in which a list without anything in it stands, whatever the spaces."""
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)


class ClientIdentity(Struct, frozen=True):
    """Who asks: a family of clients, and a short digest of its own name for the session, where it has one."""

    family: str
    scope: str = ""
    is_thread: bool = False
    """Whether that name is of one conversation alone, and of all of it, however it begins."""


class _SystemTextBlock(Struct):
    text: str = ""


class _GeminiContent(Struct):
    parts: list[_SystemTextBlock] = []


class _Metadata(Struct):
    user_id: str = ""


class _UserId(Struct):
    session_id: str = ""


class _CodexTurn(Struct):
    request_kind: str = ""


class _TypedItem(Struct):
    type: str = ""


_SYSTEM_DECODER: Decoder[str | list[_SystemTextBlock] | _GeminiContent] = Decoder(
    str | list[_SystemTextBlock] | _GeminiContent
)
_METADATA_DECODER, _USER_ID_DECODER = Decoder(_Metadata), Decoder(_UserId)
_CODEX_TURN_DECODER, _TYPED_ITEM_DECODER, _STRING_DECODER = Decoder(_CodexTurn), Decoder(_TypedItem), Decoder(str)


def identify_client(api: str, headers: Mapping[str, str], parsed_body: ParsedRequest) -> ClientIdentity:
    """Return who sent ``parsed_body`` to ``api`` under ``headers``, whose names are in lower case."""
    family = _identify_family(api, headers, parsed_body)
    header_names = next((names for names in SESSION_HEADERS if any(map(headers.get, names))), ())
    scope = (
        _hash_names(*[headers.get(name, "") for name in header_names])
        if header_names
        else _find_scope_in_body(parsed_body)
    )
    return ClientIdentity(family, scope, any((family, name) in THREAD_HEADERS for name in header_names))


def classify_purpose(
    client: ClientIdentity, headers: Mapping[str, str], parsed_body: ParsedRequest, *, has_tools_before: bool
) -> RequestPurpose:
    """Return what the request is for; ``has_tools_before`` = an earlier request of the same scope had tools."""
    if _is_compaction_request(client, headers, parsed_body):
        return "compaction"
    return "side" if _is_side_request(client, parsed_body, has_tools_before=has_tools_before) else "turn"


# -- who ---------------------------------------------------------------------------------------------------------------


def _identify_family(api: str, headers: Mapping[str, str], parsed_body: ParsedRequest) -> str:
    agent = headers.get("user-agent", "")
    for family, is_it in _FAMILY_CHECKS:
        if is_it(agent, headers):
            return family
    sdk = _SDK_PATTERN.match(agent)
    if sdk is None:
        return _detect_aider("litellm", parsed_body) if agent.startswith("litellm/") else "other"
    if headers.get("x-stainless-lang") == "js":
        return (
            "pi" if _has_text_starting_with(_iter_system_texts(parsed_body), _PI_PROMPTS) else f"{sdk[1].lower()}-sdk"
        )
    if "x-stainless-raw-response" in headers and api.startswith("openai"):
        seconds = headers.get("x-stainless-read-timeout", "")
        return _detect_aider("litellm", parsed_body) if "." in seconds else "langchain"
    return f"{sdk[1].lower()}-sdk"


_FAMILY_CHECKS: tuple[tuple[str, Callable[[str, Mapping[str, str]], bool]], ...] = (
    ("claude-code", lambda agent, headers: agent.startswith("claude-cli/") or "x-claude-code-session-id" in headers),
    ("codex", lambda agent, headers: _is_codex(agent, headers.get("originator", ""), headers)),
    ("opencode", lambda agent, _: agent.startswith("opencode/")),
    ("pi", lambda agent, _: agent == "pi" or agent.startswith(("pi/", "pi ("))),
    ("gemini-cli", lambda agent, _: agent.startswith("GeminiCLI")),
    ("langchain", lambda agent, _: agent.startswith("langchain")),
    ("google-genai", lambda agent, headers: "google-genai-sdk" in headers.get("x-goog-api-client", agent)),
)
"""Families that say who they are, and how [M]."""


def _is_codex(agent: str, originator: str, headers: Mapping[str, str]) -> bool:
    """Return whether it is Codex, also where another program runs it as its server: it says that one's name then."""
    return "x-codex-turn-metadata" in headers or any(name.startswith("codex") for name in (agent, originator))


def _detect_aider(family: str, parsed_body: ParsedRequest) -> str:
    """Return aider where its words stand in what ``family`` sends."""
    return "aider" if _has_text_starting_with(_iter_system_texts(parsed_body), (_AIDER_PROMPT,)) else family


def _find_scope_in_body(parsed_body: ParsedRequest) -> str:
    """Return a digest of the session's name that stands in the body itself, or nothing."""
    session_name = _find_session_name(parsed_body)
    return _hash_names(session_name) if session_name else ""


def _hash_names(*names: str) -> str:
    return blake2b("\0".join(names).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _find_session_name(parsed_body: ParsedRequest) -> str:
    """Return the name of the session that stands in the body itself."""
    key = _decode_or_none(_STRING_DECODER, parsed_body.fields.get("prompt_cache_key")) or ""
    metadata = _decode_or_none(_METADATA_DECODER, parsed_body.fields.get("metadata"))
    if key or metadata is None:
        return key
    user = _decode_or_none(_USER_ID_DECODER, metadata.user_id.encode("utf-8", "surrogatepass"))
    old = _OLD_USER_ID_PATTERN.search(metadata.user_id)
    return user.session_id if user is not None else old[1] if old is not None else ""


# -- what for ----------------------------------------------------------------------------------------------------------


def _is_compaction_request(client: ClientIdentity, headers: Mapping[str, str], parsed_body: ParsedRequest) -> bool:
    turn = _decode_or_none(
        _CODEX_TURN_DECODER, headers.get("x-codex-turn-metadata", "").encode("utf-8", "surrogatepass")
    )
    if turn is not None and turn.request_kind:
        return turn.request_kind == "compaction"
    if _has_compaction_trigger(parsed_body) or _has_text_starting_with(
        _iter_newest_user_text(parsed_body), _COMPACTION_PROMPTS.get(client.family, ())
    ):
        return True
    return (
        client.family in {"opencode", "pi"}
        and not has_tools(parsed_body)
        and _has_text_starting_with(_iter_system_texts(parsed_body), (_SUMMARIZER_PROMPT,))
    )


def _has_compaction_trigger(parsed_body: ParsedRequest) -> bool:
    """Whether the last item asks the provider itself to compact."""
    last = parsed_body.messages[-1].message.parts if parsed_body.messages else ()
    item = _decode_or_none(_TYPED_ITEM_DECODER, last[0].raw) if len(last) == 1 and isinstance(last[0], Opaque) else None
    return item is not None and item.type == "compaction_trigger"


def _is_side_request(client: ClientIdentity, parsed_body: ParsedRequest, *, has_tools_before: bool) -> bool:
    if client.family not in AGENTS or has_tools(parsed_body):
        return False
    message_count = sum(sized_message.message.role != "system" for sized_message in parsed_body.messages)
    if message_count > MAX_SIDE_MESSAGES:
        return False
    if (
        _has_text_starting_with(_iter_system_texts(parsed_body), _TITLE_PROMPTS.get(client.family, ()))
        or parsed_body.requested_max_tokens == 1
    ):
        return True
    return has_tools_before and bool(client.scope)


def has_tools(parsed_body: ParsedRequest) -> bool:
    """Return whether the model is offered any tool."""
    tools = memoryview(parsed_body.fields.get("tools", b"null"))[:_EMPTY_LIST_BYTES].tobytes()
    return b"".join(tools.split()) not in (b"null", b"[]")


class ToolClients:
    """The clients, by their scopes, whose conversations have tools: those that were seen last."""

    def __init__(self, max_clients: int = MAX_TOOL_CLIENTS) -> None:
        self._most = max_clients
        self._seen: dict[ClientIdentity, None] = {}

    def has_had_tools(self, caller: ClientIdentity, parsed_request: ParsedRequest) -> bool:
        """Whether an earlier request of ``caller`` had tools; from now on this one counts too."""
        before = caller in self._seen
        if has_tools(parsed_request):
            self._seen[caller] = None
            while len(self._seen) > self._most:
                del self._seen[next(iter(self._seen))]
        return before


# -- words -------------------------------------------------------------------------------------------------------------


def _has_text_starting_with(texts: Iterator[str], words: tuple[str, ...]) -> bool:
    return bool(words) and any(text.lstrip().startswith(words) for text in texts)


def _iter_system_texts(parsed_body: ParsedRequest) -> Iterator[str]:
    """Yield the texts of the system prompt, where its API has a field for it and where it is the first message."""
    for name in (*get_api_spec(parsed_body.api).system_fields, "instructions"):
        content = _decode_or_none(_SYSTEM_DECODER, parsed_body.fields.get(name))
        if isinstance(content, str):
            yield content
        elif content is not None:
            yield from (part.text for part in (content.parts if isinstance(content, _GeminiContent) else content))
    if parsed_body.messages and parsed_body.messages[0].message.role == "system":
        yield parsed_body.messages[0].message.text


def _iter_newest_user_text(parsed_body: ParsedRequest) -> Iterator[str]:
    """Yield the last text of the newest message, where a user said it."""
    message = next(
        (
            sized_message.message
            for sized_message in reversed(parsed_body.messages)
            if sized_message.message.role != "system"
        ),
        None,
    )
    if message is not None and message.role == "user":
        yield from [part.text for part in message.parts if isinstance(part, Text)][-1:]


def _decode_or_none(decoder: Decoder[Value], raw: Raw | bytes | None) -> Value | None:
    """Return what ``raw`` says, or nothing where it is nothing of that form."""
    try:
        return None if raw is None else decoder.decode(raw)
    except _DECODE_ERRORS:
        return None
