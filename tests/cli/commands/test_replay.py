"""``holdfast replay``: its contract for programs, its table for people, and what it does with a choice of files."""

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
    "metrics", "file", "policy", "window", "frame", "api", "model", "tokenizer", "requests", "invalid_requests",
    "over_window", "user_words_missing", "tokens_sum", "tokens_peak", "cache_hit", "usd", "online_recall",
    "online_fact_recall", "mutations", "compactions", "policy_ms_p50", "policy_ms_p95", "notes", "cuts",
]  # fmt: skip
CUT_KEYS = ["dependencies", "fact_recall", "name_recall", "handle_recall", "reread_tokens", "z_gain", "stale", "oracle"]
NO_PRICE = "house-7b has no known price, so costs are not shown; set a [[price]] in holdfast.toml"
SMALL = ("--window", "16000", "--frame", "1000")


def figures(result):
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_json_has_the_names_of_the_contract(run, session):
    """``--json`` is one array with an object for each policy, in the order given, with exactly these names."""
    found = figures(run("replay", session, "--json", "--policy", "holdfast,sliding"))
    assert [one["policy"] for one in found] == ["holdfast", "sliding"]
    assert [list(one) for one in found] == [KEYS, KEYS]
    assert [list(cut) for cut in found[0]["cuts"].values()] == [CUT_KEYS] * 3
    assert list(found[0]["cuts"]) == ["4000", "8000", "16000"]
    assert {found[0][key] for key in ("file", "metrics", "window", "frame")} == {str(session), 1, 64_000, 10_000}


def test_a_recall_without_dependencies_is_null(run, session):
    """Nothing to recall is not a recall of 0 or 1."""
    one = figures(run("replay", session, "--json", "--policy", "sliding"))[0]
    assert one["cuts"]["8000"]["dependencies"] == 0
    assert one["cuts"]["8000"]["fact_recall"] is None


def test_all_policies_are_the_default(run, session):
    """Without ``--policy`` every preset runs, ours last."""
    found = figures(run("replay", session, "--json", "--no-cuts"))
    assert [one["policy"] for one in found] == list(PRESETS)
    assert all(one["cuts"] == {} for one in found)


def test_a_bad_file_does_not_stop_the_others(run, session, home, write):
    """A file that cannot be read gives an object with its error; the others run, and the exit code is 0."""
    empty = write(home / "empty.jsonl", [])
    found = figures(run("replay", empty, session, "nowhere.jsonl", "--json", "--policy", "sliding", "--no-cuts"))
    assert [sorted(one) == ["error", "file"] for one in found] == [True, False, True]
    assert found[2]["file"] == "nowhere.jsonl"


def test_only_bad_files_are_wrong_use(run):
    """Exit code 2 where no file could be replayed; programs get the errors in the array, people a message."""
    result = run("replay", "nowhere.jsonl", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)[0]["file"] == "nowhere.jsonl"
    result = run("replay", "nowhere.jsonl")
    assert result.exit_code == 2
    assert "nowhere.jsonl: no such file or directory; check the path" in result.stderr


def test_holdfast_fits_a_window_that_append_only_outgrows(run, long_session):
    """The figures tell a policy that fits from one that does not, and ours compacts to fit."""
    found = figures(run("replay", long_session, *SMALL, "--json", "--no-cuts", "--policy", "append-only,holdfast"))
    plain, ours = found
    assert plain["over_window"] > 0
    assert plain["compactions"] == 0
    assert (ours["over_window"], ours["invalid_requests"], ours["user_words_missing"]) == (0, 0, 0)
    assert ours["compactions"] > 0
    assert ours["tokens_sum"] < plain["tokens_sum"]


