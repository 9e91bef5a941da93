"""The pages of the inspector, over HTTP: what each says, wrong input, hostile content, and who may ask."""

from __future__ import annotations

import html
import http.client
import json
import re
from collections import Counter
from html.parser import HTMLParser
from urllib.parse import urlencode, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_inspector import MODEL, RULE, make_long_session, say, serve, write_session

from holdfast.errors import StoreReadOnly
from holdfast.inspector.pages import sessions, timeline
from holdfast.inspector.pages.message import load_message_page
from holdfast.inspector.rendering import PageWriter, show_invisible
from holdfast.inspector.sources import InspectedStore
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.reports.sessions.history import list_message_visibility
from holdfast.state.entries import (
    AnswerEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    NoteEntry,
    RequestEntry,
    RevokeEntry,
    Usage,
)
from holdfast.state.view import build_projection
from holdfast.store.base import SessionInfo
from holdfast.store.blobs.blob_names import NOTE_CAPPED
from holdfast.store.open_store import open_store

HOSTILE_TEXTS = (
    "<script>document.title = 'taken'</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "\x1b[31mred\x1b[0m\x00\x07",
    "\u202eright to left\u202c \u2066isolated",
    "half \ud83d a surrogate",
    "]]><!-- </main></pre></details>",
)


class PageChecker(HTMLParser):
    """Collects what could run code or load something in a page, and tags that are not closed."""

    VOID = frozenset({"meta", "link", "input", "br", "img"})

    def __init__(self):
        super().__init__()
        self.dangers = []
        self.links = []
        self.actions = []
        self.open_tags = []

    def handle_starttag(self, tag, attrs):
        """Note an attribute with code, a script or style of its own, or an address elsewhere."""
        values = dict(attrs)
        if tag not in self.VOID:
            self.open_tags.append(tag)
        self.dangers += [f"{tag} {name}" for name in values if name.startswith("on") or name == "style"]
        if tag in {"script", "style", "iframe", "object", "base"} and not values.get("src", "").startswith("/assets/"):
            self.dangers.append(tag)
        for name in ("href", "src"):
            if values.get(name) is not None:
                self.links.append(values[name])
        if "action" in values:
            self.actions.append(values["action"])

    def handle_startendtag(self, tag, attrs):
        """A tag that closes itself."""
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open_tags.pop()

    def handle_endtag(self, tag):
        """A tag must close the newest open one."""
        assert self.open_tags, f"</{tag}> closes nothing"
        assert self.open_tags.pop() == tag


def check_page(text):
    """Fail if a page has code of its own, loads anything from elsewhere, or is not well formed; return its links."""
    checker = PageChecker()
    checker.feed(text)
    assert checker.dangers == []
    assert checker.open_tags == []
    assert all(link.startswith(("/", "#")) for link in checker.links + checker.actions), checker.links
    return checker.links


def test_sessions_are_listed_with_their_figures(inspected):
    """The list has each session with its size, cost, cache and compactions, the most recently changed first."""
    text = inspected.get("")
    check_page(text)
    assert "A slow server" in text
    assert "A greeting" in text
    assert "claude-code" in text
    assert '<td data-label="compactions">1</td>' in text
    assert '<td data-label="overflows">1</td>' in text


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"words": "SLOW"}, {"A slow server"}),
        ({"tool": "claude-code"}, {"A slow server"}),
        ({"project": "/srv/other"}, {"A greeting"}),
        ({"model": MODEL}, {"A slow server", "A greeting"}),
        ({"since": "2999-01-01"}, set()),
        ({"since": "not a day", "words": "greeting"}, set()),
    ],
)
def test_the_list_is_narrowed(inspected, filters, found):
    """Words, tool, folder, model and day each leave out what does not match; a wrong day matches nothing."""
    text = inspected.get("", **filters)
    assert {title for title in ("A slow server", "A greeting") if title in text} == found


def test_every_page_leads_on(inspected):
    """Whatever page a reader begins at, each link leads to a page that is there."""
    seen, waiting = set(), ["/", "/search?q=daytime"]
    counts = Counter()
    while waiting:
        path = waiting.pop(0)
        kind = path.partition("?")[0]
        if path in seen or kind.startswith("/assets/") or counts[kind] == 20:
            continue
        seen.add(path)
        counts[kind] += 1
        answer = inspected.request(path)
        assert answer.status == 200, path
        if not kind.endswith(".json"):
            waiting += [link.partition("#")[0] for link in check_page(answer.text) if link.startswith("/")]
    assert {"/", "/session", "/request", "/raw", "/raw.json", "/message", "/diff", "/search"} <= counts.keys()


