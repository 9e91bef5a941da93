"""Compact the transcript that a plugin of a coding agent hands over: an extract, then the newest messages unchanged.

Nothing is stored and no model is asked. What is kept is decided by the planner alone, as for any other conversation.
Here its decision is only put into the host's terms, and measured in them: the host sends the kept messages whole, so
everything that the planner would shorten in them counts in full.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.hosts.transcript import Transcript
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.text_cuts import take_text_start
from holdfast.planning.open_work.section import is_open_work_section
from holdfast.planning.pipeline import Policy, plan_without_normalization
from holdfast.planning.stages.compaction import EARLY_SUMMARY_SHARE, compact_conversation
from holdfast.state.conversation_state import ConversationState
from holdfast.state.costs import HOUR_WRITE_FACTOR
from holdfast.state.entries import Entry, MessageEntry
from holdfast.state.fold.fold_entries import apply_entries
from holdfast.state.target import ModelLimits, PlanInputs, Prices, Target

USUAL_WINDOW, LARGE_WINDOW = 200_000, 1_000_000
"""Windows of Claude models in tokens; the second is assumed where a conversation has outgrown the first."""
PLUGIN_API = "anthropic"
"""The API of the hosts that hand over transcripts, by which the prices of their models are looked up."""
MAX_INSTRUCTION_CHARS = 2_000
"""Characters of what the user wrote after ``/compact`` that the extract quotes. Chosen by judgement: a page."""
MAX_EXTRACT_TOKENS, MAX_EXTRACT_SHARE, MAX_TAIL_TOKENS = 6_000, 0.03, 3_000
"""Estimator tokens of an extract, the share of the transcript by which it may be longer, and estimator tokens of the
newest messages that stay beside an answer whose results are unread. The first request after a compaction writes all of
it to the cache. A summary by a model is shorter, but the model reads the whole context for it: with these numbers the
next ten requests cost less than ten after such a summary and the call for it, at 80,000, 200,000 and 500,000 tokens.
Without them an extract of a context of 200,000 had twice the tokens and held .02 more of the facts that were used again
(``bench/host_compaction.py``)."""
MIN_USER_TOKENS = 1_500
"""Estimator tokens for the user's words in an extract that this limit makes short. With the usual share of it alone,
7 of 274 rules were lost over twenty compactions in windows of 32,000 and 64,000 tokens; with this none."""
_RECALL_SENTENCES = {
    "whatever is not here can be read back with recall.": "the session's transcript file has the rest.",
    "recall reads back the rest.": "the session's transcript file has the rest.",
}
"""What the first line of an extract says about the rest, and what it says where no recall can find it."""
_UNQUOTED_LINE = re.compile(r"^(\[[^\n]* not quoted here; )recall reads them back([^\n]*\])$", re.MULTILINE)
_INSTRUCTIONS_QUOTE = "\n## Constraints & Preferences\nUser: {}"
"""The user's words about a compaction. In this form a later extract reads them as the user's."""


class KeptCounts(Struct, frozen=True, rename="camel"):
    """What a compaction kept, in numbers."""

    messages: int
    """Messages that stay as they are."""
    replaced: int = 0
    """Messages that the extract stands for."""
    tool_calls: int = 0
    """Tool calls in the messages that stay."""
    user_messages: int = 0
    """Messages with words of the user among those that stay."""
    extract_tokens: int = 0
    open_items: int = 0
    """Lines of the extract about open work: to-do items, sub-agents, background shells, approvals."""


class CacheWritePrices(Struct, frozen=True, rename="camel"):
    """Dollars for a million tokens that a request writes to the prompt cache, by how long the cache keeps them."""

    five_minutes: float
    one_hour: float


class CompactedTranscript(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What replaces a transcript. Tokens are our estimates of the messages, without system prompt and tools."""

    messages: list[Raw]
    tokens_before: int
    tokens_after: int
    kept: KeptCounts
    why: str = ""
    """Why the transcript stays as it came; empty if it was compacted."""
    cache_write_prices: CacheWritePrices | None = None
    """Prices of the transcript's model, if the host named one and its price is known."""


