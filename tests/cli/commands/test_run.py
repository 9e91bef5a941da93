"""``holdfast run``: a client is led to the proxy, has the terminal to itself, and ends as it would without."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import example_counts
import pytest
from msgspec.structs import replace

from holdfast.cli.clients.shared_proxy import describe_shared_run, fetch_proxy_stats
from holdfast.cli.proxy_options import summarize_run
from holdfast.config.providers import ADDRESS_VARIABLES
from holdfast.errors import FormatError
from holdfast.proxy.metrics.health import Health
from holdfast.store.open_store import open_store
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.server.local_server import serve_provider

CLIENT = """
import json, os, sys, urllib.request
body = {"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}
headers = {"content-type": "application/json", "x-api-key": "secret-key", "anthropic-version": "2023-06-01"}
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
    told = json.load(answer)["content"][0]["text"]
    print(told, answer.headers["x-holdfast-state"], len(sys.argv))
"""
"""A client that sends one request and prints the answer, Holdfast's state header, and its number of arguments."""


@pytest.fixture(autouse=True)
def programs(home, monkeypatch):
    """Return a folder in PATH for a test's programs; no address variable is set."""
    folder = home / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    for name in (
        *ADDRESS_VARIABLES,
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
        "CODEX_API_KEY",
        "LLM_USER_PATH",
    ):
        monkeypatch.delenv(name, raising=False)
    return folder


def write_program(folder, name, text):
    """Write an executable Python program called ``name``."""
    path = Path(folder) / name
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{text}\n")
    path.chmod(0o755)
    return path


@contextmanager
def serve_strict_provider(monkeypatch, **limits):
    """Yield a strict provider, with ANTHROPIC_BASE_URL set to its address."""
    strict_provider = Provider(ProviderSettings(**limits))
    with serve_provider(strict_provider) as url:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        yield strict_provider


def start_run(*arguments):
    """Return ``holdfast run`` with ``arguments`` as a separate process."""
    words = [sys.executable, "-m", "holdfast", "run", *map(str, arguments)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_run_serves_a_client_and_prints_one_line(run, home, monkeypatch, programs):
    """The client reaches its own upstream through the proxy, only its output is printed, and one line sums it up."""
    write_program(programs, "mine", CLIENT)
    with serve_strict_provider(monkeypatch) as upstream, start_run("mine", "--json", "-p") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "ok 1 managed 3\n"), err
    last_line = re.fullmatch(r"holdfast: 1 request · holdfast show (\S+)\n", err)
    assert last_line, err
    assert len(upstream.requests) == 1
    session_text = run("show", last_line[1])
    assert "hello" in session_text.output
    assert "ok 1" in session_text.output
    assert b"secret-key" not in b"".join(path.read_bytes() for path in (home / "store").rglob("*") if path.is_file())


def test_run_observe_forwards_and_records(run, home, monkeypatch, programs):
    """With --observe the request is forwarded unchanged and recorded; with --json the end is one object."""
    write_program(programs, "mine", CLIENT.replace("    print(", "    str(told) or print("))
    with serve_strict_provider(monkeypatch):
        result = run("run", "--observe", "--json", "--", "mine")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stderr)
    assert (report["exit"], report["stats"]["requests"]["all"]["observed"]) == (0, 1)
    with open_store(home / "store" / "holdfast.db") as store:
        assert [info.key.startswith(report["sessions"][0]) for info in store.list_sessions()] == [True]


@pytest.mark.long
def test_run_names_only_its_own_sessions(run, home, monkeypatch, programs):
    """The last line names sessions of this proxy, whatever else is written to the store meanwhile."""
    write_program(programs, "his", CLIENT.replace("hello", "good morning"))
    with serve_strict_provider(monkeypatch):
        own = dict.fromkeys(ADDRESS_VARIABLES, "") | {"ANTHROPIC_BASE_URL": os.environ["ANTHROPIC_BASE_URL"]}
        run_other_client = (
            "import subprocess\nsubprocess.run([sys.executable, '-m', 'holdfast', 'run', 'his'], env=os.environ | %r)"
        )
        write_program(programs, "mine", f"{CLIENT}\n{run_other_client % own}")
        with start_run("mine") as process:
            _, err = process.communicate(timeout=60)
    his, mine = (line.rpartition(" ")[2] for line in err.splitlines())
    assert "good morning" in run("show", his).output
    assert "hello" in run("show", mine).output


