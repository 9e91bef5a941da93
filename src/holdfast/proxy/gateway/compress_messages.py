"""Make the messages of a gateway smaller: plan them as the next request of their session, and write them back.

The session's log keeps what was decided, so a message that was shortened once is the same bytes in every later call,
also after a restart.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from math import ceil

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast import events
from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.log.journal import Journal, PreparedRequest
from holdfast.engine.request_template import build_template_from_body
from holdfast.messages.equality import is_equivalent_message
from holdfast.messages.message import Message
from holdfast.messages.parts import Part, Text, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.planning.pipeline import Policy
from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.json.raw_json import JsonBytes, decode_json
from holdfast.providers.registry import get_api_spec
from holdfast.providers.requests.request_body import encode_sized_messages
from holdfast.proxy.conversation.open_branches import BranchPool
from holdfast.proxy.gateway.compress_request import CompressRequest
from holdfast.proxy.gateway.row_policy import RETRIEVE_TOOL, collect_known_rows, make_row_policy
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit
from holdfast.state.plan import Plan
from holdfast.state.target import Target
from holdfast.state.view import list_shown_sized_messages_at

SENT_SHARE = 0.75
"""Share of the window for messages of which some are withheld: the system prompt, the answers and the newest messages,
whose sizes the gateway does not tell, need the rest. Chosen by judgement."""
MAX_KNOWN_SESSIONS = 256
"""Sessions whose shortened messages are remembered; the log of the others tells. Chosen by judgement."""
REQUESTED_ORIGIN = "asked for"
"""``window_source`` of a window that the call asks for."""
_RAW_LIST_DECODER = Decoder(list[Raw])
_RECALL_CALL = re.compile(rf'recall\(id="(?P<handle>[0-9a-f]{{{HANDLE_CHARS}}})"[^()\n]*\)')
"""A call of our own tool as previews show it. A gateway's tool takes the hash alone."""


class CompressedMessages(Struct, frozen=True):
    """The answer of ``POST /v1/compress``. Sizes are our estimates, in tokens of the model."""

    messages: tuple[JsonBytes, ...]
    tokens_before: int
    tokens_after: int
    ccr_hashes: tuple[str, ...] = ()
    """The hashes of the texts that the messages stand for; ``GET /v1/retrieve/HASH`` returns them."""

    def encode(self) -> bytes:
        """Return the answer as JSON."""
        saved = self.tokens_before - self.tokens_after
        return msgspec.json.encode(
            {
                "messages": [Raw(message) for message in self.messages],
                "tokens_before": self.tokens_before,
                "tokens_after": self.tokens_after,
                "tokens_saved": saved,
                "compression_ratio": round(self.tokens_after / max(1, self.tokens_before), 4),
                "ccr_hashes": self.ccr_hashes,
            }
        )


class MessageCompressor:
    """Makes messages smaller, and remembers for the newest sessions what it made of each."""

    def __init__(self, resources: EngineResources) -> None:
        self._resources = resources
        self._known_rows: OrderedDict[str, dict[bytes, Sequence[Edit]]] = OrderedDict()
        """By session; the last used one is last."""

    async def compress(self, request: CompressRequest, branches: BranchPool) -> CompressedMessages:
        """Return the messages of ``request``, made smaller where that is due, and never larger.

        Raises ``WindowTooSmall`` if they cannot be made to fit, and ``StoreError`` if the log cannot be read or
        written.
        """
        parsed_body = request.parsed_body
        target = self._resolve_target(request)
        hold_branch = branches.continue_branch(request.session_key, parsed_body.messages, accepts_answers=True)
        async with hold_branch as session:
            journal = session.journal
            usual_policy = journal.policy
            journal.policy = self._choose_policy(request, usual_policy, journal.state)
            try:
                previous_state = journal.state
                prepared_request, answer = await self._resources.run_in_worker(
                    lambda: _plan_and_write_messages(journal, request, target)
                )
            finally:
                # The branch stays in memory, and another call may want other settings.
                journal.policy = usual_policy
        self._emit_decisions(request.session_key, prepared_request.plan, previous_state)
        if not request.allows_extract:
            self._remember_rows(request.session_key, prepared_request.plan.state)
        return answer

    def leave_unchanged(self, request: CompressRequest) -> CompressedMessages:
        """Return the messages of ``request`` as they came."""
        return _make_unchanged(request, self._resolve_target(request))

    def _resolve_target(self, request: CompressRequest) -> Target:
        parsed_body = request.parsed_body
        target = self._resources.resolve_target(parsed_body.api, parsed_body.model)
        limits = target.limits
        window, source = limits.window, limits.window_source
        if request.config.window is not None and request.config.window < window:
            window, source = request.config.window, REQUESTED_ORIGIN
        if request.is_partial:
            window = ceil(window * SENT_SHARE)
        max_input = min(limits.max_input, window) if limits.max_input else limits.max_input
        limits = replace(limits, window=window, max_input=max_input, window_source=source)
        return replace(target, limits=limits)

    def _choose_policy(self, request: CompressRequest, policy: Policy, state: ConversationState) -> Policy:
        if request.allows_extract:
            return policy
        known_rows = collect_known_rows(state) | self._known_rows.get(request.session_key, {})
        return make_row_policy(policy, known_rows, is_partial=request.is_partial)

    def _remember_rows(self, session_key: str, state: ConversationState) -> None:
        known_rows = self._known_rows.pop(session_key, {})
        self._known_rows[session_key] = known_rows | collect_known_rows(state)
        while len(self._known_rows) > MAX_KNOWN_SESSIONS:
            self._known_rows.popitem(last=False)

    def _emit_decisions(self, session_key: str, plan: Plan, previous_state: ConversationState) -> None:
        """Tell the listener what is saved from here on, unless an earlier call decided it."""
        is_repeated = plan.state.view.active_decisions == previous_state.view.active_decisions
        saved_tokens = sum(edit.saves for edit in plan.record)
        if not is_repeated and saved_tokens:
            event = events.EditsDecided(session_key, "gateway", len(plan.record), saved_tokens)
            self._resources.emit_event(event)