@pytest.fixture
def crowded_session(home, talk, line, write):
    """Return a session that begins with an open call too large for 4,000 tokens: it cannot be cut or left out."""
    body = "\n".join(f"value_{number} = {number}" for number in range(900))
    call = {"type": "tool_use", "id": "toolu_open", "name": "Write", "input": {"file_path": "big.py", "content": body}}
    said = [("user", "write it"), ("assistant", [call]), ("user", "go on")]
    said.append(("assistant", [{"type": "text", "text": "It is written."}]))
    said += [(one["type"], one["message"]["content"]) for one in map(json.loads, talk(20, words=150))]
    lines = [line(number, role, content, session="10009-cccc") for number, (role, content) in enumerate(said)]
    return write(home / "crowded.jsonl", lines)


@pytest.mark.long
def test_a_budget_without_room_leaves_the_other_figures(run, crowded_session):
    """Where a run at cuts has no room for a request, its figures alone are null, and a note says why."""
    asked = ("replay", crowded_session, "--window", "32000", "--frame", "1000", "--policy")
    (one,) = figures(run(*asked, "holdfast", "--json"))
    assert (list(one), one["requests"], one["invalid_requests"]) == (KEYS, 42, 0)
    assert [list(cut) for cut in one["cuts"].values()] == [CUT_KEYS] * 3
    missing, *others = one["cuts"].values()
    assert {name for name, value in missing.items() if value is not None} == {"dependencies"}
    assert missing["dependencies"] == others[0]["dependencies"] > 0
    assert all(cut["fact_recall"] is not None for cut in others)
    (note,) = [note for note in one["notes"] if note.startswith("nothing measured at cuts of 4,000: ")]
    assert "made for 4,000 tokens of messages" in note
    assert "--window" not in note
    shown = " ".join(run(*asked, "append-only", "--cuts").stdout.split())
    assert "nothing measured at cuts of 4,000: No request fits" in shown
    assert "append-only - 1.000 1.000" in shown


@pytest.mark.long
def test_a_pool_says_which_figures_are_of_fewer_sessions(run, long_session, crowded_session):
    """A figure that one session lacks is pooled over the others, and a note says so."""
    asked = ("--window", "16000", "--frame", "1000", "--policy", "append-only", "--cuts")
    pool = run("replay", long_session, crowded_session, *asked).stdout.partition("all sessions together")[2]
    assert "append-only: recall at cuts of 4,000 is without 1 of 2 sessions" in pool


def test_a_policy_that_cannot_run_leaves_the_others(run, home, write):
    """A recorded frame that leaves ours no room costs its row alone; the message tells the window that was given."""
    tool = {"name": "look", "description": "It looks at files. " * 4_000, "parameters": {"type": "object"}}
    body = {
        "model": "gpt-4o",
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
        "tools": [{"type": "function", "function": tool}],
    }
    asked = ("replay", write(home / "body.json", [json.dumps(body)]), "--window", "29000")
    plain, ours = figures(run(*asked, "--json", "--no-cuts", "--policy", "holdfast,append-only"))
    assert (plain["policy"], plain["requests"]) == ("append-only", 1)
    assert (list(ours), ours["policy"]) == (["file", "policy", "error"], "holdfast")
    assert "window 29000 (--window)" in ours["error"]
    shown = run(*asked, "--policy", "holdfast,append-only", "--show", "append-only").stdout
    assert "holdfast could not be replayed: No room for a conversation: window 29000 (--window)" in shown
    assert "append-only, request by request" in shown


@pytest.mark.long
def test_two_runs_give_the_same_figures(run, long_session):
    """Everything but the time it took is the same when run twice."""
    asked = ("replay", long_session, *SMALL, "--json", "--no-cuts", "--policy", "holdfast")
    runs = [figures(run(*asked))[0] for _ in range(2)]
    timeless = [{key: value for key, value in one.items() if "_ms_" not in key} for one in runs]
    assert timeless[0] == timeless[1]


def test_table_and_picture(run, long_session):
    """The table has a row for each policy, ours last; under it stands the picture, no line over the width."""
    result = run("replay", long_session, *SMALL, "--policy", "holdfast,sliding")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    rows = [text.split()[0] for text in lines if text.startswith(("holdfast ", "sliding "))]
    assert rows[:2] == ["sliding", "holdfast"]
    assert any("⟱" in text and "→" in text for text in lines)
    assert max(map(len, lines)) <= 100


