"""Recognise which client sent a request, in which scope, and for which purpose, from its headers and its first words.

The *family* is a name for people and a part of the session's key. The *scope* is a namespace that keeps sessions of
different users apart; it never decides alone which branch a request continues, the content does. A request counts as a
turn unless it is surely something else: a side request that is mistaken for a turn is only recorded needlessly, but a
turn that is mistaken for a side request is missing from the log.
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
from holdfast.providers.requests.parsed_request import ParsedRequest

Value = TypeVar("Value")
RequestPurpose = Literal["turn", "side", "compaction"]
"""The purpose of a request: a turn of the conversation, something beside it, or the client's own summary of it."""

AGENTS = frozenset({"claude-code", "codex", "opencode", "pi", "gemini-cli"})
"""Clients that offer tools in every turn. So a short request of one of these without tools, in a scope that had tools
before, is a side request."""
MAX_SIDE_MESSAGES = 3
"""Messages, system prompts aside, that a side request has at most; opencode's title, the longest recorded, has 2."""
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
"""Headers with names of sessions, as recorded, the most reliable first. A subagent is a session of its own."""
THREAD_HEADERS = frozenset({("codex", "thread-id")})
"""Families and headers that name exactly one conversation, also after its client compacted or edited it.

Codex keeps the thread id over its own compaction, and gives a new one to a new conversation, a fork, a subagent and a
review. A session id or a cache key is no such name: Codex's subagents share theirs, and applications use one for
everything.
"""
# The words below were recorded from the clients themselves; Claude Code's title prompt from what others published.
_SUMMARIZER_PROMPT = "You are a context summarization"
"""Beginning of the system prompt under which opencode's agent and pi's assistant summarise a conversation."""
_PI_PROMPTS = ("You are an expert coding assistant", "You are a coding assistant running inside pi", _SUMMARIZER_PROMPT)
"""Beginnings of pi's system prompts. Old versions of pi have the user agents of the SDKs, so only these tell."""
_AIDER_PROMPT = "Act as an expert "
"""Beginning of aider's system prompts; it sends through LiteLLM and has its user agent."""
_COMPACTION_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "claude-code": (
        "CRITICAL: Respond with TEXT ONLY",
        "Your task is to create a detailed summary of",
    ),
    "codex": ("You are performing a CONTEXT CHECKPOINT",),
}
"""Beginnings of the last user text with which clients ask for a summary of everything before it."""
_TITLE_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "opencode": ("You are a title generator",),
    "claude-code": ("Generate a concise, sentence-case title",),
}
"""Beginnings of the system prompts with which clients ask for a title of the conversation."""
_SDK_PATTERN = re.compile(r"(?:Async)?(?:Azure)?(OpenAI|Anthropic)/")
_OLD_USER_ID_PATTERN = re.compile(r"_session_([0-9A-Za-z-]+)\Z")
"""Claude Code's session id inside ``metadata.user_id``, before that became JSON."""
MAX_TOOL_CLIENTS = 4_096
"""Clients that are remembered to have tools. If one is forgotten, its next side request is recorded as a turn."""
_EMPTY_LIST_BYTES = 64
"""How far into ``tools`` to look for an empty list, so that large tool definitions are not copied."""
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)


class ClientIdentity(Struct, frozen=True):
    """The client that sent a request: its family, and a digest of its own name for the session if it has one."""

    family: str
    scope: str = ""
    is_thread: bool = False
    """Whether the scope is exactly one conversation, however that begins."""


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
_METADATA_DECODER = Decoder(_Metadata)
_USER_ID_DECODER = Decoder(_UserId)
_CODEX_TURN_DECODER = Decoder(_CodexTurn)
_TYPED_ITEM_DECODER = Decoder(_TypedItem)
_STRING_DECODER = Decoder(str)


def identify_client(api: str, headers: Mapping[str, str], parsed_body: ParsedRequest) -> ClientIdentity:
    """Identify the client that sent ``parsed_body`` to ``api``; names of ``headers`` are in lower case."""
    family = _identify_family(api, headers, parsed_body)
    header_names = _find_session_headers(headers)
    if header_names:
        scope = _hash_names(*[headers.get(name, "") for name in header_names])
    else:
        scope = _find_scope_in_body(parsed_body)
    is_thread = any((family, name) in THREAD_HEADERS for name in header_names)
    return ClientIdentity(family, scope, is_thread)


def make_claude_code_scope(session_id: str, agent_id: str = "") -> str:
    """Return the scope of Claude Code's requests for a session of its own, or for a sub-agent of that session."""
    return _hash_names(session_id, agent_id)


