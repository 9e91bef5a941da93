"""The pages of the inspector, over HTTP: what each says, wrong input, hostile content, and who may ask."""

from __future__ import annotations

import http.client
import re
from html.parser import HTMLParser
from urllib.parse import urlencode, urlsplit

import pytest
from served_inspector import MODEL, RULE, make_long_session, say, serve, write_session

from holdfast.errors import StoreReadOnly
from holdfast.inspector.rendering import PageWriter, show_invisible
from holdfast.inspector.sources import InspectedStore
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.reports.history import list_message_visibility
from holdfast.state.entries import AnswerEntry, CompactionEntry, DecisionEntry, RequestEntry, RevokeEntry, Usage
from holdfast.state.view import build_projection
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
        self.open_tags = []

    def handle_starttag(self, tag, attrs):
        """Note an attribute with code, a script or style of its own, or an address elsewhere."""
        values = dict(attrs)
        if tag not in self.VOID:
            self.open_tags.append(tag)
        self.dangers += [f"{tag} {name}" for name in values if name.startswith("on") or name == "style"]
        if tag in {"script", "style", "iframe", "object", "base"} and not values.get("src", "").startswith("/assets/"):
            self.dangers.append(tag)
        for name in ("href", "src", "action"):
            if values.get(name) is not None:
                self.links.append(values[name])

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
    assert all(link.startswith(("/", "#")) for link in checker.links), checker.links
    return checker.links


def test_sessions_are_listed_with_their_figures(inspected):
    """The list has each session with its size, cost, cache and compactions, the most recently changed first."""
    text = inspected.get("")
    check_page(text)
    assert "A slow server" in text
    assert "A greeting" in text
    assert "claude-code" in text
    assert re.search(r"<dt>compactions</dt><dd>1</dd>", text)
    assert re.search(r"<dt>overflows</dt><dd>1</dd>", text)


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
    seen, waiting = set(), ["/"]
    while waiting and len(seen) < 150:
        path = waiting.pop(0)
        if path in seen or path == "/undo" or path.startswith("/assets/"):
            continue
        seen.add(path)
        answer = inspected.request(path)
        assert answer.status == 200, path
        waiting += [link.partition("#")[0] for link in check_page(answer.text) if link.startswith("/")]
    kinds = {path.partition("?")[0] for path in seen}
    assert {"/", "/session", "/request", "/message", "/diff", "/search"} <= kinds


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
    assert "The next request does not show it." in text
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
            ("message", {"session": "hostile", "id": 0}),
            ("search", {"q": clean}),
            ("", {"words": clean, "tool": clean, "since": clean}),
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
        from holdfast.state.entries import Entry

        store.append_entries("long", [Entry("newest", leaf, say("user", Text("Go on.")))])
    lines = [response.readline() for _ in range(12)]
    assert b"event: changed\n" in lines
    connection.close()
