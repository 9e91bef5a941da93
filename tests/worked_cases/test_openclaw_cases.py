"""Worked cases of OpenClaw; run where the corpus is present.

An adapter turns a case into library calls and their results into the terms of the case; it knows no answer.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import CONFIG_FILE_NAME, get_target, load_catalog
from holdfast.errors import WindowTooSmall
from holdfast.messages.message import Message, collect_media_in_messages, get_result_text
from holdfast.messages.parts import Media, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.normalize.result_matching import SYNTHETIC_RESULT_TEXT
from holdfast.planning.presets.openclaw.precheck import decide_precheck
from holdfast.planning.presets.openclaw.rules import OPENCLAW_2026_9
from holdfast.planning.settings import ChannelLimits, UserLimits
from holdfast.state.conversation_state import ConversationState
from holdfast.state.dialect import Dialect
from holdfast.state.entries import AnswerEntry, CompactionEntry, Entry, MessageEntry, NoteEntry
from holdfast.state.target import Target
from holdfast.state.view import build_projection
from holdfast.store.memory import MemoryStore

_FILES = Path(__file__).parents[3] / "shared" / "cases"
_ISSUES = {"Tool results and old turns", "The wire", "First light"}
_ELSEWHERE = {"error-class", "observed-tokens", "silent-overflow-2026.9"}
"""Areas that ``test_error_classification_cases.py`` runs."""

DEVIATIONS = {
    "app-02": "a call stays open until its result or another answer arrives: a late real result wins",
    "app-03": "missing results are synthesized in the projection and never stored (synthetic-in-views-only)",
    "pair-06": "a call of an interrupted answer without a result is not sent: every API refuses it",
    "pair-07": "a call of an interrupted answer keeps its real result, since it ran",
    "inp-01": "a call without arguments is valid: tools without parameters are called so",
    "inp-02": "as inp-01",
    "inp-03": "a name outside the alphabet is mapped into it for call and result, so that no real result is lost",
    "inp-04": "a finished call stays when its tool is gone (as in 2026.9): it is part of the history",
    "tid-01": "ids are mapped injectively from the id alone, as each API requires; only the spelling differs",
    "tid-02": "as tid-01",
    "tid-03": "as tid-01",
    "tid-04": "as tid-01",
    "trc-12": "a result one character over its limit stays whole: with a notice it would be no shorter",
    "turn-03": "usage and stop reason are log entries, not message fields: merging has nothing to choose",
    "turn-06": "both texts are kept as two messages: Anthropic itself merges adjacent ones",
    "turn-07": "a call without a result gets a synthetic one; a call that the model made is not dropped",
    "turn-08": "as turn-07",
    "turn-09": "as turn-07: Anthropic refuses a request that ends in a call",
    "ord-01": "Gemini accepts a history that begins with the model; other servers get a different first message",
    "pol-02": "Gemini merges adjacent messages itself and accepts a model message first and ids with _ and -",
    "pol-03": "a missing result is synthesized for every API: all refuse a call without one (as in 2026.9)",
    "pol-04": "as pol-03; an unknown server gets the strictest rules",
    "pol-05": "as pol-03",
}
"""Cases that must differ from what is written, and why."""


def _load_cases():
    areas, cases = (_FILES / "areas.json", _FILES / "openclaw.json")
    if not cases.exists():
        return []
    owned = {area for area, about in json.loads(areas.read_text()).items() if about["issue"] in _ISSUES}
    return [case for case in json.loads(cases.read_text()) if case["area"] in owned - _ELSEWHERE]


# -- cases as messages -------------------------------------------------------------------------------------------------


def _expand(value):
    """Return ``value`` with its ``$repeat`` and ``$concat`` expanded."""
    if isinstance(value, dict):
        if "$repeat" in value:
            return value["$repeat"][0] * value["$repeat"][1]
        if "$concat" in value:
            return "".join(map(_expand, value["$concat"]))
        return {key: _expand(inner) for key, inner in value.items()}
    return [_expand(inner) for inner in value] if isinstance(value, list) else value


def _build_part(block):
    kind = block["type"]
    if kind == "text":
        return Text(block["text"])
    if kind == "thinking":
        return Thinking(block["text"], ProviderSignature("other", "other", block["signature"]))
    if kind == "image":
        return Media("image", block["media_type"], 3, source=block["data"])
    if kind == "toolResult":
        return ToolResult(block["toolUseId"], "", (Text("ok"),))
    arguments = block.get("arguments", {})
    return ToolCall(block["id"], block["name"], "" if arguments is None else json.dumps(arguments))


def _build_message(message):
    content = message["content"]
    parts = tuple(map(_build_part, [{"type": "text", "text": content}] if isinstance(content, str) else content))
    if message["role"] == "tool":
        return Message("tool", (ToolResult(message["call_id"], message["name"], parts, message["is_error"]),))
    if all(isinstance(part, ToolResult) for part in parts):
        return Message("tool", parts)
    return Message(message["role"], parts)


def _build_messages(case):
    return [_build_message(message) for message in case["input"]]


def _build_state(case):
    """Return the state of a case's conversation, with the stop reason of each answer."""
    bodies = []
    for source, message in zip(case["input"], _build_messages(case), strict=True):
        bodies.append(MessageEntry(build_sized_message(message)))
        if message.role == "assistant":
            bodies.append(AnswerEntry("", stop_reason=source.get("stop_reason", "")))
    return ConversationState.from_entries(Entry(str(at), None, body) for at, body in enumerate(bodies))