def test_a_timeline_shows_what_happened(inspected):
    """The overview has a column for each request, the list a bar each, and decisions stand where they were made."""
    text = inspected.get("session", id="long")
    assert text.count('class="hit"') == 60
    assert "compaction (auto)" in text
    assert 'id="request-60"' in text
    first_page = inspected.get("session", id="long", request=1)
    assert 'id="request-1"' in first_page
    assert 'id="request-60"' not in first_page
    assert "refused" in first_page or "overflow" in first_page


def test_a_request_shows_what_the_model_saw(inspected):
    """After the compaction: the summary, what is not shown, the rule that shortened a message before it."""
    text = inspected.get("request", session="long", id=60)
    assert "Summary of older messages." in text
    assert "not shown" in text
    before = inspected.get("request", session="long", id=40)
    assert "shortened, was" in before
    assert "<strong>prune</strong>: old" in before


def test_a_forgotten_rule_is_found(inspected):
    """The story of a hidden message says which of its lines the summary kept, and which not."""
    text = inspected.get("message", session="long", id=0)
    assert "What the summary kept of it" in text
    kept, _, lost = text.partition("line that it does not quote")
    assert RULE in kept
    assert "Find out why it is slow." in lost


def test_lines_that_are_not_listed_are_counted(tmp_path, configuration):
    """Of a long message that a compaction hid, the page lists some lines and says how many there are beside them."""
    url = str(tmp_path / "s.db")
    lines = [f"line number {number:03} of the log" for number in range(70)]
    summary = Message("user", (Text("\n".join(lines[:10])),))
    with open_store(url) as store:
        bodies = [say("user", Text("\n".join(lines))), say("assistant", Text("ok")), CompactionEntry(1, summary)]
        write_session(store, "long", bodies)
    with open_store(url, readonly=True) as store, serve(InspectedStore(store, configuration, name=url)) as served:
        text = served.get("message", session="long", id=0)
    assert text.count(">kept<") == 10
    assert "60 lines that it does not quote" in text
    assert "and 20 more" in text


def test_the_raw_body_is_shown_with_what_is_certain(inspected):
    """The page says how the body was rebuilt and what the log lacks; what is downloaded is the same body."""
    text = inspected.get("raw", session="long", id=60)
    assert "may differ from those that were sent" in text
    assert "Not in the log" in text
    assert "Summary of older messages." in text
    answer = inspected.request(PageWriter().make_url("raw.json", session="long", id=60))
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-disposition"] == 'attachment; filename="request-60.json"'
    body = json.loads(answer.text)
    shown = html.unescape(re.search(r"<pre [^>]*>(.*)</pre>", text, re.DOTALL)[1])
    assert json.loads(shown) == body
    assert body["model"] == MODEL
    assert body["messages"][0]["content"].startswith("Summary of older messages.")


def test_a_long_body_is_shown_in_pages(tmp_path, configuration):
    """The pages of a body are together all of it, and none of them is larger than it should be."""
    url = str(tmp_path / "s.db")
    line = "0123456789" * 30_000
    with open_store(url) as store:
        write_session(store, "long", [say("user", Text(line)), RequestEntry("d", 1, MODEL, 1_000)])
    with open_store(url, readonly=True) as store, serve(InspectedStore(store, configuration, name=url)) as served:
        pages = [served.get("raw", session="long", id=1, page=number) for number in (1, 2, 3, 4)]
        answer = served.request(PageWriter().make_url("raw.json", session="long", id=1))
    assert all(len(page) < 110_000 for page in pages)
    assert "page 4 of 4" in pages[3]
    texts = [html.unescape(re.search(r"<pre [^>]*>(.*)</pre>", page, re.DOTALL)[1]) for page in pages]
    assert json.loads("".join(texts)) == json.loads(answer.text)
    assert line in answer.text


