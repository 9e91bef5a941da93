"""``holdfast serve``: what it prints, answers and counts, how it ends; and what ``holdfast doctor`` says of it."""

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
from holdfast.testing.provider.faults.field_faults import FieldFault
from holdfast.testing.provider.server.local_server import serve_provider

BODY = {"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(autouse=True)
def without_address_variables(home, monkeypatch):
    """Unset every variable with an address or a setting of the proxy."""
    for name in (*ADDRESS_VARIABLES, "HOLDFAST_BYPASS", "HOLDFAST_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def serve_proxy(*arguments, stderr=subprocess.PIPE):
    """Yield a proxy process on a free port, and the JSON object it printed at the start."""
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--json", *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def end_proxy(process, number=signal.SIGTERM):
    """Send a signal and return the exit code, the JSON counts, and what was printed on standard error."""
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    return process.returncode, json.loads(out), err


def test_serve_forwards_a_request_and_prints_its_counts(home):
    """It prints its address and upstreams, forwards to the upstream, and prints its counts at the end."""
    provider = Provider(ProviderSettings())
    with serve_provider(provider) as url, serve_proxy("--upstream-anthropic", url) as (process, greeting):
        assert greeting["upstreams"]["anthropic"] == url
        assert greeting["environment"]["OPENAI_BASE_URL"] == f"{greeting['url']}/v1"
        assert (greeting["mode"], greeting["policy"]) == ("manage", "holdfast")
        assert greeting["store"] == str(home / "store" / "holdfast.db")
        reply = httpx2.post(f"{greeting['url']}/v1/messages", json=BODY, headers={"x-api-key": "k"}, trust_env=False)
        assert reply.json()["content"][0]["text"] == "ok 1"
        assert reply.headers["x-holdfast-state"] == "managed"
        code, stats, err = end_proxy(process)
    assert (code, stats["requests"]["all"]["managed"], err) == (0, 1, "")


@pytest.mark.long
def test_serve_survives_a_closed_standard_error(home, tmp_path):
    """If nobody reads standard error the proxy goes on, whatever it has to report, and still reloads its settings."""
    store, states = tmp_path / "in" / "a.db", []
    with (
        serve_provider(Provider(ProviderSettings())) as url,
        serve_proxy("--upstream-anthropic", url, "--store", store) as (process, greeting),
    ):
        process.stderr.close()

        def ask_and_compare(state):
            reply = httpx2.post(
                f"{greeting['url']}/v1/messages", json=BODY, headers={"x-api-key": "k"}, trust_env=False
            )
            states.append((reply.status_code, reply.headers.get("x-holdfast-state")))
            return states[-1] == (200, state)

        assert ask_and_compare("managed")
        shutil.rmtree(store.parent)
        store.parent.write_text("no folder")
        assert ask_and_compare("unrecorded"), states
        assert ask_and_compare("unrecorded"), states
        for wrong in ("[policy.holdfast.compaction]\ntrigger_share = 0.3\n", "[proxy]\nwindow = -1\n"):
            (home / "holdfast.toml").write_text(wrong)
            process.send_signal(signal.SIGHUP)
            time.sleep(0.3)
            assert ask_and_compare("unrecorded"), "what contradicts itself changes nothing"
        (home / "holdfast.toml").write_text("[proxy]\nbypass = true\n")
        process.send_signal(signal.SIGHUP)
        until = time.monotonic() + 30
        while time.monotonic() < until and not ask_and_compare("bypassed"):
            time.sleep(0.05)
        assert states[-1] == (200, "bypassed")


@pytest.mark.long
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["people", "json"])
@pytest.mark.usefixtures("home")
def test_serve_survives_a_full_standard_output(form):
    """It serves all the same, prints its address on standard error, and ends in good order."""
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", *form]
    with (
        Path("/dev/full").open("w") as full,
        subprocess.Popen(words, stdout=full, stderr=subprocess.PIPE, text=True) as process,
    ):
        first_line = process.stderr.readline()
        assert "standard output cannot be written (no space left on device" in first_line
        url = first_line.removeprefix("holdfast: proxy at ").partition(";")[0]
        assert httpx2.get(f"{url}/livez", trust_env=False).json()["status"] == "ok"
        process.send_signal(signal.SIGTERM)
        _, error_output = process.communicate(timeout=30)
    assert (process.returncode, "stopped after 0 requests" in error_output, "Traceback" in error_output) == (
        0,
        True,
        False,
    )


@pytest.mark.long
@pytest.mark.usefixtures("home")
def test_serve_ends_when_its_terminal_is_closed():
    """Closing a terminal sends SIGHUP and makes output fail: no proxy is left running unseen."""
    ours, theirs = os.openpty()
    with serve_proxy("--observe", stderr=theirs) as (process, _):
        os.close(theirs)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        process.wait(30)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_ends_cleanly_on_sigint_and_sigterm(number):
    """^C and SIGTERM end it in good order."""
    with serve_proxy("--observe") as (process, greeting):
        assert greeting["mode"] == "observe"
        code, stats, err = end_proxy(process, number)
    assert (code, sum(stats["requests"]["all"].values()), err) == (0, 0, "")


@pytest.mark.long
def test_serve_ends_at_once_on_a_second_signal(home):
    """While an answer is in progress the first signal waits for it, the second does not."""
    with (
        serve_provider(Provider(ProviderSettings()), [parse_fault("stall:head:1:60")]) as url,
        serve_proxy("--upstream-anthropic", url) as (
            process,
            greeting,
        ),
    ):
        client = Thread(target=post_ignoring_errors, args=(f"{greeting['url']}/v1/messages",))
        client.start()
        while not httpx2.get(f"{greeting['url']}/stats", trust_env=False).json()["concurrent"]["now"]:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        while is_listening(greeting["url"]):
            time.sleep(0.05)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert "at once" in process.stderr.read()
        client.join(30)


def is_listening(url):
    """Return whether a server accepts connections at this URL."""
    with suppress(ConnectionRefusedError), socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)):
        return True
    return False


