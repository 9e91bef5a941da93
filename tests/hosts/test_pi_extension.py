"""The extension in the real pi: sessions that outgrow their window, compactions, branches and failures, all offline."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import example_counts
import pytest
from pi_session import EXTENSION, NO_SERVER, PiHome, run_provider, run_serve

from holdfast.planning.extract.previous_summary import EXTRACT_OPENING

ROOT = Path(__file__).parents[2]
WINDOW = 60_000
STEPS = 30
"""Steps of about 3,100 tokens: together one and a half windows."""
DOT_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.mark.skipif(not EXTENSION.exists(), reason="these tests also run beside an installed wheel")
def test_extension_files_say_what_pi_wants():
    """A manifest that names the extension, the licence of the repository, and the version of the package."""
    manifest = json.loads((EXTENSION / "package.json").read_text("utf-8"))
    for path in manifest["pi"]["extensions"]:
        assert (EXTENSION / path).is_file()
    assert "pi-package" in manifest["keywords"]
    assert "dependencies" not in manifest
    assert f'version = "{manifest["version"]}"' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert (EXTENSION / "LICENSE").read_text("utf-8") == (ROOT / "LICENSE").read_text("utf-8")


@pytest.mark.skipif(not EXTENSION.exists(), reason="these tests also run beside an installed wheel")
def test_tests_of_the_extension_pass():
    """``node --test``: what is handed over, how answers are applied, and every way to fail open."""
    node = shutil.which("node")
    if node is None:
        if example_counts.IS_THOROUGH:
            pytest.fail("there is no node to run the extension's tests")
        pytest.skip("there is no node to run the extension's tests")
    ran = subprocess.run([node, "--test"], cwd=EXTENSION, capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.fixture
def provider():
    """Start the strict provider with a small window."""
    with run_provider(WINDOW) as running:
        yield running


@pytest.fixture
def home(pi, tmp_path, provider):
    """Return a home for pi that knows the provider."""
    return PiHome(pi, tmp_path / "home", provider.url, WINDOW)


@pytest.fixture
def server(tmp_path):
    """Start ``holdfast serve`` and return its address."""
    with run_serve(tmp_path) as (url, _):
        yield url


def find_cache_breaks(requests):
    """Return the indexes of the requests that do not extend the one before them, by what the provider had cached."""
    return [index for index, (before, after) in enumerate(pairwise(requests), 1) if after["cached"] < before["tokens"]]


def test_pi_installs_the_extension(home):
    """``pi install FOLDER`` makes the command and the tool part of every session."""
    ran = home.run(command=[str(home.pi), "install", str(EXTENSION)])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    with home.open(extension=None) as session:
        commands = session.ask(type="get_commands")["commands"]
        session.prompt("Which tools are there?")
    assert any(command["name"] == "holdfast" for command in commands)


@pytest.mark.long
def test_a_session_outgrows_its_window_and_is_resumed(home, tmp_path, provider):
    """No request is refused, none is a summary's, and each extends the last but after a compaction, also with pi and
    the server started anew.
    """
    with run_serve(tmp_path) as (url, _), home.open(server_url=url) as session:
        for step in range(STEPS):
            session.work(step)
        compactions = sum("compacted the next request" in notice for notice in session.notices)
        assert compactions >= 1
        assert session.compactions == []
        assert "tokens sent" in session.status
        session.ask(type="compact", customInstructions="mind the ticket HF-2291")
        assert [one["reason"] for one in session.compactions] == ["manual"]
        summary = session.compactions[0]["result"]["summary"]
        assert summary.startswith(EXTRACT_OPENING)
        assert "never rename file_3.py" in summary
        assert "HF-2291" in summary
        session.prompt("/holdfast")
        assert "/compact would leave" in session.notices[-1]
        session.work("after")
    with run_serve(tmp_path) as (url, _), home.open("-c", server_url=url) as session:
        session.work("resumed")
        assert session.notices == []
    requests = provider.stop()
    assert {request["status"] for request in requests} == {200}
    assert len(requests) == 2 * (STEPS + 2)
    # One break for each compaction of a request, and one for the manual one; none for the resumed session.
    assert len(find_cache_breaks(requests)) == compactions + 1


@pytest.mark.long
def test_without_the_extension_the_same_session_needs_more(home, provider):
    """The comparison: pi asks the model for summaries, or is refused where it counts fewer tokens than the provider."""
    with home.open(extension=None) as session:
        for step in range(STEPS):
            session.work(step)
        assert len(session.compactions) >= 1
    requests = provider.stop()
    refused = [request for request in requests if request["status"] != 200]
    assert refused or len(requests) > 2 * STEPS


@pytest.mark.long
def test_chat_completions_are_kept_in_the_window_too(home, server, provider):
    """The extension works on pi's messages, so it does not matter which API they are sent by."""
    with home.open(server_url=server, provider="chat") as session:
        for step in range(STEPS):
            session.work(step)
        assert any("compacted the next request" in notice for notice in session.notices)
    requests = provider.stop()
    assert {request["status"] for request in requests} == {200}
    assert len(requests) == 2 * STEPS