def compact_transcript(transcript: Transcript) -> CompactedTranscript:
    """Replace the older messages of ``transcript`` by an extract, or return it as it came and say why.

    The result is never larger than the transcript. Raises ``WindowTooSmall`` if no request at all would fit.
    """
    entries = [Entry("", None, MessageEntry(sized_message)) for sized_message in transcript.messages]
    state = apply_entries(ConversationState(), entries)
    sizes = [sized_message.tokens for sized_message in transcript.messages]
    tokens_before = sum(sizes)
    window = transcript.window or (USUAL_WINDOW if tokens_before < USUAL_WINDOW else LARGE_WINDOW)
    target = Target(limits=ModelLimits(window=window, window_source="the host's"))
    inputs = PlanInputs(force_compaction=True, can_spill=False)
    plan = plan_without_normalization(state, target, _make_policy(tokens_before), inputs)
    compaction = plan.compaction
    if compaction is None or compaction.summary is None:
        why = "; ".join(notice.why for notice in plan.notices) or "there is nothing to compact"
        return _keep_everything(transcript, tokens_before, why)
    extract = _render_extract(compaction.summary, transcript)
    first_kept = compaction.first_kept
    extract_tokens = build_sized_message(Message.from_text("user", extract)).tokens
    tokens_after = extract_tokens + sum(sizes[first_kept:])
    if tokens_after >= tokens_before:
        why = f"it would not get smaller: {tokens_after:,} tokens instead of {tokens_before:,}"
        return _keep_everything(transcript, tokens_before, why)
    if tokens_after > window:
        tail = f"the newest messages alone have {sum(sizes[first_kept:]):,} tokens of a window of {window:,}"
        why = f"{tail}, and a plugin cannot shorten them"
        return _keep_everything(transcript, tokens_before, why)
    kept = _count_kept(transcript.messages[first_kept:], first_kept, extract_tokens, compaction.summary)
    raw_extract = Raw(msgspec.json.encode({"role": "user", "text": extract, "toolUses": []}))
    messages = [raw_extract, *transcript.raw_messages[first_kept:]]
    return CompactedTranscript(messages, tokens_before, tokens_after, kept)


def add_cache_write_prices(compacted: CompactedTranscript, prices: Prices) -> CompactedTranscript:
    """Return ``compacted`` with the prices of its model, unless they are only assumed."""
    if prices.is_assumed:
        return compacted
    write_prices = CacheWritePrices(prices.cache_write, HOUR_WRITE_FACTOR * prices.input)
    return replace(compacted, cache_write_prices=write_prices)


def _make_policy(tokens: int) -> Policy:
    """Return the policy for a transcript of so many tokens: our own, but with a limit to what it leaves."""
    # No other stage: all that they do is to shorten messages, and the host sends those that stay as they are.
    policy = Policy(stages=(("compaction", compact_conversation),))
    if tokens <= 0:
        return policy
    tail_share = min(policy.settings.compaction.tail_share, MAX_TAIL_TOKENS / tokens)
    policy = policy.with_settings(compaction={"tail_share": tail_share})
    max_extract_tokens = int(MAX_EXTRACT_TOKENS + MAX_EXTRACT_SHARE * tokens)
    # In a short transcript the planner's own share is less.
    if max_extract_tokens < EARLY_SUMMARY_SHARE * tokens:
        user_share = max(policy.settings.summary.user_share, MIN_USER_TOKENS / max_extract_tokens)
        policy = policy.with_settings(summary={"max_tokens": max_extract_tokens, "user_share": user_share})
    return policy


def _keep_everything(transcript: Transcript, tokens: int, why: str) -> CompactedTranscript:
    """Return the transcript as it came."""
    kept = _count_kept(transcript.messages, 0, 0, Message("user"))
    return CompactedTranscript(list(transcript.raw_messages), tokens, tokens, kept, why)


def _render_extract(summary: Message, transcript: Transcript) -> str:
    """Return the summary as the one text that the host takes.

    What the user wrote about this compaction cannot direct an extract, but it is the user's word and stays.
    """
    texts = [part.text for part in summary.parts if isinstance(part, Text)]
    if not transcript.is_recorded:
        texts[0] = _name_transcript_file(texts[0])
    if transcript.instructions:
        quote = take_text_start(transcript.instructions, MAX_INSTRUCTION_CHARS)
        texts[0] += _INSTRUCTIONS_QUOTE.format(quote)
    return "\n\n".join(texts)


def _name_transcript_file(extract: str) -> str:
    """Return ``extract`` with lines of ours that promise no recall."""
    first_line, line_end, rest = extract.partition("\n")
    for recall_sentence, file_sentence in _RECALL_SENTENCES.items():
        first_line = first_line.replace(recall_sentence, file_sentence)
    return first_line + line_end + _UNQUOTED_LINE.sub(r"\1the transcript file has them\2", rest)


def _count_kept(
    sized_messages: Sequence[SizedMessage], replaced: int, extract_tokens: int, summary: Message
) -> KeptCounts:
    kept = [sized_message.message for sized_message in sized_messages]
    open_items = 0
    for part in summary.parts:
        if isinstance(part, Text) and is_open_work_section(part.text):
            open_items += part.text.count("\n- ")
    return KeptCounts(
        messages=len(kept),
        replaced=replaced,
        tool_calls=sum(len(message.calls) for message in kept),
        user_messages=sum(message.is_turn_start for message in kept),
        extract_tokens=extract_tokens,
        open_items=open_items,
    )