@pytest.mark.uncounted
@pytest.mark.parametrize("width", example_counts.spare([80, 120], keep=1))
def test_table_and_picture_fit_the_terminal(run, long_session, monkeypatch, width):
    """No line is longer than the terminal is wide, and no heading of the table is cut off."""
    monkeypatch.setenv("COLUMNS", str(width))
    result = run("replay", long_session, *SMALL, "--cuts", "--policy", "append-only,holdfast")
    assert max(map(len, result.stdout.splitlines())) <= width
    assert "…" not in result.stdout


def test_show_chooses_the_picture(run, session):
    """``--show`` names the policy of the picture; one that does not run is an error with the list."""
    assert "sliding, request by request" in run("replay", session, "--policy", "sliding,pi", "--show", "sliding").stdout
    result = run("replay", session, "--policy", "sliding", "--show", "pi")
    assert result.exit_code == 2
    assert "sliding" in result.stderr


@pytest.mark.long
def test_several_files_are_pooled(run, long_session, home, talk, write):
    """Under several tables stands one for the sessions judged for cost: those over twice the window."""
    other = write(home / "other.jsonl", talk(2, session="07e4-cccc"))
    result = run("replay", long_session, other, *SMALL, "--policy", "append-only,holdfast")
    assert "1 of 2 sessions" in result.stdout
    assert "request by request" not in result.stdout


def test_unknown_policy_comes_with_the_list(run, session):
    """A policy that is not there is wrong use, and the message says which there are."""
    result = run("replay", session, "--policy", "holdfast,holdfats", "--json")
    assert result.exit_code == 2
    assert all(name in result.stderr for name in PRESETS)


@pytest.mark.parametrize("window", ["10", "-5", "0"])
def test_a_window_without_room_is_an_error_with_its_numbers(run, session, window):
    """A window that holds nothing ends the command before any file is read."""
    result = run("replay", session, "--window", window, "--json")
    assert result.exit_code == 2
    assert f"window {window}" in result.stderr
    assert "4000 are needed" in result.stderr


@pytest.mark.parametrize(
    "wrong", [("--window", "abc"), ("--frame", "-1"), ("--api", "fax"), ("--latest", "--window", "1e3")]
)
def test_wrong_values_are_wrong_use(run, session, wrong):
    """An option with a value it cannot have is exit code 2 and a message."""
    result = run("replay", session, *wrong)
    assert result.exit_code == 2
    assert "Invalid value" in result.stderr


@pytest.mark.parametrize(
    ("policy", "window"), [("opencode", "32000"), ("claude-code", "32000"), ("pi", "32000"), ("openclaw", "15000")]
)
def test_a_preset_below_its_own_minimum_runs_and_says_so(run, session, policy, window):
    """A preset is not refused and not repaired: it runs as it is, marked degenerate."""
    one = figures(run("replay", session, "--json", "--policy", policy, "--window", window, "--frame", "1000"))[0]
    assert one["requests"] == 6
    assert any(note.startswith("degenerate: ") for note in one["notes"])


def test_a_preset_above_its_minimum_is_not_degenerate(run, session):
    """At a usual window no preset is marked."""
    found = figures(run("replay", session, "--json", "--no-cuts"))
    assert not [note for one in found for note in one["notes"] if "degenerate" in note]


def test_damaged_lines_are_told_with_their_number(run, home, talk, write):
    """A line that cannot be read is told by its number; the rest is replayed."""
    lines = talk(3)
    lines.insert(2, '{"type": "user", oops')
    broken = write(home / "broken.jsonl", lines)
    one = figures(run("replay", broken, "--json", "--no-cuts", "--policy", "sliding"))[0]
    assert one["requests"] == 6
    assert one["notes"][0].startswith("line 3: ")
    assert "line 3: " in run("replay", broken, "--policy", "sliding").stdout