@pytest.mark.long
def test_signed_thinking_and_pictures_stay_with_their_messages(home, server, provider):
    """Both go back as they came; the provider would refuse thinking that was changed."""
    (home.work / "dot.png").write_bytes(DOT_PNG)
    with home.open("--thinking", "high", server_url=server, provider="anthropic") as session:
        for step in range(STEPS // 2):
            session.work(step)
            session.prompt(f"Step {step} again.\ncall read {json.dumps({'path': 'dot.png'})}")
        assert any("compacted the next request" in notice for notice in session.notices)
        blocks = {
            block["type"]
            for entry in session.ask(type="get_entries")["entries"]
            if entry["type"] == "message" and isinstance(entry["message"]["content"], list)
            for block in entry["message"]["content"]
        }
    assert {"thinking", "image"} <= blocks
    assert {request["status"] for request in provider.stop()} == {200}


def test_the_model_reads_back_what_was_left_out(home, server):
    """The tool recall finds what the extract and the kept messages do not have."""
    with home.open(server_url=server) as session:
        session.work("one", lines=1_000)
        for step in range(8):
            session.work(step)
        session.ask(type="compact")
        session.prompt('call recall {"search": "\\"step one line 77\\""}')
        results = [
            entry["message"]
            for entry in session.ask(type="get_entries")["entries"]
            if entry["type"] == "message" and entry["message"]["role"] == "toolResult"
        ]
    assert results[-1]["toolName"] == "recall"
    assert "step one line 77" in results[-1]["content"][0]["text"].replace("«", "").replace("»", "")


def test_branches_of_one_session_are_planned_each_for_itself(home, server, provider):
    """Back in the tree, on, and back again: each branch sends its own messages, and the prefix of both stays cached."""
    with home.open(server_url=server) as session:
        for step in range(3):
            session.work(step, lines=60)
        entries = session.ask(type="get_entries")["entries"]
        second = [entry["id"] for entry in entries if entry.get("message", {}).get("role") == "user"][2]
        leaf = session.ask(type="get_tree")["leafId"]
        session.prompt(f"/go-to {second}")
        session.work("elsewhere", lines=60)
        session.prompt(f"/go-to {leaf}")
        session.work("back", lines=60)
        assert session.notices == []
    requests = provider.stop()
    assert {request["status"] for request in requests} == {200}
    assert len(requests) == 10
    elsewhere, back = requests[6], requests[8]
    assert elsewhere["cached"] == requests[3]["tokens"]
    assert back["cached"] == requests[5]["tokens"]
    assert back["tokens"] > elsewhere["tokens"]


@pytest.mark.long
def test_a_fork_of_a_long_session_fits(home, server, provider):
    """A fork has another session id, with a history that was never planned under it."""
    with home.open(server_url=server) as session:
        for step in range(STEPS):
            session.work(step)
        session.ask(type="clone")
        session.work("forked")
        session.work("forked again")
    assert {request["status"] for request in provider.stop()} == {200}


def test_results_beyond_pis_threshold_get_an_extract_of_ours(home, server, provider):
    """pi compacts before the extension is asked for the next request; it takes our extract, and calls no model."""
    large = "call bash " + json.dumps({"command": "yes 'the tide is low and the water is cold' | head -n 1200"})
    with home.open(server_url=server) as session:
        for step in range(6):
            session.work(step)
        session.prompt(f"{large}\n{large}\n{large}")
        assert [one["reason"] for one in session.compactions] == ["threshold"]
        assert session.compactions[0]["result"]["summary"].startswith(EXTRACT_OPENING)
    requests = provider.stop()
    assert {request["status"] for request in requests} == {200}
    assert len(requests) == 14


def test_unread_results_larger_than_the_window_are_shortened(home, server, provider):
    """No compaction can help there, since pi keeps what is unread whole; the plan shows previews."""
    scripts = [f"for i in $(seq 1 1990); do echo part {part} line $i $((i*7919%1009)) ms; done" for part in range(4)]
    calls = [f"call bash {json.dumps({'command': script})}" for script in scripts]
    with home.open(server_url=server) as session:
        session.work("first")
        session.prompt("Look at all of them:\n" + "\n".join(calls))
        assert [one["result"] for one in session.compactions if "result" in one] == []
        assert session.get_last_text().startswith("ok")
        session.work("after")
    requests = provider.stop()
    assert {request["status"] for request in requests} == {200}
    assert len(requests) == 6


@pytest.mark.parametrize("provider_name", ["strict", "chat"])
@pytest.mark.parametrize("window", [12_000, 24_000])
def test_a_window_smaller_than_pi_believes(pi, tmp_path, server, window, provider_name):
    """The provider refuses one request. From then on requests stay below its size, whatever pi's catalog says."""
    with run_provider(window) as provider:
        home = PiHome(pi, tmp_path / "home", provider.url, 200_000)
        with home.open(server_url=server, provider=provider_name) as session:
            for step in range(16):
                session.work(step)
            assert session.get_last_text().startswith("ok")
        refused = [request for request in provider.stop() if request["status"] != 200]
        assert len(refused) == 1


def test_an_overflow_that_pi_recognizes_is_done_again_with_our_extract(pi, tmp_path, server):
    """pi compacts, takes the extract, and sends the turn again; the plan after that does not compact once more."""
    with run_provider(40_000) as provider:
        home = PiHome(pi, tmp_path / "home", provider.url, 200_000)
        with home.open(server_url=server, provider="chat") as session:
            for step in range(15):
                session.work(step)
            assert [one["reason"] for one in session.compactions] == ["overflow"]
            assert session.compactions[0]["result"]["summary"].startswith(EXTRACT_OPENING)
            assert not any("compacted the next request" in notice for notice in session.notices)
        refused = [request for request in provider.stop() if request["status"] != 200]
        assert len(refused) == 1


@pytest.mark.long
def test_a_server_that_dies_leaves_a_session_that_goes_on(home, tmp_path, provider):
    """The newest plan holds; then pi compacts by itself. One line says why."""
    with run_serve(tmp_path) as (url, process), home.open(server_url=url) as session:
        for step in range(STEPS):
            session.work(step)
        process.kill()
        process.wait()
        before = len(session.notices)
        for step in range(STEPS):
            session.work(f"alone {step}")
        later = session.notices[before:]
        assert session.get_last_text().startswith("ok")
    assert len([notice for notice in later if "did not plan" in notice]) == 1
    assert len([notice for notice in later if "did not compact" in notice]) <= 1
    assert all("start `holdfast serve`" in notice for notice in later)
    refused = [request for request in provider.stop() if request["status"] != 200]
    assert refused == []


def test_print_mode_without_a_server(home, provider):
    """The answer is all that is printed; why Holdfast is not there goes to standard error, once."""
    ran = home.run("-e", EXTENSION, "-p", 'call bash {"command": "echo hi"}')
    assert ran.returncode == 0
    assert ran.stdout.strip() == "ok 2"
    lines = [line for line in ran.stderr.splitlines() if "Holdfast" in line]
    assert len(lines) == 1
    assert NO_SERVER in lines[0]
    assert len(provider.stop()) == 2
