"""Reading back: what a session's log names, page by page, and the tool that a model does it with."""

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
MINE, THEIRS = "mine", "theirs"


def spilled(store, key, text):
    """Make a session in which ``text`` was spilled, and return the words that the model was shown."""
    journal = Journal.open(store, key)
    result = ToolResult(CALL.id, content=(Text(text),))
    journal.append(Message.from_text("user", "build it"), Message("assistant", (CALL,)), Message("tool", (result,)))
    slots = journal.prepare_request(get_target("anthropic", "claude-opus-5", window=64_000)).messages
    return slots[-1].message.results[0].content[0].text


@pytest.fixture(scope="module")
def recorded():
    """The entries of two sessions with a text spilled in each, and these texts."""
    texts = {MINE: LOG, THEIRS: LOG.replace("ok", "ko")}
    with MemoryStore() as opened:
        shown = {key: spilled(opened, key, text) for key, text in texts.items()}
        return {key: opened.read_entries(key) for key in texts}, texts, shown[MINE]


@pytest.fixture
def store(recorded):
    """A store with the two sessions."""
    sessions, texts, _ = recorded
    with MemoryStore() as opened:
        for key, entries in sessions.items():
            opened.import_entries(key, entries)
            opened.blobs.store_content(texts[key])
        yield opened


@pytest.fixture
def handle():
    """What the model calls the text that was spilled in our session."""
    return sha256(LOG.encode()).hexdigest()[:12]


# -- a page ------------------------------------------------------------------------------------------------------------


def test_the_calls_that_a_preview_names_work(store, handle, recorded):
    """What stands in a preview can be called as it stands there, and brings back what was left out."""
    calls = re.findall(r'recall\(id="(\w+)", lines="([\d-]+)"\)', recorded[2])
    assert calls
    for id_, lines in calls:
        first, last = map(int, lines.split("-"))
        text = "".join(page.text for page in iter_recall_pages(store, MINE, id_, lines=lines))
        assert text.rstrip("\n") == "\n".join(LOG.split("\n")[first - 1 : last])
    assert recall_page(store, MINE, handle).text == LOG[:49_500].rpartition("\n")[0] + "\n"


@pytest.mark.parametrize("suffix", ["", ".txt", ".json", " "])
@pytest.mark.parametrize("length", [6, 12, 64])
def test_a_handle_is_a_beginning_of_the_hash(store, length, suffix):
    """Six digits or more, large or small, with or without the name of a file behind them."""
    hash_ = sha256(LOG.encode()).hexdigest()
    assert recall_page(store, MINE, hash_[:length].upper() + suffix).total_chars == len(LOG)


def test_next_is_a_call_of_recall(store, handle):
    """Following ``next`` gives the whole text, each character once (paging-is-complete)."""
    texts, asked = [], {"id": handle}
    while asked:
        page = recall_page(store, MINE, **asked)
        texts.append(page.text)
        asked = page.next_arguments
    assert "".join(texts) == LOG


def test_another_sessions_text_is_refused_like_an_unknown_one(store):
    """recall-own-log-only: only what this session's log names is read; the refusal tells nothing of what the store has
    beside.
    """
    theirs = sha256(LOG.replace("ok", "ko").encode()).hexdigest()
    assert recall_page(store, THEIRS, theirs[:12]).total_chars == len(LOG)
    store.blobs.store_content("nobody names this")
    messages = []
    for name in (theirs, theirs[:12], sha256(b"nobody names this").hexdigest(), "0" * 64):
        with pytest.raises(UnknownId) as raised:
            recall_page(store, MINE, name)
        messages.append(str(raised.value).replace(repr(name[:40]), "?"))
    assert len(set(messages)) == 1
    assert sha256(LOG.encode()).hexdigest()[:12] in messages[0]


@pytest.mark.parametrize(
    "name", ["", " ", "../../x", "CON", "x" * 10_000, "\x00", "\ud83d", "%2e%2e", "a/b", ".txt", "0", "*", "-1", "\n"]
)
def test_names_that_nothing_has_are_refused(store, name, handle):
    """An odd name is no path and no pattern: a short message lists what there is."""
    with pytest.raises(UnknownId, match=handle) as raised:
        recall_page(store, MINE, name)
    assert len(str(raised.value)) < 300


def test_a_beginning_of_two_handles_is_refused_with_both(store, monkeypatch):
    """A name that two texts begin with is an error that lists them."""
    hashes = ["abcdef" + "0" * 58, "abcdef" + "1" * 58]
    store.append_entries(
        MINE, [Entry("n", store.get_session(MINE).leaf_id, NoteEntry("capped", data={"blobs": hashes}))]
    )
    with pytest.raises(UnknownId, match=r"abcdef0+, abcdef1+"):
        recall_page(store, MINE, "abcdef")