def test_dump_writes_every_request_as_it_would_be_sent(run, long_session, home):
    """A dump holds the request of each step, its body as JSON, in files that only their owner can read."""
    folder = home / "dump" / "inner"
    run("replay", long_session, *SMALL, "--policy", "sliding,holdfast", "--dump", folder)
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["long.holdfast.jsonl", "long.sliding.jsonl"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    cases = [msgspec.json.decode(text) for text in files[0].read_bytes().splitlines()]
    assert [case["step"] for case in cases] == list(range(48))
    assert {(case["file"], case["policy"]) for case in cases} == {(str(long_session), "holdfast")}
    assert [case["request"]["model"] for case in cases] == ["claude-sonnet-4-5"] * 48
    assert "Please read src/module_0.py" in json.dumps(cases[0]["request"]["messages"][0]["content"])


def test_files_of_one_name_are_dumped_apart(run, session, home, talk, write):
    """Two sessions of one name do not overwrite each other's requests."""
    twin = write(home / "a" / "session.jsonl", talk(2))
    run("replay", session, twin, "--policy", "sliding", "--dump", home / "dump")
    assert sorted(file.name for file in (home / "dump").iterdir()) == [
        "session-2.sliding.jsonl",
        "session.sliding.jsonl",
    ]


def test_a_dump_that_cannot_be_written_ends_the_command(run, session):
    """A folder that cannot be made is told before anything runs."""
    result = run("replay", session, "--dump", session / "inside")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


def test_request_bodies_bring_their_own_frame_and_api(run, home, write):
    """The recorded frame counts, unless ``--frame`` says another; ``--api`` and ``--model`` choose the place."""
    body = {
        "model": "gpt-4o",
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
    }
    file = write(home / "body.json", [json.dumps(body)])
    asked = ("replay", file, "--json", "--no-cuts", "--policy", "sliding", "--model", "gpt-4o")
    one = figures(run(*asked))[0]
    assert (one["api"], one["model"]) == ("openai-chat", "gpt-4o")
    assert 0 < one["frame"] < 200
    assert figures(run(*asked, "--frame", "77"))[0]["frame"] == 77


def test_a_model_without_a_price_costs_nothing_known(run, session):
    """No other model's prices stand for those that nobody told: the figures say so, the others are there."""
    asked = ("replay", session, "--policy", "append-only,holdfast", "--model", "house-7b")
    one, two = json.loads(run(*asked, "--json", "--no-cuts").stdout)
    assert (one["usd"], two["usd"]) == (None, None)
    assert one["requests"] > 0
    assert NO_PRICE in one["notes"]
    shown = run(*asked).stdout
    assert (NO_PRICE in shown, "$0" in shown, "inside the window; " in " ".join(shown.split())) == (True, False, True)


def test_a_session_without_answers_cannot_be_replayed(run, home, talk, write):
    """Nothing was asked of a model: there is nothing to replay, and the message says so."""
    file = write(home / "asked.jsonl", talk(1)[:1])
    result = run("replay", file, "--json")
    assert result.exit_code == 2
    assert "nothing to replay" in json.loads(result.stdout)[0]["error"]


def test_nothing_to_replay_is_wrong_use(run):
    """Without a file and without ``--latest`` the message says what to give."""
    result = run("replay")
    assert result.exit_code == 2
    assert "--latest" in result.stderr


def test_latest_and_all_find_the_sessions_of_the_user(run, home, monkeypatch, talk, write):
    """``--latest`` is the file last changed over all tools; ``--all`` is all of them, sub-agents left out."""
    codex = home / "codex"
    monkeypatch.setenv("CODEX_HOME", str(codex))
    claude = write(home / ".claude" / "projects" / "-work" / "one.jsonl", talk(2))
    write(home / ".claude" / "projects" / "-work" / "agent-7.jsonl", talk(2))
    write(codex / "sessions" / "2026" / "01" / "01" / "notes.jsonl", talk(1))
    newest = write(home / ".pi" / "agent" / "sessions" / "--w--" / "two.jsonl", talk(2))
    os.utime(claude, (1, 1))
    asked = ("--json", "--no-cuts", "--policy", "sliding")
    assert [one["file"] for one in figures(run("replay", "--latest", *asked))] == [str(newest)]
    assert [one["file"] for one in figures(run("replay", "--all", *asked))] == [str(newest), str(claude)]


def test_latest_without_sessions_says_where_it_looked(run, home):
    """Where no tool has sessions the message names the folders."""
    result = run("replay", "--latest")
    assert result.exit_code == 2
    assert str(home / ".claude" / "projects") in result.stderr


def test_standard_input_is_a_file(run, session):
    """``-`` is the session on standard input."""
    result = run("replay", "-", "--json", "--no-cuts", "--policy", "sliding", given=session.read_bytes())
    assert figures(result)[0]["requests"] == 6


def test_a_broken_configuration_is_told(run, session, home):
    """A setting that nobody knows ends the command with the file's name."""
    (home / "holdfast.toml").write_text("[[modell]]\nwindow = 3\n")
    result = run("replay", session)
    assert result.exit_code == 2
    assert "holdfast.toml" in result.stderr


def test_any_length_is_counted():
    """A text that the tokenizer refuses at once is counted in pieces, to within a token a piece."""
    pytest.importorskip("bpe_openai")
    name, count = get_tokenizer()
    assert name == "o200k"
    text = "word " * (4 * MAX_PIECE)
    assert abs(count(text) - 4 * MAX_PIECE) <= len(text) // MAX_PIECE + 1


def test_names_of_files_are_printed_as_they_are(run, home, talk, write):
    """A name that looks like markup or steers a terminal does neither."""
    file = write(home / "[bold]\x1b[31mred.jsonl", talk(2))
    result = run("replay", file, "--policy", "sliding")
    assert "[bold]" in result.stdout
    assert "\x1b" not in result.stdout


def test_the_file_stays_what_it_was(run, session):
    """Replaying changes nothing in the recording."""
    before = Path(session).read_bytes()
    run("replay", session, "--policy", "holdfast")
    assert Path(session).read_bytes() == before


@pytest.mark.uncounted
@pytest.mark.parametrize("columns", example_counts.spare([40, 80, 50, 60, 72, 96, 120], keep=1))
def test_no_figure_is_cut_off(run, long_session, monkeypatch, columns):
    """A narrow terminal gets fewer columns, each of them whole."""
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = run("replay", long_session, *SMALL, "--policy", "append-only,sliding,holdfast", "--cuts").stdout
    tables = shown[shown.index("recall") : shown.index("holdfast: all")]
    assert "…" not in tables
    assert "append-only" in tables
    assert "fact" in shown


def test_a_strange_factor_is_noted(run, home, talk, write):
    """Usage far from what a tokenizer counts is told, for every size is scaled by it."""
    odd = [text.replace('"input_tokens": ', '"input_tokens": 90') for text in talk(3)]
    (found,) = figures(run("replay", write(home / "odd.jsonl", odd), "--json", "--policy", "sliding"))
    assert any("what the tokenizer counts" in note for note in found["notes"])


@pytest.mark.parametrize("policy", ["opencode", "claude-code", "holdfast"])
def test_redacted_texts_fit_by_what_they_were_counted_at(run, home, talk, write, policy):
    """Where recorded usage is fifteen times the texts, a summary takes no more of the window than it was given.

    OpenClaw and pi keep 20,000 tokens by a count of their own, which is all that such a session has.
    """
    file = write(home / "redacted.jsonl", talk(30))
    asked = ("replay", file, "--window", "48000", "--frame", "1000", "--no-cuts", "--json", "--policy", policy)
    (one,) = figures(run(*asked))
    assert one["tokens_peak"] > 15_000
    assert one["over_window"] == 0