def post_ignoring_errors(url):
    """Send a request and ignore that no server answers."""
    with suppress(httpx2.HTTPError):
        httpx2.post(url, json=BODY, trust_env=False, timeout=60)


def test_serve_prints_address_upstreams_store_and_variables(home):
    """For people it prints the address, the upstreams, the store, the mode, and what to set."""
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--policy", "pi"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, err = process.stdout.read(), process.stderr.read()
    assert first.startswith("proxy at http://127.0.0.1:")
    assert "reducing by policy pi" in first
    for expected in (
        "https://api.anthropic.com",
        "https://api.openai.com/v1",
        "holdfast.db",
        "export ANTHROPIC_BASE_URL=",
    ):
        assert expected in rest
    assert err == "stopped after 0 requests\n"


@pytest.mark.long
def test_serve_on_all_interfaces_prints_the_host_name(home):
    """A proxy that listens on all interfaces names this machine, since 0.0.0.0 leads other machines nowhere."""
    anywhere = ("--host", "0.0.0.0", "--token", "a-token-of-the-house")
    with serve_proxy(*anywhere) as (_, greeting):
        base_url = f"http://{socket.gethostname()}:{urlsplit(greeting['url']).port}"
    assert greeting["url"].startswith("http://0.0.0.0:")
    assert greeting["environment"]["OPENAI_BASE_URL"] == f"{base_url}/v1"
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", *anywhere]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(12)]
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert not [line for line in lines[1:] if "0.0.0.0" in line]
    assert any(line.startswith(f"  export ANTHROPIC_BASE_URL=http://{socket.gethostname()}:") for line in lines)