def _send_normalized(case, dialect):
    """Return the messages of a case as ``apply`` sends them to an API with the rules of ``dialect``."""
    return _send(_build_messages(case), Target(dialect.api, dialect.model, dialect), state=_build_state(case))


def _send(messages, target, **options):
    """Return ``messages`` as the preset sends them to ``target``; none is long enough to be shortened."""
    return apply(messages, plan(messages, target, Policy.preset("openclaw"), **options))


def _pair_with_ids(case, sent):
    """Return the sent messages with the ids of the case's messages that share a part with them."""
    messages_by_id = list(zip((source["id"] for source in case["input"]), _build_messages(case), strict=True))
    return [(_find_id(message, messages_by_id), message) for message in sent]


def _find_id(message, messages_by_id):
    for result in message.results:
        if result.content == (Text(SYNTHETIC_RESULT_TEXT),):
            return f"synthetic:{result.call_id}"
    for id_, old in messages_by_id:
        if old.role == message.role and {*map(_describe_part, message.parts)} & {*map(_describe_part, old.parts)}:
            return id_
    return f"new:{message.role}:{message.text}"


def _describe_part(part):
    return (type(part), get_result_text(part) if isinstance(part, ToolResult) else getattr(part, "text", part))


_PAIRING_ONLY = Dialect(
    "x",
    must_start_with_user=False,
    must_end_with_user=False,
    merges_same_role=False,
    results_grouped=False,
    results_first=False,
    allows_empty_last_answer=True,
    unique_ids=False,
    results_carry_name=True,
)
"""A dialect that requires pairing and nothing else."""


# -- windows, history, results -----------------------------------------------------------------------------------------

_OPENCLAW = Policy.preset("openclaw")
_OPENCLAW_NEW = _OPENCLAW.with_settings(**OPENCLAW_2026_9)
_SOURCES = {"config": "case-model", "model": "case-*"}
"""How the catalogs of the project and of the user name the model: exactly, and by a pattern."""
_TOO_SMALL_RE = re.compile(r"Model context window too small \((\d+) tokens\)")


def _run_window_case(case, policy=_OPENCLAW):
    """Return the window of a model in two catalogs; a rejected window also counts as a warning."""
    windows = {key.removesuffix("_window"): value for key, value in case["params"].items()}
    with TemporaryDirectory() as folder:
        for name, match in _SOURCES.items():
            path = Path(folder, name)
            path.mkdir()
            line = f'[[model]]\nmatch = "{match}"\nwindow = {windows[name]}\n' if name in windows else ""
            (path / CONFIG_FILE_NAME).write_text(line)
        catalog = load_catalog(Path(folder, "config"), Path(folder, "model"))
    target = get_target("anthropic", "case-model", catalog=catalog)
    source = {"catalog: case-model": "modelsConfig", "catalog: case-*": "model"}.get(
        target.limits.window_source, "default"
    )
    try:
        new_plan = plan(
            [Message.from_text("user", "go")], target, policy.with_settings(window={"cap": windows.get("cap", 0)})
        )
    except WindowTooSmall as error:
        tokens, warn, block = int(_TOO_SMALL_RE.match(str(error))[1]), True, True
    else:
        tokens, block = new_plan.window, False
        warn = any(notice.rule == "small-window" for notice in new_plan.notices)
    source = source if tokens == target.limits.window else "agentContextTokens"
    return {"tokens": tokens, "source": source, "warn": warn, "block": block}