def _plan_and_write_messages(
    journal: Journal, request: CompressRequest, target: Target
) -> tuple[PreparedRequest, CompressedMessages]:
    """Append the new messages to the log, decide and commit what a request shows of all, and write that as the answer.

    Called in the worker.
    """
    parsed_body = request.parsed_body
    with journal.batch_writes():
        journal.follow_conversation(parsed_body.messages, parsed_body.decode_message)
        journal.describe_session(target.model)
        prepared_request = journal.prepare_request(build_template_from_body(target, parsed_body).target)
    if request.allows_extract:
        return prepared_request, _write_whole_view(request, prepared_request)
    return prepared_request, _write_rows(request, prepared_request)


# -- each message by itself --------------------------------------------------------------------------------------------


class _Row(Struct, frozen=True):
    """A message of the answer."""

    raw: JsonBytes
    tokens: int
    """Estimator tokens."""
    hashes: tuple[str, ...] = ()


def _write_rows(request: CompressRequest, prepared_request: PreparedRequest) -> CompressedMessages:
    """Return one message for each message of ``request``: the same bytes, or the message with texts shortened."""
    state = prepared_request.plan.state
    client_messages = request.parsed_body.messages
    raw_rows = _split_messages(request)
    index_by_digest = _index_by_digest(state)
    rows: list[_Row] = []
    for index, (sized_message, raw) in enumerate(zip(client_messages, raw_rows, strict=True)):
        unchanged_row = _Row(raw, sized_message.tokens)
        logged_index = _find_logged_index(state, index, sized_message, index_by_digest)
        shortened_row = None
        if logged_index is not None:
            shortened_row = _write_shortened_row(request, state, logged_index)
        # Never larger: what a call of the gateway's tool adds to a line may be more than a short text has.
        if shortened_row is None or shortened_row.tokens >= unchanged_row.tokens or len(shortened_row.raw) >= len(raw):
            rows.append(unchanged_row)
        else:
            rows.append(shortened_row)
    return _make_answer(prepared_request.target, client_messages, rows)


def _write_shortened_row(request: CompressRequest, state: ConversationState, index: int) -> _Row | None:
    """Return message ``index`` of the log as its edits show it, or None if nothing of it is shortened."""
    edits = state.view.edits.get(index)
    if not edits:
        return None
    shown_messages = list_shown_sized_messages_at(state, index)
    if len(shown_messages) != 1:
        return None
    handles = {edit.blob_hash[:HANDLE_CHARS]: None for edit in edits if edit.blob_hash}
    spec = get_api_spec(request.parsed_body.api)
    encoded = _encode_message(spec, _name_retrieve_tool(request, shown_messages[0], handles))
    if len(encoded) != 1:
        return None
    return _Row(encoded[0], _measure_message(spec, encoded[0]), tuple(handles))