def test_serve_takes_upstreams_from_sdk_variables(monkeypatch):
    """The SDKs' variables name the upstreams, and an option overrides them."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    with serve_proxy("--upstream-anthropic", "http://127.0.0.1:8") as (_, greeting):
        assert greeting["upstreams"]["openai"] == "http://127.0.0.1:9/v1"
        assert greeting["upstreams"]["anthropic"] == "http://127.0.0.1:8"


@pytest.mark.long
def test_serve_warns_when_an_upstream_is_another_proxy(run, monkeypatch):
    """Such a variable is meant for that proxy's clients, and everything would be recorded twice; a silent server delays
    nothing, and a bypassed proxy needs no warning.
    """
    with serve_proxy() as (_, other_proxy), socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", other_proxy["url"])
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
        with serve_proxy() as (process, proxy):
            warning = process.stderr.readline()
        doctor_checks, code = run_doctor(run)
        monkeypatch.setenv("HOLDFAST_BYPASS", "1")
        with serve_proxy() as (process, _):
            time.sleep(1)
            assert end_proxy(process)[2] == ""
    assert proxy["upstreams"]["anthropic"] == other_proxy["url"]
    assert warning.startswith(
        f"holdfast: upstream anthropic points at {other_proxy['url']}, a Holdfast proxy, mode manage, since "
    )
    assert warning.endswith("recorded and reduced twice; use that proxy, or give --upstream-anthropic\n")
    state, text = doctor_checks["upstream anthropic"]
    assert (state, code) == ("note", 1)  # the silent one is what is wrong
    assert text.startswith(f"holdfast serve would forward to {other_proxy['url']}, a Holdfast proxy")


@pytest.mark.parametrize(
    ("arguments", "expected"),
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
def test_serve_exits_2_on_wrong_use(run, arguments, expected):
    """Impossible settings are refused before anything is served, and a token is not printed."""
    result = run("serve", *arguments)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert "short" not in result.stderr


def test_serve_observe_reports_what_would_have_been_done(home):
    """A proxy that only observes reports at the end what it would have done."""
    provider = Provider(ProviderSettings())
    long = [{"role": "user", "content": "kelp wrack " * 9_000}]
    with (
        serve_provider(provider) as url,
        serve_proxy("--observe", "--window", "16000", "--upstream-anthropic", url) as (process, greeting),
    ):
        reply = httpx2.post(f"{greeting['url']}/v1/messages", json=BODY | {"messages": long}, trust_env=False)
        assert reply.headers["x-holdfast-state"] == "observed"
        _, stats, _ = end_proxy(process)
    assert (stats["foreseen"]["requests"], stats["foreseen"]["over_window"], stats["foreseen"]["window"]) == (
        1,
        1,
        16_000,
    )


@pytest.mark.long
def test_serve_reports_an_unwritable_store_and_serves(run, home):
    """The problem is printed at the start, and requests are forwarded unrecorded."""
    store_path = home / "file"
    store_path.write_text("words")
    with (
        serve_provider(Provider(ProviderSettings())) as url,
        serve_proxy("--store", str(store_path), "--upstream-anthropic", url) as (process, greeting),
    ):
        reply = httpx2.post(f"{greeting['url']}/v1/messages", json=BODY, headers={"x-api-key": "k"}, trust_env=False)
        assert (reply.status_code, reply.headers["x-holdfast-state"]) == (200, "unrecorded")
        code, stats, err = end_proxy(process)
    assert (code, stats["requests"]["all"]["unrecorded"]) == (0, 1)
    assert err.startswith(
        f"holdfast: requests are answered, but not recorded: {store_path} (5 bytes) is not a database"
    )


@pytest.mark.parametrize(
    ("store_path", "expected"), [("store", "is a folder"), ("file/holdfast.db", "is a file, not a folder")]
)
def test_serve_exits_2_for_an_impossible_store(run, home, store_path, expected):
    """A folder in place of the store, or a path below a file, can never be written, so no proxy starts."""
    (home / "store").mkdir()
    (home / "file").write_text("words")
    result = run("serve", "--port", "0", "--store", store_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.search(rf"^Error: .*{expected}; give a", result.stderr, re.MULTILINE)


def test_describe_recording_problem_reports_a_full_disk(tmp_path, monkeypatch):
    """A full disk is reported before the first request; enough space is not mentioned."""
    store_path = str(tmp_path / "kelp" / "holdfast.db")
    assert (describe_recording_problem(store_path), describe_recording_problem(":memory:")) == ("", "")
    monkeypatch.setattr(proxying, "MIN_FREE_BYTES", 1 << 80)
    assert re.match(
        r"requests are answered, but recording stops when the disk is full: only [\d,]+ bytes are free",
        describe_recording_problem(store_path),
    )
    assert describe_recording_problem(":memory:") == ""


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="no file system that has no room")
def test_describe_low_disk_checks_the_nearest_existing_folder():
    """Free space is measured where the store will be created."""
    assert describe_low_disk(Path("/proc/kelp/holdfast.db"), 1).startswith(
        "only 0 bytes are free on the store's disk; "
    )


def test_serve_exits_2_when_its_port_is_in_use(run):
    """A port in use is named."""
    with serve_provider(Provider(ProviderSettings())) as url:
        port = url.rpartition(":")[2]
        result = run("serve", "--port", port)
    assert result.exit_code == 2
    assert f"port {port} is in use" in result.stderr


# -- holdfast doctor ---------------------------------------------------------------------------------------------------


def run_doctor(run, *arguments):
    """Return state and text of each check by its subject, and the exit code."""
    result = run("doctor", "--json", *arguments)
    return {
        check["subject"]: (check["state"], check["text"]) for check in json.loads(result.stdout)["checks"]
    }, result.exit_code


def test_doctor_finds_the_proxy_a_variable_points_at(run, monkeypatch):
    """A variable that points at a proxy is ok; one that points at another local server says so."""
    with serve_proxy() as (_, greeting), serve_provider(Provider(ProviderSettings())) as other_url:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", greeting["url"])
        monkeypatch.setenv("OPENAI_BASE_URL", f"{other_url}/v1")
        doctor_checks, code = run_doctor(run)
    assert doctor_checks["ANTHROPIC_BASE_URL"][0] == doctor_checks["OPENAI_BASE_URL"][0] == "ok"
    assert "a Holdfast proxy" in doctor_checks["ANTHROPIC_BASE_URL"][1]
    assert "not a Holdfast proxy" in doctor_checks["OPENAI_BASE_URL"][1]
    assert doctor_checks["proxy"][1].startswith(f"{greeting['url']}: a Holdfast proxy, mode manage")
    assert doctor_checks["proxy"][1].endswith("pointed at it: ANTHROPIC_BASE_URL")
    assert code == 0


@pytest.mark.long
def test_doctor_notes_settings_the_proxy_cannot_follow(run, monkeypatch):
    """A setting that the proxy cannot follow is a note, not a fault."""
    login = {"authorization": "Bearer sk-ant-oat01-kelp"}
    with (
        serve_provider(Provider(ProviderSettings())) as url,
        serve_proxy("--upstream-anthropic", url, "--summaries", "claude-haiku-4-5") as (_, greeting),
    ):
        httpx2.post(f"{greeting['url']}/v1/messages", json=BODY, headers=login, trust_env=False)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", greeting["url"])
        doctor_checks, code = run_doctor(run)
    assert (doctor_checks["proxy"][0], code) == ("note", 0)
    assert "summaries are made without a model" in doctor_checks["proxy"][1]


def test_load_settings_ignores_variables_that_point_at_a_proxy(monkeypatch):
    """Doctor does not take a running proxy, on whatever port, for the upstream of the next one."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:4141")
    assert _load_settings([]).anthropic == "http://127.0.0.1:4141"
    assert _load_settings(["ANTHROPIC_BASE_URL"]).anthropic == PROVIDERS["anthropic"].base_url