def _find_session_headers(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the most reliable session headers of which at least one is set."""
    for names in SESSION_HEADERS:
        if any(headers.get(name) for name in names):
            return names
    return ()


def classify_purpose(
    client: ClientIdentity,
    headers: Mapping[str, str],
    parsed_body: ParsedRequest,
    *,
    has_tools_before: bool,
) -> RequestPurpose:
    """Return the purpose of a request; ``has_tools_before``: an earlier request of the same client had tools."""
    if _is_compaction_request(client, headers, parsed_body):
        return "compaction"
    if _is_side_request(client, parsed_body, has_tools_before=has_tools_before):
        return "side"
    return "turn"


# -- which client ------------------------------------------------------------------------------------------------------


def _identify_family(api: str, headers: Mapping[str, str], parsed_body: ParsedRequest) -> str:
    agent = headers.get("user-agent", "")
    for family, is_family in _FAMILY_CHECKS:
        if is_family(agent, headers):
            return family
    # From here on no header names the client; the SDK it uses and small differences of its headers must tell.
    sdk = _SDK_PATTERN.match(agent)
    if sdk is None:
        if agent.startswith("litellm/"):
            return _detect_aider("litellm", parsed_body)
        return "other"
    sdk_family = f"{sdk[1].lower()}-sdk"
    if headers.get("x-stainless-lang") == "js":
        if _has_text_starting_with(_iter_system_texts(parsed_body), _PI_PROMPTS):
            return "pi"
        return sdk_family
    # Both LiteLLM and LangChain ask the OpenAI SDK for the raw response. LiteLLM sets its timeout as a float.
    if "x-stainless-raw-response" in headers and api.startswith("openai"):
        if "." in headers.get("x-stainless-read-timeout", ""):
            return _detect_aider("litellm", parsed_body)
        return "langchain"
    return sdk_family


_FAMILY_CHECKS: tuple[tuple[str, Callable[[str, Mapping[str, str]], bool]], ...] = (
    ("claude-code", lambda agent, headers: agent.startswith("claude-cli/") or "x-claude-code-session-id" in headers),
    ("codex", lambda agent, headers: _is_codex(agent, headers.get("originator", ""), headers)),
    ("opencode", lambda agent, _: agent.startswith("opencode/")),
    ("pi", lambda agent, _: agent == "pi" or agent.startswith(("pi/", "pi ("))),
    ("gemini-cli", lambda agent, _: agent.startswith("GeminiCLI")),
    ("langchain", lambda agent, _: agent.startswith("langchain")),
    ("google-genai", lambda agent, headers: "google-genai-sdk" in headers.get("x-goog-api-client", agent)),
)
"""Families that name themselves in a header, and how to tell."""


def _is_codex(agent: str, originator: str, headers: Mapping[str, str]) -> bool:
    """Return whether it is Codex, alone or as the server of another program."""
    # As a server it sends the name of the other program in the usual headers; only the metadata is its own.
    if "x-codex-turn-metadata" in headers:
        return True
    return agent.startswith("codex") or originator.startswith("codex")


def _detect_aider(family: str, parsed_body: ParsedRequest) -> str:
    """Return ``aider`` if a request sent by ``family`` has aider's system prompt, else ``family``."""
    is_aider = _has_text_starting_with(_iter_system_texts(parsed_body), (_AIDER_PROMPT,))
    return "aider" if is_aider else family


def _find_scope_in_body(parsed_body: ParsedRequest) -> str:
    """Return a digest of the session's name inside the body, or ``""`` if there is no name."""
    session_name = _find_session_name(parsed_body)
    if not session_name:
        return ""
    return _hash_names(session_name)


def _hash_names(*names: str) -> str:
    return blake2b("\0".join(names).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _find_session_name(parsed_body: ParsedRequest) -> str:
    """Return the session's name inside the body: Codex's cache key, or Claude Code's user id; ``""`` without either."""
    cache_key = _decode_or_none(_STRING_DECODER, parsed_body.fields.get("prompt_cache_key"))
    if cache_key:
        return cache_key
    metadata = _decode_or_none(_METADATA_DECODER, parsed_body.fields.get("metadata"))
    if metadata is None:
        return ""
    user_id = _decode_or_none(_USER_ID_DECODER, metadata.user_id.encode("utf-8", "surrogatepass"))
    if user_id is not None:
        return user_id.session_id
    old_session_id = _OLD_USER_ID_PATTERN.search(metadata.user_id)
    if old_session_id is None:
        return ""
    return old_session_id[1]


# -- for which purpose -------------------------------------------------------------------------------------------------


def _is_compaction_request(client: ClientIdentity, headers: Mapping[str, str], parsed_body: ParsedRequest) -> bool:
    turn_metadata = headers.get("x-codex-turn-metadata", "").encode("utf-8", "surrogatepass")
    codex_turn = _decode_or_none(_CODEX_TURN_DECODER, turn_metadata)
    # Codex states the kind of each request, so nothing needs to be guessed from its texts.
    if codex_turn is not None and codex_turn.request_kind:
        return codex_turn.request_kind == "compaction"
    if _has_compaction_trigger(parsed_body):
        return True
    if _has_text_starting_with(_iter_newest_user_text(parsed_body), _COMPACTION_PROMPTS.get(client.family, ())):
        return True
    if client.family not in {"opencode", "pi"} or has_tools(parsed_body):
        return False
    return _has_text_starting_with(_iter_system_texts(parsed_body), (_SUMMARIZER_PROMPT,))


def _has_compaction_trigger(parsed_body: ParsedRequest) -> bool:
    """Return whether the last item asks the provider itself to compact (Codex's remote compaction)."""
    if not parsed_body.messages:
        return False
    parts = parsed_body.messages[-1].message.parts
    if len(parts) != 1 or not isinstance(parts[0], Opaque):
        return False
    item = _decode_or_none(_TYPED_ITEM_DECODER, parts[0].raw)
    return item is not None and item.type == "compaction_trigger"


def _is_side_request(client: ClientIdentity, parsed_body: ParsedRequest, *, has_tools_before: bool) -> bool:
    # Other clients have turns without tools too, so that nothing distinguishes a side request from a turn.
    if client.family not in AGENTS or has_tools(parsed_body):
        return False
    message_count = sum(sized_message.message.role != "system" for sized_message in parsed_body.messages)
    if message_count > MAX_SIDE_MESSAGES:
        return False
    if _has_text_starting_with(_iter_system_texts(parsed_body), _TITLE_PROMPTS.get(client.family, ())):
        return True
    # Claude Code checks its quota with a request for a single token.
    if parsed_body.requested_max_tokens == 1:
        return True
    return has_tools_before and bool(client.scope)


def has_tools(parsed_body: ParsedRequest) -> bool:
    """Return whether the request offers any tool."""
    tools = memoryview(parsed_body.fields.get("tools", b"null"))[:_EMPTY_LIST_BYTES].tobytes()
    return b"".join(tools.split()) not in (b"null", b"[]")


class ToolClients:
    """Remembers, for the clients seen last, whether their conversations have tools."""

    def __init__(self, max_clients: int = MAX_TOOL_CLIENTS) -> None:
        self._max_clients = max_clients
        self._clients: dict[ClientIdentity, None] = {}

    def has_had_tools(self, client: ClientIdentity, parsed_request: ParsedRequest) -> bool:
        """Return whether an earlier request of ``client`` had tools, and remember this one."""
        had_tools = client in self._clients
        if has_tools(parsed_request):
            self._clients[client] = None
            while len(self._clients) > self._max_clients:
                del self._clients[next(iter(self._clients))]
        return had_tools


# -- texts -------------------------------------------------------------------------------------------------------------


def _has_text_starting_with(texts: Iterator[str], beginnings: tuple[str, ...]) -> bool:
    return bool(beginnings) and any(text.lstrip().startswith(beginnings) for text in texts)


def _iter_system_texts(parsed_body: ParsedRequest) -> Iterator[str]:
    """Yield the texts of the system prompt, from its field or from a first message with the role ``system``."""
    for name in (*get_api_spec(parsed_body.api).system_fields, "instructions"):
        content = _decode_or_none(_SYSTEM_DECODER, parsed_body.fields.get(name))
        if isinstance(content, str):
            yield content
        elif isinstance(content, _GeminiContent):
            for part in content.parts:
                yield part.text
        elif content is not None:
            for block in content:
                yield block.text
    if parsed_body.messages and parsed_body.messages[0].message.role == "system":
        yield parsed_body.messages[0].message.text


def _iter_newest_user_text(parsed_body: ParsedRequest) -> Iterator[str]:
    """Yield the last text of the newest message, if that is a user's; system messages are skipped."""
    for sized_message in reversed(parsed_body.messages):
        message = sized_message.message
        if message.role == "system":
            continue
        if message.role == "user":
            for part in reversed(message.parts):
                if isinstance(part, Text):
                    yield part.text
                    return
        return


def _decode_or_none(decoder: Decoder[Value], raw: Raw | bytes | None) -> Value | None:
    """Return ``raw`` decoded, or None if there is no ``raw`` or it is of another form."""
    if raw is None:
        return None
    try:
        return decoder.decode(raw)
    except _DECODE_ERRORS:
        return None
