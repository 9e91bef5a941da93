"""The cost of a store as it grows: SQLite and PostgreSQL side by side, and LangGraph's checkpointer for PostgreSQL.

Usage: python bench/store_postgres.py [--sessions N,N…] [--entries N] [--messages N] [--langgraph PYTHON] [--json]

*Growth*: with so many other sessions in the store, the median time to append a message of 1 kB under the lease, to open
a conversation of 40 messages, and to search it. The other sessions are copies of one, made by SQL.

*One long session*: the same in a session of so many entries with a compaction near its end, and the time to import it.

*LangGraph*: one conversation, stored after each message: milliseconds a step, bytes in the database, and milliseconds
to open it again. PYTHON is the interpreter of an environment with langgraph-checkpoint-postgres and psycopg[binary].

PostgreSQL runs on this machine with its usual settings (each commit is flushed), connected by its socket, as an
ordinary role, so that the rules that keep tenants apart count.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from postgres_server import PostgresServer, find_postgres_programs

from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.entries import CompactionEntry, Entry, MessageEntry
from holdfast.store.base import SessionStore
from holdfast.store.open_store import open_store

TEXT = "The nightly build waits for the artifact cache of the second runner, which is cold. " * 12
"""A message of 1 kB."""
CONVERSATION_MESSAGES = 40
REPETITIONS = 60
TEMPLATE, MEASURED = "template", "measured"
LANGGRAPH_SCRIPT = """
import json, sys, time
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver

url, count, text = sys.argv[1], int(sys.argv[2]), sys.argv[3]
config = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
with PostgresSaver.from_conn_string(url) as saver:
    saver.setup()
    messages, seconds = [], []
    for step in range(count):
        messages = [*messages, {"role": "user" if step % 2 == 0 else "assistant", "content": f"{step} {text}"}]
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": messages}
        checkpoint["channel_versions"] = {"messages": str(step + 1)}
        began = time.perf_counter()
        config = saver.put(config, checkpoint, {"source": "loop", "step": step}, {"messages": str(step + 1)})
        seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
    saver.get_tuple({"configurable": {"thread_id": "bench", "checkpoint_ns": ""}})
    opened = time.perf_counter() - began
