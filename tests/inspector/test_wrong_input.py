"""What the inspector says where something is wrong: with the port, the file, the store, or the target of an export."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from threading import Event, Thread

import pytest
from click.testing import CliRunner
from served_inspector import make_long_session, say, serve, write_session

from holdfast.cli import holdfast_command
from holdfast.inspector.sources import InspectedStore
from holdfast.messages.parts import Text
from holdfast.state.entries import Entry
from holdfast.store.open_store import open_store

SESSION_ID = "11111111-2222-3333-4444-555555555555"
WAIT_SECONDS = 30
MOST_BYTES = 65_536
"""Bytes of a file where there is no room: more than a store needs to be opened, and less than the page has."""


def make_line(number):
    """Return a line of a recorded session of Claude Code."""
    return json.dumps(
        {
            "type": "user",
            "uuid": f"u{number}",
            "parentUuid": f"u{number - 1}" if number else None,
            "sessionId": SESSION_ID,
            "cwd": "/srv",
            "version": "2.0.0",
            "timestamp": f"2026-11-30T12:00:{number:02}.000Z",
            "message": {"role": "user", "content": f"These are the words of line {number}."},
        }
    )


def run(*arguments):
    """Run ``holdfast inspect`` where it is expected to end by itself; return its exit code and what it said."""
    result = CliRunner().invoke(holdfast_command, ["inspect", "--no-open", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


@contextmanager
def start(*arguments):
    """Start ``holdfast inspect`` in a process of its own; yield the process and its address."""
    command = [sys.executable, "-m", "holdfast", "inspect", *map(str, arguments), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line)["url"]
        finally:
            process.kill()


def fetch(url):
    """Return the text of a page."""
    with urllib.request.urlopen(url, timeout=WAIT_SECONDS) as answer:
        return answer.read().decode()


@pytest.fixture
def store_url(tmp_path):
    """The path of a store with a session."""
    url = str(tmp_path / "store.db")
    with open_store(url) as store:
        write_session(store, "long", make_long_session(40))
    return url


def test_a_port_that_another_program_has_is_named(store_url):
    """The message says which port, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run("--store", store_url, "--port", port) == (
            2,
            f"Error: port {port} is in use; give another --port, or 0 for a free one",
        )


def test_a_port_that_another_inspector_has_leads_to_it(store_url, configuration):
    """The message has the address and the store of the one that runs."""
    with (
        open_store(store_url, readonly=True) as store,
        serve(InspectedStore(store, configuration, name=store_url)) as other,
    ):
        port = other.url.rpartition(":")[2]
        code, text = run("--store", store_url, "--port", port)
    assert code == 2
    assert f"by an inspector of {store_url}: {other.url}/;" in text


def write_nothing(_path):
    pass


def write_garbage(path):
    path.write_bytes(b"\x00garbage" * 1_000)


def cut_store(path):
    with open_store(str(path)) as store:
        write_session(store, "long", make_long_session())
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 3])


def overwrite_pages(path):
    with open_store(str(path)) as store:
        write_session(store, "long", make_long_session())
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))


def make_newer(path):
    with open_store(str(path)) as store:
        write_session(store, "long", make_long_session(40))
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 9999")
    db.close()


def make_folder(path):
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (write_nothing, "there is no store at"),
        (write_garbage, "is damaged or no database"),
        (cut_store, "is damaged or no database"),
        (overwrite_pages, "is damaged or no database"),
        (make_newer, "update holdfast"),
        (make_folder, "is a folder"),
    ],
)
def test_a_store_that_cannot_be_read_is_an_error_of_the_command(tmp_path, damage, said):
    """It says what is wrong with the store and ends; no page of errors is opened."""
    path = tmp_path / "store.db"
    damage(path)
    code, text = run("--store", path)
    assert code == 2
    assert said in text
    assert str(path) in text.replace(" ", "") or str(path) in text


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.jsonl", "", "the file is empty (0 bytes)"),
        ("text.txt", "hello\n", "no line of the file is a JSON object"),
        ("other.json", '{"a": 1}', "is no session that is known"),
        ("missing.jsonl", None, "is no file there is, and no session's id begins so"),
        ("folder", ..., "is a folder; give a recorded file in it, and no session's id begins so"),
    ],
)
def test_a_file_that_is_no_session_is_an_error_of_the_command(tmp_path, store_url, name, content, said):
    """It says what is wrong with the file and what files are understood."""
    path = tmp_path / name
    if content is ...:
        path.mkdir()
    elif content is not None:
        path.write_text(content)
    code, text = run(path, "--store", store_url)
    assert code == 2
    assert said in text


def test_an_inspector_ends_quietly_while_a_page_follows_a_session(store_url):
    """^C ends it within seconds and without a word of the server's, although a browser still listens for changes."""
    with start("long", "--store", store_url) as (process, url):
        with urllib.request.urlopen(url.replace("/session?", "/changes?"), timeout=WAIT_SECONDS) as changes:
            changes.readline()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=WAIT_SECONDS)
        assert "Traceback" not in said
        assert "Exception" not in said
        assert process.returncode in {0, 130}


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "null", ""])
def test_an_origin_that_is_no_address_is_refused(inspected, origin):
    """A header of any form is refused, and is no fault of the server."""
    assert inspected.request("/", Origin=origin).status == 403


