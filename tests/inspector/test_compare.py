"""Policies compared on a session: figures as ``holdfast replay`` has them, one replay at a time, wrong input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from served_inspector import MODEL, ServedInspector, make_recorded_session, say, serve, write_session
from test_pages import HOSTILE_TEXTS, check_page

from holdfast.cli.commands.import_ import import_file
from holdfast.inspector.charts import MAX_COLUMNS, group_sizes
from holdfast.inspector.comparison.jobs import WORKER_COMMAND, ComparisonRefused, Comparisons
from holdfast.inspector.comparison.values import ComparedPolicy, ComparisonQuestion, ComparisonTask
from holdfast.inspector.pages.compare import find_best_policies
from holdfast.inspector.sources import InspectedStore
from holdfast.messages.parts import Text
from holdfast.planning.presets.registry import PRESETS
from holdfast.state.entries import RequestEntry
from holdfast.store.open_store import open_store

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "long-session.jsonl"
WAITS = (sys.executable, "-c", "import sys; sys.stdin.read()")
"""A process that does nothing until its standard input is closed."""


@pytest.fixture
def source(tmp_path, configuration):
    """A store with a session that can be replayed, one that cannot, and an empty one."""
    url = str(tmp_path / "store.db")
    with open_store(url) as store:
        write_session(store, "recorded", make_recorded_session(), title="Slow orders")
        write_session(store, "greeting", [say("user", Text("hello"))])
        store.create_session("empty")
    with open_store(url, readonly=True) as store:
        yield InspectedStore(store, configuration, name=url, location=url)


@pytest.fixture
def served(source):
    """Serve that store."""
    with serve(source) as served:
        yield served


def read_token(served: ServedInspector, key="recorded"):
    return re.search(r'name="token" value="([^"]+)"', served.get("compare", id=key))[1]


def start(served: ServedInspector, policies=("holdfast", "opencode"), key="recorded", **fields):
    """Send the form that starts a comparison; return the answer."""
    fields = {"window": "24000", "model": MODEL, "token": None} | fields
    if fields["token"] is None:
        fields["token"] = read_token(served, key)
    body = urlencode([*(("policy", policy) for policy in policies), *fields.items()])
    return served.request(f"/compare?id={key}", method="POST", body=body)


def wait_for_end(comparisons: Comparisons, seconds=100.0):
    """Wait until no comparison runs."""
    end = time.monotonic() + seconds
    while comparisons.get_running() is not None:
        assert time.monotonic() < end, comparisons.get_running()
        time.sleep(0.05)


def wait_for_exit(process_id, seconds=20.0):
    """Wait until a process is gone."""
    end = time.monotonic() + seconds
    while is_running(process_id):
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(process_id):
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def find_workers(parent_id):
    """Return the ids of the processes that ``parent_id`` started to replay."""
    children = Path(f"/proc/{parent_id}/task/{parent_id}/children")
    threads = Path(f"/proc/{parent_id}/task").glob("*/children") if children.exists() else ()
    return [int(child) for thread in threads for child in thread.read_text().split() if is_worker(child)]


def is_worker(process_id):
    try:
        return WORKER_COMMAND[-1].encode() in Path(f"/proc/{process_id}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def make_question(policies=("holdfast",), session="recorded", window=24_000):
    return ComparisonQuestion(session, "leaf", policies, window, MODEL)


# -- the figures -------------------------------------------------------------------------------------------------------


def test_figures_are_those_of_replay(tmp_path, configuration):
    """Every figure of the page is the one that ``holdfast replay --json`` has for the same file, from the store too."""
    policies = ("opencode", "holdfast")
    url = str(tmp_path / "store.db")
    with open_store(url) as store:
        (imported,) = import_file(store, str(EXAMPLE), None, "", lambda *_: None)
    with open_store(url, readonly=True) as store:
        info = store.get_session(imported.session)
        source = InspectedStore(store, configuration, name=url, location=url)
        question = ComparisonQuestion(info.key, info.leaf_id, policies, 64_000, MODEL)
        source.comparisons.start(question)
        command = [sys.executable, "-m", "holdfast", "replay", str(EXAMPLE), "--json", "--no-cuts", "--model", MODEL]
        command += ["--window", "64000", "--policy", ",".join(policies)]
        rows = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=110).stdout)
        wait_for_end(source.comparisons)
        outcome = source.comparisons.find_outcome(question)
    assert outcome.failure == ""
    names = [name for name in ComparedPolicy.__struct_fields__ if name not in {"refused_requests", "notes", "sizes"}]
    shown = [{name: getattr(figures, name) for name in names} for figures in outcome.comparison.policies]
    assert shown == [{name: row[name] for name in names} for row in rows]
    assert [figures.policy for figures in outcome.comparison.policies] == list(policies)
    for figures in outcome.comparison.policies:
        assert max(column.tokens for column in figures.sizes) == figures.tokens_peak
        assert figures.sizes[-1].last == figures.requests


def test_a_comparison_is_started_by_its_form(served):
    """The form leads to a page that shows the progress, and then every policy with its figures and its chart."""
    answer = start(served)
    assert answer.status == 303
    address = answer.headers["location"]
    assert "policies=opencode%2Choldfast" in address
    text = served.request(address).text
    check_page(text)
    assert "<progress" in text or "<tbody>" in text
    wait_for_end(served.source.comparisons)
    text = served.request(address).text
    check_page(text)
    assert "data-changes" not in text
    for policy in ("holdfast", "opencode"):
        assert f'href="#sizes-{policy}"' in text
        assert f'id="sizes-{policy}"' in text
    assert "1.00 ×" in text
    assert text.count('class="window"') == 2
    # The newest result is on the session's page of comparisons, whatever was asked.
    assert "<tbody>" in served.get("compare", id="recorded")
    assert "/compare?id=recorded" in served.get("session", id="recorded")


def test_a_result_is_kept_while_the_session_is_the_same(served):
    """The same question is not replayed again; a session that went on is said to have done so."""
    start(served, ["holdfast"])
    wait_for_end(served.source.comparisons)
    assert start(served, ["holdfast"]).status == 303
    assert served.source.comparisons.get_running() is None
    with open_store(served.source.name) as store:
        from holdfast.state.entries import Entry

        leaf = store.get_session("recorded").leaf_id
        store.append_entries("recorded", [Entry("newest", leaf, say("user", Text("Go on.")))])
    assert "The session went on since" in served.get("compare", id="recorded")
    assert start(served, ["holdfast"]).status == 303
    wait_for_end(served.source.comparisons)
    assert "The session went on since" not in served.get("compare", id="recorded")


# -- wrong input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policies", "fields", "says"),
    [
        (["nonsense"], {}, "there is no policy"),
        (["<script>alert(1)</script>"], {}, "there is no policy"),
        ([], {}, "choose at least one"),
        (["holdfast"], {"window": "0"}, "is not a number of tokens"),
        (["holdfast"], {"window": "-5"}, "is not a number of tokens"),
        (["holdfast"], {"window": "9" * 500}, "is not a number of tokens"),
        (["holdfast"], {"window": "1000000001"}, "is not a number of tokens"),
        (["holdfast"], {"window": "many"}, "is not a number of tokens"),
        (["holdfast"], {"window": "²"}, "is not a number of tokens"),
        (["holdfast"], {"window": ""}, "is not a number of tokens"),
        (["holdfast"], {"window": "5"}, "No room for a conversation"),
        (["holdfast"], {"model": "unheard-of"}, "cannot be used here"),
    ],
)
def test_a_wrong_choice_is_told_on_the_page(served, policies, fields, says):
    """Nothing is started; the page says what is wrong, and shows the form as it was filled in."""
    answer = start(served, policies, **fields)
    assert answer.status == 400
    assert says in answer.text
    check_page(answer.text)
    assert "Traceback" not in answer.text
    assert served.source.comparisons.get_running() is None
    # The same in an address that somebody wrote.
    query = {"id": "recorded", "policies": ",".join(policies), "window": "24000", "model": MODEL} | fields
    answer = served.request(f"/compare?{urlencode(query)}")
    assert answer.status == 400
    assert says in answer.text


def test_a_window_may_be_written_with_separators(served):
    """``24,000`` and ``24 000`` are numbers."""
    assert start(served, window="24,000").status == 303
    assert "window=24000" in start(served, window=" 24 000").headers["location"]


def test_only_a_form_of_ours_starts_or_cancels(served):
    """Without the token, or from another page, nothing is started; an unknown session is told."""
    assert start(served, token="").status == 403
    assert start(served, token="wrong").status == 403
    body = urlencode({"session": "recorded", "number": "1", "token": "wrong"})
    assert served.request("/compare/cancel", method="POST", body=body).status == 403
    assert served.request("/compare/cancel").status == 405
    body = urlencode({"policy": "holdfast", "window": "24000", "model": MODEL, "token": read_token(served)})
    assert served.request("/compare?id=recorded", method="POST", body=body, Origin="http://127.0.0.1:1").status == 403
    assert served.request("/compare?id=nothing", method="POST", body=body).status == 404
    assert served.request("/compare?id=nothing").status == 404
    assert served.source.comparisons.get_running() is None


def test_a_session_without_requests_is_told(served):
    """One without messages has no form; one without an answer fails with the reason, and the form is still there."""
    assert "nothing to replay" in served.get("compare", id="empty")
    assert start(served, key="greeting").status == 303
    wait_for_end(served.source.comparisons)
    text = served.get("compare", id="greeting")
    assert "no model answer is recorded" in text
    assert "<button>Compare</button>" in text


def test_a_store_in_memory_cannot_be_compared(source, configuration):
    """A process that replays cannot open it: the page says so in place of a form."""
    with serve(InspectedStore(source.store, configuration, name="memory")) as served:
        text = served.get("compare", id="recorded")
        assert "in the memory of one process" in text
        assert "<fieldset>" not in text
        with pytest.raises(ComparisonRefused, match="store in a file"):
            served.source.comparisons.start(make_question())


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_hostile_names_do_nothing(tmp_path, configuration, text):
    """Whatever a session, its folder, its model and its answers are called, the page shows it as text."""
    url = str(tmp_path / "s.db")
    clean = text.replace("\ud83d", "?")
    bodies = [say("user", Text(text)), RequestEntry("d", 1, text, 1_000), say("assistant", Text(text))]
    with open_store(url) as store:
        write_session(store, "hostile", bodies, title=clean, cwd=clean)
    with open_store(url, readonly=True) as store:
        source = InspectedStore(store, configuration, name=clean, location=url)
        with serve(source) as served:
            check_page(served.get("compare", id="hostile"))
            start(served, ["holdfast"], key="hostile")
            wait_for_end(source.comparisons)
            shown = served.get("compare", id="hostile")
    check_page(shown)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", shown)
    assert "<tbody>" in shown


# -- one at a time -----------------------------------------------------------------------------------------------------


def test_two_tabs_that_start_at_once_share_one_replay(source):
    """Of many starts at the same time one begins, the others join it; another question is refused meanwhile."""
    comparisons = Comparisons(source.name, WAITS)
    with ThreadPoolExecutor(8) as tabs:
        list(tabs.map(comparisons.start, [make_question()] * 8))
    assert comparisons.get_running().number == 1
    with pytest.raises(ComparisonRefused, match="another comparison is running"):
        comparisons.start(make_question(("pi",)))
    comparisons.close()
    assert comparisons.get_running() is None
    with pytest.raises(ComparisonRefused, match="being stopped"):
        comparisons.start(make_question())


def test_another_session_waits_its_turn(source):
    """While one session is compared, the page of another leads to it and can cancel it, and starts nothing itself."""
    source.comparisons = Comparisons(source.name, WAITS)
    with serve(source) as served:
        source.comparisons.start(make_question())
        answer = start(served, key="greeting")
        assert answer.status == 400
        assert "another comparison is running" in answer.text
        assert "being compared" in answer.text
        check_page(answer.text)


def cancel(served, number, token):
    body = urlencode({"session": "recorded", "number": number, "token": token})
    return served.request("/compare/cancel", method="POST", body=body)


def test_a_comparison_is_cancelled_once(source):
    """Its process ends and the next one can start at once; a second cancel, or that of an older page, does nothing."""
    source.comparisons = Comparisons(source.name, WAITS)
    with serve(source) as served:
        token = read_token(served)
        source.comparisons.start(make_question())
        for _ in range(2):
            assert cancel(served, "1", token).status == 303
            assert source.comparisons.get_running() is None
        source.comparisons.start(make_question())
        assert cancel(served, "1", token).status == 303
        assert cancel(served, "²", token).status == 303
        assert cancel(served, "9" * 400, token).status == 303
        assert source.comparisons.get_running().number == 2
        assert source.comparisons.find_outcome(make_question()) is None


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was ended by signal 9"),
        ("import sys; sys.exit(3)", "ended with code 3"),
        ("print('no JSON')", "ended with code 0"),
        ('print(\'{"type": "progress", "done": "x"}\')', "ended with code 0"),
    ],
)
def test_a_crash_is_told_on_the_page(source, code, says):
    """However the process ends without a result, the page says so, and another comparison can be started."""
    source.comparisons = Comparisons(source.name, (sys.executable, "-c", code))
    with serve(source) as served:
        assert start(served).status == 303
        wait_for_end(source.comparisons)
        text = served.get("compare", id="recorded")
        assert says in text
        assert "<button>Compare</button>" in text
        assert start(served).status == 303


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux")
def test_too_little_memory_is_told(tmp_path):
    """A session that needs more memory than there is ends the replay with a reason, not the machine with it."""
    url = str(tmp_path / "store.db")
    logs = ("\n".join(f"order_{step}_{line}_timer: {line} ms" for line in range(1_000)) for step in range(400))
    bodies = [say("user", Text("Look."))]
    for log in logs:
        bodies += [say("assistant", Text("I look.")), say("user", Text(log))]
    with open_store(url) as store:
        write_session(store, "recorded", bodies)
        leaf = store.get_session("recorded").leaf_id
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (350 << 20, 350 << 20))"
    start_worker = "from holdfast.inspector.comparison.worker import main; main()"
    comparisons = Comparisons(url, (sys.executable, "-c", f"{limit}\n{start_worker}"))
    comparisons.start(ComparisonQuestion("recorded", leaf, ("holdfast",), 64_000, MODEL))
    wait_for_end(comparisons)
    assert "memory" in comparisons.find_newest_outcome("recorded").failure


def test_a_store_that_is_gone_is_told(source, tmp_path):
    """The process that replays finds no such session there: its reason is the outcome."""
    comparisons = Comparisons(str(tmp_path / "nowhere" / "store.db"))
    comparisons.start(make_question())
    wait_for_end(comparisons)
    outcome = comparisons.find_newest_outcome("recorded")
    assert outcome.comparison is None
    assert "no session is 'recorded'" in outcome.failure


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are found in /proc")
def test_a_replay_steps_back_and_ends_with_its_inspector(source):
    """Its process has a lower priority, and is gone once the inspector is, even if that was killed."""
    command = [sys.executable, "-m", "holdfast", "inspect", "--store", source.name, "--port", "0", "--json"]
    with open_store(source.name) as store:
        write_session(store, "longer", make_recorded_session(1_500))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as inspector:
        served = ServedInspector(json.loads(inspector.stdout.readline())["url"].rstrip("/"), source)
        assert start(served, list(PRESETS), key="longer").status == 303
        (worker,) = find_workers(inspector.pid)
        end = time.monotonic() + 30
        while os.getpriority(os.PRIO_PROCESS, worker) != os.getpriority(os.PRIO_PROCESS, 0) + 10:
            assert time.monotonic() < end
            time.sleep(0.05)
        inspector.kill()
    wait_for_exit(worker)


def test_a_replay_ends_when_nobody_waits_for_it(source):
    """Once its standard input is closed the process ends at once, whatever it is doing, and has no result."""
    with open_store(source.name) as store:
        write_session(store, "longer", make_recorded_session(1_500))
        leaf = store.get_session("longer").leaf_id
    question = ComparisonQuestion("longer", leaf, tuple(PRESETS), 24_000, MODEL)
    task = msgspec.json.encode(ComparisonTask(source.name, question)) + b"\n"
    ended = subprocess.run(WORKER_COMMAND, input=task, stdout=subprocess.PIPE, check=False, timeout=100)
    assert ended.returncode == 1
    assert b'"result"' not in ended.stdout


# -- what is shown -----------------------------------------------------------------------------------------------------


def make_figures(policy, usd=1.0, refused=0, recall=0.9):
    return ComparedPolicy(policy, 10, 0, refused, refused, 0, 1_000, 1, 0.5, usd, recall, (), ())


def test_a_refused_request_is_no_bargain():
    """The cheapest policy and the one that keeps most are not best if the provider refused what they sent."""
    best = find_best_policies(
        [make_figures("cheap", 0.1, refused=3, recall=1.0), make_figures("sound", 1.0), make_figures("dear", 2.0)]
    )
    assert best["usd"] == {"sound"}
    assert best["online_fact_recall"] == {"sound", "dear"}
    assert best["refused_requests"] == {"sound", "dear"}
    # All the same: there is nothing to choose by.
    assert best["cache_hit"] == frozenset()


def test_nobody_is_better_than_a_policy_below_its_minimum():
    """In a window that a policy was not made for, it is neither best nor the one that others are better than."""
    degenerate = replace(make_figures("crippled", 9.0, recall=0.1), notes=("degenerate: it keeps more than there is",))
    assert not any(find_best_policies([degenerate, make_figures("sound")]).values())
    assert find_best_policies([degenerate, make_figures("a"), make_figures("b", 2.0)])["usd"] == {"a"}


def test_an_unknown_price_is_not_the_lowest():
    """A policy without a cost is not compared by it."""
    best = find_best_policies([make_figures("a", None), make_figures("b", 2.0), make_figures("c", 1.0)])
    assert best["usd"] == {"c"}
    assert find_best_policies([make_figures("a", None), make_figures("b", None)])["usd"] == frozenset()


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.sampled_from(["", "compaction", "decision"])),
        min_size=1,
        max_size=3 * MAX_COLUMNS,
    )
)
def test_columns_are_all_requests_in_order(sizes):
    """Every request is in one column, the columns follow each other, and each has its largest size and its event."""
    columns = group_sizes(sizes)
    assert len(columns) == min(len(sizes), MAX_COLUMNS)
    next_number = 1
    for column in columns:
        assert column.first == next_number
        next_number = column.last + 1
        own = sizes[column.first - 1 : column.last]
        assert column.tokens == max(tokens for tokens, _ in own)
        assert (column.event == "") == all(event == "" for _, event in own)
        assert (column.event == "compaction") == any(event == "compaction" for _, event in own)
    assert next_number == len(sizes) + 1