def test_a_range_of_requests_is_shown(inspected):
    """The overview and the list have the requests of the range alone; links lead to its halves, neighbors and out."""
    text = inspected.get("session", id="long", **{"from": 20, "to": 39})
    assert text.count('class="hit"') == 20
    assert re.findall(r'id="request-(\d+)"', text) == [str(number) for number in range(20, 40)]
    for first, last in ((20, 29), (30, 39), (1, 20), (40, 59), (10, 49)):
        assert f"from={first}&amp;to={last}" in text
    assert "whole session" in text
    # A column leads to its request, and the range stays.
    assert "request=25&amp;from=20&amp;to=39#request-25" in text
    # A request elsewhere is shown in the whole session.
    assert 'id="request-50"' in inspected.get("session", id="long", request=50, **{"from": 1, "to": 5})


def test_pauses_and_cache_misses_stand_at_their_request(tmp_path, configuration):
    """A pause that is longer than the cache lives is told with both times, and why the cache was missed; a short one
    is not.
    """
    url = str(tmp_path / "s.db")
    bodies = [(0, say("user", Text("word " * 9_000)))]
    for step, (sent, read) in enumerate([(0, 0), (60, 9_000), (60 + 720, 0), (60 + 790, 9_100)]):
        usage = Usage(9_100 + step, 20, read, 9_100 + step - read)
        bodies += [
            (sent, RequestEntry(f"d{step}", 1 + step, MODEL, 20_000)),
            (sent + 5, AnswerEntry(f"d{step}", usage)),
            (sent + 5, say("user", Text("Go on."))),
        ]
    with open_store(url) as store:
        store.create_session("one", SessionInfo("one", model=MODEL))
        parent = None
        for number, (seconds, body) in enumerate(bodies):
            store.append_entries(
                "one", [Entry(f"e{number}", parent, body, time_ms=1_780_000_000_000 + 1_000 * seconds)]
            )
            parent = f"e{number}"
    with open_store(url, readonly=True) as store, serve(InspectedStore(store, configuration, name=url)) as served:
        text = served.get("session", id="one")
        request = served.get("request", session="one", id=3)
        shown = served.get("session", id="one", **{"from": 3, "to": 3})
    assert text.count("Cache missed.") == 1
    assert "12 minutes passed since the request before" in text
    assert "pause: longer than the cache keeps" in text
    assert "Cache missed." in request
    assert "11 min 55 s" in request
    assert "5.0 s" in request
    # The request before a page is known too.
    assert "Cache missed." in shown


def test_two_requests_are_compared(inspected):
    """What the second shows anew, and what it no longer shows."""
    text = inspected.get("diff", session="long", **{"from": 55, "to": 56})
    assert "no longer shown" in text
    assert "Summary of older messages." in text


def test_words_are_found_in_all_sessions(inspected):
    """A search leads to the messages; without a match it says so."""
    text = inspected.get("search", q="daytime")
    assert "A slow server" in text
    assert "/message?session=long" in text
    assert "Nothing was found" in inspected.get("search", q="zebra")
    assert "Give the words" in inspected.get("search")


def write_many_sessions(url, count):
    """Write ``count`` sessions; number n has n requests of 100 tokens, and every third has none."""
    with open_store(url) as store:
        for number in range(count):
            bodies = [say("user", Text("hello"))]
            for step in range(number % 40 if number % 3 else 0):
                bodies += [RequestEntry(f"d{step}", 1, MODEL, 1_000), AnswerEntry(f"d{step}", Usage(100, 1))]
            write_session(store, f"s{number:04}", bodies, title=f"Session {number}", cwd=f"/srv/{number % 2}")


def test_the_list_is_sorted_by_a_figure(tmp_path, configuration):
    """A click at a heading sorts all sessions, also those of other pages; filters and pages keep the order."""
    url = str(tmp_path / "s.db")
    write_many_sessions(url, 60)
    with open_store(url, readonly=True) as store, serve(InspectedStore(store, configuration, name=url)) as served:

        def read_requests(**parameters):
            text = served.get("", **parameters)
            check_page(text)
            return [int(number) for number in re.findall(r'data-label="requests">(\d+)<', text)], text

        first, text = read_requests(sort="requests")
        second, _ = read_requests(sort="requests", page=2)
        third, _ = read_requests(sort="requests", page=3)
        assert len(first + second + third) == 60
        assert first + second + third == sorted(first + second + third, reverse=True)
        assert first[0] == 38
        assert re.search(r'aria-sort="descending"><a href="/\?sort=requests&amp;order=up"', text)
        ascending, text = read_requests(sort="requests", order="up", project="/srv/1")
        assert ascending == sorted(ascending)
        assert 'aria-sort="ascending"' in text
        assert "project=%2Fsrv%2F1&amp;sort=requests&amp;order=up" in text
        assert '<input type="hidden" name="sort" value="requests">' in text
        # What is no column is ignored.
        assert read_requests(sort="<script>")[0] == read_requests()[0]