def _run_history_key_case(case):
    channels = {
        name: ChannelLimits(
            channel.get("historyLimit"),
            channel.get("dmHistoryLimit"),
            {user: UserLimits(limits.get("historyLimit")) for user, limits in channel.get("dms", {}).items()},
        )
        for name, channel in case["params"]["channels"].items()
    }
    return (
        _OPENCLAW.with_settings(history={"channels": channels})
        .for_session(case["params"]["key"])
        .settings.history.max_turns
    )


def _run_history_case(case):
    return [id_ for id_, _ in _pair_with_ids(case, _limit_history(case))]


def _limit_history(case):
    """Return the messages of the last turns, up to the limit of the case."""
    return _list_shown(
        case,
        _OPENCLAW.with_settings(history={"max_turns": case["params"].get("limit") or 0}, compaction={"enabled": False}),
    )


_NOTICE_RE = re.compile(r"\n\[\.\.\. [\d,]+ characters left out; [^\]]*\]\Z")
"""The end of a truncated text."""


def _build_result_conversation(*content):
    """Return a conversation with a tool result of ``content``."""
    result = ToolResult("c", "read", content)
    return [
        Message.from_text("user", "go"),
        Message("assistant", (ToolCall("c", "read", "{}"),)),
        Message("tool", (result,)),
    ]


def _truncate(messages, policy, window=200_000):
    """Return ``messages`` with the results that recovery truncates after an overflow without a store."""
    settings = {"compaction": {"enabled": False}, "preset": {"loop_share": 0.0, "prune": False, "window_min": 0}}
    target, inputs = _build_target(window), PlanInputs(overflow_step="truncate", can_spill=False)
    return apply(messages, plan(messages, target, policy.with_settings(**settings), inputs=inputs))


def _build_limited_policy(chars):
    """Return a policy that limits one result to ``chars`` characters."""
    return _OPENCLAW.with_settings(preset={"truncate_share": 1.0, "truncate_max_chars": chars})


def _run_text_case(case):
    text_before, limit = case["params"]["text"], case["params"]["max_chars"]
    (result,) = _truncate(_build_result_conversation(Text(text_before)), _build_limited_policy(limit))[2].results
    text = get_result_text(result)
    end = _NOTICE_RE.search(text)
    kept_chars = end.start() if end else len(text)
    cut_at = next((at for at, pair in enumerate(zip(text, text_before, strict=False)) if pair[0] != pair[1]), len(text))
    return {
        "changed": text != text_before,
        "shorter": len(text) < len(text_before),
        "has_notice": end is not None,
        "keeps_tail": text_before[-5:] in text,
        "has_middle_marker": "\n[... the middle is left out ...]\n" in text,
        "cut_at": min(cut_at, kept_chars),
        "kept_at_least": kept_chars,
        "result_length_at_most": len(text),
    }


def _run_limit_case(case, policy=_OPENCLAW):
    """Return the characters, notice included, that recovery leaves of a result far over its limit."""
    (result,) = _truncate(_build_result_conversation(Text("a" * 2_000_000)), policy, case["params"]["window"])[
        2
    ].results
    return len(get_result_text(result))


def _run_detect_case(case):
    """Return whether any result is truncated after an overflow; all results were answered."""
    results = _build_messages(case)
    calls = tuple(ToolCall(message.results[0].call_id, "read", "{}") for message in results)
    last_messages = [Message.from_text("assistant", "so far"), Message.from_text("user", "on")]
    messages = [Message.from_text("user", "go"), Message("assistant", calls), *results, *last_messages]
    shown = [
        get_result_text(result)
        for message in _truncate(messages, _OPENCLAW, case["params"]["window"])
        for result in message.results
    ]
    return shown != [get_result_text(message.results[0]) for message in results]


def _run_message_case(case):
    (before,) = _build_messages(case)[0].results
    messages = _build_result_conversation(*before.content)
    (after,) = _truncate(messages, _build_limited_policy(case["params"]["max_chars"]))[2].results
    texts = [part for part in after.content if isinstance(part, Text)]
    images = [part for part in after.content if isinstance(part, Media)]
    return {
        "blocks": ["text" if isinstance(part, Text) else "image" for part in after.content],
        "first_bigger": len(texts[0].text) > len(texts[1].text),
        "image_kept": images == [part for part in before.content if isinstance(part, Media)],
        "original_untouched": messages == _build_result_conversation(*before.content),
    }


