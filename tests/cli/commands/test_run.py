"""``holdfast run``: a client that finds the proxy, has the terminal to itself, and ends as it would without."""

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

from holdfast.cli.proxy_options import summarize_run
from holdfast.config.providers import ADDRESS_VARIABLES
from holdfast.proxy.metrics.health import Health
from holdfast.store.open_store import open_store
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.server.local_server import serve_provider

ASK = """
import json, os, sys, urllib.request
body = {"model": "claude-sonnet-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}
headers = {"content-type": "application/json", "x-api-key": "secret-key", "anthropic-version": "2023-06-01"}
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
    told = json.load(answer)["content"][0]["text"]
    print(told, answer.headers["x-holdfast-state"], len(sys.argv))
"""
"""A client: it asks once, and prints the answer, what was done with it, and how many arguments it had."""


@pytest.fixture(autouse=True)
def programs(home, monkeypatch):
    """Return the folder in which programs of a test are found; no variable points anywhere."""
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


def program(folder, name, text):
    """Make a program called ``name`` that runs ``text``."""
    path = Path(folder) / name
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{text}\n")
    path.chmod(0o755)
    return path


@contextmanager
def provider(monkeypatch, **limits):
    """Yield a strict provider to which the variable of the SDK leads."""
    held = Provider(ProviderSettings(**limits))
    with serve_provider(held) as url:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        yield held


def started(*arguments):
    """Return ``holdfast run`` with ``arguments`` as a process of its own."""
    words = [sys.executable, "-m", "holdfast", "run", *map(str, arguments)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_client(run, home, monkeypatch, programs):
    """A client asks its own upstream through the proxy; its words are all that is printed, one line tells the rest."""
    program(programs, "mine", ASK)
    with provider(monkeypatch) as upstream, started("mine", "--json", "-p") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "ok 1 managed 3\n"), err
    told = re.fullmatch(r"holdfast: 1 request · holdfast show (\S+)\n", err)
    assert told, err
    assert len(upstream.requests) == 1
    shown = run("show", told[1])
    assert "hello" in shown.output
    assert "ok 1" in shown.output
    assert b"secret-key" not in b"".join(path.read_bytes() for path in (home / "store").rglob("*") if path.is_file())


def test_looking_on(run, home, monkeypatch, programs):
    """With --observe the request passes as it came, and is written down; with --json the end is told as one object."""
    program(programs, "mine", ASK.replace("    print(", "    str(told) or print("))
    with provider(monkeypatch):
        done = run("run", "--observe", "--json", "--", "mine")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stderr)
    assert (told["exit"], told["stats"]["requests"]["all"]["observed"]) == (0, 1)
    with open_store(home / "store" / "holdfast.db") as store:
        assert [info.key.startswith(told["sessions"][0]) for info in store.list_sessions()] == [True]


@pytest.mark.long
def test_only_its_own_sessions(run, home, monkeypatch, programs):
    """The last line names sessions that this proxy had, whatever else is written to the store meanwhile."""
    program(programs, "his", ASK.replace("hello", "good morning"))
    with provider(monkeypatch):
        own = dict.fromkeys(ADDRESS_VARIABLES, "") | {"ANTHROPIC_BASE_URL": os.environ["ANTHROPIC_BASE_URL"]}
        other = (
            "import subprocess\nsubprocess.run([sys.executable, '-m', 'holdfast', 'run', 'his'], env=os.environ | %r)"
        )
        program(programs, "mine", f"{ASK}\n{other % own}")
        with started("mine") as process:
            _, err = process.communicate(timeout=60)
    his, mine = (line.rpartition(" ")[2] for line in err.splitlines())
    assert "good morning" in run("show", his).output
    assert "hello" in run("show", mine).output


def test_what_would_have_been_done(run, home, monkeypatch, programs):
    """Behind --observe the last line tells what would have been done, and the request that it was too large for.

    That is planned for whole sessions: it says so where they are older than this run.
    """
    program(
        programs,
        "mine",
        ASK.replace('"hello"', '"kelp wrack " * 9_000').replace("    print(", "    str(told) or print("),
    )
    with provider(monkeypatch):
        first, again = (run("run", "--observe", "--window", "16000", "--", "mine").stderr for _ in range(2))
    assert "1 request · nothing was changed · 1 request over the window of 16,000; policy holdfast would" in first
    assert "1 request · nothing was changed · including earlier runs: 2 requests over the window" in again


