"""Recall: reading back the texts that a session's log names, page by page, and the tool for the model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_entries import make_message_entry_body

from holdfast import Policy
from holdfast.config import get_target
from holdfast.engine import recall_sources as sources
from holdfast.engine.log.journal import Journal
from holdfast.engine.recall import (
    RECALL_PARAMETERS,
    RECALL_TOOL_NAME,
    answer_recall,
    compute_page_chars,
    format_recall_call,
    iter_recall_pages,
    list_spilled_texts,
    make_recall_tool,
    recall_page,
)
from holdfast.engine.recall_sources import MAX_CACHED_EXTENTS, get_message_text
from holdfast.errors import FormatError, UnknownId, UnrecognizedContent
from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.stages.append_limit import cap_message_texts
from holdfast.providers.registry import API_NAMES
from holdfast.providers.rules.validate import validate_request
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import CompactionEntry, DecisionEntry, Entry, MessageEntry, NoteEntry
from holdfast.store.memory import MemoryStore
from holdfast.store.open_store import open_store

LOG = "\n".join(f"{n:05} step {n} {'FAILED' if n % 500 == 0 else 'ok'}" for n in range(6_000))
"""A result that is too long for a request."""
CALL = ToolCall("toolu_1", "Bash", '{"command":"make"}')
OWN_KEY, OTHER_KEY = "mine", "theirs"


def spill_text(store, key, text):
    """Create a session in which ``text`` is spilled; return the preview that the model sees."""
    journal = Journal.open(store, key)
    result = ToolResult(CALL.id, content=(Text(text),))
    journal.append(Message.from_text("user", "build it"), Message("assistant", (CALL,)), Message("tool", (result,)))
    slots = journal.prepare_request(get_target("anthropic", "claude-opus-5", window=64_000)).messages
    return slots[-1].message.results[0].content[0].text


@pytest.fixture(scope="module")
def recorded_sessions():
    """Return the entries of two sessions with a spilled text each, these texts, and the preview of the first."""
    texts = {OWN_KEY: LOG, OTHER_KEY: LOG.replace("ok", "ko")}
    with MemoryStore() as new_store:
        previews = {key: spill_text(new_store, key, text) for key, text in texts.items()}
        return {key: new_store.read_entries(key) for key in texts}, texts, previews[OWN_KEY]


@pytest.fixture
def store(recorded_sessions):
    """Open a store with the two sessions."""
    sessions, texts, _ = recorded_sessions
    with MemoryStore() as new_store:
        for key, entries in sessions.items():
            new_store.import_entries(key, entries)
            new_store.blobs.store_content(texts[key])
        yield new_store


@pytest.fixture
def handle():
    """Return the id by which the model recalls the spilled text of its own session."""
    return sha256(LOG.encode()).hexdigest()[:12]


# -- a page ------------------------------------------------------------------------------------------------------------


def test_recall_calls_of_a_preview_return_the_omitted_lines(store, handle, recorded_sessions):
    """The recall calls in a preview work as they are written there and return exactly the omitted lines."""
    calls = re.findall(r'recall\(id="(\w+)", lines="([\d-]+)"\)', recorded_sessions[2])
    assert calls
    for id_, lines in calls:
        first, last = map(int, lines.split("-"))
        text = "".join(page.text for page in iter_recall_pages(store, OWN_KEY, id_, lines=lines))
        assert text.rstrip("\n") == "\n".join(LOG.split("\n")[first - 1 : last])
    assert recall_page(store, OWN_KEY, handle).text == LOG[:49_500].rpartition("\n")[0] + "\n"


@pytest.mark.parametrize("suffix", ["", ".txt", ".json", " "])
@pytest.mark.parametrize("length", [6, 12, 64])
def test_recall_page_accepts_a_prefix_of_the_hash(store, length, suffix):
    """Six or more digits in either case name a text, with or without a file suffix."""
    hash_ = sha256(LOG.encode()).hexdigest()
    assert recall_page(store, OWN_KEY, hash_[:length].upper() + suffix).total_chars == len(LOG)


def test_recall_page_next_arguments_lead_through_the_whole_text(store, handle):
    """Following ``next_arguments`` returns each character of the text once (paging-is-complete)."""
    texts, arguments = [], {"id": handle}
    while arguments:
        page = recall_page(store, OWN_KEY, **arguments)
        texts.append(page.text)
        arguments = page.next_arguments
    assert "".join(texts) == LOG


def test_recall_page_refuses_texts_of_other_sessions_as_unknown(store):
    """recall-own-log-only: the refusal does not reveal what else the store holds."""
    other_hash = sha256(LOG.replace("ok", "ko").encode()).hexdigest()
    assert recall_page(store, OTHER_KEY, other_hash[:12]).total_chars == len(LOG)
    store.blobs.store_content("nobody names this")
    messages = []
    for name in (other_hash, other_hash[:12], sha256(b"nobody names this").hexdigest(), "0" * 64):
        with pytest.raises(UnknownId) as raised:
            recall_page(store, OWN_KEY, name)
        messages.append(str(raised.value).replace(repr(name[:40]), "?"))
    assert len(set(messages)) == 1
    assert sha256(LOG.encode()).hexdigest()[:12] in messages[0]


@pytest.mark.parametrize(
    "name", ["", " ", "../../x", "CON", "x" * 10_000, "\x00", "\ud83d", "%2e%2e", "a/b", ".txt", "0", "*", "-1", "\n"]
)
def test_recall_page_rejects_unknown_ids_and_lists_the_known(store, name, handle):
    """An odd id is neither a path nor a pattern: a short message lists the known ids."""
    with pytest.raises(UnknownId, match=handle) as raised:
        recall_page(store, OWN_KEY, name)
    assert len(str(raised.value)) < 300


def test_recall_page_lists_both_texts_of_an_ambiguous_prefix(store, monkeypatch):
    """A prefix of two texts raises UnknownId, which lists both."""
    hashes = ["abcdef" + "0" * 58, "abcdef" + "1" * 58]
    store.append_entries(
        OWN_KEY, [Entry("n", store.get_session(OWN_KEY).leaf_id, NoteEntry("capped", data={"blobs": hashes}))]
    )
    with pytest.raises(UnknownId, match=r"abcdef0+, abcdef1+"):
        recall_page(store, OWN_KEY, "abcdef")


def test_recall_reads_a_spilled_text_without_its_blob_from_the_log(store, handle):
    """The log is the truth: where a blob was deleted or damaged, the original message still has the text."""
    store.blobs.remove_blob(sha256(LOG.encode()).hexdigest())
    assert "".join(page.text for page in iter_recall_pages(store, OWN_KEY, handle)) == LOG
    assert [spill.is_stored for spill in list_spilled_texts(store, OWN_KEY)] == [False]
    assert "no longer in the store" in answer_recall(store, OWN_KEY, {}).text


def test_answer_recall_reports_a_capped_text_whose_blob_is_gone(store):
    """A capped text exists only in its blob, so the model gets an error with the text's id."""
    hash_ = store.blobs.store_content("capped")
    store.append_entries(
        OWN_KEY, [Entry("n", store.get_session(OWN_KEY).leaf_id, NoteEntry("capped", data={"blobs": [hash_]}))]
    )
    assert recall_page(store, OWN_KEY, hash_).text == "capped"
    store.blobs.remove_blob(hash_)
    answer = answer_recall(store, OWN_KEY, {"id": hash_})
    assert answer.is_error
    assert hash_[:12] in answer.text