def test_a_sorted_list_of_many_sessions_is_filled_in(tmp_path, configuration, monkeypatch):
    """The list comes before all figures are known and says how many are missing; asked again, it goes on."""
    url = str(tmp_path / "s.db")
    write_many_sessions(url, 60)
    monkeypatch.setattr(sessions, "FIGURES_SECONDS", 0.0001)
    monkeypatch.setattr(sessions, "PATIENT_SECONDS", 0.01)
    missing = []
    with open_store(url, readonly=True) as store, serve(InspectedStore(store, configuration, name=url)) as served:
        text = served.get("", sort="tokens")
        while "data-complete" in text:
            missing.append(int(re.search(r"The figures of (\d+) sessions", text)[1]))
            text = served.get("", sort="tokens", complete=1)
    assert missing
    assert missing == sorted(set(missing), reverse=True)
    assert re.findall(r'data-label="requests">(\d+)<', text)[0] == "38"


@given(
    st.lists(st.tuples(st.one_of(st.none(), st.floats(0, 9)), st.booleans(), st.booleans())),
    st.booleans(),
)
def test_sorted_rows_are_stable_and_unknown_ones_last(figures, is_ascending):
    """A sort keeps every row once, equal ones in their order, and those without the figure at the end."""
    rows = [
        sessions.SessionRow(
            SessionInfo(str(at)), "", dollars=dollars, damage="damaged" if is_damaged else "", has_figures=has_figures
        )
        for at, (dollars, is_damaged, has_figures) in enumerate(figures)
    ]
    order = sessions.SessionOrder("cost", "up" if is_ascending else "")
    result = sessions.sort_rows(rows, order)
    assert sorted(int(row.info.key) for row in result) == list(range(len(rows)))
    known = [row for row in result if row.has_figures and not row.damage and row.dollars is not None]
    assert result[: len(known)] == known
    sign = 1 if is_ascending else -1
    keys = [(sign * row.dollars, int(row.info.key)) for row in known]
    assert keys == sorted(keys)


@given(st.integers(0, 300), st.none() | st.integers(1, 400), st.none() | st.integers(1, 400))
def test_a_range_is_always_inside_of_its_session(total, first, last):
    """Whatever numbers are given, the range and all that its links lead to have requests of the session alone."""
    chosen = timeline.choose_range(total, first, last)
    if not total:
        assert (chosen.count, chosen.is_whole, chosen.halves) == (0, True, ())
        return
    for found in (chosen, chosen.wider, chosen.earlier, chosen.later, *chosen.halves):
        assert found is None or 1 <= found.first <= found.last <= total
    if chosen.halves:
        left, right = chosen.halves
        assert (left.first, left.last + 1, right.last) == (chosen.first, right.first, chosen.last)
    wider = chosen.wider
    assert wider.first <= chosen.first <= chosen.last <= wider.last
    assert chosen.is_whole or wider.count > chosen.count
    assert chosen.earlier is None or chosen.earlier.first < chosen.first
    assert chosen.later is None or chosen.later.last > chosen.last