def _run_replay_case(case):
    """Copy the branch of a case in a store; entries other than messages and compactions become notes."""
    indexes = {
        source["id"]: index
        for index, source in enumerate(source for source in case["input"] if source["type"] == "message")
    }
    store, bodies = (
        MemoryStore(),
        {
            "message": lambda source: MessageEntry(build_sized_message(Message.from_text("user", source["text"]))),
            "compaction": lambda source: CompactionEntry(
                indexes[source["firstKeptEntryId"]], Message.from_text("user", source["summary"])
            ),
            "model_change": lambda _: NoteEntry("model_change"),
        },
    )
    store.create_session("s")
    ids = [source["id"] for source in case["input"]]
    parents = [None, *ids]
    entries = [
        Entry(source["id"], parent_id, bodies[source["type"]](source))
        for source, parent_id in zip(case["input"], parents, strict=False)
    ]
    store.append_entries("s", entries)
    replacements = {id_: Message.from_text("user", "small") for id_ in case["params"]["replace"]}
    leaf = store.copy_branch("s", replacements)
    path = store.read_path("s", leaf)
    descriptions = [_describe_body(entry.body) for entry in path]
    first = min((ids.index(id_) for id_ in replacements if id_ in ids), default=0)
    compaction = next(entry.body for entry in path if isinstance(entry.body, CompactionEntry))
    message_indexes = [at for at, entry in enumerate(path) if isinstance(entry.body, MessageEntry)]
    return {
        "changed": leaf is not None,
        "rewritten": sum(
            description != _describe_body(source.body)
            for description, source in zip(descriptions, entries, strict=True)
        ),
        "branch": descriptions,
        "prefix_ids_kept": [entry.id for entry in path[:first]] == ids[:first] if leaf else None,
        "old_entries_still_stored": {entry.id for entry in store.read_entries("s")} >= set(ids),
        "first_kept_points_at": message_indexes[compaction.first_kept],
    }


def _describe_body(body):
    if isinstance(body, MessageEntry):
        return body.sized_message.message.text
    return body.reason if isinstance(body, NoteEntry) else "compaction"


def _run_append_case(case):
    state = _build_state(case)
    return {
        "stored": [id_ for id_, _ in _pair_with_ids(case, [sized.message for sized in state.history.sized_messages])],
        "pending_before_flush": list(state.history.open_call_ids),
    }


def _build_target(window):
    return get_target("anthropic", "claude-sonnet-4-5", window=window)


def _list_shown(case, policy, inputs=PlanInputs(), window=200_000):
    """Return the messages as a policy shows them, without normalization."""
    new_plan = plan(_build_messages(case), _build_target(window), policy, inputs=inputs)
    return [sized.message for sized in build_projection(new_plan.state)]


def _run_images_case(case):
    sent = _list_shown(case, _OPENCLAW.with_settings(compaction={"enabled": False}))
    names = [source["id"] for source in case["input"]]
    old = [len(collect_media_in_messages(message)) for message in _build_messages(case)]
    new = [len(collect_media_in_messages(message)) for message in sent]
    return {"changed": new != old, "images_left": [[id_, n] for id_, n, o in zip(names, new, old, strict=True) if o]}


_STATES = (
    ("[Old tool result content cleared]", "cleared"),
    ("[Older tool output removed", "placeholder"),
    ("Tool result trimmed", "soft"),
    ("characters left out; ", "truncated"),
)
"""The text that identifies each state of a replaced result."""


def _list_states(case, sent):
    texts = [get_result_text(result) for message in sent for result in message.results]
    return [next((state for marker, state in _STATES if marker in text), "full") for text in texts]


_WITHOUT_COMPACTION = _OPENCLAW.with_settings(
    compaction={"enabled": False}, reserve={"min": 0}, preset={"window_min": 0, "truncate_share": 0.0}
)


def _run_prune_case(case):
    policy = _WITHOUT_COMPACTION.with_settings(preset={"loop_share": 0.0})
    sent = _list_shown(case, policy, PlanInputs("cold"), case["params"]["window"])
    return {"same": sent == _build_messages(case), "state": _list_states(case, sent)}


def _run_mid_loop_case(case):
    policy = _WITHOUT_COMPACTION.with_settings(preset={"prune": False})
    return _list_states(case, _list_shown(case, policy, window=case["params"]["window"]))