def test_doctor_finds_a_proxy_without_clients(run, home):
    """It checks the configured address; if no proxy runs there, it says what one would do."""
    proxy_check = run_doctor(run)[0]["proxy"]
    assert proxy_check[0] == "ok"
    assert proxy_check[1].startswith(
        "no proxy runs at http://127.0.0.1:8642; holdfast serve would be reducing by policy holdfast"
    )
    with serve_proxy("--observe") as (_, greeting):
        (home / "holdfast.toml").write_text(f"[proxy]\nport = {greeting['url'].rpartition(':')[2]}\n")
        state, text = run_doctor(run)[0]["proxy"]
    assert state == "ok"
    assert text.startswith(f"{greeting['url']}: a Holdfast proxy, mode observe")
    assert "no client is pointed at it" in text


def test_doctor_reports_a_variable_that_points_nowhere(run, home, monkeypatch):
    """A variable without a server is wrong; a server in a client's own list may be off."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    (home / ".pi" / "agent").mkdir(parents=True)
    listed = {"providers": {"mine": {"baseUrl": "http://127.0.0.1:9/v1"}}}
    (home / ".pi" / "agent" / "models.json").write_text(json.dumps(listed))
    doctor_checks, code = run_doctor(run)
    assert doctor_checks["ANTHROPIC_BASE_URL"][0] == "wrong"
    assert "serve --port 9" in doctor_checks["ANTHROPIC_BASE_URL"][1]
    assert doctor_checks["pi: mine"][0] == "note"
    assert "models.json" in doctor_checks["pi: mine"][1]
    assert code == 1


def test_doctor_contacts_remote_servers_only_with_online(run, monkeypatch):
    """Servers on other machines are contacted only with --online; without any variable the clients are ok."""
    assert run_doctor(run)[0]["clients"][0] == "ok"
    monkeypatch.setenv("OPENAI_BASE_URL", "https://gateway.invalid/v1")
    doctor_checks, _ = run_doctor(run)
    assert doctor_checks["OPENAI_BASE_URL"][0] == "ok"
    assert "--online" in doctor_checks["OPENAI_BASE_URL"][1]
    assert "openai https://gateway.invalid/v1" in doctor_checks["proxy"][1]
    assert run_doctor(run, "--online")[0]["OPENAI_BASE_URL"][0] == "wrong"


def test_find_embedded_upstreams_lists_each_server_once():
    """The server in the path of a proxied address is listed once, under the variable that named it first."""
    urls = {"ONE": "/u/http://127.0.0.1:9/v1", "TWO": "/v1", "THREE": "/u/http%3A//127.0.0.1:9", "FOUR": ""}
    every = [ClientUrl(name, f"http://127.0.0.1:8642{path}") for name, path in urls.items()]
    assert find_embedded_upstreams([*every, ClientUrl("FIVE", "nowhere")]) == {"ONE": "http://127.0.0.1:9"}


def test_doctor_online_checks_upstreams_embedded_in_addresses(run, monkeypatch):
    """With ``--online`` an embedded upstream is checked like a configured one."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/u/http://127.0.0.1:8/v1")
    assert "no server answers" in run_doctor(run, "--online")[0]["upstream OPENAI_BASE_URL"][1]


