"""``holdfast serve``: what it says, that it answers, how it ends; and what ``holdfast doctor`` tells of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import httpx2
import pytest

from holdfast.cli import proxy_options as proxying
from holdfast.cli.clients.client_check import ClientUrl, find_embedded_upstreams
from holdfast.cli.commands.doctor import _load_settings
from holdfast.cli.proxy_options import describe_low_disk, describe_recording_problem
from holdfast.config.providers import ADDRESS_VARIABLES, PROVIDERS
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.faults.faults import parse_fault
from holdfast.testing.provider.server.local_server import serve_provider

BODY = {"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(autouse=True)
def unpointed(home, monkeypatch):
    """No variable points anywhere, and no setting is taken from one."""
    for name in (*ADDRESS_VARIABLES, "HOLDFAST_BYPASS", "HOLDFAST_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def served(*arguments, stderr=subprocess.PIPE):
    """Yield a proxy on a free port as a process, and what it said when it began."""
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--json", *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def ended(process, number=signal.SIGTERM):
    """Return the exit code of a proxy that was told to end, what it counted, and what it said beside."""
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    return process.returncode, json.loads(out), err


def test_a_request(home):
    """It says where it is and where it leads, asks that upstream, and tells in the end what it counted."""
    held = Provider(ProviderSettings())
    with serve_provider(held) as url, served("--upstream-anthropic", url) as (process, said):
        assert said["upstreams"]["anthropic"] == url
        assert said["environment"]["OPENAI_BASE_URL"] == f"{said['url']}/v1"
        assert (said["mode"], said["policy"]) == ("manage", "holdfast")
        assert said["store"] == str(home / "store" / "holdfast.db")
        reply = httpx2.post(f"{said['url']}/v1/messages", json=BODY, headers={"x-api-key": "k"}, trust_env=False)
        assert reply.json()["content"][0]["text"] == "ok 1"
        assert reply.headers["x-holdfast-state"] == "managed"
        code, stats, err = ended(process)
    assert (code, stats["requests"]["all"]["managed"], err) == (0, 1, "")


@pytest.mark.long
def test_nobody_reads_what_it_says(home, tmp_path):
    """Whoever read its standard error is gone: it goes on, whatever is to be told, and reads its settings again."""
    store, states = tmp_path / "in" / "a.db", []
    with (
        serve_provider(Provider(ProviderSettings())) as url,
        served("--upstream-anthropic", url, "--store", store) as (process, said),
    ):
        process.stderr.close()

        def asked(state):
            reply = httpx2.post(f"{said['url']}/v1/messages", json=BODY, headers={"x-api-key": "k"}, trust_env=False)
            states.append((reply.status_code, reply.headers.get("x-holdfast-state")))
            return states[-1] == (200, state)

        assert asked("managed")
        shutil.rmtree(store.parent)
        store.parent.write_text("no folder")
        assert asked("unrecorded"), states
        assert asked("unrecorded"), states
        for wrong in ("[policy.holdfast.compaction]\ntrigger_share = 0.3\n", "[proxy]\nwindow = -1\n"):
            (home / "holdfast.toml").write_text(wrong)
            process.send_signal(signal.SIGHUP)
            time.sleep(0.3)
            assert asked("unrecorded"), "what contradicts itself changes nothing"
        (home / "holdfast.toml").write_text("[proxy]\nbypass = true\n")
        process.send_signal(signal.SIGHUP)
        until = time.monotonic() + 30
        while time.monotonic() < until and not asked("bypassed"):
            time.sleep(0.05)
        assert states[-1] == (200, "bypassed")


@pytest.mark.long
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["people", "json"])
@pytest.mark.usefixtures("home")
def test_standard_output_takes_nothing(form):
    """It serves all the same, says on standard error where, and ends in good order."""
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", *form]
    with (
        Path("/dev/full").open("w") as full,
        subprocess.Popen(words, stdout=full, stderr=subprocess.PIPE, text=True) as process,
    ):
        said = process.stderr.readline()
        assert "standard output cannot be written (no space left on device" in said
        url = said.removeprefix("holdfast: proxy at ").partition(";")[0]
        assert httpx2.get(f"{url}/livez", trust_env=False).json()["status"] == "ok"
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=30)
    assert (process.returncode, "stopped after 0 requests" in told, "Traceback" in told) == (0, True, False)


@pytest.mark.long
@pytest.mark.usefixtures("home")
def test_the_terminal_is_gone():
    """Closing it sends HUP too, and what is said then comes nowhere: no proxy is left that nobody sees."""
    ours, theirs = os.openpty()
    with served("--observe", stderr=theirs) as (process, _):
        os.close(theirs)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        process.wait(30)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_it_is_told_to(number):
    """^C and TERM end it in good order."""
    with served("--observe") as (process, said):
        assert said["mode"] == "observe"
        code, stats, err = ended(process, number)
    assert (code, sum(stats["requests"]["all"].values()), err) == (0, 0, "")


@pytest.mark.long
def test_a_second_signal_ends_it_at_once(home):
    """While an answer is under way the first signal waits for it, the second does not."""
    with (
        serve_provider(Provider(ProviderSettings()), [parse_fault("stall:head:1:60")]) as url,
        served("--upstream-anthropic", url) as (
            process,
            said,
        ),
    ):
        client = Thread(target=abandoned, args=(f"{said['url']}/v1/messages",))
        client.start()
        while not httpx2.get(f"{said['url']}/stats", trust_env=False).json()["concurrent"]["now"]:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        while listens(said["url"]):
            time.sleep(0.05)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert "at once" in process.stderr.read()
        client.join(30)


def listens(url):
    """Return whether somebody takes connections there."""
    with suppress(ConnectionRefusedError), socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)):
        return True
    return False


def abandoned(url):
    """Ask, and bear that no server answers."""
    with suppress(httpx2.HTTPError):
        httpx2.post(url, json=BODY, trust_env=False, timeout=60)


def test_for_people(home):
    """People are told the address, the upstreams, the store, the mode, and what to set."""
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--policy", "pi"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, err = process.stdout.read(), process.stderr.read()
    assert first.startswith("proxy at http://127.0.0.1:")
    assert "reducing by policy pi" in first
    for told in ("https://api.anthropic.com", "https://api.openai.com/v1", "holdfast.db", "export ANTHROPIC_BASE_URL="):
        assert told in rest
    assert err == "stopped after 0 requests\n"


@pytest.mark.long
def test_clients_elsewhere_are_told_a_name(home):
    """A proxy that listens everywhere names this machine: 0.0.0.0 leads other machines nowhere."""
    anywhere = ("--host", "0.0.0.0", "--token", "a-token-of-the-house")
    with served(*anywhere) as (_, said):
        here = f"http://{socket.gethostname()}:{urlsplit(said['url']).port}"
    assert said["url"].startswith("http://0.0.0.0:")
    assert said["environment"]["OPENAI_BASE_URL"] == f"{here}/v1"
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", *anywhere]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        told = [process.stdout.readline() for _ in range(12)]
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert not [line for line in told[1:] if "0.0.0.0" in line]
    assert any(line.startswith(f"  export ANTHROPIC_BASE_URL=http://{socket.gethostname()}:") for line in told)


def test_the_variables_of_the_sdks_name_upstreams(monkeypatch):
    """Where the SDKs are led elsewhere, the proxy leads there; an option is stronger."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    with served("--upstream-anthropic", "http://127.0.0.1:8") as (_, said):
        assert said["upstreams"]["openai"] == "http://127.0.0.1:9/v1"
        assert said["upstreams"]["anthropic"] == "http://127.0.0.1:8"


