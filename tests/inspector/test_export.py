"""One session as one file: whole, safe to open, and without secrets."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from html import unescape

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from served_inspector import RULE, make_long_session, say, write_session

from holdfast.cli import holdfast_command
from holdfast.inspector.export import export_session
from holdfast.inspector.sources import InspectedStore
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.text.masking import MASK, keep_text, mask_secrets, mask_words
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import AnswerEntry, CompactionEntry, DecisionEntry, FailureEntry, RequestEntry, Usage
from holdfast.store.memory import MemoryStore

SECRETS = (
    "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUv",
    "ghp_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-123456789012-abcdefghij",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTYifQ.dBjftJeZ4CVPmB92K27uhbUJU1p1r",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
)


def make_source(configuration, bodies, **info):
    """Return an inspected store with one session."""
    store = MemoryStore()
    write_session(store, "one", bodies, **info)
    return InspectedStore(store, configuration, name="test")


def export(source, mask=keep_text):
    """Return the page of the session."""
    return export_session(source, source.get_session("one"), mask)


def test_a_page_has_the_whole_session(configuration):
    """Every request with what it shows and what was decided, and every message, in one file."""
    page = export(make_source(configuration, make_long_session(), title="A slow server"))
    assert page.count('id="request-') == 60
    assert page.count('id="message-') == 121
    assert RULE in unescape(page)
    assert "compaction (auto)" in page
    assert "A new summary" in page
    assert "not shown: " in page


def test_a_page_runs_only_its_own_code(configuration):
    """Its policy names the one style and the one script by their digests, and nothing is loaded."""
    hostile = "</pre></details><script>alert(1)</script><style>*{color:red}</style>"
    page = export(make_source(configuration, [say("user", Text(hostile))], title=hostile, cwd=hostile))
    policy = unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1])
    styles, scripts = (
        re.findall(r"<style>(.*?)</style>", page, re.DOTALL),
        re.findall(r"<script>(.*?)</script>", page, re.DOTALL),
    )
    assert [len(styles), len(scripts)] == [1, 1]
    for text in (*styles, *scripts):
        assert "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not re.search(r'(?:src|href)="(?!#)', page)


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_masked_wherever_they_stand(configuration, secret):
    """In messages, titles and folders; what stands around them is left."""
    bodies = [say("user", Text(f"before {secret} after"))]
    page = unescape(export(make_source(configuration, bodies, title=secret, cwd=f"/srv/{secret}"), mask_secrets))
    assert secret not in page
    assert f"before {MASK} after" in page


@pytest.mark.parametrize("length", range(20, 160, 4))
def test_a_secret_that_a_line_cuts_is_masked(configuration, length):
    """What happened before a request is told on one line, which may end within a key."""
    bodies = [
        say("user", Text("hello")),
        FailureEntry("summary", "a " * (length // 2) + SECRETS[1]),
        RequestEntry("digest", 1),
    ]
    page = unescape(export(make_source(configuration, bodies), mask_secrets))
    assert "ghp_A" not in page


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("password = hunter22", f"password = {MASK}"),
        ('{"api_key": "abcdef123456"}', f'{{"api_key": "{MASK}"}}'),
        ("DB_PASSWORD='s3cr3t-word'", f"DB_PASSWORD='{MASK}'"),
        ("Authorization: Bearer abcdef0123456789", f"Authorization: Bearer {MASK}"),
        ("postgres://user:secret@host/db", f"postgres://{MASK}@host/db"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", f"AWS_SECRET_ACCESS_KEY={MASK}"),
        ("DB_PASSWORD=12345678", f"DB_PASSWORD={MASK}"),
        ('password="two words, and more"', f'password="{MASK}"'),
        (r'"password": "ab\"cdefgh", "user"', f'"password": "{MASK}", "user"'),
        (r"{\"password\": \"hunter22\", \"user\"}", rf"{{\"password\": \"{MASK}\", \"user\"}}"),
        (r"A=1\nsk-ant-api03-AbCdEfGhIjKlMnOpQrStUv", rf"A=1\n{MASK}"),
        (r"A=1\tAKIAIOSFODNN7EXAMPLE\n", rf"A=1\t{MASK}\n"),
        (r"TOKEN=abcdef123\nHOME=/root", rf"TOKEN={MASK}\nHOME=/root"),
        ("?api_key=abcdef12345&x=1", f"?api_key={MASK}&x=1"),
        ("Authorization: Basic dXNlcjpwYXNz", f"Authorization: Basic {MASK}"),
        ("Cookie: session=abcdef; theme=dark", f"Cookie: {MASK}"),
        ("redis://:hunter2@host:6379", f"redis://{MASK}@host:6379"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nb3\n-----END PGP PRIVATE KEY BLOCK-----", MASK),
        ("input_tokens: 128000", "input_tokens: 128000"),
        ("The password is checked by the server.", "The password is checked by the server."),
        ("https://example.org:8080/path", "https://example.org:8080/path"),
    ],
)
def test_what_is_a_secret(text, masked):
    """What is assigned to a telling name is masked; counts of tokens and plain sentences are not."""
    assert mask_secrets(text) == masked


@pytest.mark.parametrize(
    "piece",
    [
        "a.",
        "a1",
        "aB3/",
        "password",
        "token_",
        "-eyJ",
        "eyJaaaaaaaa.",
        "://a:b",
        "-----BEGIN PRIVATE KEY",
        "password='",
    ],
)
def test_masking_takes_time_in_proportion_to_the_text(piece):
    """A long line, such as base64 or packed code, holds up neither an export nor the requests that telemetry masks."""
    text = piece * (500_000 // len(piece))
    start = time.process_time()
    mask_secrets(text)
    assert time.process_time() - start < 10


@given(st.text())
def test_masked_words_keep_their_form(text):
    """No letter or digit is left but the one that stands for all; lengths, lines and punctuation stay."""
    masked = mask_words(text)
    assert len(masked) == len(text)
    assert not [character for character in masked if character.isalnum() and character != "x"]
    assert [c for c in masked if not c.isalnum()] == [c for c in text if not c.isalnum()]


def test_a_long_message_is_cut_in_the_middle(configuration):
    """Its beginning and end are there, and how much is not; no secret is cut in two."""
    text = "a" * 9_990 + " " + SECRETS[0] + "\n" + "b" * 30_000
    page = unescape(export(make_source(configuration, [say("user", Text(text))]), mask_secrets))
    assert "characters …]" in page
    assert "sk-ant" not in page
    assert len(page) < 60_000


def test_the_command_writes_a_private_file(tmp_path, monkeypatch):
    """It never writes over a file, masks on demand, and says what is missing."""
    from holdfast.store.open_store import open_store

    url = str(tmp_path / "s.db")
    with open_store(url) as store:
        write_session(store, "one", make_long_session(10), title="A slow server")
    page = tmp_path / "page.html"

    def run(*arguments):
        return CliRunner().invoke(holdfast_command, ["inspect", *arguments, "--store", url])

    result = run("one", "--export", str(page), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["bytes"] == page.stat().st_size
    assert page.stat().st_mode & 0o077 == 0
    assert RULE in unescape(page.read_text())
    assert run("one", "--export", str(page)).exit_code == 2
    masked = tmp_path / "masked.html"
    assert run("one", "--export", str(masked), "--mask").exit_code == 0
    assert "server" not in masked.read_text().partition("<main")[2].lower().replace("served", "")
    for arguments in (("--export", str(tmp_path / "x.html")), ("one", "--mask"), ("none", "--export", "x.html")):
        assert run(*arguments).exit_code == 2


def test_no_word_of_a_session_is_left_where_every_word_is_masked(configuration):
    """Title, folder, model, tool, key, messages, summaries, rules, reasons and refusals."""
    word = "zebra7"
    edit = Edit(Span(0, 1), (Message("user", (Text(word),)),), word, word)
    bodies = [
        say("user", Text(word)),
        DecisionEntry((edit,)),
        RequestEntry("d", 1, word, 1_000),
        FailureEntry("overflow", word),
        CompactionEntry(1, Message("user", (Text(word),)), 10, (), 100, 10),
        RequestEntry("e", 1, word, 1_000),
        AnswerEntry("e", Usage(100, 10)),
    ]
    source = make_source(configuration, bodies, title=word, cwd=f"/srv/{word}", format=word)
    page = unescape(export(source, mask_words))
    assert "zebra" not in page
    assert page.count("xxxxxx") > 5