def test_a_spilled_text_whose_blob_is_gone_is_read_from_the_log(store, handle):
    """The log is the truth: where a blob was deleted or damaged, the message that it was taken from still says it."""
    store.blobs.remove_blob(sha256(LOG.encode()).hexdigest())
    assert "".join(page.text for page in iter_recall_pages(store, MINE, handle)) == LOG
    assert [spill.is_stored for spill in list_spilled_texts(store, MINE)] == [False]
    assert "no longer in the store" in answer_recall(store, MINE, {}).text


def test_a_text_that_is_gone_for_good_is_an_error_in_words(store):
    """A capped text stands nowhere else; that it is gone is told to the model."""
    hash_ = store.blobs.store_content("capped")
    store.append_entries(
        MINE, [Entry("n", store.get_session(MINE).leaf_id, NoteEntry("capped", data={"blobs": [hash_]}))]
    )
    assert recall_page(store, MINE, hash_).text == "capped"
    store.blobs.remove_blob(hash_)
    told = answer_recall(store, MINE, {"id": hash_})
    assert told.is_error
    assert hash_[:12] in told.text


def test_what_is_remembered_of_texts_is_bounded(store):
    """The extents of the last texts are kept, and no more of them."""
    hashes = [store.blobs.store_content(f"text {n}") for n in range(MAX_CACHED_EXTENTS + 5)]
    store.append_entries(
        MINE, [Entry("n", store.get_session(MINE).leaf_id, NoteEntry("capped", data={"blobs": hashes}))]
    )
    assert [recall_page(store, MINE, hash_).text for hash_ in hashes] == [f"text {n}" for n in range(len(hashes))]
    assert len(sources._extent_cache) <= MAX_CACHED_EXTENTS


def test_a_long_text_is_walked_once(store, handle, monkeypatch):
    """What was found out about a text at its first page is known at the next: a page then costs a page."""
    recall_page(store, MINE, handle)
    read, text = [], store.blobs.read_text
    monkeypatch.setattr(store.blobs, "read_text", lambda *asked: read.append(asked) or text(*asked))
    recall_page(store, MINE, handle, chars="0-100")
    assert sum(stop - start for _, start, stop in read) < 1_000


# -- entries -----------------------------------------------------------------------------------------------------------


def test_a_message_is_recalled_by_its_id(store):
    """What was cleared or summarised has no handle: the entry that said it has an id, and it is all there."""
    said = [entry.id for entry in store.read_entries(MINE, "message")]
    assert recall_page(store, MINE, said[0]).text == "build it"
    assert recall_page(store, MINE, said[2][:9]).total_chars == len(LOG)


def test_a_beginning_that_bookkeeping_shares_is_the_message(store):
    """An imported answer has entries beside it whose ids begin with its own."""
    leaf = store.get_session(MINE).leaf_id
    store.append_entries(
        MINE,
        [
            Entry("u77-aa+request", leaf, NoteEntry("x")),
            Entry("u77-aa", "u77-aa+request", make_message_entry_body("hello")),
        ],
    )
    assert recall_page(store, MINE, "u77-").text == "hello"
    with pytest.raises(UnknownId):
        recall_page(store, MINE, "u77")


def test_a_beginning_of_two_messages_is_told_from_an_unknown_one(store):
    """Both are named where several begin so; where none does it says that, and nothing of several."""
    leaf = store.get_session(MINE).leaf_id
    store.append_entries(
        MINE,
        [
            Entry("twin-1", leaf, make_message_entry_body("hello")),
            Entry("twin-2", "twin-1", make_message_entry_body("there")),
        ],
    )
    with pytest.raises(UnknownId, match="'twin-' begins the ids of several messages: twin-1, twin-2; give more"):
        recall_page(store, MINE, "twin-")
    with pytest.raises(UnknownId, match="no text of this session is called 'twig-'; the newest of") as raised:
        recall_page(store, MINE, "twig-")
    assert "several" not in str(raised.value)


def test_a_summary_is_recalled_and_a_decision_is_not(store):
    """A compaction's summary has a text; bookkeeping has none, and the message says so."""
    leaf = store.get_session(MINE).leaf_id
    store.append_entries(
        MINE,
        [Entry("c", leaf, CompactionEntry(1, Message.from_text("user", "so far"))), Entry("d", "c", DecisionEntry(()))],
    )
    assert recall_page(store, MINE, "c").text == "so far"
    with pytest.raises(UnknownId, match="is a decision, which has no text"):
        recall_page(store, MINE, "d")


def test_every_part_of_a_message_is_in_its_text():
    """A message of several parts gives all of them, each with what it is; one alone gives its words and no more."""
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