def _find_logged_index(
    state: ConversationState, index: int, sized_message: SizedMessage, index_by_digest: dict[bytes, int]
) -> int | None:
    """Return where the log has a message of the client: at the same place, or wherever it has the same content.

    The places differ if the client groups its messages differently than it did before.
    """
    logged_messages = state.history.sized_messages
    if index < len(logged_messages):
        logged = logged_messages[index]
        if logged.digest == sized_message.digest or is_equivalent_message(logged.message, sized_message.message):
            return index
    return index_by_digest.get(sized_message.digest)


def _index_by_digest(state: ConversationState) -> dict[bytes, int]:
    """Return the index of each message that has edits, by its digest."""
    return {state.history.sized_messages[index].digest: index for index in state.view.edits}


# -- the whole conversation --------------------------------------------------------------------------------------------


def _write_whole_view(request: CompressRequest, prepared_request: PreparedRequest) -> CompressedMessages:
    """Return the messages that the next request shows: an extract in place of old ones, if one is due."""
    spec = get_api_spec(request.parsed_body.api)
    rows: list[_Row] = []
    for sized_message in prepared_request.messages:
        if sized_message.raw is not None and sized_message.api == spec.api:
            rows += [_Row(raw, sized_message.tokens) for raw in _encode_message(spec, sized_message)]
            continue
        handles = dict.fromkeys(_find_handles(sized_message.message))
        for raw in _encode_message(spec, _name_retrieve_tool(request, sized_message, handles)):
            rows.append(_Row(raw, _measure_message(spec, raw), tuple(handles)))
    answer = _make_answer(prepared_request.target, request.parsed_body.messages, rows)
    if answer.tokens_after > answer.tokens_before or not rows:
        return _make_unchanged(request, prepared_request.target)
    return answer


# -- shared by both ----------------------------------------------------------------------------------------------------


def _make_answer(target: Target, before: Iterable[SizedMessage], rows: Iterable[_Row]) -> CompressedMessages:
    """Return the answer with ``rows``; sizes are converted to tokens of the target's model."""
    kept_rows = list(rows)
    hashes = dict.fromkeys(hash_ for row in kept_rows for hash_ in row.hashes)
    return CompressedMessages(
        tuple(row.raw for row in kept_rows),
        ceil(sum(sized_message.tokens for sized_message in before) * target.prior_ratio),
        ceil(sum(row.tokens for row in kept_rows) * target.prior_ratio),
        tuple(hashes),
    )


def _make_unchanged(request: CompressRequest, target: Target) -> CompressedMessages:
    client_messages = request.parsed_body.messages
    rows: list[_Row] = []
    for sized_message, raw in zip(client_messages, _split_messages(request), strict=True):
        rows.append(_Row(raw, sized_message.tokens))
    return _make_answer(target, client_messages, rows)


def _split_messages(request: CompressRequest) -> list[Raw]:
    """Return the bytes of each message as it came."""
    return decode_json(_RAW_LIST_DECODER, request.raw_messages, "$.messages")


def _encode_message(spec: ApiSpec, sized_message: SizedMessage) -> list[JsonBytes]:
    (encoded,) = encode_sized_messages(spec, [sized_message])
    return encoded


def _measure_message(spec: ApiSpec, raw: JsonBytes) -> int:
    """Return the estimator tokens of an encoded message."""
    return build_sized_message(spec.decode_message(raw)).tokens


def _name_retrieve_tool(request: CompressRequest, sized_message: SizedMessage, handles: Iterable[str]) -> SizedMessage:
    """Return a shortened message whose calls of our own tool name the gateway's tool, if the model has that."""
    known_handles = frozenset(handles)
    if not (request.offers_retrieval and known_handles):
        return sized_message

    def rename_call(match: re.Match[str]) -> str:
        if match["handle"] not in known_handles:
            return match[0]
        return f'{RETRIEVE_TOOL}(hash="{match["handle"]}")'

    def rename_calls(part: Part) -> Part:
        if isinstance(part, Text):
            new_text = _RECALL_CALL.sub(rename_call, part.text)
            return part if new_text == part.text else Text(new_text)
        if isinstance(part, ToolResult):
            new_content = tuple(rename_calls(item) if isinstance(item, Text) else item for item in part.content)
            if new_content == part.content:
                return part
            return replace(part, content=new_content, raw=None)
        return part

    message = sized_message.message
    new_message = Message(message.role, tuple(rename_calls(part) for part in message.parts))
    return replace(sized_message, message=new_message)


def _find_handles(message: Message) -> Iterable[str]:
    """Yield the handles that the calls of our own tool in ``message`` name."""
    for part in message.parts:
        texts: Iterable[object] = part.content if isinstance(part, ToolResult) else (part,)
        for text in texts:
            if isinstance(text, Text):
                for match in _RECALL_CALL.finditer(text.text):
                    yield match["handle"]