def _run_precheck_case(case):
    """Call the arithmetic directly: a plan shows what was truncated or compacted, not the excess tokens."""
    params = case["params"]
    decision = decide_precheck(
        params["estimated_prompt"], params["window"], params["reserve"], params["reducible_tool_chars"]
    )
    return {"route": decision.outcome, "overflow_tokens": decision.excess_tokens}


# -- wire requests -----------------------------------------------------------------------------------------------------


def _run_pairing_case(case):
    if case["params"].get("then_limit_first"):
        case = case | {"input": case["input"][-len(_limit_history(case)) :]}
    sent = _pair_with_ids(case, _send_normalized(case, _PAIRING_ONLY))
    order = [id_ for id_, _ in sent]
    results = [result for _, message in sent for result in message.results]
    source_ids = [source["id"] for source in case["input"] if source["role"] == "tool"]
    return {
        "order": order,
        "added": [id_.removeprefix("synthetic:") for id_ in order if id_.startswith("synthetic:")],
        "gone": len([id_ for id_ in source_ids if id_ not in order]),
        "name": results[-1].name if results else "",
        "is_error": bool(results) and results[-1].is_error,
        "mentions_missing": bool(results) and "result" in get_result_text(results[-1]),
    }


def _run_inputs_case(case):
    sent = _send_normalized(case, _PAIRING_ONLY)
    kept = [
        [id_, *(map(_describe_call, message.parts) if message.role == "assistant" else ())]
        for id_, message in _pair_with_ids(case, sent)
        if not message.results
    ]
    calls = sum(len(message.calls) for message in _build_messages(case)) - sum(len(message.calls) for message in sent)
    return {
        "kept": kept,
        "dropped_calls": calls,
        "dropped_messages": len(case["input"]) - len(kept),
    }


def _describe_call(part):
    return f"{part.id}/{part.name}" if isinstance(part, ToolCall) else "text"


_MODES = {
    "strict": replace(_PAIRING_ONLY, id_character_pattern="[A-Za-z0-9]", id_max=40, unique_ids=True),
    "strict9": replace(_PAIRING_ONLY, id_character_pattern="[A-Za-z0-9]", id_min=9, id_max=9, unique_ids=True),
}


def _run_ids_case(case):
    dialect = _MODES[case["params"]["mode"]]
    if "id" in case["params"]:
        return _send_id(case["params"]["id"], dialect)
    sent = _send_normalized(case, dialect)
    calls = [call.id for message in sent for call in message.calls]
    results = [result.call_id for message in sent for result in message.results]
    return {
        "unique": len({*calls}) == len(calls),
        "results_match": calls == results,
        "valid": all(id_.isalnum() and dialect.id_min <= len(id_) <= dialect.id_max for id_ in calls),
    }


def _send_id(id_, dialect):
    """Return the wire id sent for the id of a call and its result."""
    call, result = ToolCall(id_, "t"), ToolResult(id_, "t", (Text("ok"),))
    messages = [Message.from_text("user", "u"), Message("assistant", (call,)), Message("tool", (result,))]
    _, call_message, result_message = _send(messages, Target(dialect.api, dialect.model, dialect))
    assert call_message.calls[0].id == result_message.results[0].call_id
    return call_message.calls[0].id


def _run_gemini_turns_case(case):
    sent = _send_normalized(case, replace(_PAIRING_ONLY, merges_same_role=True))
    return [[id_, message.role, len(message.parts)] for id_, message in _pair_with_ids(case, sent)]


def _run_anthropic_turns_case(case):
    sent = _send_normalized(
        case, replace(get_target("anthropic", "claude-sonnet-4-5").dialect, must_start_with_user=False)
    )
    named = _pair_with_ids(case, sent)
    texts_by_id = [
        [id_, sent_message.role, [part.text for part in sent_message.parts if isinstance(part, Text)]]
        for id_, sent_message in named
    ]
    if "shape" in case["params"]:
        return [[id_, [_describe_shape(part) for part in message.parts]] for id_, message in named]
    return {"result": texts_by_id} if "recommended" in case else texts_by_id


def _describe_shape(part):
    if isinstance(part, ToolCall):
        return f"toolUse:{part.id}"
    return f"toolResult:{part.call_id}" if isinstance(part, ToolResult) else f"text:{part.text}"


def _run_ordering_case(case):
    dialect = get_target("gemini", "gemini-2.5-pro").dialect
    return [id_ for id_, _ in _pair_with_ids(case, _send_normalized(case, dialect))]