def test_everything_that_was_stored_away_is_listed(store, handle):
    """recall-lists-everything: every text is listed with id, size, tool and time, whatever a notice had room for."""
    for n in range(300):
        hash_ = store.blobs.store_content(f"{n} text")
        put = ToolResult("toolu_1", "Grep" if n % 2 else "", (Text("short"),))
        edit = Edit(Span(2, 3, 0), (put,), "spill", blob_hash=hash_)
        store.append_entries(
            MINE, [Entry(f"d{n}", store.get_session(MINE).leaf_id, DecisionEntry((edit,)), time_ms=1_000 * n)]
        )
    listed = list_spilled_texts(store, MINE)
    assert len(listed) == 301
    assert [(spill.tool, spill.size, spill.at) for spill in listed[:2]] == [("Grep", 8, 299_000), ("Bash", 8, 298_000)]
    assert listed[-1].id == handle
    told = answer_recall(store, MINE, "{}").text
    assert all(spill.id in told for spill in listed)


def test_a_text_that_was_capped_is_listed_with_its_tool(store):
    """A result that was too long for the log is read back like a spilled one."""
    message = Message("tool", (ToolResult(CALL.id, content=(Text("long " * 5_000),)),))
    short, blobs = cap_message_texts(message, Policy().with_settings(results={"append_chars": 1_000}).settings)
    store.blobs.store_content(blobs[0].text)
    note = Entry("n", store.get_session(MINE).leaf_id, NoteEntry("capped", data={"blobs": [blobs[0].hash]}))
    store.append_entries(MINE, [note, Entry("m", "n", MessageEntry(build_sized_message(short)))])
    assert [spill.tool for spill in list_spilled_texts(store, MINE)] == ["Bash", "Bash"]
    assert recall_page(store, MINE, re.search(r'recall\(id="(\w+)"', get_message_text(short))[1]).total_chars == 25_000


# -- the tool ----------------------------------------------------------------------------------------------------------