@pytest.mark.parametrize("setting", ["token", "window"])
def test_doctor_reports_proxy_settings_that_cannot_be(run, home, monkeypatch, setting):
    """If the proxy could not start, doctor says why."""
    if setting == "token":
        monkeypatch.setenv("HOLDFAST_TOKEN", "short")
    else:
        (home / "holdfast.toml").write_text("[proxy]\nwindow = 10\n")
    doctor_checks, code = run_doctor(run)
    assert doctor_checks["proxy"][0] == "wrong"
    assert code == 1


def test_changed_fields_are_told_by_serve_show_why_and_stats(home, run):
    """An option that the provider is known to refuse and a field that the server refused are each told once, with the
    rule, the place and what was done, and the commands tell it from the log.
    """
    (home / "holdfast.toml").write_text('[[model]]\nmatch = "house*"\nprovider = "qwen"\nwindow = 64000\n')
    faults = (FieldFault("refuses", "metadata"), FieldFault("refuses", "messages.*.name", "groq", "user"))
    provider = Provider(ProviderSettings(tokenizer="words", field_faults=faults))
    first = {"role": "user", "content": "hi there", "name": "ann"}
    body = {"model": "house-model", "temperature": 3, "metadata": {}, "messages": [first]}
    with serve_provider(provider) as url, serve_proxy("--upstream-openai", f"{url}/v1") as (process, greeting):
        for _ in range(2):
            reply = httpx2.post(f"{greeting['url']}/v1/chat/completions", json=body, trust_env=False)
            assert reply.status_code == 200, reply.text
            body["messages"] += [reply.json()["choices"][0]["message"], {"role": "user", "content": "more"}]
        code, stats, err = end_proxy(process)
    assert (code, stats["changed_fields"]) == (0, 3)
    rule = "qwen.field-range"
    lines = err.splitlines()
    assert len(lines) == 3
    known, *taught = lines
    assert "$.temperature: " in known
    assert "1.99" in known
    assert f"({rule})" in known
    for line, place in zip(taught, ("`metadata`", "`messages[].name`"), strict=True):
        assert f"{place} is left out in requests for house-model to" in line
        assert "change the client's settings" in line

    session = json.loads(run("ls", "--json").stdout)[0]["key"]
    figures = json.loads(run("stats", session, "--json").stdout)["changed_fields"]
    assert [(change["rule"], change["path"]) for change in figures] == [
        (rule, "$.temperature"),
        ("field", "metadata"),
        ("field", "messages[].name"),
    ]
    assert all(change["since"] and change["model"] == "house-model" for change in figures)
    assert "server" not in figures[0]
    assert "127.0.0.1" in figures[1]["server"]
    everything = json.loads(run("stats", "--json").stdout)["all"]["changed_fields"]
    assert everything == figures
    request = next(
        line["id"] for line in json.loads(run("show", session, "--all", "--json").stdout) if line["kind"] == "request"
    )
    assert json.loads(run("why", request, "--json").stdout)["changed_fields"] == figures
    assert json.loads(run("why", session, "0", "--json").stdout)["changed_fields"] == figures[2:]
    assert json.loads(run("why", session, "1", "--json").stdout)["changed_fields"] == []
    for words in (("stats", session), ("stats",), ("why", request)):
        text = " ".join(run(*words).stdout.split())
        assert "3 fields changed because the provider refuses what the client sends:" in text
        for told in (f"$.temperature ({rule}): ", "`metadata` is left out:", "refused it; house-model, since"):
            assert told in text
    text = " ".join(run("show", session).stdout.split())
    for told in (f"$.temperature ({rule}): ", "`metadata` is left out: http", "`messages[].name` is left out: http"):
        assert text.count(told) == 1
    notes = [line["text"] for line in json.loads(run("show", session, "--json").stdout) if line["kind"] == "note"]
    assert notes[-1].endswith("refused it")
    assert not any("{" in note for note in notes)