def _run_thinking_case(case):
    """Thinking of another model is not sent, and a reasoning item with nothing after it goes with its turn."""
    messages = [*_build_messages(case), Message.from_text("user", "go on")]
    dialect = replace(_PAIRING_ONLY, api="openai-responses", model="m", binds_reasoning_to_next=True)
    sent = _send(messages, Target(dialect.api, dialect.model, dialect))
    return [
        [id_, [_describe_shape(part) for part in message.parts]] for id_, message in _pair_with_ids(case, sent[:-1])
    ]


_APIS = {
    "google-generative-ai": "gemini",
    "openai-responses": "openai-responses",
    "mistral-conversations": "openai-chat",
    "openai-completions": "openai-chat",
    "anthropic-messages": "anthropic",
}


def _run_policy_case(case):
    params = case["params"]
    target = get_target(_APIS[params["api"]], params["model"])
    with_missing_result = [
        Message.from_text("user", "u"),
        Message("assistant", (ToolCall("c", "t"),)),
        Message.from_text("user", "v"),
    ]
    adjacent = [
        Message.from_text("user", "u"),
        Message.from_text("user", "v"),
        *[Message.from_text("assistant", text) for text in "ab"],
    ]
    merges = len(_send([*adjacent, Message.from_text("user", "w")], target)) < 5
    model_first = _send([Message.from_text("assistant", "a"), Message.from_text("user", "u")], target)
    ids = [_send_id(id_, target.dialect) for id_ in ("a_b-c", "a" * 40)]
    return {
        "ids": "strict9" if len(ids[1]) == 9 else None if ids[0] == "a_b-c" else "strict",
        "synthetic": any(message.results for message in _send(with_missing_result, target)),
        "gemini": merges,
        "anthropic": merges,
        "ordering": model_first[0].role == "user",
    }


_ADAPTERS = {
    "window-guard": _run_window_case,
    "window-guard-2026.9": lambda case: _run_window_case(case, _OPENCLAW_NEW),
    "history-key": _run_history_key_case,
    "history-limit": _run_history_case,
    "truncate-text": _run_text_case,
    "truncate-limit": _run_limit_case,
    "limits-2026.9": lambda case: _run_limit_case(case, _OPENCLAW_NEW),
    "truncate-detect": _run_detect_case,
    "truncate-message": _run_message_case,
    "replay-branch": _run_replay_case,
    "append-guard": _run_append_case,
    "image-prune": _run_images_case,
    "pruning": _run_prune_case,
    "mid-loop-guard": _run_mid_loop_case,
    "precheck-2026.9": _run_precheck_case,
    "pairing": _run_pairing_case,
    "tool-input": _run_inputs_case,
    "tool-id": _run_ids_case,
    "turns-gemini": _run_gemini_turns_case,
    "turns-anthropic": _run_anthropic_turns_case,
    "google-ordering": _run_ordering_case,
    "thinking": _run_thinking_case,
    "openai-reasoning": _run_thinking_case,
    "policy": _run_policy_case,
}


def _get_expected(case):
    """Return the recommended result of a case, or else the expected one."""
    expected = case.get("recommended", case["expect"])
    if not isinstance(expected, dict):
        return expected
    return {
        key: value
        for key, value in expected.items()
        if key not in {"note", "or", "mode", "drop_thinking", "pair", "reason"}
    }


def _matches(found, expected):
    """Return whether every expected value was found; an upper bound must not be exceeded."""
    if not isinstance(expected, dict) or not isinstance(found, dict):
        return found == expected
    if "result_length_at_most" in expected:
        return found["result_length_at_most"] <= expected["result_length_at_most"]
    expected = dict(expected)
    if "dup" in expected:
        expected["gone"] = expected.pop("dup") + expected.pop("orphan")
    return all(found[key] == value for key, value in expected.items())


if _load_cases():

    @pytest.mark.parametrize("case", _expand(_load_cases()), ids=lambda case: case["id"])
    def test_openclaw_case_matches_or_deviates_on_purpose(case):
        """Each case gives the recommended or expected result, and each deviation a different one."""
        found = _ADAPTERS[case["area"]](case)
        assert _matches(found, _get_expected(case)) is (case["id"] not in DEVIATIONS), (found, _get_expected(case))

    def test_deviations_name_existing_cases():
        """Each deviation names an existing case."""
        assert DEVIATIONS.keys() <= {case["id"] for case in _load_cases()}