BODIES = {
    "anthropic": {"model": "claude-opus-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "openai-chat": {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]},
    "openai-responses": {"model": "gpt-5", "input": [{"role": "user", "content": "hi"}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
}


@pytest.mark.parametrize("api", API_NAMES)
def test_the_definition_is_valid_for_its_api(api):
    """Each of the four APIs takes the tool in a request, by the published rules."""
    assert validate_request(BODIES[api] | {"tools": [make_recall_tool(api)]}, api) == ()
    assert RECALL_TOOL_NAME in json.dumps(make_recall_tool(api))
    assert set(RECALL_PARAMETERS) == {"id", "lines", "chars", "search", "page"}


def test_another_api_is_refused():
    """An API that nobody knows has no definition, and the message lists those that have."""
    with pytest.raises(UnrecognizedContent, match="anthropic, openai-chat"):
        make_recall_tool("cohere")


def test_an_answer_says_what_it_covers_and_how_to_go_on(store, handle):
    """The first line has the range, the totals and the next call, which can be made as it stands there."""
    told = answer_recall(store, MINE, f'{{"id": "{handle}"}}')
    head, _, text = told.text.partition("\n")
    assert head.startswith(f"[{handle}: lines 1-")
    assert f"of 6000, characters 0-{len(text)} of {len(LOG)}; go on with recall(" in head
    asked = dict(re.findall(r'(\w+)="(.*?)"', head))
    assert answer_recall(store, MINE, asked).text.partition("\n")[2][:5] == LOG[len(text) :][:5]
    assert not told.is_error


def test_answers_are_short_enough_to_stay(store, handle):
    """A page with its first line is under 50,000 characters and 64 KiB, so it is never spilled again (F185)."""
    spilled(store, "wide", "配" * 200_000)
    wide = sha256(("配" * 200_000).encode()).hexdigest()
    for key, id_ in ((MINE, handle), ("wide", wide)):
        for number in (1, 2):
            text = answer_recall(store, key, {"id": id_, "page": number}).text
            assert len(text) <= 50_000
            assert len(text.encode()) <= 65_536


def test_pages_fit_into_a_small_window(store, handle):
    """Where a page would be stored away again for want of room, pages are smaller, and reading still ends
    (paging-is-complete).
    """
    assert (compute_page_chars(0), compute_page_chars(20_000), compute_page_chars(10**9)) == (2_000, 12_000, 49_500)
    asked, calls = {"id": handle}, 0
    while asked:
        told = answer_recall(store, MINE, asked, compute_page_chars(20_000))
        assert len(told.text) <= 12_000 + 300
        asked, calls = dict(re.findall(r'(\w+)="(.*?)"', told.text.partition("\n")[0])), calls + 1
    assert calls == -(-len(LOG) // 11_985)


def test_a_search_in_a_text_and_in_the_history(store, handle):
    """With an id the lines of that text are found, without one the messages, each with its id."""
    found = answer_recall(store, MINE, {"id": handle, "search": "failed"}).text
    assert len(re.findall(r"^\d+: \d{5} step \d+ FAILED$", found, re.MULTILINE)) == 12
    history = answer_recall(store, MINE, {"search": "build"}).text
    id_ = re.search(r'recall\(id="(\w+)"\) user', history)[1]
    assert answer_recall(store, MINE, {"id": id_}).text.endswith("\nbuild it")
    assert "matches 'nowhere'" in answer_recall(store, MINE, {"search": "nowhere"}).text


def test_a_search_of_the_history_has_pages(store):
    """Every message that matches is on one page of the search."""
    journal = Journal.open(store, "many")
    said = journal.append(*(Message.from_text("user", f"needle number {n}") for n in range(45)))
    pages = [answer_recall(store, "many", {"search": "needle", "page": n}).text for n in (1, 2, 3)]
    assert [text.count("recall(id=") for text in pages] == [20, 20, 5]
    assert all(sum(id_ in text for text in pages) == 1 for id_ in said)
    assert 'go on with recall(search="needle", page="2")' in pages[0]
    assert "go on" not in pages[2]


@pytest.mark.parametrize(
    "arguments",
    ["{", "[]", "3", '"x"', "null", "[" * 100_000, '{"id": 1.5}', '{"idd": "x"}', '{"id": ["x"]}', '{"page": "two"}',
     '{"id": true}', '{"page": -1}', '{"page": 0}', '{"page": 99}', '{"search": "x", "page": -1}', '{"lines": [1, 2]}',
     '{"id": "ffffff"}', '{"lines": "9-3"}', '{"chars": "-5-9"}'],
)  # fmt: skip
def test_wrong_arguments_are_answered(store, arguments):
    """Nothing a model sends raises: the answer is an error that says what to give."""
    told = answer_recall(store, MINE, arguments)
    assert told.is_error
    assert 0 < len(told.text) < 600


@pytest.mark.parametrize(
    "more",
    [
        {"lines": 12},
        {"page": "1"},
        {"lines": "", "chars": None, "search": "", "page": None},
        {"lines": "2-3", "page": 1},
    ],
)
def test_arguments_are_read_kindly(store, handle, more):
    """A number for a range, a text for a page, empty values for what is not wanted: all of it is understood."""
    assert not answer_recall(store, MINE, {"id": handle, **more}).is_error


def test_half_a_character_reaches_nobody(store):
    """A text with half a surrogate pair is answered in text that every API takes; two halves are a character."""
    said = Journal.open(store, "half").append(Message.from_text("user", "a\ud83db\ud83d\ude00"))
    assert answer_recall(store, "half", {"id": said[0]}).text.endswith("a\ufffdb\U0001f600")
    assert recall_page(store, "half", said[0]).text == "a\ud83db\ud83d\ude00"


def test_nothing_to_recall_is_no_error():
    """A session in which nothing was stored away says so."""
    with MemoryStore() as store:
        store.create_session(MINE)
        assert answer_recall(store, MINE, "") == answer_recall(store, MINE, {})
        assert "Nothing" in answer_recall(store, MINE, {}).text


@given(st.dictionaries(st.sampled_from([*RECALL_PARAMETERS, "other"]), st.text(max_size=9) | st.integers() | st.none()))
def test_any_arguments_are_answered(given):
    """Whatever values a model sends for whatever names, there is an answer."""
    with MemoryStore() as store:
        store.import_entries(MINE, [Entry("a1", None, make_message_entry_body("hello\nkelp"))])
        assert answer_recall(store, MINE, given).text


def test_a_call_is_written_as_the_previews_write_it():
    """Quotes inside a value are escaped as JSON does."""
    assert format_recall_call({"id": "ab", "search": 'say "x"'}) == 'recall(id="ab", search="say \\"x\\"")'


def test_two_ranges_are_refused(store, handle):
    """A page has one range."""
    with pytest.raises(FormatError):
        recall_page(store, MINE, handle, lines="1-2", chars="1-2")


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


def test_a_long_text_is_never_held_whole(tmp_path):
    """Reading pages, lines and matches of 30 MB takes a few megabytes; the first page is as cheap as the last."""
    line = "0123456789 abcdefghij " * 4 + "\n"
    long = line * (30_000_000 // len(line))
    with open_store(tmp_path / "store.db") as store:
        hashes = [store.blobs.store_content("small"), store.blobs.store_content(long)]
        store.import_entries("mine", [Entry("n", None, NoteEntry("capped", data={"blobs": hashes}))])
    child = [sys.executable, "-c", CHILD, str(tmp_path / "store.db"), *hashes]
    ran = subprocess.run(child, capture_output=True, text=True, check=True, timeout=60)
    grown, pages, chars, total = map(int, ran.stdout.split())
    assert (pages, total) == (40, len(long))
    assert chars >= 40 * 48_000
    assert grown < 15_000, f"{grown:,} KB"