def test_run_observe_reports_what_would_have_been_done(run, home, monkeypatch, programs):
    """The last line says what the policy would have done and which requests were over the window; it counts whole
    sessions, and says so if they are older than this run.
    """
    write_program(
        programs,
        "mine",
        CLIENT.replace('"hello"', '"kelp wrack " * 9_000').replace("    print(", "    str(told) or print("),
    )
    with serve_strict_provider(monkeypatch):
        first_run, second_run = (run("run", "--observe", "--window", "16000", "--", "mine").stderr for _ in range(2))
    assert "1 request · nothing was changed · 1 request over the window of 16,000; policy holdfast would" in first_run
    assert "1 request · nothing was changed · including earlier runs: 2 requests over the window" in second_run


def test_summarize_run_counts_only_this_runs_reductions():
    """The last line counts each decision once, in the run that made it; ``stats`` has the total."""
    stats = Health().build_stats()
    assert summarize_run(stats, None) == []
    assert summarize_run(stats | {"tokens_saved": 418_220}, None) == ["newly reduced by ~418,220 tokens"]


@pytest.mark.long
def test_run_reports_changed_behaviour_after_the_client(run, monkeypatch, programs):
    """A setting that cannot be followed is reported at the end, since nothing is printed while the client runs."""
    write_program(
        programs, "mine", CLIENT.replace('"x-api-key": "secret-key"', '"authorization": "Bearer sk-ant-oat01-kelp"')
    )
    with serve_strict_provider(monkeypatch), start_run("--summaries", "claude-haiku-4-5", "mine") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "ok 1 managed 1\n"), err
    assert err.startswith("holdfast: summaries are made without a model: a subscription login is only for the client")
    assert err.count("\n") == 2


@pytest.mark.long
def test_run_serves_the_client_without_a_writable_store(run, home, monkeypatch, programs):
    """The problem is reported before the client starts, and its requests are forwarded unrecorded."""
    write_program(programs, "mine", CLIENT)
    store_path = home / "file"
    store_path.write_text("words")
    with serve_strict_provider(monkeypatch), start_run("--store", store_path, "mine") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "ok 1 unrecorded 1\n")
    assert err.startswith(
        f"holdfast: requests are answered, but not recorded: {store_path} (5 bytes) is not a database"
    )
    assert err.endswith("holdfast: 1 request · 1 unrecorded\n")


def test_run_exits_2_for_an_unusable_store(run, home, programs):
    """An unsupported or impossible store is wrong use, and the client does not start."""
    write_program(programs, "mine", "open('ran', 'w')")
    result = run("run", "--store", "mysql://x", "--", "mine")
    assert (result.exit_code, (home / "ran").exists()) == (2, False)
    assert result.stderr.startswith("Error: stores at mysql:// are not there yet;")
    result = run("run", "--store", home, "--", "mine")
    assert (result.exit_code, (home / "ran").exists()) == (2, False)
    assert result.stderr.startswith(f"Error: {home} is a folder; give a file's path")


def test_run_reports_a_bypass_and_its_cause(run, home, monkeypatch, programs):
    """A bypassed proxy says so first and last, and what switched it on; a GET for models counts as no request."""
    models_request = "import urllib.request\nat = os.environ['ANTHROPIC_BASE_URL']\n"
    models_request += "urllib.request.urlopen(urllib.request.Request(at + '/v1/models', method='GET')).read()\n"
    write_program(programs, "mine", models_request + CLIENT.replace("    print(", "    str(told) or print("))
    (home / "store").mkdir()
    (home / "store" / "bypass").touch()
    with serve_strict_provider(monkeypatch):
        result = run("run", "--", "mine")
        (home / "store" / "bypass").unlink()
        monkeypatch.setenv("HOLDFAST_BYPASS", "1")
        by_variable = run("run", "--", "mine").stderr
    relay = "a plain relay that records nothing\nholdfast: 1 request · 1 bypassed\n"
    assert result.stderr == f"holdfast: bypassed, by the file {home / 'store' / 'bypass'}: {relay}"
    assert by_variable == f"holdfast: bypassed, by HOLDFAST_BYPASS, or bypass in holdfast.toml: {relay}"


