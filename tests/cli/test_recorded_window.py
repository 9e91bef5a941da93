"""The window that a Codex rollout records: used where the catalogue has none, and kept by an import."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.config import load_shipped_catalog
from holdfast.reports.requests.request_size import get_session_target
from holdfast.store.open_store import open_store

WINDOW = 258_400
UNKNOWN = "house-model"


@pytest.fixture
def store_path(home: Path) -> Path:
    """Return the path of the store that the commands use."""
    return home / "store" / "holdfast.db"


def make_line(line_kind, **payload):
    return json.dumps({"timestamp": "2026-11-21T01:12:48.115Z", "type": line_kind, "payload": payload})


def write_rollout(folder: Path, model: str) -> Path:
    """Write a rollout of one turn with ``model`` that records ``WINDOW``; return its path."""
    usage = {"input_tokens": 900, "output_tokens": 9}
    info = {"last_token_usage": usage, "total_token_usage": usage, "model_context_window": WINDOW}
    said = {"role": "user", "content": [{"type": "input_text", "text": "Which port does the kelp server use?"}]}
    answered = {"role": "assistant", "content": [{"type": "output_text", "text": "It listens on 7311."}]}
    lines = [
        make_line("session_meta", id="kelp", cwd="/w"),
        make_line("event_msg", type="task_started", model_context_window=WINDOW),
        make_line("turn_context", cwd="/w", model=model),
        make_line("response_item", type="message", **said),
        make_line("response_item", type="message", **answered),
        make_line("event_msg", type="token_count", info=info),
    ]
    path = folder / "rollout.jsonl"
    path.write_text("".join(f"{text}\n" for text in lines))
    return path


def import_file(run, path):
    """Import a file and return the outcome."""
    return json.loads(run("import", path, "--json").stdout)[0]


def describe_window(run, *arguments):
    """Return the window of the session's next request, and where it came from."""
    context = json.loads(run("context", "kelp", "--json", *arguments).stdout)
    return context["window"], context["origin"]


def test_context_uses_the_recorded_window_of_an_unknown_model(run, home):
    """The recorded window replaces the assumed one, for the recorded model only; one that was asked for wins."""
    import_file(run, write_rollout(home, UNKNOWN))
    assert describe_window(run) == (WINDOW, "recorded in the session")
    assert describe_window(run, "--window", "90000") == (90_000, "asked for")
    window, origin = describe_window(run, "--model", "another-model")
    assert (window, origin.partition(":")[0]) == (200_000, "default")
    assert "planned for a window" not in run("compact", "kelp").stderr


def test_context_uses_the_window_of_the_catalog_first(run, home):
    """A window that the shipped catalogue states wins over the recorded one."""
    import_file(run, write_rollout(home, "gpt-5.5"))
    limits = load_shipped_catalog().get_limits("gpt-5.5")
    assert describe_window(run) == (limits.window, limits.window_source)
    assert limits.window != WINDOW


def test_context_uses_the_window_of_the_configuration_first(run, home):
    """A window that holdfast.toml states wins over the recorded one."""
    (home / "holdfast.toml").write_text('[[model]]\nmatch = "house-*"\nwindow = 77000\n')
    import_file(run, write_rollout(home, UNKNOWN))
    assert describe_window(run)[0] == 77_000


def test_window_of_the_last_request_wins_over_the_recorded_one(run, home, store_path):
    """A session that went on through Holdfast is planned for the window of its last request."""
    import_file(run, write_rollout(home, UNKNOWN))
    with open_store(store_path) as store:
        info, state = store.get_session("kelp"), store.open_state("kelp")
    last = replace(state.last_request, model=UNKNOWN, configured_window=50_000)
    target = get_session_target(info, replace(state, last_request=last), None, None, load_shipped_catalog())
    assert (target.limits.window, target.limits.window_source) == (50_000, "as it was asked last")


def test_import_again_adds_nothing_and_fills_in_the_window(run, home, store_path):
    """Importing again changes no entry, and gives a session of a version that read no windows its window."""
    path = write_rollout(home, UNKNOWN)
    assert import_file(run, path)["added"] > 0
    query = "SELECT id, identity, seq FROM entries ORDER BY seq"
    with closing(sqlite3.connect(store_path, isolation_level=None)) as db:
        before = db.execute(query).fetchall()
        db.execute("UPDATE sessions SET recorded_window = NULL")
    assert describe_window(run)[0] == 200_000
    assert import_file(run, path)["added"] == 0
    assert describe_window(run)[0] == WINDOW
    with closing(sqlite3.connect(store_path)) as db:
        assert db.execute(query).fetchall() == before


def test_replay_uses_the_recorded_window_only_if_nothing_is_known(run, home):
    """Without ``--window`` a recording of an unknown model is replayed in its own window, any other in the default."""
    path = write_rollout(home, UNKNOWN)

    def get_window(*arguments):
        done = run("replay", path, "--json", "--no-cuts", "--policy", "holdfast", *arguments)
        return json.loads(done.stdout)[0]["window"]

    assert get_window("--model", UNKNOWN) == WINDOW
    assert get_window("--model", UNKNOWN, "--window", "90000") == 90_000
    assert get_window("--model", "another-model") == get_window() == 64_000