def test_what_was_reduced_is_what_this_run_decided():
    """The last line counts each decision once, when it was made: what stood before is told by ``stats`` alone."""
    stats = Health().build_stats()
    assert summarize_run(stats, None) == []
    assert summarize_run(stats | {"tokens_saved": 418_220}, None) == ["newly reduced by ~418,220 tokens"]


@pytest.mark.long
def test_what_is_otherwise_than_asked_for(run, monkeypatch, programs):
    """It is told in the end, for nothing of ours is seen while the client runs."""
    program(programs, "mine", ASK.replace('"x-api-key": "secret-key"', '"authorization": "Bearer sk-ant-oat01-kelp"'))
    with provider(monkeypatch), started("--summaries", "claude-haiku-4-5", "mine") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "ok 1 managed 1\n"), err
    assert err.startswith("holdfast: summaries are made without a model: a subscription login is only for the client")
    assert err.count("\n") == 2


@pytest.mark.long
def test_a_store_that_cannot_be_written(run, home, monkeypatch, programs):
    """It is told before the client begins, and the client is served all the same."""
    program(programs, "mine", ASK)
    where = home / "file"
    where.write_text("words")
    with provider(monkeypatch), started("--store", where, "mine") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "ok 1 unrecorded 1\n")
    assert err.startswith(f"holdfast: requests are answered, but not recorded: {where} (5 bytes) is not a database")
    assert err.endswith("holdfast: 1 request · 1 unrecorded\n")


def test_a_store_that_is_none(run, home, programs):
    """That is wrong use, and said as such alone: no client begins."""
    program(programs, "mine", "open('ran', 'w')")
    done = run("run", "--store", "postgres://x", "--", "mine")
    assert (done.exit_code, (home / "ran").exists()) == (2, False)
    assert done.stderr.startswith("Error: stores at postgres:// are not there yet;")
    done = run("run", "--store", home, "--", "mine")
    assert (done.exit_code, (home / "ran").exists()) == (2, False)
    assert done.stderr.startswith(f"Error: {home} is a folder; give a file's path")


def test_a_plain_relay_is_told(run, home, monkeypatch, programs):
    """A relay says so, first and last, and who switched it off; a look that asks for no answer is no request."""
    looks = "import urllib.request\nat = os.environ['ANTHROPIC_BASE_URL']\n"
    looks += "urllib.request.urlopen(urllib.request.Request(at + '/v1/models', method='GET')).read()\n"
    program(programs, "mine", looks + ASK.replace("    print(", "    str(told) or print("))
    (home / "store").mkdir()
    (home / "store" / "bypass").touch()
    with provider(monkeypatch):
        done = run("run", "--", "mine")
        (home / "store" / "bypass").unlink()
        monkeypatch.setenv("HOLDFAST_BYPASS", "1")
        told = run("run", "--", "mine").stderr
    relay = "a plain relay that records nothing\nholdfast: 1 request · 1 bypassed\n"
    assert done.stderr == f"holdfast: bypassed, by the file {home / 'store' / 'bypass'}: {relay}"
    assert told == f"holdfast: bypassed, by HOLDFAST_BYPASS, or bypass in holdfast.toml: {relay}"