def test_run_counts_failed_requests(run, monkeypatch, programs):
    """A request that no provider answered is counted at the end."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    write_program(programs, "mine", f"try:\n{textwrap.indent(CLIENT, '    ')}\nexcept OSError:\n    pass\n")
    assert "holdfast: 1 request · 1 failed" in run("run", "--", "mine").stderr


@pytest.mark.long
def test_run_uses_a_proxy_that_runs_already(run, monkeypatch, programs):
    """A client whose variable points at a proxy is started with that one, and the message says so."""
    write_program(programs, "mine", "print(os.environ['ANTHROPIC_BASE_URL'])\nsys.exit(7)")
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as serve:
        try:
            url = json.loads(serve.stdout.readline())["url"]
            monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
            with start_run("mine") as process:
                out, err = process.communicate(timeout=60)
            refused = run("run", "--observe", "--", "mine")
        finally:
            serve.kill()
    assert (process.returncode, out) == (7, f"{url}\n")
    assert err.startswith(f"holdfast: ANTHROPIC_BASE_URL points at {url}, a Holdfast proxy, mode manage, ")
    first, last = err.splitlines()
    assert first.endswith("mine uses it, and no second proxy is started")
    assert last == f"holdfast: no request reached {url} while mine ran; docs/clients.md explains how to point it there"
    assert refused.exit_code == 2
    assert "options of holdfast run do not apply" in refused.stderr


@contextmanager
def serve_in_process(monkeypatch, *options):
    """Yield a running ``holdfast serve`` and its address, with ANTHROPIC_BASE_URL set to it."""
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--json", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as serve:
        try:
            url = json.loads(serve.stdout.readline())["url"]
            monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
            yield serve, url
        finally:
            serve.kill()


@pytest.mark.long
@pytest.mark.parametrize(("option", "said"), [("--manage", ""), ("--observe", "nothing was changed · ")])
def test_run_ends_with_the_counts_of_a_proxy_that_ran_before(run, monkeypatch, programs, option, said):
    """The last line has what was counted while the client ran, says whose counts they are, and where to see more."""
    write_program(programs, "mine", CLIENT)
    with (
        serve_strict_provider(monkeypatch),
        serve_in_process(monkeypatch, option, "--upstream-anthropic", os.environ["ANTHROPIC_BASE_URL"]) as (_, url),
    ):
        first = run("run", "--", "mine").stderr.splitlines()
        write_program(programs, "mine", f"{CLIENT}\ndel answer\n{CLIENT}")
        second = run("run", "--", "mine").stderr.splitlines()
    shared = f"while mine ran · {said}counted for all clients of that proxy together · holdfast watch --url {url}"
    assert first[1:] == [f"holdfast: 1 request reached {url} {shared}"]
    assert second[1:] == [f"holdfast: 2 requests reached {url} {shared}"]


@pytest.mark.long
def test_run_says_that_the_counts_of_a_stopped_proxy_are_not_known(run, monkeypatch, programs):
    """If the proxy ends while the client runs, the last line says so, and the exit code is the client's."""
    with serve_in_process(monkeypatch) as (serve, url):
        write_program(programs, "mine", f"import time\nos.kill({serve.pid}, 9)\ntime.sleep(0.5)\nsys.exit(7)")
        result = run("run", "--", "mine")
    assert result.exit_code == 7
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"holdfast: what {url} did for mine is not known: it does not answer any more (")


@pytest.mark.long
def test_counts_are_not_compared_with_those_of_another_start(monkeypatch):
    """A proxy that was started anew, or gives no counts, is said to be unknown: no number is guessed."""
    with serve_strict_provider(monkeypatch), serve_in_process(monkeypatch) as (_, url):
        now = fetch_proxy_stats(url)
        assert describe_shared_run("mine", url, "", now).startswith(f"no request reached {url}")
        older = FormatError("its counts are of another version")
        assert describe_shared_run("mine", url, "", older) == f"what {url} did for mine is not known: {older}"
        earlier = replace(now, since="2026-01-01T00:00:00Z")
        assert describe_shared_run("mine", url, "", earlier).endswith(f"it was started anew meanwhile, at {now.since}")
    with serve_provider(Provider(ProviderSettings())) as other, pytest.raises(FormatError, match="answered 404"):
        fetch_proxy_stats(other)


