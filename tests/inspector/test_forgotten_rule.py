"""Why was a rule forgotten? The sessions of docs/forgotten-rule.md, and the pages that answer it."""

from __future__ import annotations

import html
import re
import runpy
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_inspector import serve

from holdfast.config import load_shipped_catalog
from holdfast.config.files import Configuration
from holdfast.inspector.export import export_session
from holdfast.inspector.pages.message import compare_summaries
from holdfast.inspector.sources import InspectedStore
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.text.masking import keep_text
from holdfast.reports.sessions.timeline import Timeline
from holdfast.state.entries import CompactionEntry, Entry, RevokeEntry
from holdfast.store.open_store import open_store

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "forgotten_rule.py"))
RULE = SCRIPT["RULE"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The path of a store with the three sessions."""
    path = tmp_path_factory.mktemp("forgotten") / "rule.db"
    anyio.run(SCRIPT["record_all"], str(path))
    return str(path)


@pytest.fixture
def pages(recorded):
    """An inspector of these sessions."""
    configuration = Configuration(catalog=load_shipped_catalog())
    with open_store(recorded, readonly=True) as store:
        writer = partial(open_store, recorded)
        source = InspectedStore(store, configuration, name=recorded, open_writer=writer, location=recorded)
        with serve(source) as served:
            yield served


def read_text(page):
    """Return the words of a page without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def follow(pages, path):
    """Return the answer of ``path``, or of where it leads."""
    answer = pages.request(path)
    if answer.status != 303:
        return answer
    target = urlsplit(answer.headers["location"])
    return pages.request(f"{target.path}?{target.query}")


def test_a_page_names_the_summary_that_dropped_the_rule(pages):
    """The first summary quoted the rule, the second dropped it: each is named with the request from which it held."""
    text = read_text(pages.get("message", session="forgotten", id=0))
    newest, _, oldest = text.partition("From request 33 on")
    assert "The next request does not show it; its summary quotes 1 of its 37 lines." in newest
    assert "From request 65 on in force" in newest
    assert f"dropped here {RULE}" in newest
    assert f"kept {RULE}" in oldest


def test_a_rule_that_was_shown_and_ignored_stands_as_kept(pages):
    """Where both summaries quoted the rule, one is named, and the request before the answer that broke it has it."""
    text = read_text(pages.get("message", session="ignored", id=0))
    assert "its summary quotes 37 of its 37 lines" in text
    assert f"kept {RULE}" in text
    assert "dropped here" not in text
    assert RULE in read_text(pages.get("request", session="ignored", id=84))
    assert RULE not in read_text(pages.get("request", session="forgotten", id=84))


def test_a_rule_in_a_shortened_result_is_marked_as_a_rule(pages):
    """Of 901 lines that no summary quotes, the one that states a rule is open, and its reading back is told."""
    page = pages.get("message", session="guide", id=2)
    assert f"rule, not quoted 450. {RULE}" in read_text(page.partition("<details")[0])
    assert "the model read it back at request 88" in page


def test_an_answer_leads_to_what_the_model_saw(pages):
    """The message that broke the rule names the request it answered, and that request names the message."""
    message = pages.get("message", session="forgotten", id=167)
    assert SCRIPT["VENDOR_FILE"] in message
    link = re.search(r'<a href="([^"#]+)">said as message #167, in answer to request 84', message)
    assert link is not None
    assert "Its answer: message #167" in pages.request(html.unescape(link[1])).text


@pytest.mark.parametrize("query", ["vendor", "Guideline", "rounded lines", "total_3", "recall"])
def test_every_hit_of_a_search_leads_to_a_page(pages, query):
    """Whether it is a message, a summary or a stored text."""
    page = pages.get("search", q=query)
    links = re.findall(r'<li><a href="([^"]+)">', page)
    assert links
    assert {follow(pages, html.unescape(link)).status for link in links} == {200}


def test_a_search_from_a_session_shows_it_first(pages):
    """Its hits come before those of others, more of them; a summary is called one, and leads to its text."""
    page = pages.get("search", q="vendor", near="forgotten")
    titles = re.findall(r"<h2><a [^>]+><bdi>([^<]+)", page)
    assert titles[0] == "Amounts with two digits"
    first = page.partition("</section>")[0]
    assert RULE in read_text(first.rpartition("user ·")[2])
    summaries = re.findall(r'<a href="([^"]+)">summary ·', first)
    assert len(summaries) == 2
    assert 'id="summary"' in follow(pages, html.unescape(summaries[0])).text
    assert 'name="near" value="forgotten"' in pages.get("session", id="forgotten")


def test_only_the_compaction_that_decides_can_be_undone(pages):
    """Undoing an earlier one would change nothing; its page says so."""
    page = pages.get("message", session="forgotten", id=0)
    assert page.count("undo…") == 1
    assert page.count("a later compaction hides it") == 1
    assert pages.get("message", session="guide", id=2).count("undo…") == 1
    first_request = pages.source.load_timeline(pages.source.get_session("forgotten")).requests[32]
    (mark,) = [mark for mark in first_request.marks if mark.kind == "compaction"]
    question = read_text(pages.get("undo", session="forgotten", decision=mark.entry))
    assert "That changes nothing in the next request" in question
    assert "0 messages" not in question


def test_a_compaction_on_the_timeline_leads_to_what_it_dropped(pages):
    """The comparison with the request before has the lost line of the summary."""
    link = re.search(r'<a href="([^"]+)">what it dropped', pages.get("session", id="forgotten"))
    assert link is not None
    text = read_text(pages.request(html.unescape(link[1])).text)
    assert "From request 64 to request 65" in text
    assert f"- - {RULE}" in text


def test_policies_are_compared_in_the_window_of_the_session(pages):
    """In a larger one they would not meet what happened."""
    assert 'value="32000"' in pages.get("compare", id="forgotten")


def test_an_exported_file_says_what_a_summary_dropped(pages):
    """A colleague who has only the file sees the lost line too."""
    source = pages.source
    text = export_session(source, source.get_session("forgotten"), keep_text)
    dropped = text.partition("What it dropped of the summary before:")[2].partition("</pre>")[0]
    assert RULE in html.unescape(dropped)


LINES = st.lists(
    st.sampled_from([f"line {n} of the text" for n in range(6)] + [f"never do {n} again" for n in range(3)])
)


@given(LINES, st.lists(st.tuples(LINES, st.booleans()), max_size=5))
def test_each_line_of_a_message_is_in_one_list(lines, summaries):
    """Quoted, dropped, a lost rule or lost: one of them; dropped is what the one before quoted; one is in force."""
    text = "\n".join(dict.fromkeys(lines))
    entries = []
    for index, (quoted, is_undone) in enumerate(summaries):
        body = CompactionEntry(1, Message("user", (Text("\n".join(quoted) or "nothing"),)))
        entries.append(Entry(f"c{index}", None, body, seq=2 * index))
        if is_undone:
            entries.append(Entry(f"r{index}", None, RevokeEntry(f"c{index}"), seq=2 * index + 1))
    compared = list(compare_summaries(text, 0, entries, Timeline(())))
    for newer, older in zip(compared, [*compared, None][1:], strict=True):
        parts = [*newer.kept_lines, *newer.dropped_lines, *newer.lost_rules, *newer.lost_lines]
        assert sorted(parts) == sorted(text.splitlines())
        was_kept = set(older.kept_lines) if older else set()
        assert set(newer.dropped_lines) == was_kept - set(newer.kept_lines)
        assert not any("never" in line for line in newer.lost_lines)
    has_active = any(not is_undone for _, is_undone in summaries)
    assert [quotes.is_in_force for quotes in compared].count(True) == has_active
    assert not any(quotes.is_in_force and quotes.is_undone for quotes in compared)