def test_recall_extent_cache_is_bounded(store):
    """The cache holds the extents of at most MAX_CACHED_EXTENTS texts."""
    hashes = [store.blobs.store_content(f"text {n}") for n in range(MAX_CACHED_EXTENTS + 5)]
    store.append_entries(
        OWN_KEY, [Entry("n", store.get_session(OWN_KEY).leaf_id, NoteEntry("capped", data={"blobs": hashes}))]
    )
    assert [recall_page(store, OWN_KEY, hash_).text for hash_ in hashes] == [f"text {n}" for n in range(len(hashes))]
    assert len(sources._extent_cache) <= MAX_CACHED_EXTENTS


def test_recall_page_scans_a_long_text_once(store, handle, monkeypatch):
    """The first page scans the text; a later page reads only its own characters."""
    recall_page(store, OWN_KEY, handle)
    reads, original_read = [], store.blobs.read_text
    monkeypatch.setattr(store.blobs, "read_text", lambda *args: reads.append(args) or original_read(*args))
    recall_page(store, OWN_KEY, handle, chars="0-100")
    assert sum(stop - start for _, start, stop in reads) < 1_000


# -- messages and summaries --------------------------------------------------------------------------------------------


def test_recall_page_returns_a_message_by_its_entry_id(store):
    """A cleared or summarized message has no blob, but its entry id, or a prefix of it, returns its full text."""
    message_ids = [entry.id for entry in store.read_entries(OWN_KEY, "message")]
    assert recall_page(store, OWN_KEY, message_ids[0]).text == "build it"
    assert recall_page(store, OWN_KEY, message_ids[2][:9]).total_chars == len(LOG)