print(json.dumps({"first": seconds[count // 20], "last": sorted(seconds[-20:])[10], "open": opened}))
"""


def make_entry(number: int, parent: str | None) -> Entry:
    """Return a message of 1 kB."""
    message = Message("user" if number % 2 == 0 else "assistant", (Text(f"{number} {TEXT}"),))
    return Entry(f"e{number}", parent, MessageEntry(build_sized_message(message)))


def make_conversation(count: int) -> list[Entry]:
    """Return a conversation of that many messages."""
    return [make_entry(number, f"e{number - 1}" if number else None) for number in range(count)]


def measure_median(action: Callable[[], object], repetitions: int = REPETITIONS) -> float:
    """Return the median time of an action in milliseconds, after one call that does not count."""
    action()
    seconds = []
    for _ in range(repetitions):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1_000


def measure_session(store: SessionStore, key: str) -> dict[str, float]:
    """Measure appending to a session, opening and searching it."""
    number = store.get_session(key).entry_count

    def append() -> None:
        nonlocal number
        with store.hold_lease(key):
            store.append_entries(key, [make_entry(number, store.get_session(key).leaf_id)])
        number += 1

    store.search_session(key, "artifact nowhere")
    return {
        "open": measure_median(lambda: store.open_state(key), 20),
        "search": measure_median(lambda: store.search_session(key, "artifact nowhere"), 20),
        "append": measure_median(append),
    }


class SqliteBench:
    """A store in a file."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self.location = str(folder / "store.db")

    def copy_template(self, count: int) -> None:
        """Make copies of the template until there are ``count`` sessions."""
        with closing(sqlite3.connect(self.location)) as db:
            have, template, top = db.execute(
                f"SELECT (SELECT count(*) FROM sessions), (SELECT session FROM sessions WHERE key = '{TEMPLATE}'),"
                " (SELECT max(seq) FROM entries)"
            ).fetchone()
            columns = "title, format, cwd, model, created, updated, entries, leaf, bytes, recorded_window"
            content = "depth, base, id, kind, at, api, size, digest, identity, body, raws, origin, raw"
            first_number = db.execute("SELECT max(session) FROM sessions").fetchone()[0]
            for number in range(have, count):
                session = first_number + number
                db.execute(
                    f"INSERT INTO sessions (session, key, {columns})"
                    f" SELECT ?, ?, {columns} FROM sessions WHERE session = ?",
                    (session, f"copy-{number}", template),
                )
                added = db.execute(
                    f"INSERT INTO entries (seq, session, parent, {content})"
                    f" SELECT seq + ?, ?, parent + ?, {content} FROM entries WHERE session = ?",
                    (top, session, top, template),
                ).rowcount
                top += added
            db.commit()

    def count_bytes(self) -> int:
        """Return the bytes on disk."""
        return sum(path.stat().st_size for path in Path(self.location).parent.glob("store.db*") if path.is_file())


class PostgresBench:
    """A store on PostgreSQL."""

    name = "PostgreSQL"

    def __init__(self, server: PostgresServer, schema: str) -> None:
        self.server = server
        self.schema = schema
        self.location = server.url(schema=schema)

    def copy_template(self, count: int) -> None:
        """Make copies of the template until there are ``count`` sessions."""
        s = self.schema
        info = "title, format, cwd, model, created, updated, entries, leaf, recorded_window, bytes, last_seq"
        place = "seq, parent, depth, base, tenant, id, parent_id"
        content = f"{place}, kind, at, api, size, digest, identity, raw, body, raws, origin"
        template = f"(SELECT session FROM {s}.sessions WHERE key = '{TEMPLATE}')"
        numbers = f"generate_series((SELECT count(*) FROM {s}.sessions), {count} - 1) n"
        self.server.run_sql(
            f"CREATE TEMP TABLE copies AS SELECT n, {template} + n AS session FROM {numbers};"
            f"INSERT INTO {s}.sessions (session, tenant, key, {info})"
            f" SELECT c.session, tenant, 'copy-' || n, {info} FROM {s}.sessions t, copies c WHERE t.key = '{TEMPLATE}';"
            f"INSERT INTO {s}.entries (session, {content})"
            f" SELECT c.session, {content} FROM {s}.entries t, copies c WHERE t.session = {template};"
            f"ANALYZE {s}.sessions; ANALYZE {s}.entries",
            "store",
        )

    def count_bytes(self) -> int:
        """Return the bytes of all tables with their indexes."""
        query = (
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c JOIN pg_namespace n"
            f" ON n.oid = relnamespace WHERE nspname = '{self.schema}' AND relkind IN ('r', 'p')"
        )
        return int(self.server.run_sql(query, "store"))


Bench = SqliteBench | PostgresBench


def measure_growth(bench: Bench, counts: list[int]) -> Iterator[dict[str, Any]]:
    """Yield the figures of one session beside more and more others."""
    with open_store(bench.location) as store:
        store.import_entries(TEMPLATE, make_conversation(4))
        store.import_entries(MEASURED, make_conversation(CONVERSATION_MESSAGES))
    for count in counts:
        bench.copy_template(count)
        with open_store(bench.location) as store:
            yield {
                "store": bench.name,
                "sessions": count,
                **measure_session(store, MEASURED),
                "bytes": bench.count_bytes(),
            }


def measure_long_session(bench: Bench, entries: int) -> dict[str, Any]:
    """Return the figures of one session of many entries."""
    conversation = make_conversation(entries)
    with open_store(bench.location) as store:
        began = time.perf_counter()
        store.import_entries("long", conversation)
        imported = time.perf_counter() - began
        summary = CompactionEntry(entries - 20, Message.from_text("user", "A summary of the work so far."), 400)
        store.append_entries("long", [Entry("compaction", conversation[-1].id, summary)])
        return {"store": bench.name, "entries": entries, "import_s": imported, **measure_session(store, "long")}


def measure_conversation(bench: Bench, messages: int) -> dict[str, Any]:
    """Return the figures of a conversation that is stored message by message, as LangGraph's is measured."""
    before = bench.count_bytes() if Path(bench.location).exists() or isinstance(bench, PostgresBench) else 0
    seconds = []
    with open_store(bench.location) as store:
        store.create_session("conversation")
        parent = None
        for number in range(messages):
            entry = make_entry(number, parent)
            began = time.perf_counter()
            store.append_entries("conversation", [entry])
            seconds.append(time.perf_counter() - began)
            parent = entry.id
        began = time.perf_counter()
        store.open_state("conversation")
        opened = time.perf_counter() - began
    return summarize_steps(bench.name, messages, seconds, opened, bench.count_bytes() - before)


def summarize_steps(name: str, messages: int, seconds: list[float], opened: float, size: int) -> dict[str, Any]:
    """Return the figures of a conversation stored step by step."""
    return {
        "store": name,
        "messages": messages,
        "first_ms": seconds[messages // 20] * 1_000,
        "last_ms": statistics.median(seconds[-20:]) * 1_000,
        "open_ms": opened * 1_000,
        "bytes": size,
    }


def measure_langgraph(server: PostgresServer, python: str, messages: int) -> dict[str, Any]:
    """Return the same figures of LangGraph's checkpointer."""
    server.run_sql("CREATE DATABASE langgraph OWNER holdfast_app")
    url = server.url(database="langgraph")
    done = subprocess.run(
        [python, "-c", LANGGRAPH_SCRIPT, url, str(messages), TEXT], capture_output=True, text=True, check=True
    )
    figures = json.loads(done.stdout)
    size = int(
        server.run_sql(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
            " WHERE nspname = 'public' AND relkind = 'r'",
            "langgraph",
        )
    )
    return {
        "store": "LangGraph",
        "messages": messages,
        "first_ms": figures["first"] * 1_000,
        "last_ms": figures["last"] * 1_000,
        "open_ms": figures["open"] * 1_000,
        "bytes": size,
    }


def print_rows(title: str, rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print a table, or a JSON object a line."""
    if as_json:
        for row in rows:
            print(json.dumps({"table": title} | row))
        return
    print(f"\n{title}")
    print("  ".join(f"{name:>12}" for name in rows[0]))
    for row in rows:
        print("  ".join(f"{value:>12,.2f}" if isinstance(value, float) else f"{value:>12}" for value in row.values()))


@contextmanager
def start_server() -> Iterator[PostgresServer]:
    """Start a server whose commits are flushed."""
    programs = find_postgres_programs()
    if programs is None:
        raise SystemExit("PostgreSQL's server is not installed here (Debian: apt install postgresql)")
    with PostgresServer(programs, "fsync=on", "shared_buffers=256MB") as server:
        yield server


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", default="100,1000,10000", help="numbers of sessions, ascending")
    parser.add_argument("--entries", type=int, default=10_000, help="entries of the long session")
    parser.add_argument("--messages", type=int, default=300, help="messages of the conversation beside LangGraph")
    parser.add_argument("--langgraph", metavar="PYTHON", help="an interpreter with LangGraph's checkpointer")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    counts = [int(count) for count in options.sessions.split(",")]
    with TemporaryDirectory() as folder, start_server() as server:
        benches: list[Bench] = [SqliteBench(Path(folder)), PostgresBench(server, "growth")]
        for bench in benches:
            rows = list(measure_growth(bench, counts))
            print_rows("growth: ms for one session beside others", rows, as_json=options.as_json)
        long_rows = [measure_long_session(bench, options.entries) for bench in benches]
        print_rows("one long session: ms", long_rows, as_json=options.as_json)
        (Path(folder) / "steps").mkdir()
        step_benches: list[Bench] = [SqliteBench(Path(folder) / "steps"), PostgresBench(server, "steps")]
        step_rows = [measure_conversation(bench, options.messages) for bench in step_benches]
        if options.langgraph:
            step_rows.append(measure_langgraph(server, options.langgraph, options.messages))
        print_rows("a conversation stored message by message", step_rows, as_json=options.as_json)


if __name__ == "__main__":
    main()