def test_an_upstream_that_is_down(run, monkeypatch, programs):
    """A request that no provider answered is told of in the end."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    program(programs, "mine", f"try:\n{textwrap.indent(ASK, '    ')}\nexcept OSError:\n    pass\n")
    assert "holdfast: 1 request · 1 failed" in run("run", "--", "mine").stderr


@pytest.mark.long
def test_a_proxy_that_runs_already(run, monkeypatch, programs):
    """A client that is led to a proxy is started at that one, and that is said: nothing is done twice."""
    program(programs, "mine", "print(os.environ['ANTHROPIC_BASE_URL'])\nsys.exit(7)")
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as serve:
        try:
            url = json.loads(serve.stdout.readline())["url"]
            monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
            with started("mine") as process:
                out, err = process.communicate(timeout=60)
            refused = run("run", "--observe", "--", "mine")
        finally:
            serve.kill()
    assert (process.returncode, out) == (7, f"{url}\n")
    assert err.startswith(f"holdfast: ANTHROPIC_BASE_URL points at {url}, a Holdfast proxy, mode manage, ")
    assert err.endswith("mine uses it, and no second proxy is started\n")
    assert refused.exit_code == 2
    assert "options of holdfast run do not apply" in refused.stderr


@pytest.mark.long
def test_a_proxy_that_wants_a_token(run, home, monkeypatch, programs):
    """It is known as ours: with its token a client is started there, and without it is said what to do."""
    program(programs, "claude", "print(os.environ['ANTHROPIC_CUSTOM_HEADERS'])")
    program(programs, "mine", "pass")
    monkeypatch.setenv("HOLDFAST_TOKEN", "a-token-of-sixteen-signs")
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as serve:
        try:
            url = json.loads(serve.stdout.readline())["url"]
            monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
            monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "x-mine: 1")
            with started("claude") as process:
                out, err = process.communicate(timeout=60)
            told = run("run", "--", "mine").stderr
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
    assert "mine must send it in the header x-holdfast-token" in told
    for refused, told in ((closed, "token, and got a different one"), (unknown, "token")):
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
        assert (
            f"a Holdfast proxy that requires its {told}; set HOLDFAST_TOKEN to it, so that mine can use it"
            in refused.stderr
        )
    assert (wrong.exit_code, "requires its token, and got a different one" in " ".join(wrong.stdout.split())) == (
        1,
        True,
    )
    assert "a Holdfast proxy, mode manage" in " ".join(checks.split())
    assert "a Holdfast proxy that requires its token" in " ".join(note.split())


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("", 0)])
def test_exit_codes(run, programs, ends, code):
    """The exit code is the client's, 128 + n where signal n ended it; a client that asked nobody is told of."""
    program(programs, "mine", ends)
    done = run("run", "--", "mine")
    assert (done.exit_code, done.stderr.count("\n")) == (code, 1)
    assert "the proxy received no request" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("where", ["full", "closed", "gone"])
@pytest.mark.parametrize("form", example_counts.spare([(), ("--json",)], keep=1), ids=["people", "json"])
def test_standard_error_takes_nothing(programs, monkeypatch, where, form):
    """The exit code is the client's all the same, whatever would have been told before it or behind."""
    program(programs, "claude", "sys.exit(7)")
    monkeypatch.setenv("CLAUDE_CODE_USE_VERTEX", "1")  # that is said before
    words = [sys.executable, "-m", "holdfast", "run", *form, "--", "claude"]
    if where == "closed":
        words = ["sh", "-c", 'exec "$@" 2>&-', "sh", *words]
    ours, theirs = os.pipe()
    os.close(ours)  # nobody reads
    with os.fdopen(theirs, "wb") as gone, Path("/dev/full").open("wb") as full:
        assert subprocess.run(words, check=False, stderr=full if where == "full" else gone).returncode == 7