def test_recall_page_prefers_the_message_to_bookkeeping_entries(store):
    """An imported answer has bookkeeping entries whose ids begin with its own id."""
    leaf = store.get_session(OWN_KEY).leaf_id
    store.append_entries(
        OWN_KEY,
        [
            Entry("u77-aa+request", leaf, NoteEntry("x")),
            Entry("u77-aa", "u77-aa+request", make_message_entry_body("hello")),
        ],
    )
    assert recall_page(store, OWN_KEY, "u77-").text == "hello"
    with pytest.raises(UnknownId):
        recall_page(store, OWN_KEY, "u77")


def test_recall_page_distinguishes_ambiguous_from_unknown_ids(store):
    """The error for an ambiguous prefix lists the messages; the one for an unknown id does not speak of several."""
    leaf = store.get_session(OWN_KEY).leaf_id
    store.append_entries(
        OWN_KEY,
        [
            Entry("twin-1", leaf, make_message_entry_body("hello")),
            Entry("twin-2", "twin-1", make_message_entry_body("there")),
        ],
    )
    with pytest.raises(UnknownId, match="'twin-' begins the ids of several messages: twin-1, twin-2; give more"):
        recall_page(store, OWN_KEY, "twin-")
    with pytest.raises(UnknownId, match="no text of this session is called 'twig-'; the newest of") as raised:
        recall_page(store, OWN_KEY, "twig-")
    assert "several" not in str(raised.value)


def test_recall_page_returns_summaries_but_no_decisions(store):
    """A compaction's summary has a text; a decision has none, and the error says so."""
    leaf = store.get_session(OWN_KEY).leaf_id
    store.append_entries(
        OWN_KEY,
        [Entry("c", leaf, CompactionEntry(1, Message.from_text("user", "so far"))), Entry("d", "c", DecisionEntry(()))],
    )
    assert recall_page(store, OWN_KEY, "c").text == "so far"
    with pytest.raises(UnknownId, match="is a decision, which has no text"):
        recall_page(store, OWN_KEY, "d")


def test_get_message_text_includes_every_part():
    """Several parts are all included with labels; a single result gives its text alone."""
    result = ToolResult("c1", "Read", (Text("words"), Media("image", "image/png", 9, "a.png", "aGk=")), is_error=True)
    assert get_message_text(Message("tool", (result,))) == "words\n[Attached image/png: a.png]"
    assert get_message_text(Message("assistant", (Thinking("hm"), Text("so"), CALL))) == (
        '[thinking]\nhm\n\nso\n\n[call of Bash, toolu_1]\n{"command":"make"}'
    )
    assert get_message_text(Message("tool", (result, ToolResult("c2")))).startswith(
        "[result of Read c1, an error]\nwords"
    )
    assert get_message_text(Message("user")) == ""


# -- the list ----------------------------------------------------------------------------------------------------------


def test_list_spilled_texts_lists_every_text(store, handle):
    """recall-lists-everything: every text is listed with id, size, tool and time, however many there are."""
    for n in range(300):
        hash_ = store.blobs.store_content(f"{n} text")
        preview = ToolResult("toolu_1", "Grep" if n % 2 else "", (Text("short"),))
        edit = Edit(Span(2, 3, 0), (preview,), "spill", blob_hash=hash_)
        store.append_entries(
            OWN_KEY, [Entry(f"d{n}", store.get_session(OWN_KEY).leaf_id, DecisionEntry((edit,)), time_ms=1_000 * n)]
        )
    listed = list_spilled_texts(store, OWN_KEY)
    assert len(listed) == 301
    assert [(spill.tool, spill.size, spill.at) for spill in listed[:2]] == [("Grep", 8, 299_000), ("Bash", 8, 298_000)]
    assert listed[-1].id == handle
    answer = answer_recall(store, OWN_KEY, "{}").text
    assert all(spill.id in answer for spill in listed)


def test_list_spilled_texts_includes_capped_texts_with_their_tool(store):
    """A result that was too long for the log is listed and read back like a spilled one."""
    message = Message("tool", (ToolResult(CALL.id, content=(Text("long " * 5_000),)),))
    short, blobs = cap_message_texts(message, Policy().with_settings(results={"append_chars": 1_000}).settings)
    store.blobs.store_content(blobs[0].text)
    note = Entry("n", store.get_session(OWN_KEY).leaf_id, NoteEntry("capped", data={"blobs": [blobs[0].hash]}))
    store.append_entries(OWN_KEY, [note, Entry("m", "n", MessageEntry(build_sized_message(short)))])
    assert [spill.tool for spill in list_spilled_texts(store, OWN_KEY)] == ["Bash", "Bash"]
    assert (
        recall_page(store, OWN_KEY, re.search(r'recall\(id="(\w+)"', get_message_text(short))[1]).total_chars == 25_000
    )