def test_a_form_is_not_read_beyond_its_longest(inspected):
    """A form of a gigabyte is refused without being kept in memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = inspected.request("/undo", method="POST", body=(b"x" * 65_536 for _ in range(4_000)))
    assert answer.status == 403
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000


@pytest.mark.parametrize(
    "page",
    [
        "session?id=none",
        "request?session=long&id=none",
        "request?session=none&id=1",
        "message?session=long&id=none",
        "message?session=long&id=999999",
        "diff?session=long&from=none&to=1",
        "undo?session=long&decision=none",
        "undo?session=long&decision=none&restore=1",
        "changes?id=none",
        "nothing",
    ],
)
def test_an_unknown_id_is_a_page_that_says_so(inspected, page):
    """Each kind of name that is not there has status 404 and a page with the way back."""
    answer = inspected.request(f"/{page}")
    assert answer.status == 404
    assert "This cannot be shown" in answer.text
    assert "All sessions" in answer.text


def test_a_file_is_followed_while_it_grows_and_stays_when_it_is_gone(tmp_path):
    """What is appended is shown within seconds, a broken line and a removed file change nothing, and ^C ends it."""
    path = tmp_path / "session.jsonl"
    path.write_text("".join(make_line(number) + "\n" for number in range(3)))
    with start(path) as (process, url):
        shown = url.replace("/session?id=", "/message?session=") + "&id={}"
        assert "words of line 2" in fetch(shown.format(2))
        with path.open("a") as file:
            file.write(make_line(3) + "\n" + make_line(4)[:40])
        deadline = time.monotonic() + WAIT_SECONDS
        text = ""
        while "words of line 3" not in text and time.monotonic() < deadline:
            time.sleep(0.2)
            # Until the line is read there is no such message.
            with suppress(urllib.error.HTTPError):
                text = fetch(shown.format(3))
        assert "words of line 3" in text
        path.unlink()
        time.sleep(1.5)
        assert "words of line 2" in fetch(shown.format(2))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WAIT_SECONDS)
        assert "Traceback" not in said
        assert process.returncode in {0, 130}


def test_pages_are_whole_while_the_store_is_written(store_url, configuration):
    """Two threads append, and every page that is asked for meanwhile is there."""
    stop = Event()

    def write(name):
        with open_store(store_url) as store:
            store.create_session(name)
            number, parent = 0, None
            while not stop.is_set():
                entry = Entry(f"{name}-{number}", parent, say("user", Text(f"words {number}")))
                store.append_entries(name, [entry])
                number, parent = number + 1, entry.id

    threads = [Thread(target=write, args=(name,)) for name in ("one", "two")]
    with (
        open_store(store_url, readonly=True) as store,
        serve(InspectedStore(store, configuration, name=store_url)) as served,
    ):
        for thread in threads:
            thread.start()
        try:
            deadline = time.monotonic() + WAIT_SECONDS
            while sum(info.leaf_id is not None for info in store.list_sessions()) < 3 and time.monotonic() < deadline:
                time.sleep(0.05)
            for _ in range(10):
                for page in ("", "session?id=one", "message?session=two&id=0", "search?q=words", "session?id=long"):
                    answer = served.request(f"/{page}")
                    assert answer.status == 200, answer.text
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    with open_store(store_url, readonly=True) as store:
        assert all(store.get_session(name).entry_count > 1 for name in ("one", "two"))


def test_an_export_has_a_target_or_is_an_error_before_the_session_is_read(tmp_path, store_url):
    """A folder that is not there, a file that is, and a folder in its place are said, and nothing is written."""
    existing = tmp_path / "page.html"
    existing.write_text("mine")
    assert "exists; give another name" in run("long", "--store", store_url, "--export", existing)[1]
    assert existing.read_text() == "mine"
    assert "exists; give another name" in run("long", "--store", store_url, "--export", tmp_path)[1]
    code, text = run("long", "--store", store_url, "--export", tmp_path / "none" / "page.html")
    assert code == 2
    assert "there is no folder" in text
    assert not (tmp_path / "none").exists()


def test_an_export_for_which_there_is_no_room_leaves_no_half_file(tmp_path, store_url):
    """The page is larger than files may be here: the message has its size, and the file is gone."""
    target = tmp_path / "page.html"
    command = [sys.executable, "-m", "holdfast", "inspect", "long", "--store", store_url, "--export", str(target)]
    result = subprocess.run(
        command,
        # Bytecode that is cut at the limit would be read by every later test.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES)),
    )
    assert result.returncode == 2
    assert "could not be written" in result.stderr
    assert "Traceback" not in result.stderr
    assert not target.exists()