@pytest.mark.long
def test_an_upstream_that_is_another_proxy_of_ours_is_told(run, monkeypatch):
    """A variable that is for the clients of that one was taken for an upstream: all would be done twice.

    A server that says nothing delays nothing; who only relays does nothing twice.
    """
    with served() as (_, there), socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", there["url"])
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
        with served() as (process, here):
            told = process.stderr.readline()
        found, code = checks(run)
        monkeypatch.setenv("HOLDFAST_BYPASS", "1")
        with served() as (process, _):
            time.sleep(1)
            assert ended(process)[2] == ""
    assert here["upstreams"]["anthropic"] == there["url"]
    assert told.startswith(
        f"holdfast: upstream anthropic points at {there['url']}, a Holdfast proxy, mode manage, since "
    )
    assert told.endswith("recorded and reduced twice; use that proxy, or give --upstream-anthropic\n")
    state, text = found["upstream anthropic"]
    assert (state, code) == ("note", 1)  # the silent one is what is wrong
    assert text.startswith(f"holdfast serve would forward to {there['url']}, a Holdfast proxy")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--host", "0.0.0.0"), "HOLDFAST_TOKEN"),
        (("--host", "0.0.0.0", "--token", "short"), "16"),
        (("--upstream-openai", "example.com"), "address"),
        (("--policy", "nobody"), "nobody"),
        (("--summaries", ""), "summaries"),
        (("--window", "-1"), "--window"),
        (("--window", "10"), "needs at least 1524 tokens"),
        (("--window", "5333", "--policy", "openclaw"), "needs at least 16000 tokens"),
        (("--port", "70000"), "--port"),
    ],
)
def test_wrong_use(run, arguments, told):
    """What cannot be is refused before anything is served, with what to do; a token is not repeated."""
    done = run("serve", *arguments)
    assert done.exit_code == 2
    assert told in done.stderr
    assert "short" not in done.stderr