# -- the tool ----------------------------------------------------------------------------------------------------------

BODIES = {
    "anthropic": {"model": "claude-opus-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "openai-chat": {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]},
    "openai-responses": {"model": "gpt-5", "input": [{"role": "user", "content": "hi"}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
}


@pytest.mark.parametrize("api", API_NAMES)
def test_make_recall_tool_is_valid_on_every_api(api):
    """The validator accepts the tool definition in a request of each of the four APIs."""
    assert validate_request(BODIES[api] | {"tools": [make_recall_tool(api)]}, api) == ()
    assert RECALL_TOOL_NAME in json.dumps(make_recall_tool(api))
    assert set(RECALL_PARAMETERS) == {"id", "lines", "chars", "search", "page"}


def test_make_recall_tool_rejects_an_unknown_api():
    """The error lists the supported APIs."""
    with pytest.raises(UnrecognizedContent, match="anthropic, openai-chat"):
        make_recall_tool("cohere")


def test_answer_recall_states_its_range_and_the_next_call(store, handle):
    """The first line has the range, the totals and the next call, which works as it is written there."""
    answer = answer_recall(store, OWN_KEY, f'{{"id": "{handle}"}}')
    head, _, text = answer.text.partition("\n")
    assert head.startswith(f"[{handle}: lines 1-")
    assert f"of 6000, characters 0-{len(text)} of {len(LOG)}; go on with recall(" in head
    next_arguments = dict(re.findall(r'(\w+)="(.*?)"', head))
    assert answer_recall(store, OWN_KEY, next_arguments).text.partition("\n")[2][:5] == LOG[len(text) :][:5]
    assert not answer.is_error


def test_answer_recall_stays_below_the_spill_limits(store, handle):
    """A page with its first line is under 50,000 characters and 64 KiB, so it is never spilled again (F185)."""
    spill_text(store, "wide", "配" * 200_000)
    wide = sha256(("配" * 200_000).encode()).hexdigest()
    for key, id_ in ((OWN_KEY, handle), ("wide", wide)):
        for number in (1, 2):
            text = answer_recall(store, key, {"id": id_, "page": number}).text
            assert len(text) <= 50_000
            assert len(text.encode()) <= 65_536


def test_compute_page_chars_makes_pages_fit_a_small_window(store, handle):
    """In a small window pages are smaller, so they are not spilled again, and paging ends (paging-is-complete)."""
    assert (compute_page_chars(0), compute_page_chars(20_000), compute_page_chars(10**9)) == (2_000, 12_000, 49_500)
    arguments, calls = {"id": handle}, 0
    while arguments:
        answer = answer_recall(store, OWN_KEY, arguments, compute_page_chars(20_000))
        assert len(answer.text) <= 12_000 + 300
        arguments, calls = dict(re.findall(r'(\w+)="(.*?)"', answer.text.partition("\n")[0])), calls + 1
    assert calls == -(-len(LOG) // 11_985)


def test_answer_recall_searches_a_text_or_the_history(store, handle):
    """With an id the search returns lines of that text, without one the matching messages with their ids."""
    found = answer_recall(store, OWN_KEY, {"id": handle, "search": "failed"}).text
    assert len(re.findall(r"^\d+: \d{5} step \d+ FAILED$", found, re.MULTILINE)) == 12
    history = answer_recall(store, OWN_KEY, {"search": "build"}).text
    id_ = re.search(r'recall\(id="(\w+)"\) user', history)[1]
    assert answer_recall(store, OWN_KEY, {"id": id_}).text.endswith("\nbuild it")
    assert "matches 'nowhere'" in answer_recall(store, OWN_KEY, {"search": "nowhere"}).text


def test_answer_recall_pages_a_search_of_the_history(store):
    """Every matching message is on exactly one page of the search."""
    journal = Journal.open(store, "many")
    message_ids = journal.append(*(Message.from_text("user", f"needle number {n}") for n in range(45)))
    pages = [answer_recall(store, "many", {"search": "needle", "page": n}).text for n in (1, 2, 3)]
    assert [text.count("recall(id=") for text in pages] == [20, 20, 5]
    assert all(sum(id_ in text for text in pages) == 1 for id_ in message_ids)
    assert 'go on with recall(search="needle", page="2")' in pages[0]
    assert "go on" not in pages[2]


@pytest.mark.parametrize(
    "arguments",
    ["{", "[]", "3", '"x"', "null", "[" * 100_000, '{"id": 1.5}', '{"idd": "x"}', '{"id": ["x"]}', '{"page": "two"}',
     '{"id": true}', '{"page": -1}', '{"page": 0}', '{"page": 99}', '{"search": "x", "page": -1}', '{"lines": [1, 2]}',
     '{"id": "ffffff"}', '{"lines": "9-3"}', '{"chars": "-5-9"}'],
)  # fmt: skip
def test_answer_recall_answers_invalid_arguments_with_an_error(store, arguments):
    """Nothing a model sends raises: the result is a short error that says what to give."""
    answer = answer_recall(store, OWN_KEY, arguments)
    assert answer.is_error
    assert 0 < len(answer.text) < 600


@pytest.mark.parametrize(
    "more",
    [
        {"lines": 12},
        {"page": "1"},
        {"lines": "", "chars": None, "search": "", "page": None},
        {"lines": "2-3", "page": 1},
    ],
)
def test_answer_recall_accepts_loosely_typed_arguments(store, handle, more):
    """A number for a range, a text for a page and empty values for unused arguments are accepted."""
    assert not answer_recall(store, OWN_KEY, {"id": handle, **more}).is_error


def test_answer_recall_replaces_lone_surrogates(store):
    """Half a surrogate pair becomes U+FFFD, which every API accepts; a complete pair becomes its character."""
    message_ids = Journal.open(store, "half").append(Message.from_text("user", "a\ud83db\ud83d\ude00"))
    assert answer_recall(store, "half", {"id": message_ids[0]}).text.endswith("a\ufffdb\U0001f600")
    assert recall_page(store, "half", message_ids[0]).text == "a\ud83db\ud83d\ude00"


def test_answer_recall_of_an_empty_session_is_no_error():
    """A session without stored texts gets a result that says so."""
    with MemoryStore() as store:
        store.create_session(OWN_KEY)
        assert answer_recall(store, OWN_KEY, "") == answer_recall(store, OWN_KEY, {})
        assert "Nothing" in answer_recall(store, OWN_KEY, {}).text


@given(st.dictionaries(st.sampled_from([*RECALL_PARAMETERS, "other"]), st.text(max_size=9) | st.integers() | st.none()))
def test_answer_recall_answers_arbitrary_arguments(arguments):
    """Any values for any argument names get an answer."""
    with MemoryStore() as store:
        store.import_entries(OWN_KEY, [Entry("a1", None, make_message_entry_body("hello\nkelp"))])
        assert answer_recall(store, OWN_KEY, arguments).text


def test_format_recall_call_escapes_quotes_as_json():
    """Quotes inside a value are escaped as JSON does."""
    assert format_recall_call({"id": "ab", "search": 'say "x"'}) == 'recall(id="ab", search="say \\"x\\"")'


def test_recall_page_rejects_two_ranges(store, handle):
    """A page is either a range of lines or of characters."""
    with pytest.raises(FormatError):
        recall_page(store, OWN_KEY, handle, lines="1-2", chars="1-2")


# -- memory ------------------------------------------------------------------------------------------------------------

CHILD = """
import resource, sys
from holdfast.engine.recall import recall_page
from holdfast.store.open_store import open_store

with open_store(sys.argv[1], readonly=True) as store:
    recall_page(store, "mine", sys.argv[2], lines="1-1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    asked, pages, chars = {"id": sys.argv[3]}, 0, 0
    while asked and pages < 40:
        page = recall_page(store, "mine", **asked)
        asked, pages, chars = page.next_arguments, pages + 1, chars + len(page.text)
    recall_page(store, "mine", sys.argv[3], lines="300000-")
    recall_page(store, "mine", sys.argv[3], search="no such words")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, pages, chars, page.total_chars)
"""


def test_recall_page_reads_a_30_mb_text_within_15_mb(tmp_path):
    """Reading pages, lines and matches of 30 MB never holds the whole text in memory."""
    line = "0123456789 abcdefghij " * 4 + "\n"
    long = line * (30_000_000 // len(line))
    with open_store(tmp_path / "store.db") as store:
        hashes = [store.blobs.store_content("small"), store.blobs.store_content(long)]
        store.import_entries("mine", [Entry("n", None, NoteEntry("capped", data={"blobs": hashes}))])
    command = [sys.executable, "-c", CHILD, str(tmp_path / "store.db"), *hashes]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    added_kilobytes, pages, chars, total = map(int, completed.stdout.split())
    assert (pages, total) == (40, len(long))
    assert chars >= 40 * 48_000
    assert added_kilobytes < 15_000, f"{added_kilobytes:,} KB"
