"""The worked cases of OpenClaw beside this checkout, where they are there: every area that issues to here own.

An adapter turns a case into calls of the library and what comes back into the words of the case; it knows no answer.
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
from holdfast.normalize.pairing import SYNTHETIC_RESULT_TEXT
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
    "app-02": "a call stays open until its result comes or another answer does: a late real result wins",
    "app-03": "results that are missing are made up in the projection, never stored (synthetic-in-views-only)",
    "pair-06": "a call of an interrupted answer that nobody answered is not sent: every API refuses it",
    "pair-07": "an interrupted answer's call keeps its real result, whatever else changes: it ran",
    "inp-01": "a call that says no arguments is one without any: tools without parameters are called so",
    "inp-02": "as inp-01",
    "inp-03": "a name outside the alphabet is mapped into it, call and result alike, so that no real result is lost",
    "inp-04": "a finished call stays when its tool is gone (as in 2026.9): what happened is not taken out of history",
    "tid-01": "ids are mapped injectively from the id alone, into what each API takes; only the spelling differs",
    "tid-02": "as tid-01",
    "tid-03": "as tid-01",
    "tid-04": "as tid-01",
    "trc-12": "a result over its limit by one character stays whole: with a notice in it, it would be no shorter",
    "turn-03": "usage and stop reason are entries of the log, no fields of a message: merging has nothing to choose",
    "turn-06": "both texts are kept, as two messages: Anthropic itself reads neighbours as one",
    "turn-07": "a call without a result gets one that says so; a call the model made is not taken from it",
    "turn-08": "as turn-07",
    "turn-09": "as turn-07: Anthropic refuses a request that ends in a call",
    "ord-01": "Gemini takes a history that the model begins; where a server does not, other words stand there",
    "pol-02": "Gemini joins neighbours itself, takes a history that the model begins, and ids with _ and -",
    "pol-03": "a result that is missing is made up for every API: all of them refuse a call without one (as in 2026.9)",
    "pol-04": "as pol-03; a server with rules of its own gets the strictest ones",
    "pol-05": "as pol-03",
}
"""Cases that must not come out as written, and why."""


def _cases():
    areas, cases = (_FILES / "areas.json", _FILES / "openclaw.json")
    if not cases.exists():
        return []
    owned = {area for area, about in json.loads(areas.read_text()).items() if about["issue"] in _ISSUES}
    return [case for case in json.loads(cases.read_text()) if case["area"] in owned - _ELSEWHERE]


# -- cases as messages -------------------------------------------------------------------------------------------------


def _long(value):
    """Return ``value`` with its ``$repeat`` and ``$concat`` spelled out."""
    if isinstance(value, dict):
        if "$repeat" in value:
            return value["$repeat"][0] * value["$repeat"][1]
        if "$concat" in value:
            return "".join(map(_long, value["$concat"]))
        return {key: _long(one) for key, one in value.items()}
    return [_long(one) for one in value] if isinstance(value, list) else value


def _part(block):
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


def _message(said):
    content = said["content"]
    parts = tuple(map(_part, [{"type": "text", "text": content}] if isinstance(content, str) else content))
    if said["role"] == "tool":
        return Message("tool", (ToolResult(said["call_id"], said["name"], parts, said["is_error"]),))
    if all(isinstance(part, ToolResult) for part in parts):
        return Message("tool", parts)
    return Message(said["role"], parts)


def _messages(case):
    return [_message(one) for one in case["input"]]


def _log(case):
    """Return the conversation of a case as a log tells it: each answer with the reason why it ended."""
    bodies = []
    for one, message in zip(case["input"], _messages(case), strict=True):
        bodies.append(MessageEntry(build_sized_message(message)))
        if message.role == "assistant":
            bodies.append(AnswerEntry("", stop_reason=one.get("stop_reason", "")))
    return ConversationState.from_entries(Entry(str(at), None, body) for at, body in enumerate(bodies))


def _repaired(case, dialect):
    """Return the messages of a case as ``apply`` gives them to be sent to an API with such rules."""
    return _sent(_messages(case), Target(dialect.api, dialect.model, dialect), state=_log(case))


def _sent(messages, where, **more):
    """Return ``messages`` as the preset sends them to ``where``; none of these is long enough to be made smaller."""
    return apply(messages, plan(messages, where, Policy.preset("openclaw"), **more))


def _named(case, sent):
    """Return ``sent`` with the ids of the case: a message is the one whose parts it has."""
    given = list(zip((one["id"] for one in case["input"]), _messages(case), strict=True))
    return [(_name(message, given), message) for message in sent]


def _name(message, given):
    for result in message.results:
        if result.content == (Text(SYNTHETIC_RESULT_TEXT),):
            return f"synthetic:{result.call_id}"
    for id_, old in given:
        if old.role == message.role and {*map(_said, message.parts)} & {*map(_said, old.parts)}:
            return id_
    return f"new:{message.role}:{message.text}"


def _said(part):
    return (type(part), get_result_text(part) if isinstance(part, ToolResult) else getattr(part, "text", part))


_LOOSE = Dialect(
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
"""Pairing and nothing else."""


# -- this issue's areas ------------------------------------------------------------------------------------------------

_OPENCLAW = Policy.preset("openclaw")
_NEW = _OPENCLAW.with_settings(**OPENCLAW_2026_9)
_SOURCES = {"config": "case-model", "model": "case-*"}
"""How the lines of two files name the model: the project's speaks of it alone, the user's of all that are like it."""
_REFUSED = re.compile(r"Model context window too small \((\d+) tokens\)")


def _window(case, policy=_OPENCLAW):
    """Return the window of a model that two files tell of; what it is refused for is a warning, too."""
    asked = {key.removesuffix("_window"): value for key, value in case["params"].items()}
    with TemporaryDirectory() as folder:
        for name, match in _SOURCES.items():
            place = Path(folder, name)
            place.mkdir()
            line = f'[[model]]\nmatch = "{match}"\nwindow = {asked[name]}\n' if name in asked else ""
            (place / CONFIG_FILE_NAME).write_text(line)
        catalog = load_catalog(Path(folder, "config"), Path(folder, "model"))
    where = get_target("anthropic", "case-model", catalog=catalog)
    source = {"catalog: case-model": "modelsConfig", "catalog: case-*": "model"}.get(
        where.limits.window_source, "default"
    )
    try:
        made = plan([Message.from_text("user", "go")], where, policy.with_settings(window={"cap": asked.get("cap", 0)}))
    except WindowTooSmall as error:
        tokens, warn, block = int(_REFUSED.match(str(error))[1]), True, True
    else:
        tokens, block = made.window, False
        warn = any(notice.rule == "small-window" for notice in made.notices)
    source = source if tokens == where.limits.window else "agentContextTokens"
    return {"tokens": tokens, "source": source, "warn": warn, "block": block}


def _history_key(case):
    channels = {
        name: ChannelLimits(
            one.get("historyLimit"),
            one.get("dmHistoryLimit"),
            {user: UserLimits(own.get("historyLimit")) for user, own in one.get("dms", {}).items()},
        )
        for name, one in case["params"]["channels"].items()
    }
    return (
        _OPENCLAW.with_settings(history={"channels": channels})
        .for_session(case["params"]["key"])
        .settings.history.max_turns
    )


def _history(case):
    return [id_ for id_, _ in _named(case, _limited(case))]


def _limited(case):
    """Return the messages of the last turns, as many as the case says."""
    return _shown(
        case,
        _OPENCLAW.with_settings(history={"max_turns": case["params"].get("limit") or 0}, compaction={"enabled": False}),
    )


_NOTICE = re.compile(r"\n\[\.\.\. [\d,]+ characters left out; [^\]]*\]\Z")
"""How a cut text ends."""


def _read_result(*content):
    """Return a conversation in which a tool gave this."""
    result = ToolResult("c", "read", content)
    return [
        Message.from_text("user", "go"),
        Message("assistant", (ToolCall("c", "read", "{}"),)),
        Message("tool", (result,)),
    ]


def _cut(said, policy, window=200_000):
    """Return ``said`` with the results that recovery cuts after an overflow, where no text can be stored."""
    settings = {"compaction": {"enabled": False}, "preset": {"loop_share": 0.0, "prune": False, "window_min": 0}}
    where, world = _place(window), PlanInputs(overflow_step="truncate", can_spill=False)
    return apply(said, plan(said, where, policy.with_settings(**settings), inputs=world))


def _limited_to(chars):
    """Return the policy whose limit of one result is so many characters."""
    return _OPENCLAW.with_settings(preset={"truncate_share": 1.0, "truncate_max_chars": chars})


def _text(case):
    whole, most = case["params"]["text"], case["params"]["max_chars"]
    (shown,) = _cut(_read_result(Text(whole)), _limited_to(most))[2].results
    text = get_result_text(shown)
    end = _NOTICE.search(text)
    kept = end.start() if end else len(text)
    cut = next((at for at, pair in enumerate(zip(text, whole, strict=False)) if pair[0] != pair[1]), len(text))
    return {
        "changed": text != whole,
        "shorter": len(text) < len(whole),
        "has_notice": end is not None,
        "keeps_tail": whole[-5:] in text,
        "has_middle_marker": "\n[... the middle is left out ...]\n" in text,
        "cut_at": min(cut, kept),
        "kept_at_least": kept,
        "result_length_at_most": len(text),
    }


def _limit(case, policy=_OPENCLAW):
    """Return the characters that recovery leaves of a result that is far over its limit, the notice among them."""
    (shown,) = _cut(_read_result(Text("a" * 2_000_000)), policy, case["params"]["window"])[2].results
    return len(get_result_text(shown))


def _detect(case):
    """Return whether anything is cut after an overflow; all results were answered."""
    results = _messages(case)
    calls = tuple(ToolCall(one.results[0].call_id, "read", "{}") for one in results)
    end = [Message.from_text("assistant", "so far"), Message.from_text("user", "on")]
    said = [Message.from_text("user", "go"), Message("assistant", calls), *results, *end]
    shown = [
        get_result_text(result) for one in _cut(said, _OPENCLAW, case["params"]["window"]) for result in one.results
    ]
    return shown != [get_result_text(one.results[0]) for one in results]


def _truncated(case):
    (before,) = _messages(case)[0].results
    said = _read_result(*before.content)
    (after,) = _cut(said, _limited_to(case["params"]["max_chars"]))[2].results
    texts = [part for part in after.content if isinstance(part, Text)]
    images = [part for part in after.content if isinstance(part, Media)]
    return {
        "blocks": ["text" if isinstance(part, Text) else "image" for part in after.content],
        "first_bigger": len(texts[0].text) > len(texts[1].text),
        "image_kept": images == [part for part in before.content if isinstance(part, Media)],
        "original_untouched": said == _read_result(*before.content),
    }


def _replay(case):
    """Run the store verb on the entries of a case: other kinds than messages and compactions are notes."""
    places = {one["id"]: place for place, one in enumerate(one for one in case["input"] if one["type"] == "message")}
    store, bodies = (
        MemoryStore(),
        {
            "message": lambda one: MessageEntry(build_sized_message(Message.from_text("user", one["text"]))),
            "compaction": lambda one: CompactionEntry(
                places[one["firstKeptEntryId"]], Message.from_text("user", one["summary"])
            ),
            "model_change": lambda _: NoteEntry("model_change"),
        },
    )
    store.create_session("s")
    ids = [one["id"] for one in case["input"]]
    parents = [None, *ids]
    old = [Entry(one["id"], up, bodies[one["type"]](one)) for one, up in zip(case["input"], parents, strict=False)]
    store.append_entries("s", old)
    asked = {id_: Message.from_text("user", "small") for id_ in case["params"]["replace"]}
    leaf = store.copy_branch("s", asked)
    path = store.read_path("s", leaf)
    told = [_told(entry.body) for entry in path]
    first = min((ids.index(id_) for id_ in asked if id_ in ids), default=0)
    compaction = next(entry.body for entry in path if isinstance(entry.body, CompactionEntry))
    slots = [at for at, entry in enumerate(path) if isinstance(entry.body, MessageEntry)]
    return {
        "changed": leaf is not None,
        "rewritten": sum(new != _told(one.body) for new, one in zip(told, old, strict=True)),
        "branch": told,
        "prefix_ids_kept": [entry.id for entry in path[:first]] == ids[:first] if leaf else None,
        "old_entries_still_stored": {entry.id for entry in store.read_entries("s")} >= set(ids),
        "first_kept_points_at": slots[compaction.first_kept],
    }


def _told(body):
    if isinstance(body, MessageEntry):
        return body.sized_message.message.text
    return body.reason if isinstance(body, NoteEntry) else "compaction"


def _append(case):
    branch = _log(case)
    return {
        "stored": [id_ for id_, _ in _named(case, [slot.message for slot in branch.history.sized_messages])],
        "pending_before_flush": list(branch.history.open_call_ids),
    }


def _place(window):
    return get_target("anthropic", "claude-sonnet-4-5", window=window)


def _shown(case, policy, world=PlanInputs(), window=200_000):
    """Return the messages as a policy shows them, not repaired."""
    made = plan(_messages(case), _place(window), policy, inputs=world)
    return [slot.message for slot in build_projection(made.state)]


def _images(case):
    sent = _shown(case, _OPENCLAW.with_settings(compaction={"enabled": False}))
    names = [one["id"] for one in case["input"]]
    old = [len(collect_media_in_messages(message)) for message in _messages(case)]
    new = [len(collect_media_in_messages(message)) for message in sent]
    return {"changed": new != old, "images_left": [[id_, n] for id_, n, o in zip(names, new, old, strict=True) if o]}


_STATES = (
    ("[Old tool result content cleared]", "cleared"),
    ("[Older tool output removed", "placeholder"),
    ("Tool result trimmed", "soft"),
    ("characters left out; ", "truncated"),
)
"""What stands in a result that gave way."""


def _states(case, sent):
    texts = [get_result_text(result) for message in sent for result in message.results]
    return [next((state for words, state in _STATES if words in text), "full") for text in texts]


_QUIET = _OPENCLAW.with_settings(
    compaction={"enabled": False}, reserve={"min": 0}, preset={"window_min": 0, "truncate_share": 0.0}
)


def _prune(case):
    policy = _QUIET.with_settings(preset={"loop_share": 0.0})
    sent = _shown(case, policy, PlanInputs("cold"), case["params"]["window"])
    return {"same": sent == _messages(case), "state": _states(case, sent)}


def _mid_loop(case):
    policy = _QUIET.with_settings(preset={"prune": False})
    return _states(case, _shown(case, policy, window=case["params"]["window"]))


def _precheck(case):
    """Ask the arithmetic itself: a plan shows what was cut or compacted, not by how many tokens it was too much."""
    asked = case["params"]
    found = decide_precheck(asked["estimated_prompt"], asked["window"], asked["reserve"], asked["reducible_tool_chars"])
    return {"route": found.outcome, "overflow_tokens": found.excess_tokens}


# -- areas of the wire -------------------------------------------------------------------------------------------------


def _pairing(case):
    if case["params"].get("then_limit_first"):
        case = case | {"input": case["input"][-len(_limited(case)) :]}
    sent = _named(case, _repaired(case, _LOOSE))
    order = [id_ for id_, _ in sent]
    results = [result for _, message in sent for result in message.results]
    given = [one["id"] for one in case["input"] if one["role"] == "tool"]
    return {
        "order": order,
        "added": [id_.removeprefix("synthetic:") for id_ in order if id_.startswith("synthetic:")],
        "gone": len([id_ for id_ in given if id_ not in order]),
        "name": results[-1].name if results else "",
        "is_error": bool(results) and results[-1].is_error,
        "mentions_missing": bool(results) and "result" in get_result_text(results[-1]),
    }


def _inputs(case):
    sent = _repaired(case, _LOOSE)
    kept = [
        [id_, *(map(_brief, message.parts) if message.role == "assistant" else ())]
        for id_, message in _named(case, sent)
        if not message.results
    ]
    calls = sum(len(message.calls) for message in _messages(case)) - sum(len(message.calls) for message in sent)
    return {
        "kept": kept,
        "dropped_calls": calls,
        "dropped_messages": len(case["input"]) - len(kept),
    }


def _brief(part):
    return f"{part.id}/{part.name}" if isinstance(part, ToolCall) else "text"


_MODES = {
    "strict": replace(_LOOSE, id_pattern="[A-Za-z0-9]", id_max=40, unique_ids=True),
    "strict9": replace(_LOOSE, id_pattern="[A-Za-z0-9]", id_min=9, id_max=9, unique_ids=True),
}


def _ids(case):
    dialect = _MODES[case["params"]["mode"]]
    if "id" in case["params"]:
        return _sent_id(case["params"]["id"], dialect)
    sent = _repaired(case, dialect)
    calls = [call.id for message in sent for call in message.calls]
    results = [result.call_id for message in sent for result in message.results]
    return {
        "unique": len({*calls}) == len(calls),
        "results_match": calls == results,
        "valid": all(id_.isalnum() and dialect.id_min <= len(id_) <= dialect.id_max for id_ in calls),
    }


def _sent_id(id_, dialect):
    """Return what is sent for the id of a call, which its result has too."""
    call, result = ToolCall(id_, "t"), ToolResult(id_, "t", (Text("ok"),))
    answered = [Message.from_text("user", "u"), Message("assistant", (call,)), Message("tool", (result,))]
    _, asked, answers = _sent(answered, Target(dialect.api, dialect.model, dialect))
    assert asked.calls[0].id == answers.results[0].call_id
    return asked.calls[0].id


def _turns_gemini(case):
    sent = _repaired(case, replace(_LOOSE, merges_same_role=True))
    return [[id_, message.role, len(message.parts)] for id_, message in _named(case, sent)]


def _turns_anthropic(case):
    sent = _repaired(case, replace(get_target("anthropic", "claude-sonnet-4-5").dialect, must_start_with_user=False))
    named = _named(case, sent)
    told = [[id_, one.role, [part.text for part in one.parts if isinstance(part, Text)]] for id_, one in named]
    if "shape" in case["params"]:
        return [[id_, [_shape(part) for part in message.parts]] for id_, message in named]
    return {"result": told} if "recommended" in case else told


def _shape(part):
    if isinstance(part, ToolCall):
        return f"toolUse:{part.id}"
    return f"toolResult:{part.call_id}" if isinstance(part, ToolResult) else f"text:{part.text}"


def _ordering(case):
    dialect = get_target("gemini", "gemini-2.5-pro").dialect
    return [id_ for id_, _ in _named(case, _repaired(case, dialect))]


def _thinking(case):
    """What another model sealed stays behind; a reasoning item with nothing behind it goes with its turn."""
    talk = [*_messages(case), Message.from_text("user", "go on")]
    dialect = replace(_LOOSE, api="openai-responses", model="m", binds_reasoning_to_next=True)
    sent = _sent(talk, Target(dialect.api, dialect.model, dialect))
    return [[id_, [_shape(part) for part in message.parts]] for id_, message in _named(case, sent[:-1])]


_APIS = {
    "google-generative-ai": "gemini",
    "openai-responses": "openai-responses",
    "mistral-conversations": "openai-chat",
    "openai-completions": "openai-chat",
    "anthropic-messages": "anthropic",
}


def _policy(case):
    asked = case["params"]
    where = get_target(_APIS[asked["api"]], asked["model"])
    lost = [Message.from_text("user", "u"), Message("assistant", (ToolCall("c", "t"),)), Message.from_text("user", "v")]
    neighbours = [
        Message.from_text("user", "u"),
        Message.from_text("user", "v"),
        *[Message.from_text("assistant", text) for text in "ab"],
    ]
    merges = len(_sent([*neighbours, Message.from_text("user", "w")], where)) < 5
    begun = _sent([Message.from_text("assistant", "a"), Message.from_text("user", "u")], where)
    ids = [_sent_id(id_, where.dialect) for id_ in ("a_b-c", "a" * 40)]
    return {
        "ids": "strict9" if len(ids[1]) == 9 else None if ids[0] == "a_b-c" else "strict",
        "synthetic": any(message.results for message in _sent(lost, where)),
        "gemini": merges,
        "anthropic": merges,
        "ordering": begun[0].role == "user",
    }


_ADAPTERS = {
    "window-guard": _window,
    "window-guard-2026.9": lambda case: _window(case, _NEW),
    "history-key": _history_key,
    "history-limit": _history,
    "truncate-text": _text,
    "truncate-limit": _limit,
    "limits-2026.9": lambda case: _limit(case, _NEW),
    "truncate-detect": _detect,
    "truncate-message": _truncated,
    "replay-branch": _replay,
    "append-guard": _append,
    "image-prune": _images,
    "pruning": _prune,
    "mid-loop-guard": _mid_loop,
    "precheck-2026.9": _precheck,
    "pairing": _pairing,
    "tool-input": _inputs,
    "tool-id": _ids,
    "turns-gemini": _turns_gemini,
    "turns-anthropic": _turns_anthropic,
    "google-ordering": _ordering,
    "thinking": _thinking,
    "openai-reasoning": _thinking,
    "policy": _policy,
}


def _wanted(case):
    """Return what a case advises, else what it expects."""
    wanted = case.get("recommended", case["expect"])
    if not isinstance(wanted, dict):
        return wanted
    return {
        key: value
        for key, value in wanted.items()
        if key not in {"note", "or", "mode", "drop_thinking", "pair", "reason"}
    }


def _agrees(found, wanted):
    """Return whether all that a case says is so; bounds are bounds."""
    if not isinstance(wanted, dict) or not isinstance(found, dict):
        return found == wanted
    if "result_length_at_most" in wanted:
        return found["result_length_at_most"] <= wanted["result_length_at_most"]
    wanted = dict(wanted)
    if "dup" in wanted:
        wanted["gone"] = wanted.pop("dup") + wanted.pop("orphan")
    return all(found[key] == value for key, value in wanted.items())


if _cases():

    @pytest.mark.parametrize("case", _long(_cases()), ids=lambda case: case["id"])
    def test_case(case):
        """A case comes out as advised or expected; one we deviate from on purpose does not."""
        found = _ADAPTERS[case["area"]](case)
        assert _agrees(found, _wanted(case)) is (case["id"] not in DEVIATIONS), (found, _wanted(case))

    def test_deviations_are_cases():
        """Every deviation names a case that is there."""
        assert DEVIATIONS.keys() <= {case["id"] for case in _cases()}
