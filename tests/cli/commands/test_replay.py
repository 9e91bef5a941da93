"""``holdfast replay``: its JSON, its table and chart, and how it selects files."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import example_counts
import msgspec
import pytest

from holdfast.planning.presets.registry import PRESETS
from holdfast.replay.tokenizer import MAX_PIECE, get_tokenizer

KEYS = [
    "metrics", "file", "repository", "policy", "window", "setup_tokens", "api", "model", "tokenizer", "requests",
    "invalid_requests", "over_window", "user_words_missing", "tokens_sum", "tokens_peak", "cache_hit", "usd",
    "online_recall", "online_fact_recall", "mutations", "compactions", "policy_ms_p50", "policy_ms_p95", "summaries",
    "notes", "cuts",
]  # fmt: skip
CUT_KEYS = ["dependencies", "fact_recall", "name_recall", "handle_recall", "reread_tokens", "z_gain", "stale", "oracle"]
NO_PRICE = "house-7b has no known price, so costs are not shown; set a [[price]] in holdfast.toml"
SMALL = ("--window", "16000", "--setup-tokens", "1000")


def load_reports(result):
    """Return the JSON array that a successful replay printed."""
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_replay_json_has_the_documented_keys(run, session):
    """``--json`` is one array with an object for each policy, in the given order, with exactly these keys."""
    reports = load_reports(run("replay", session, "--json", "--policy", "holdfast,sliding"))
    assert [report["policy"] for report in reports] == ["holdfast", "sliding"]
    assert [list(report) for report in reports] == [KEYS, KEYS]
    assert [list(cut) for cut in reports[0]["cuts"].values()] == [CUT_KEYS] * 3
    assert list(reports[0]["cuts"]) == ["4000", "8000", "16000"]
    described = {key: reports[0][key] for key in ("file", "metrics", "window", "setup_tokens")}
    assert described == {"file": str(session), "metrics": 1, "window": 64_000, "setup_tokens": 10_000}


def test_replay_reports_recall_without_dependencies_as_null(run, session):
    """Nothing to recall is neither a recall of 0 nor of 1."""
    report = load_reports(run("replay", session, "--json", "--policy", "sliding"))[0]
    assert report["cuts"]["8000"]["dependencies"] == 0
    assert report["cuts"]["8000"]["fact_recall"] is None


def test_replay_runs_every_preset_by_default(run, session):
    """Without ``--policy`` every preset runs, ours last."""
    reports = load_reports(run("replay", session, "--json", "--no-cuts"))
    assert [report["policy"] for report in reports] == list(PRESETS)
    assert all(report["cuts"] == {} for report in reports)


def test_replay_continues_after_a_file_that_cannot_be_read(run, session, home, write_lines):
    """An unreadable file yields an object with its error, the others run, and the exit code is 0."""
    empty = write_lines(home / "empty.jsonl", [])
    reports = load_reports(run("replay", empty, session, "nowhere.jsonl", "--json", "--policy", "sliding", "--no-cuts"))
    assert [sorted(report) == ["error", "file"] for report in reports] == [True, False, True]
    assert reports[2]["file"] == "nowhere.jsonl"


def test_replay_exits_2_when_no_file_can_be_replayed(run):
    """With --json the errors are in the array, otherwise in a message."""
    result = run("replay", "nowhere.jsonl", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)[0]["file"] == "nowhere.jsonl"
    result = run("replay", "nowhere.jsonl")
    assert result.exit_code == 2
    assert "nowhere.jsonl: no such file or directory; check the path" in result.stderr


def test_replay_shows_which_policy_fits_the_window(run, long_session):
    """Append-only outgrows the window, and ours compacts and fits."""
    reports = load_reports(
        run("replay", long_session, *SMALL, "--json", "--no-cuts", "--policy", "append-only,holdfast")
    )
    plain, ours = reports
    assert plain["over_window"] > 0
    assert plain["compactions"] == 0
    assert (ours["over_window"], ours["invalid_requests"], ours["user_words_missing"]) == (0, 0, 0)
    assert ours["compactions"] > 0
    assert ours["tokens_sum"] < plain["tokens_sum"]


@pytest.fixture
def crowded_session(home, make_session_lines, make_session_line, write_lines):
    """Return a session that begins with an open call of over 4,000 tokens, which can be neither cut nor left out."""
    body = "\n".join(f"value_{number} = {number}" for number in range(900))
    call = {"type": "tool_use", "id": "toolu_open", "name": "Write", "input": {"file_path": "big.py", "content": body}}
    messages = [("user", "write it"), ("assistant", [call]), ("user", "go on")]
    messages.append(("assistant", [{"type": "text", "text": "It is written."}]))
    messages += [
        (record["type"], record["message"]["content"]) for record in map(json.loads, make_session_lines(20, words=150))
    ]
    lines = [
        make_session_line(number, role, content, session="10009-cccc")
        for number, (role, content) in enumerate(messages)
    ]
    return write_lines(home / "crowded.jsonl", lines)


@pytest.mark.long
def test_replay_reports_cuts_without_room_as_null_with_a_note(run, crowded_session):
    """If a run at cuts has no room for a request, only its figures are null, and a note says why."""
    arguments = ("replay", crowded_session, "--window", "32000", "--setup-tokens", "1000", "--policy")
    (report,) = load_reports(run(*arguments, "holdfast", "--json"))
    assert (list(report), report["requests"], report["invalid_requests"]) == (KEYS, 42, 0)
    assert [list(cut) for cut in report["cuts"].values()] == [CUT_KEYS] * 3
    missing, *others = report["cuts"].values()
    assert {name for name, value in missing.items() if value is not None} == {"dependencies"}
    assert missing["dependencies"] == others[0]["dependencies"] > 0
    assert all(cut["fact_recall"] is not None for cut in others)
    (note,) = [note for note in report["notes"] if note.startswith("nothing measured at cuts of 4,000: ")]
    assert "made for 4,000 tokens of messages" in note
    assert "--window" not in note
    printed = " ".join(run(*arguments, "append-only", "--cuts").stdout.split())
    assert "nothing measured at cuts of 4,000: No request fits" in printed
    assert "append-only - 1.000 1.000" in printed


@pytest.mark.long
def test_replay_notes_figures_pooled_over_fewer_sessions(run, long_session, crowded_session):
    """A figure that one session lacks is pooled over the others, and a note says so."""
    arguments = ("--window", "16000", "--setup-tokens", "1000", "--policy", "append-only", "--cuts")
    pool = run("replay", long_session, crowded_session, *arguments).stdout.partition("all sessions together")[2]
    assert "append-only: recall at cuts of 4,000 is without 1 of 2 sessions" in pool


def test_replay_continues_after_a_policy_without_room(run, home, write_lines):
    """A recorded setup that leaves one policy no room affects only its row, and the error names the given window."""
    tool = {
        "name": "look",
        "description": "It looks at files. " * 4_000,
        "parameters": {"type": "object", "properties": {}},
    }
    body = {
        "model": "gpt-4o",
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
        "tools": [{"type": "function", "function": tool}],
    }
    arguments = ("replay", write_lines(home / "body.json", [json.dumps(body)]), "--window", "29000")
    plain, ours = load_reports(run(*arguments, "--json", "--no-cuts", "--policy", "holdfast,append-only"))
    assert (plain["policy"], plain["requests"]) == ("append-only", 1)
    assert (list(ours), ours["policy"]) == (["file", "policy", "error"], "holdfast")
    assert "window 29000 (--window)" in ours["error"]
    printed = run(*arguments, "--policy", "holdfast,append-only", "--show", "append-only").stdout
    assert "holdfast could not be replayed: No room for a conversation: window 29000 (--window)" in printed
    assert "append-only, request by request" in printed


@pytest.mark.long
def test_replay_is_deterministic_except_for_timings(run, long_session):
    """Two runs give the same figures, except for the time they took."""
    arguments = ("replay", long_session, *SMALL, "--json", "--no-cuts", "--policy", "holdfast")
    runs = [load_reports(run(*arguments))[0] for _ in range(2)]
    timeless = [{key: value for key, value in report.items() if "_ms_" not in key} for report in runs]
    assert timeless[0] == timeless[1]


def test_replay_prints_a_table_and_a_chart(run, long_session):
    """The table has a row for each policy, ours last, and no line of table or chart exceeds the width."""
    result = run("replay", long_session, *SMALL, "--policy", "holdfast,sliding")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    rows = [text.split()[0] for text in lines if text.startswith(("holdfast ", "sliding "))]
    assert rows[:2] == ["sliding", "holdfast"]
    assert any("⟱" in text and "→" in text for text in lines)
    assert max(map(len, lines)) <= 100


@pytest.mark.uncounted
@pytest.mark.parametrize("width", example_counts.mark_rest_long([80, 120], keep=1))
def test_replay_table_and_chart_fit_the_terminal(run, long_session, monkeypatch, width):
    """No line is wider than the terminal, and no heading is cut off."""
    monkeypatch.setenv("COLUMNS", str(width))
    result = run("replay", long_session, *SMALL, "--cuts", "--policy", "append-only,holdfast")
    assert max(map(len, result.stdout.splitlines())) <= width
    assert "…" not in result.stdout


def test_replay_show_selects_the_policy_of_the_chart(run, session):
    """``--show`` names the policy of the chart; one that does not run is an error with the list."""
    assert "sliding, request by request" in run("replay", session, "--policy", "sliding,pi", "--show", "sliding").stdout
    result = run("replay", session, "--policy", "sliding", "--show", "pi")
    assert result.exit_code == 2
    assert "sliding" in result.stderr


@pytest.mark.long
def test_replay_pools_several_files(run, long_session, home, make_session_lines, write_lines):
    """After the tables of several files, one pools the sessions judged for cost: those over twice the window."""
    other_session = write_lines(home / "other.jsonl", make_session_lines(2, session="07e4-cccc"))
    result = run("replay", long_session, other_session, *SMALL, "--policy", "append-only,holdfast")
    assert "1 of 2 sessions" in result.stdout
    assert "request by request" not in result.stdout


def test_replay_exits_2_for_an_unknown_policy_and_lists_all(run, session):
    """An unknown policy is wrong use, and the message lists the policies."""
    result = run("replay", session, "--policy", "holdfast,holdfats", "--json")
    assert result.exit_code == 2
    assert all(name in result.stderr for name in PRESETS)


@pytest.mark.parametrize("window", ["10", "-5", "0"])
def test_replay_exits_2_for_a_window_without_room(run, session, window):
    """A window without useful room ends the command before any file is read."""
    result = run("replay", session, "--window", window, "--json")
    assert result.exit_code == 2
    assert f"window {window}" in result.stderr
    assert "4000 are needed" in result.stderr


@pytest.mark.parametrize(
    "wrong", [("--window", "abc"), ("--setup-tokens", "-1"), ("--api", "fax"), ("--latest", "--window", "1e3")]
)
def test_replay_exits_2_for_invalid_option_values(run, session, wrong):
    """An invalid option value exits with 2 and a message."""
    result = run("replay", session, *wrong)
    assert result.exit_code == 2
    assert "Invalid value" in result.stderr


@pytest.mark.parametrize(
    ("policy", "window"), [("opencode", "32000"), ("claude-code", "32000"), ("pi", "32000"), ("openclaw", "15000")]
)
def test_replay_marks_a_preset_below_its_minimum_as_degenerate(run, session, policy, window):
    """A preset below its own minimum runs unchanged and is marked degenerate."""
    options = ("--policy", policy, "--window", window, "--setup-tokens", "1000")
    report = load_reports(run("replay", session, "--json", *options))[0]
    assert report["requests"] == 6
    assert any(note.startswith("degenerate: ") for note in report["notes"])


def test_replay_marks_no_preset_at_a_usual_window(run, session):
    """At the default window no preset is marked degenerate."""
    reports = load_reports(run("replay", session, "--json", "--no-cuts"))
    assert not [note for report in reports for note in report["notes"] if "degenerate" in note]


def test_replay_notes_damaged_lines_with_their_numbers(run, home, make_session_lines, write_lines):
    """An unreadable line is noted with its number, and the rest is replayed."""
    lines = make_session_lines(3)
    lines.insert(2, '{"type": "user", oops')
    broken = write_lines(home / "broken.jsonl", lines)
    report = load_reports(run("replay", broken, "--json", "--no-cuts", "--policy", "sliding"))[0]
    assert report["requests"] == 6
    assert report["notes"][0].startswith("line 3: ")
    assert "line 3: " in run("replay", broken, "--policy", "sliding").stdout


def test_replay_dump_writes_every_request(run, long_session, home):
    """A dump has the request body of each step as JSON, in files that only their owner can read."""
    folder = home / "dump" / "inner"
    run("replay", long_session, *SMALL, "--policy", "sliding,holdfast", "--dump", folder)
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["long.holdfast.jsonl", "long.sliding.jsonl"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    cases = [msgspec.json.decode(text) for text in files[0].read_bytes().splitlines()]
    assert [case["step"] for case in cases] == list(range(48))
    assert {(case["file"], case["policy"]) for case in cases} == {(str(long_session), "holdfast")}
    assert [case["request"]["model"] for case in cases] == ["claude-sonnet-4-6"] * 48
    assert "Please read src/module_0.py" in json.dumps(cases[0]["request"]["messages"][0]["content"])


def test_replay_dump_separates_files_with_the_same_name(run, session, home, make_session_lines, write_lines):
    """Two sessions with the same file name do not overwrite each other's dump."""
    twin = write_lines(home / "a" / "session.jsonl", make_session_lines(2))
    run("replay", session, twin, "--policy", "sliding", "--dump", home / "dump")
    assert sorted(file.name for file in (home / "dump").iterdir()) == [
        "session-2.sliding.jsonl",
        "session.sliding.jsonl",
    ]