@pytest.mark.long
def test_run_sends_the_token_of_a_running_proxy(run, home, monkeypatch, programs):
    """With its token a client can use a running proxy; with a missing or wrong token the message says what to set."""
    write_program(programs, "claude", "print(os.environ['ANTHROPIC_CUSTOM_HEADERS'])")
    write_program(programs, "mine", "pass")
    monkeypatch.setenv("HOLDFAST_TOKEN", "a-token-of-sixteen-signs")
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as serve:
        try:
            url = json.loads(serve.stdout.readline())["url"]
            monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
            monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "x-mine: 1")
            with start_run("claude") as process:
                out, err = process.communicate(timeout=60)
            expected = run("run", "--", "mine").stderr
            checks = run("doctor").stdout
            monkeypatch.setenv("HOLDFAST_TOKEN", "another-token-than-that")
            closed, wrong = run("run", "--", "mine"), run("doctor")
            monkeypatch.delenv("HOLDFAST_TOKEN")
            unknown = run("run", "--", "mine")
            note = run("doctor").stdout
        finally:
            serve.kill()
    assert (process.returncode, out) == (0, "x-mine: 1\nx-holdfast-token: a-token-of-sixteen-signs\n")
    assert err.startswith(f"holdfast: ANTHROPIC_BASE_URL points at {url}, a Holdfast proxy, mode manage, ")
    assert "mine must send it in the header x-holdfast-token" in expected
    for refused, expected in ((closed, "token, and got a different one"), (unknown, "token")):
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
        assert (
            f"a Holdfast proxy that requires its {expected}; set HOLDFAST_TOKEN to it, so that mine can use it"
            in refused.stderr
        )
    assert (wrong.exit_code, "requires its token, and got a different one" in " ".join(wrong.stdout.split())) == (
        1,
        True,
    )
    assert "a Holdfast proxy, mode manage" in " ".join(checks.split())
    assert "a Holdfast proxy that requires its token" in " ".join(note.split())


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("", 0)])
def test_run_exits_with_the_clients_code(run, programs, ends, code):
    """The exit code is the client's, or 128 + n for signal n; a client that sent no request is reported."""
    write_program(programs, "mine", ends)
    result = run("run", "--", "mine")
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1)
    assert "the proxy received no request" in result.stderr


@pytest.mark.long
@pytest.mark.parametrize("destination", ["full", "closed", "gone"])
@pytest.mark.parametrize("form", example_counts.mark_rest_long([(), ("--json",)], keep=1), ids=["people", "json"])
def test_run_exits_with_the_clients_code_without_standard_error(programs, monkeypatch, destination, form):
    """Messages that cannot be written do not change the exit code."""
    write_program(programs, "claude", "sys.exit(7)")
    monkeypatch.setenv("CLAUDE_CODE_USE_VERTEX", "1")  # that is said before
    words = [sys.executable, "-m", "holdfast", "run", *form, "--", "claude"]
    if destination == "closed":
        words = ["sh", "-c", 'exec "$@" 2>&-', "sh", *words]
    ours, theirs = os.pipe()
    os.close(ours)  # nobody reads
    with os.fdopen(theirs, "wb") as closed_pipe, Path("/dev/full").open("wb") as full:
        assert subprocess.run(words, check=False, stderr=full if destination == "full" else closed_pipe).returncode == 7


def test_run_exits_127_or_126_for_a_client_that_cannot_start(run, programs):
    """A missing program and a file that is no program give the codes of a shell, and advice."""
    result = run("run", "--", "nowhere", "-p")
    assert (result.exit_code, result.stderr) == (
        127,
        "holdfast: nowhere is not installed or not in PATH; install it, or give its path\n",
    )
    path = programs / "broken"
    path.write_text("#!/nowhere/python\n")
    path.chmod(0o755)
    result = run("run", "--", "broken")
    assert result.exit_code == 126
    assert "broken cannot be started" in result.stderr
    result = run("run", "--", programs)
    assert (result.exit_code, result.stderr) == (
        126,
        f"holdfast: {programs} is not an executable program; give the path of one\n",
    )
    assert run("run").exit_code == 2
    result = run("run", "--", "")
    assert (result.exit_code, "holdfast: an empty name is not installed" in result.stderr) == (127, True)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_run_forwards_signals_to_the_client(programs, number):
    """A signal sent to the command reaches the client, which ends as it likes."""
    waits = "import signal, time\n"
    waits += f"signal.signal({int(number)}, lambda *_: (print('told', flush=True), sys.exit(5)))\n"
    write_program(programs, "mine", f"{waits}print('up', flush=True)\ntime.sleep(60)")
    with start_run("--", "mine") as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("told\n", 5)