def test_a_client_that_is_not_there(run, programs):
    """What is not installed, and what is no program, ends with the codes that shells have, and says what to do."""
    done = run("run", "--", "nowhere", "-p")
    assert (done.exit_code, done.stderr) == (
        127,
        "holdfast: nowhere is not installed or not in PATH; install it, or give its path\n",
    )
    path = programs / "broken"
    path.write_text("#!/nowhere/python\n")
    path.chmod(0o755)
    done = run("run", "--", "broken")
    assert done.exit_code == 126
    assert "broken cannot be started" in done.stderr
    done = run("run", "--", programs)
    assert (done.exit_code, done.stderr) == (
        126,
        f"holdfast: {programs} is not an executable program; give the path of one\n",
    )
    assert run("run").exit_code == 2
    done = run("run", "--", "")
    assert (done.exit_code, "holdfast: an empty name is not installed" in done.stderr) == (127, True)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals(programs, number):
    """A signal that comes here reaches the client, which ends as it likes."""
    waits = "import signal, time\n"
    waits += f"signal.signal({int(number)}, lambda *_: (print('told', flush=True), sys.exit(5)))\n"
    program(programs, "mine", f"{waits}print('up', flush=True)\ntime.sleep(60)")
    with started("--", "mine") as process:
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
def test_at_a_terminal(programs):
    """^C at a terminal reaches the client once, not once more from here; it sees the terminal as its own."""
    example_counts = "import signal, time\ncame = []\nsignal.signal(2, lambda *_: came.append(1))\n"
    waits = "print('up', sys.stdin.isatty(), flush=True)\nwhile not came: time.sleep(0.01)\ntime.sleep(0.5)\n"
    program(programs, "mine", f"{example_counts}{waits}print('came', len(came), flush=True)\nsys.exit(9)")
    ours, theirs = os.openpty()
    with subprocess.Popen([sys.executable, "-c", AT_TERMINAL], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            said = b""
            while b"up True" not in said:
                said += terminal.read(100)
            os.write(ours, b"\x03")
            while b"holdfast:" not in said:
                said += terminal.read(100)
            assert process.wait(30) == 9
    assert b"came 1" in said


@pytest.mark.long
def test_standard_input_is_the_clients(programs):
    """What comes on standard input reaches the client."""
    program(programs, "mine", "print(sys.stdin.read()[::-1])")
    with started("mine") as process:
        out, _ = process.communicate("abc", timeout=30)
    assert out == "cba\n"


def test_a_port_that_is_taken(run, programs, home):
    """Where the proxy cannot begin the client is not started, and the port is told."""
    program(programs, "mine", "open('ran', 'w')")
    with serve_provider(Provider(ProviderSettings())) as url:
        port = url.rpartition(":")[2]
        done = run("run", "--port", port, "--", "mine")
    assert done.exit_code == 2
    assert f"port {port} is in use" in done.stderr
    assert not (home / "ran").exists()


def test_an_upstream_that_is_asked_for(run, monkeypatch, programs):
    """An option names the upstream, whatever the client's variable says."""
    program(programs, "mine", ASK.replace("    print(", "    str(told) or print("))
    with provider(monkeypatch) as wanted:
        url = os.environ["ANTHROPIC_BASE_URL"]
        monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
        assert run("run", "--upstream-anthropic", url, "--", "mine").exit_code == 0
    assert len(wanted.requests) == 1


def test_a_temporary_extension(run, programs, home):
    """pi finds its extension where it is told, and nothing of it is left."""
    program(programs, "pi", "at = sys.argv[2]\nopen('said', 'w').write(at + '\\n' + open(at).read())")
    assert run("run", "--", "pi", "-p", "hi").exit_code == 0
    at, _, text = (home / "said").read_text().partition("\n")
    assert "http://127.0.0.1:" in text
    assert not Path(at).parent.exists()


def test_a_folder_of_llm(run, programs, home, monkeypatch):
    """llm finds its things beside the other addresses; what it writes is in the user's folder behind it."""
    own = home / "llm"
    own.mkdir()
    (own / "logs.db").write_text("log")
    (own / "extra-openai-models.yaml").write_text("- model_id: x\n  api_base: http://127.0.0.1:9/v1\n")
    monkeypatch.setenv("LLM_USER_PATH", str(own))
    does = "at = os.environ['LLM_USER_PATH']\nopen(at + '/logs.db', 'a').write(' more')\nopen(at + '/new', 'w')\n"
    program(programs, "llm", f"{does}open('said', 'w').write(open(at + '/extra-openai-models.yaml').read())")
    assert run("run", "--", "llm", "hi").exit_code == 0
    assert "/u/http://127.0.0.1:9/v1" in (home / "said").read_text()
    assert (own / "logs.db").read_text() == "log more"
    assert sorted(path.name for path in own.iterdir()) == ["extra-openai-models.yaml", "logs.db", "new"]
    assert "/u/" not in (own / "extra-openai-models.yaml").read_text()


@pytest.mark.parametrize(("says", "upstream"), [("ChatGPT", "/u/https://chatgpt.com/backend-api/codex"), ("x", "/v1")])
def test_the_login_of_codex(run, programs, home, says, upstream):
    """Codex is asked how it is logged in; its arguments come behind ours."""
    text = f"if sys.argv[1] == 'login': print('Logged in using {says}', file=sys.stderr)\n"
    program(programs, "codex", f"{text}else: json.dump(sys.argv[1:], open('said', 'w'))")
    assert run("run", "--", "codex", "exec", "hi").exit_code == 0
    given = json.loads((home / "said").read_text())
    assert re.fullmatch(r'openai_base_url="http://127\.0\.0\.1:\d+' + re.escape(upstream) + '"', given[1])
    assert given[2:] == ["exec", "hi"]


def test_what_goes_past_the_proxy_is_said_before(run, programs, monkeypatch):
    """A note about the client stands on standard error."""
    monkeypatch.setenv("CLAUDE_CODE_USE_VERTEX", "1")
    program(programs, "claude", "")
    assert "bypass the proxy" in run("run", "claude").stderr