def test_pages_have_their_values_as_json(inspected):
    """The list, a timeline and a request are there for programs, with the figures of the pages."""
    listed = json.loads(inspected.get("sessions.json", sort="requests"))
    assert [row["info"]["key"] for row in listed["rows"]] == ["long", "short"]
    found = json.loads(inspected.get("session.json", id="long"))
    assert len(found["requests"]) == 60
    assert found["requests"][0]["usage"]["input"] == 300
    request = json.loads(inspected.get("request.json", session="long", id="40"))
    assert request["request"]["number"] == 40
    assert any(item.get("shown_as") == "reduced" for item in request["view"]["items"])
    assert inspected.request("/session.json?id=nothing").status == 404


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/session?id=nothing", 404, "nothing"),
        ("/session", 404, "This cannot be shown"),
        ("/request?session=long&id=999", 404, "no request"),
        ("/request?session=long&id=", 404, "no request"),
        ("/message?session=long&id=-1", 404, "no message"),
        ("/diff?session=long&from=1&to=x", 404, "no request"),
        ("/nowhere", 404, "no page"),
        ("/assets/../app.py", 404, "no page"),
        ("/session?id=long&page=-5", 200, "A slow server"),
        ("/session?id=long&page=99999999999999", 200, "A slow server"),
        ("/?page=abc", 200, "A slow server"),
        ("/session?id=long&from=50&to=20", 200, "Requests 20 to 50 of 60"),
        ("/session?id=long&from=99&to=999", 200, "Requests 60 to 60 of 60"),
        ("/session?id=long&from=x&to=-1", 200, "All requests"),
        ("/session?id=short&from=3&to=5", 200, "No request is recorded"),
        ("/raw?session=long&id=999", 404, "no request"),
        ("/raw.json?session=long&id=x", 404, "no request"),
        ("/raw?session=long&id=1&page=99", 200, "raw body"),
        ("/message?session=long&id=0&page=7", 200, RULE),
    ],
)
def test_wrong_input_gets_a_page_that_says_so(inspected, path, status, says):
    """Unknown ids and pages are told; a number that is none or too large leads to the nearest page."""
    answer = inspected.request(path)
    assert answer.status == status
    assert says in answer.text
    check_page(answer.text)


def test_every_answer_forbids_foreign_code(inspected):
    """Pages load nothing but our own files, stand in no frame, and are not kept by the browser."""
    for path in ("/", "/session?id=long", "/nowhere", "/assets/inspector.css"):
        headers = inspected.request(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:80"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost"}, 200),
    ],
)
def test_pages_are_for_this_machine_alone(inspected, headers, status):
    """A page elsewhere that makes its name resolve to this machine, or sends a form, is refused."""
    assert inspected.request("/", **headers).status == status


def find_compaction(inspected):
    """Return the entry of the session's one compaction."""
    return next(entry for entry in inspected.source.store.read_path("long") if isinstance(entry.body, CompactionEntry))


def send_undo(inspected, decision, token=None, *, restore="", message="", **headers):
    """Send the form of an undo; return the answer."""
    if token is None:
        page = inspected.request(f"/undo?session=long&decision={decision}&restore={restore}").text
        found = re.search(r'name="token" value="([^"]+)"', page)
        # A page that is no form has no token; the one of another form is as good.
        token = found[1] if found else read_form_token(inspected)
    body = urlencode({"session": "long", "decision": decision, "token": token, "restore": restore, "message": message})
    return inspected.request("/undo", method="POST", body=body, **headers)


def read_form_token(inspected):
    """Return the token of the inspector's forms."""
    edit = next(entry for entry in inspected.source.store.read_path("long") if isinstance(entry.body, DecisionEntry))
    return re.search(r'name="token" value="([^"]+)"', inspected.get("undo", session="long", decision=edit.id))[1]


def test_a_decision_is_undone_and_restored_from_its_page(inspected):
    """The compaction that hides a message is revoked in the log and shown again, and restored: hidden as before."""
    compaction = find_compaction(inspected)
    shown_before = build_projection(inspected.source.store.open_state("long"))
    answer = send_undo(inspected, compaction.id, message="0")
    assert (answer.status, answer.headers["location"]) == (303, "/message?session=long&id=0")
    assert inspected.source.store.read_path("long")[-1].body == RevokeEntry(compaction.id)
    text = inspected.get("message", session="long", id=0)
    assert "The next request shows it in full." in text
    assert "the decision was undone" in text
    assert "restore…" in text

    assert send_undo(inspected, compaction.id, restore="1").headers["location"] == "/session?id=long"
    assert inspected.source.store.read_path("long")[-1].body == RevokeEntry(compaction.id, is_restored=True)
    text = inspected.get("message", session="long", id=0)
    assert "The next request does not show it; its summary quotes 1 of its 2 lines." in text
    assert "the decision is in force again" in text
    assert "restore…" not in text
    assert build_projection(inspected.source.store.open_state("long")) == shown_before