AT_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "holdfast", "run", "mine"])
"""


@pytest.mark.long
def test_run_at_a_terminal_delivers_an_interrupt_once(programs):
    """^C at a terminal reaches the client once, and the client sees the terminal as its own."""
    counts = "import signal, time\ncame = []\nsignal.signal(2, lambda *_: came.append(1))\n"
    waits = "print('up', sys.stdin.isatty(), flush=True)\nwhile not came: time.sleep(0.01)\ntime.sleep(0.5)\n"
    write_program(programs, "mine", f"{counts}{waits}print('came', len(came), flush=True)\nsys.exit(9)")
    ours, theirs = os.openpty()
    with subprocess.Popen([sys.executable, "-c", AT_TERMINAL], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            output = b""
            while b"up True" not in output:
                output += terminal.read(100)
            os.write(ours, b"\x03")
            while b"holdfast:" not in output:
                output += terminal.read(100)
            assert process.wait(30) == 9
    assert b"came 1" in output


@pytest.mark.long
def test_run_passes_standard_input_to_the_client(programs):
    """Standard input reaches the client."""
    write_program(programs, "mine", "print(sys.stdin.read()[::-1])")
    with start_run("mine") as process:
        out, _ = process.communicate("abc", timeout=30)
    assert out == "cba\n"


def test_run_exits_2_when_its_port_is_in_use(run, programs, home):
    """If the proxy cannot start the client is not started, and the port is named."""
    write_program(programs, "mine", "open('ran', 'w')")
    with serve_provider(Provider(ProviderSettings())) as url:
        port = url.rpartition(":")[2]
        result = run("run", "--port", port, "--", "mine")
    assert result.exit_code == 2
    assert f"port {port} is in use" in result.stderr
    assert not (home / "ran").exists()


def test_run_upstream_option_overrides_the_variable(run, monkeypatch, programs):
    """The option names the upstream, whatever the client's variable says."""
    write_program(programs, "mine", CLIENT.replace("    print(", "    str(told) or print("))
    with serve_strict_provider(monkeypatch) as upstream:
        url = os.environ["ANTHROPIC_BASE_URL"]
        monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
        assert run("run", "--upstream-anthropic", url, "--", "mine").exit_code == 0
    assert len(upstream.requests) == 1


def test_run_gives_pi_a_temporary_extension(run, programs, home):
    """pi gets the path of its extension, and nothing of it is left afterwards."""
    write_program(programs, "pi", "at = sys.argv[2]\nopen('said', 'w').write(at + '\\n' + open(at).read())")
    assert run("run", "--", "pi", "-p", "hi").exit_code == 0
    at, _, text = (home / "said").read_text().partition("\n")
    assert "http://127.0.0.1:" in text
    assert not Path(at).parent.exists()


def test_run_gives_llm_a_folder_with_proxy_addresses(run, programs, home, monkeypatch):
    """llm gets a copy of its settings with other addresses, and what it writes is in the user's folder afterwards."""
    own = home / "llm"
    own.mkdir()
    (own / "logs.db").write_text("log")
    (own / "extra-openai-models.yaml").write_text("- model_id: x\n  api_base: http://127.0.0.1:9/v1\n")
    monkeypatch.setenv("LLM_USER_PATH", str(own))
    does = "at = os.environ['LLM_USER_PATH']\nopen(at + '/logs.db', 'a').write(' more')\nopen(at + '/new', 'w')\n"
    write_program(programs, "llm", f"{does}open('said', 'w').write(open(at + '/extra-openai-models.yaml').read())")
    assert run("run", "--", "llm", "hi").exit_code == 0
    assert "/u/http://127.0.0.1:9/v1" in (home / "said").read_text()
    assert (own / "logs.db").read_text() == "log more"
    assert sorted(path.name for path in own.iterdir()) == ["extra-openai-models.yaml", "logs.db", "new"]
    assert "/u/" not in (own / "extra-openai-models.yaml").read_text()


@pytest.mark.parametrize(("says", "upstream"), [("ChatGPT", "/u/https://chatgpt.com/backend-api/codex"), ("x", "/v1")])
def test_run_selects_the_upstream_by_the_login_of_codex(run, programs, home, says, upstream):
    """Codex is asked how it is logged in, and its own arguments follow ours."""
    text = f"if sys.argv[1] == 'login': print('Logged in using {says}', file=sys.stderr)\n"
    write_program(programs, "codex", f"{text}else: json.dump(sys.argv[1:], open('said', 'w'))")
    assert run("run", "--", "codex", "exec", "hi").exit_code == 0
    arguments = json.loads((home / "said").read_text())
    assert re.fullmatch(r'openai_base_url="http://127\.0\.0\.1:\d+' + re.escape(upstream) + '"', arguments[1])
    assert arguments[2:] == ["exec", "hi"]


def test_run_warns_about_requests_that_bypass_the_proxy(run, programs, monkeypatch):
    """A note about the client is printed on standard error before it starts."""
    monkeypatch.setenv("CLAUDE_CODE_USE_VERTEX", "1")
    write_program(programs, "claude", "")
    assert "bypass the proxy" in run("run", "claude").stderr