def test_what_would_have_been_done(home):
    """A proxy that only looked on tells in the end what it would have done, and that it changed nothing."""
    held = Provider(ProviderSettings())
    long = [{"role": "user", "content": "kelp wrack " * 9_000}]
    with (
        serve_provider(held) as url,
        served("--observe", "--window", "16000", "--upstream-anthropic", url) as (process, said),
    ):
        reply = httpx2.post(f"{said['url']}/v1/messages", json=BODY | {"messages": long}, trust_env=False)
        assert reply.headers["x-holdfast-state"] == "observed"
        _, stats, _ = ended(process)
    assert (stats["foreseen"]["requests"], stats["foreseen"]["over_window"], stats["foreseen"]["window"]) == (
        1,
        1,
        16_000,
    )


@pytest.mark.long
def test_a_store_that_cannot_be_written_is_told_at_once(run, home):
    """The proxy begins all the same: requests go on as they came, and what is wrong stands on standard error."""
    where = home / "file"
    where.write_text("words")
    with (
        serve_provider(Provider(ProviderSettings())) as url,
        served("--store", str(where), "--upstream-anthropic", url) as (process, said),
    ):
        reply = httpx2.post(f"{said['url']}/v1/messages", json=BODY, headers={"x-api-key": "k"}, trust_env=False)
        assert (reply.status_code, reply.headers["x-holdfast-state"]) == (200, "unrecorded")
        code, stats, err = ended(process)
    assert (code, stats["requests"]["all"]["unrecorded"]) == (0, 1)
    assert err.startswith(f"holdfast: requests are answered, but not recorded: {where} (5 bytes) is not a database")


@pytest.mark.parametrize(("where", "told"), [("store", "is a folder"), ("file/holdfast.db", "is a file, not a folder")])
def test_a_store_that_can_never_be_is_wrong_use(run, home, where, told):
    """Where a folder stands, or below a file, nothing is ever recorded: no proxy begins."""
    (home / "store").mkdir()
    (home / "file").write_text("words")
    done = run("serve", "--port", "0", "--store", where)
    assert (done.exit_code, done.stdout) == (2, "")
    assert re.search(rf"^Error: .*{told}; give a", done.stderr, re.MULTILINE)


def test_a_disk_that_is_full_is_told_at_once(tmp_path, monkeypatch):
    """Whoever begins on one is told before the first request; who has room is told nothing."""
    where = str(tmp_path / "kelp" / "holdfast.db")
    assert (describe_recording_problem(where), describe_recording_problem(":memory:")) == ("", "")
    monkeypatch.setattr(proxying, "MIN_FREE_BYTES", 1 << 80)
    assert re.match(
        r"requests go on, but recording stops when the disk is full: only [\d,]+ bytes are free",
        describe_recording_problem(where),
    )
    assert describe_recording_problem(":memory:") == ""


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="no file system that has no room")
def test_how_much_room_there_is():
    """It is looked for where the store will be, if it is not there yet."""
    assert describe_low_disk(Path("/proc/kelp/holdfast.db"), 1).startswith(
        "only 0 bytes are free on the store's disk; "
    )


def test_a_port_that_is_taken(run):
    """A port that somebody has is told."""
    with serve_provider(Provider(ProviderSettings())) as url:
        port = url.rpartition(":")[2]
        done = run("serve", "--port", port)
    assert done.exit_code == 2
    assert f"port {port} is in use" in done.stderr


# -- holdfast doctor ---------------------------------------------------------------------------------------------------


def checks(run, *arguments):
    done = run("doctor", "--json", *arguments)
    return {one["subject"]: (one["state"], one["text"]) for one in json.loads(done.stdout)["checks"]}, done.exit_code


def test_doctor_finds_the_proxy(run, monkeypatch):
    """A variable that leads to a proxy is in order; one that leads to another server of this machine says so."""
    with served() as (_, said), serve_provider(Provider(ProviderSettings())) as other:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", said["url"])
        monkeypatch.setenv("OPENAI_BASE_URL", f"{other}/v1")
        found, code = checks(run)
    assert found["ANTHROPIC_BASE_URL"][0] == found["OPENAI_BASE_URL"][0] == "ok"
    assert "a Holdfast proxy" in found["ANTHROPIC_BASE_URL"][1]
    assert "not a Holdfast proxy" in found["OPENAI_BASE_URL"][1]
    assert found["proxy"][1].startswith(f"{said['url']}: a Holdfast proxy, mode manage")
    assert found["proxy"][1].endswith("pointed at it: ANTHROPIC_BASE_URL")
    assert code == 0