def test_the_question_before_an_undo_says_what_it_does(inspected):
    """It names the messages, the tokens before and after, and whether the window is exceeded; nothing is written."""
    count = inspected.source.get_session("long").entry_count
    compaction = find_compaction(inspected)
    text = inspected.get("undo", session="long", decision=compaction.id)
    check_page(text)
    hidden = list_message_visibility(inspected.source.store.open_state("long")).count("hidden")
    # One of the hidden messages has an edit of its own, and is shown shortened.
    assert f"{hidden:,} messages are shown in full again, or less reduced." in text
    after, before = map(int, re.search(r"~(\d+) instead of ~(\d+)", text.replace(",", "")).groups())
    assert before < after
    assert "That is more than the window of 20,000." in text
    assert inspected.source.get_session("long").entry_count == count


@pytest.mark.parametrize("restore", ["", "1"])
def test_two_inspectors_of_one_store_cannot_undo_or_restore_twice(inspected, restore):
    """What the page of another inspector changed meanwhile is an error that names the decisions there are."""
    compaction = find_compaction(inspected)
    token = read_form_token(inspected)
    send_undo(inspected, compaction.id, token)
    if restore:
        send_undo(inspected, compaction.id, token, restore="1")
    count = inspected.source.get_session("long").entry_count
    answer = send_undo(inspected, compaction.id, token, restore=restore)
    assert answer.status == 404
    assert ("no undone decision has the id" if restore else "no active decision has the id") in answer.text
    assert inspected.source.get_session("long").entry_count == count


def test_an_undo_needs_a_form_of_ours(inspected):
    """Another page cannot send the form: it lacks the token, and its origin is told by the browser."""
    count = inspected.source.get_session("long").entry_count
    assert send_undo(inspected, "0", token="").status == 403
    assert send_undo(inspected, find_compaction(inspected).id, token="wrong").status == 403
    origin = {"Origin": "http://127.0.0.1:1"}
    assert send_undo(inspected, "0", **origin).status == 403
    assert send_undo(inspected, "nothing").status == 404
    assert inspected.request("/undo?session=long&decision=nothing").status == 404
    assert inspected.request("/undo").status == 404
    assert inspected.source.get_session("long").entry_count == count


def test_a_session_that_another_process_holds_is_not_changed(inspected):
    """The page says so and to try again; the decision stays."""
    token = read_form_token(inspected)
    with open_store(inspected.source.name) as store, store.hold_lease("long"):
        answer = send_undo(inspected, find_compaction(inspected).id, token)
    assert answer.status == 503
    assert "another" in answer.text
    assert inspected.source.store.open_state("long").view.compaction is not None


def test_a_store_that_is_only_read_has_no_undo(tmp_path, configuration):
    """The pages have no link and no button, and a form that is sent anyway is refused with the reason."""
    url = str(tmp_path / "s.db")
    with open_store(url) as store:
        write_session(store, "long", make_long_session())
    with open_store(url, readonly=True) as store, serve(InspectedStore(store, configuration, name=url)) as served:
        assert "undo…" not in served.get("message", session="long", id=0)
        compaction = find_compaction(served)
        text = served.get("undo", session="long", decision=compaction.id)
        assert "only read here" in text
        assert "<button>Undo" not in text


def test_a_store_that_became_read_only_keeps_its_decisions(inspected):
    """A form of a page from before is refused with the reason."""
    token = read_form_token(inspected)

    def refuse():
        raise StoreReadOnly("the store is read-only: the disk is full")

    inspected.source._open_writer = refuse
    answer = send_undo(inspected, find_compaction(inspected).id, token)
    assert answer.status == 403
    assert "read-only" in answer.text


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_hostile_content_is_shown_and_does_nothing(tmp_path, configuration, text):
    """Whatever a recording says stands in the page as text: in titles, folders, models, ids and messages."""
    url = str(tmp_path / "s.db")
    bodies = [say("user", Text(text)), RequestEntry("d", 1, text, 1_000), AnswerEntry("d", Usage(10, 1), text)]
    # The store takes no half surrogate in the columns of its list.
    clean = text.replace("\ud83d", "?")
    with open_store(url) as store:
        write_session(store, "hostile", bodies, title=clean, cwd=clean)
    with open_store(url, readonly=True) as store, serve(InspectedStore(store, configuration, name=clean)) as served:
        for page, parameters in (
            ("", {}),
            ("session", {"id": "hostile"}),
            ("request", {"session": "hostile", "id": 1}),
            ("raw", {"session": "hostile", "id": 1}),
            ("message", {"session": "hostile", "id": 0}),
            ("search", {"q": clean}),
            ("", {"words": clean, "tool": clean, "since": clean}),
            ("", {"sort": clean, "order": clean}),
        ):
            shown = served.get(page, **parameters)
            check_page(shown)
            assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", shown)