def test_replay_exits_2_when_the_dump_cannot_be_written(run, session):
    """A dump folder that cannot be created ends the command before any replay."""
    result = run("replay", session, "--dump", session / "inside")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


def test_replay_takes_setup_and_api_from_request_bodies(run, home, write_lines):
    """The recorded setup counts unless ``--setup-tokens`` is given; ``--api`` and ``--model`` select the target."""
    body = {
        "model": "gpt-4o",
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
        "tools": [
            {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
        ],
    }
    file = write_lines(home / "body.json", [json.dumps(body)])
    arguments = ("replay", file, "--json", "--no-cuts", "--policy", "sliding", "--model", "gpt-4o")
    report = load_reports(run(*arguments))[0]
    assert (report["api"], report["model"]) == ("openai-chat", "gpt-4o")
    assert 0 < report["setup_tokens"] < 200
    assert load_reports(run(*arguments, "--setup-tokens", "77"))[0]["setup_tokens"] == 77


def test_replay_reports_no_cost_for_a_model_without_a_price(run, session):
    """No other model's price stands in: costs are null with a note, and the other figures are there."""
    arguments = ("replay", session, "--policy", "append-only,holdfast", "--model", "house-7b")
    report, other_report = json.loads(run(*arguments, "--json", "--no-cuts").stdout)
    assert (report["usd"], other_report["usd"]) == (None, None)
    assert report["requests"] > 0
    assert NO_PRICE in report["notes"]
    printed = run(*arguments).stdout
    assert (NO_PRICE in printed, "$0" in printed, "inside the window; " in " ".join(printed.split())) == (
        True,
        False,
        True,
    )


def test_replay_exits_2_for_a_session_without_answers(run, home, make_session_lines, write_lines):
    """A session without model calls has nothing to replay, and the message says so."""
    file = write_lines(home / "asked.jsonl", make_session_lines(1)[:1])
    result = run("replay", file, "--json")
    assert result.exit_code == 2
    assert "nothing to replay" in json.loads(result.stdout)[0]["error"]


def test_replay_without_files_suggests_latest(run):
    """Without a file and without ``--latest`` the message says what to give."""
    result = run("replay")
    assert result.exit_code == 2
    assert "--latest" in result.stderr


def test_replay_latest_and_all_find_the_users_sessions(run, home, monkeypatch, make_session_lines, write_lines):
    """``--latest`` is the file changed last over all tools; ``--all`` is all of them except sub-agents."""
    codex = home / "codex"
    monkeypatch.setenv("CODEX_HOME", str(codex))
    claude = write_lines(home / ".claude" / "projects" / "-work" / "one.jsonl", make_session_lines(2))
    write_lines(home / ".claude" / "projects" / "-work" / "agent-7.jsonl", make_session_lines(2))
    write_lines(codex / "sessions" / "2026" / "01" / "01" / "notes.jsonl", make_session_lines(1))
    newest = write_lines(home / ".pi" / "agent" / "sessions" / "--w--" / "two.jsonl", make_session_lines(2))
    os.utime(claude, (1, 1))
    arguments = ("--json", "--no-cuts", "--policy", "sliding")
    assert [report["file"] for report in load_reports(run("replay", "--latest", *arguments))] == [str(newest)]
    assert [report["file"] for report in load_reports(run("replay", "--all", *arguments))] == [str(newest), str(claude)]


def test_replay_latest_without_sessions_names_the_searched_folders(run, home):
    """If no tool has sessions the message names the folders."""
    result = run("replay", "--latest")
    assert result.exit_code == 2
    assert str(home / ".claude" / "projects") in result.stderr


def test_replay_reads_a_session_from_standard_input(run, session):
    """``-`` is the session on standard input."""
    result = run("replay", "-", "--json", "--no-cuts", "--policy", "sliding", stdin=session.read_bytes())
    assert load_reports(result)[0]["requests"] == 6


def test_replay_exits_2_for_a_broken_configuration(run, session, home):
    """An unknown table ends the command with the file's name."""
    (home / "holdfast.toml").write_text("[[modell]]\nwindow = 3\n")
    result = run("replay", session)
    assert result.exit_code == 2
    assert "holdfast.toml" in result.stderr


def test_tokenizer_counts_texts_of_any_length():
    """A text too long for the tokenizer is counted in pieces, to within a token a piece."""
    pytest.importorskip("bpe_openai")
    name, count = get_tokenizer()
    assert name == "o200k"
    text = "word " * (4 * MAX_PIECE)
    assert abs(count(text) - 4 * MAX_PIECE) <= len(text) // MAX_PIECE + 1


def test_replay_prints_file_names_without_markup_or_escapes(run, home, make_session_lines, write_lines):
    """A file name with markup or escape sequences is printed as text."""
    file = write_lines(home / "[bold]\x1b[31mred.jsonl", make_session_lines(2))
    result = run("replay", file, "--policy", "sliding")
    assert "[bold]" in result.stdout
    assert "\x1b" not in result.stdout


def test_replay_leaves_the_recording_unchanged(run, session):
    """Replaying changes nothing in the recording."""
    bytes_before = Path(session).read_bytes()
    run("replay", session, "--policy", "holdfast")
    assert Path(session).read_bytes() == bytes_before


@pytest.mark.uncounted
@pytest.mark.parametrize("columns", example_counts.mark_rest_long([40, 80, 50, 60, 72, 96, 120], keep=1))
def test_replay_cuts_off_no_figure_in_a_narrow_terminal(run, long_session, monkeypatch, columns):
    """A narrow terminal gets fewer columns, each of them whole."""
    monkeypatch.setenv("COLUMNS", str(columns))
    printed = run("replay", long_session, *SMALL, "--policy", "append-only,sliding,holdfast", "--cuts").stdout
    tables = printed[printed.index("recall") : printed.index("holdfast: all")]
    assert "…" not in tables
    assert "append-only" in tables
    assert "fact" in printed


def test_replay_notes_a_strange_usage_factor(run, home, make_session_lines, write_lines):
    """Recorded usage far from the tokenizer's count is noted, since it scales every size."""
    odd = [text.replace('"input_tokens": ', '"input_tokens": 90') for text in make_session_lines(3)]
    (report,) = load_reports(run("replay", write_lines(home / "odd.jsonl", odd), "--json", "--policy", "sliding"))
    assert any("what the tokenizer counts" in note for note in report["notes"])


@pytest.mark.parametrize("policy", ["opencode", "claude-code", "holdfast"])
def test_replay_fits_redacted_texts_by_their_recorded_usage(run, home, make_session_lines, write_lines, policy):
    """If recorded usage is fifteen times the texts, a summary takes no more of the window than its share. OpenClaw and
    pi keep 20,000 tokens by a count of their own, which is all such a session has.
    """
    file = write_lines(home / "redacted.jsonl", make_session_lines(30))
    options = ("--window", "48000", "--setup-tokens", "1000", "--no-cuts", "--json", "--policy", policy)
    arguments = ("replay", file, *options)
    (report,) = load_reports(run(*arguments))
    assert report["tokens_peak"] > 15_000
    assert report["over_window"] == 0


def test_replay_losses_tells_where_facts_were_lost(run, long_session):
    """``--losses`` runs ours alone and prints the losses in place of the picture; the JSON has them in each row."""
    result = run("replay", long_session, *SMALL, "--losses")
    assert result.exit_code == 0, result.stderr
    assert "used again" in result.stdout
    assert "sliding" not in result.stdout
    [report] = load_reports(run("replay", long_session, *SMALL, "--losses", "--json", "--no-cuts"))
    assert list(report) == [*KEYS, "losses"]
    assert report["policy"] == "holdfast"


def test_replay_losses_of_named_policies(run, long_session):
    """Each named policy has its own losses."""
    reports = load_reports(
        run("replay", long_session, *SMALL, "--losses", "--json", "--no-cuts", "--policy", "append-only,sliding")
    )
    assert [report["policy"] for report in reports] == ["append-only", "sliding"]
    assert reports[0]["losses"]["lost"] == 0


def test_replay_pools_by_repository(run, home, make_session_lines, write_lines):
    """Sessions of two repositories get a table with the mean; the JSON ends with the same figures."""
    files = []
    for number, folder in enumerate(("/home/dev/alpha", "/home/dev/alpha/.worktrees/fix", "/home/dev/beta")):
        lines = [
            json.dumps(json.loads(line) | {"cwd": folder})
            for line in make_session_lines(24, session=f"1000{number}-bbbb", words=150)
        ]
        files.append(write_lines(home / f"{number}.jsonl", lines))
    result = run("replay", *files, *SMALL, "--policy", "append-only,holdfast")
    assert result.exit_code == 0, result.stderr
    table = result.stdout.partition("by repository")[2]
    assert "2 repositories" in table
    assert "the recorded working folder" in table
    assert "2 sessions" in table
    reports = load_reports(run("replay", *files, *SMALL, "--policy", "append-only,holdfast", "--json", "--no-cuts"))
    assert [report.get("repository") for report in reports[:6]] == ["alpha"] * 4 + ["beta"] * 2
    pools = [(report["repository"], report["policy"], report["sessions"]) for report in reports[6:10]]
    assert pools == [
        ("alpha", "append-only", 2),
        ("alpha", "holdfast", 2),
        ("beta", "append-only", 1),
        ("beta", "holdfast", 1),
    ]
    alpha, beta, mean = reports[7], reports[9], reports[11]
    assert mean["policy"] == "holdfast"
    assert mean["cost"] == pytest.approx((alpha["cost"] + beta["cost"]) / 2)


def test_replay_of_one_repository_has_no_table_of_repositories(
    run, long_session, home, make_session_lines, write_lines
):
    """With one repository the pool says it all."""
    other = write_lines(home / "other.jsonl", make_session_lines(24, session="10010-bbbb", words=150))
    assert "by repository" not in run("replay", long_session, other, *SMALL, "--policy", "holdfast").stdout