@pytest.mark.long
def test_doctor_tells_what_a_proxy_does_otherwise_than_asked_for(run, monkeypatch):
    """It is no fault, and said beside it."""
    login = {"authorization": "Bearer sk-ant-oat01-kelp"}
    with (
        serve_provider(Provider(ProviderSettings())) as url,
        served("--upstream-anthropic", url, "--summaries", "claude-haiku-4-5") as (_, said),
    ):
        httpx2.post(f"{said['url']}/v1/messages", json=BODY, headers=login, trust_env=False)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", said["url"])
        found, code = checks(run)
    assert (found["proxy"][0], code) == ("note", 0)
    assert "summaries are made without a model" in found["proxy"][1]


def test_variables_that_lead_to_a_proxy_are_for_its_clients(monkeypatch):
    """Doctor does not take a proxy that runs, on whatever port, for the upstream of the next one."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:4141")
    assert _load_settings([]).anthropic == "http://127.0.0.1:4141"
    assert _load_settings(["ANTHROPIC_BASE_URL"]).anthropic == PROVIDERS["anthropic"].base_url


def test_doctor_finds_a_proxy_that_nobody_is_pointed_at(run, home):
    """It looks where a proxy would be by the settings; where none is, it tells what one would do."""
    told = checks(run)[0]["proxy"]
    assert told[0] == "ok"
    assert told[1].startswith(
        "no proxy runs at http://127.0.0.1:8642; holdfast serve would be reducing by policy holdfast"
    )
    with served("--observe") as (_, said):
        (home / "holdfast.toml").write_text(f"[proxy]\nport = {said['url'].rpartition(':')[2]}\n")
        state, text = checks(run)[0]["proxy"]
    assert state == "ok"
    assert text.startswith(f"{said['url']}: a Holdfast proxy, mode observe")
    assert "no client is pointed at it" in text


def test_doctor_finds_that_nobody_is_there(run, home, monkeypatch):
    """A variable that leads nowhere is wrong; a server of a client's own list may be off."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    (home / ".pi" / "agent").mkdir(parents=True)
    listed = {"providers": {"mine": {"baseUrl": "http://127.0.0.1:9/v1"}}}
    (home / ".pi" / "agent" / "models.json").write_text(json.dumps(listed))
    found, code = checks(run)
    assert found["ANTHROPIC_BASE_URL"][0] == "wrong"
    assert "serve --port 9" in found["ANTHROPIC_BASE_URL"][1]
    assert found["pi: mine"][0] == "note"
    assert "models.json" in found["pi: mine"][1]
    assert code == 1


def test_doctor_asks_nobody_elsewhere(run, monkeypatch):
    """What is beyond this machine is asked only where that was asked for; nothing pointed anywhere is in order."""
    assert checks(run)[0]["clients"][0] == "ok"
    monkeypatch.setenv("OPENAI_BASE_URL", "https://gateway.invalid/v1")
    found, _ = checks(run)
    assert found["OPENAI_BASE_URL"][0] == "ok"
    assert "--online" in found["OPENAI_BASE_URL"][1]
    assert "openai https://gateway.invalid/v1" in found["proxy"][1]
    assert checks(run, "--online")[0]["OPENAI_BASE_URL"][0] == "wrong"


def test_servers_behind_a_proxy_are_asked_too():
    """Of an address that leads through a proxy the server that its path names is told, once, by who was first."""
    urls = {"ONE": "/u/http://127.0.0.1:9/v1", "TWO": "/v1", "THREE": "/u/http%3A//127.0.0.1:9", "FOUR": ""}
    every = [ClientUrl(what, f"http://127.0.0.1:8642{path}") for what, path in urls.items()]
    assert find_embedded_upstreams([*every, ClientUrl("FIVE", "nowhere")]) == {"ONE": "http://127.0.0.1:9"}


def test_doctor_asks_the_servers_behind_a_proxy(run, monkeypatch):
    """With ``--online`` such a server is looked at like those that are configured."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/u/http://127.0.0.1:8/v1")
    assert "no server answers" in checks(run, "--online")[0]["upstream OPENAI_BASE_URL"][1]


@pytest.mark.parametrize("what", ["token", "window"])
def test_doctor_tells_of_settings_that_cannot_be(run, home, monkeypatch, what):
    """Where the proxy could not begin, doctor tells why."""
    if what == "token":
        monkeypatch.setenv("HOLDFAST_TOKEN", "short")
    else:
        (home / "holdfast.toml").write_text("[proxy]\nwindow = 10\n")
    found, code = checks(run)
    assert found["proxy"][0] == "wrong"
    assert code == 1