def test_control_characters_are_made_visible():
    """Each has a sign; line ends and tabs stay."""
    assert show_invisible("a\x1b[0m\x7f\tb\n\u202e") == "a\u241b[0m\u2421\tb\n\u27e8U+202E\u27e9"


def test_a_very_long_line_is_shown_in_pages(tmp_path, configuration):
    """A message of ten megabytes on one line: each page of it is small, and together they are all of it."""
    url = str(tmp_path / "s.db")
    line = "0123456789" * 1_000_000
    with open_store(url) as store:
        write_session(store, "long", [say("user", Text(line)), RequestEntry("d", 1, MODEL, 1_000)])
    with open_store(url, readonly=True) as store, serve(InspectedStore(store, configuration, name=url)) as served:
        assert len(served.get("request", session="long", id=1)) < 20_000
        first = served.get("message", session="long", id=0)
        assert len(first) < 40_000
        count = int(re.search(r"page 1 of (\d+)", first)[1])
        assert "0123456789" in served.get("message", session="long", id=0, page=count)


def test_a_damaged_session_does_not_hide_the_others(tmp_path, configuration):
    """The list names what cannot be read, and its page says why."""
    import sqlite3

    url = str(tmp_path / "s.db")
    with open_store(url) as store:
        write_session(store, "good", [say("user", Text("hello"))], title="A good one")
        write_session(store, "bad", [say("user", Text("hello")), RequestEntry("d", 1, MODEL)], title="A bad one")
    with sqlite3.connect(url) as db:
        db.execute("UPDATE entries SET body = x'c1' WHERE kind = 'request'")
    db.close()
    with open_store(url, readonly=True) as store, serve(InspectedStore(store, configuration, name=url)) as served:
        text = served.get("")
        assert "A good one" in text
        assert "Its log cannot be read" in text
        answer = served.request("/session?id=bad")
        assert answer.status == 500
        assert "This cannot be shown" in answer.text


def test_a_running_session_is_followed(inspected):
    """A page is told of each change of its session, also by another process, within some seconds."""
    connection = http.client.HTTPConnection(urlsplit(inspected.url).netloc, timeout=30)
    connection.request("GET", PageWriter().make_url("changes", id="long"))
    response = connection.getresponse()
    assert response.getheader("content-type").startswith("text/event-stream")
    assert response.readline() == b": following\n"
    with open_store(inspected.source.name) as store:
        store.update_session_info("long", title="A new title")
        leaf = store.get_session("long").leaf_id
        store.append_entries("long", [Entry("newest", leaf, say("user", Text("Go on.")))])
    lines = [response.readline() for _ in range(12)]
    assert b"event: changed\n" in lines
    connection.close()


def test_the_story_of_a_message_that_was_too_long_for_an_entry(configuration):
    """It says so, with what reads each whole text back, also if no decision is about the message."""
    store = open_store(":memory:")
    hashes = [store.blobs.store_content("the whole of it" * number) for number in (1, 2)]
    note = NoteEntry(NOTE_CAPPED, data={"blobs": hashes})
    write_session(store, "one", [say("user", Text("Look.")), note, say("tool", Text("beginning … end"))])
    source = InspectedStore(store, configuration, name="test")
    page = load_message_page(source, source.get_session("one"), "1")
    assert [(event.kind, event.handle) for event in page.events] == [
        ("said", ""),
        *(("capped", hash_[:HANDLE_CHARS]) for hash_ in hashes),
    ]
    assert [event.kind for event in load_message_page(source, source.get_session("one"), "0").events] == ["said"]
