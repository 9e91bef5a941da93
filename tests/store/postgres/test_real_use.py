"""The engine, the proxy and the commands on a store on PostgreSQL, as users run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from postgres_server import PASSWORD, PASSWORD_ROLE, PostgresServer

from holdfast import Engine
from holdfast.store.open_store import open_store
from holdfast.testing.upstream import ScriptedUpstream

LONG_SESSION = Path(__file__).parents[3] / "examples" / "long-session.jsonl"
MODEL = "claude-sonnet-5-5"


@pytest.fixture
def url(postgres_server: PostgresServer, tmp_path: Path) -> str:
    """Return the address of an empty store, on the loopback as users have it."""
    return postgres_server.url(tcp=True, tenant=tmp_path.name)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user without settings of its own."""
    return os.environ | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}


def run_holdfast(environment: dict[str, str], *arguments: str, code: int = 0) -> str:
    """Run a command and return what it printed."""
    command = [sys.executable, "-m", "holdfast", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=environment["HOME"], check=False
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@contextmanager
def start_holdfast(environment: dict[str, str], *arguments: str) -> Iterator[str]:
    """Run a server of ours for the block and yield its address."""
    command = [sys.executable, "-m", "holdfast", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=environment["HOME"]
    )
    try:
        assert process.stdout is not None
        address = ""
        while not address:
            line = process.stdout.readline()
            assert line, "it ended"
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            address = found[0] if found else ""
        yield address
    finally:
        process.terminate()
        process.communicate()


def test_engines_one_after_another_continue_one_session(url: str) -> None:
    """A session that one engine began goes on in another one with all its messages."""

    async def talk(question: str, answer: str) -> None:
        upstream = ScriptedUpstream([answer])
        async with Engine.open(url, upstream=upstream, api="anthropic", model=MODEL) as engine:
            await (await engine.session("shared")).ask(question)

    for question, answer in (("a", "one"), ("b", "two"), ("c", "three")):
        anyio.run(talk, question, answer)
    with open_store(url) as store:
        texts = [message.text for message in store.open_state("shared").history.messages]
    assert texts == ["a", "one", "b", "two", "c", "three"]


def test_commands_work_on_a_database(url: str, environment: dict[str, str]) -> None:
    """Commands that read, write and check a store take its address; none takes it for a path."""
    environment["HOLDFAST_STORE"] = url
    assert "no sessions" in run_holdfast(environment, "ls")
    assert "1,173 entries added" in run_holdfast(environment, "import", str(LONG_SESSION))
    (session,) = json.loads(run_holdfast(environment, "ls", "--json"))
    key = session["key"]
    for arguments in (
        ("show", key),
        ("context", key),
        ("stats", key),
        ("watch", "--once"),
        ("branch", key),
        ("recall", key, "--search", "error"),
        ("export", key, "-o", "copy.jsonl"),
        ("gc",),
        ("inspect", key, "--export", "page.html"),
    ):
        run_holdfast(environment, *arguments)
    assert "1,173 of 1 session, and each can be read" in " ".join(run_holdfast(environment, "doctor").split())
    assert "own tools" in run_holdfast(environment, "repair", code=2)
    run_holdfast(environment, "rm", key, "--yes")
    assert "no sessions" in run_holdfast(environment, "ls")
    leftover_names = {path.name for path in Path(environment["HOME"]).iterdir()}
    assert not any("postgresql" in name for name in leftover_names)


def test_no_command_prints_a_password(postgres_server: PostgresServer, environment: dict[str, str]) -> None:
    """Wherever the store's address is printed, the password in it is not."""
    url = f"postgresql://{PASSWORD_ROLE}:{PASSWORD}@127.0.0.1:{postgres_server.port}/store?holdfast_schema=private"
    postgres_server.run_sql(f"GRANT CREATE ON DATABASE store TO {PASSWORD_ROLE}")
    environment["HOLDFAST_STORE"] = url
    for arguments in (("ls",), ("watch", "--once"), ("gc",)):
        assert PASSWORD not in run_holdfast(environment, *arguments)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "doctor"], capture_output=True, text=True, env=environment, check=False
    )
    assert PASSWORD not in done.stdout + done.stderr
    assert "127.0.0.1" in done.stdout
    assert PASSWORD not in run_holdfast(environment, "repair", code=2)
    assert "pgpass" in run_holdfast(environment, "enable", "--store", url, code=2)


def test_two_proxies_serve_one_session(url: str, environment: dict[str, str]) -> None:
    """A conversation whose requests arrive at different proxies is one session, and the inspector shows it."""
    environment["HOLDFAST_STORE"] = url

    def ask(address: str, messages: list[dict[str, str]]) -> str:
        body = json.dumps({"model": MODEL, "max_tokens": 100, "messages": messages}).encode()
        headers = {"content-type": "application/json", "x-api-key": "k", "anthropic-version": "2023-06-01"}
        with urllib.request.urlopen(urllib.request.Request(f"{address}/v1/messages", body, headers)) as answer:
            return str(json.loads(answer.read())["content"][0]["text"])

    with (
        start_holdfast(environment, "provider") as provider,
        start_holdfast(environment, "serve", "--port", "0", "--upstream-anthropic", provider) as first,
        start_holdfast(environment, "serve", "--port", "0", "--upstream-anthropic", provider) as second,
    ):
        messages = [{"role": "user", "content": "Why is the nightly build slow?"}]
        for number in range(6):
            answer = ask((first, second)[number % 2], messages)
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"And step {number}?"}]
        with urllib.request.urlopen(f"{first}/inspect/") as page:
            assert "nightly build" in page.read().decode()
    with open_store(url) as store:
        (info,) = store.list_sessions()
        texts = [message.text for message in store.open_state(info.key).history.messages]
    assert texts == [message["content"] for message in messages[:-1]]


def test_a_store_is_copied_to_a_server_and_back(url: str, environment: dict[str, str]) -> None:
    """Every entry and text is verified in both directions; a second copy finds nothing to do."""
    run_holdfast(environment, "import", str(LONG_SESSION), "--store", "first.db")
    copied = json.loads(run_holdfast(environment, "store", "copy", "first.db", url, "--json"))["sum"]
    assert (copied["copied"], copied["failed"], copied["problems"]) == (1, 0, 0)
    again = json.loads(run_holdfast(environment, "store", "copy", "first.db", url, "--json"))["sum"]
    assert (again["unchanged"], again["added_entries"]) == (1, 0)
    back = json.loads(run_holdfast(environment, "store", "copy", url, "back.db", "--json"))["sum"]
    assert (back["copied"], back["entries"], back["blobs"]) == (1, copied["entries"], copied["blobs"])
    assert json.loads(run_holdfast(environment, "store", "check", "--store", url, "--json"))["is_sound"]
    assert "--to-blobs" in run_holdfast(environment, "store", "copy", "first.db", url, "--to-blobs", "s3://b/p", code=2)
