"""Databases of tools that Holdfast cannot read, recognized by their tables."""

from __future__ import annotations

from collections.abc import Collection

_ADVICE = "to bring a conversation over, save its messages as JSON with `messages` (role, content) and import that"
_READ_ADVICE = (
    "it is read and not repaired: give it to holdfast import, or, if that finds it damaged, save what can be read with "
    "`sqlite3 FILE .recover`"
)
"""What to do with a database that has a reader, where something else than reading was asked for."""
_CODEX_ADVICE = "the sessions are the rollouts in the folder sessions beside it"


def recognize_foreign_database(tables: Collection[str]) -> str:
    """Return what a database with these tables is and what to do with it, or an empty string if it is unknown."""
    names = set(tables)
    for marks, title, advice in _KNOWN_DATABASES:
        if marks <= names:
            return f"this is {title}; {advice}"
    return ""


# The first row whose tables are all there counts, so those with more or rarer names come first.
_KNOWN_DATABASES: tuple[tuple[frozenset[str], str, str], ...] = (
    (frozenset({"sessions", "entries"}), "a store of Holdfast itself", "name it with --store, not as a file"),
    (frozenset({"thread_items", "thread_turns"}), "the history index of Codex", _CODEX_ADVICE),
    (frozenset({"threads", "thread_spawn_edges"}), "the list of threads of Codex", _CODEX_ADVICE),
    (frozenset({"threads", "thread_dynamic_tools"}), "the list of threads of Codex", _CODEX_ADVICE),
    (frozenset({"threads", "backfill_state"}), "the list of threads of Codex", _CODEX_ADVICE),
    (frozenset({"transcript_events", "session_windows"}), "the database of an OpenClaw agent", _READ_ADVICE),
    (frozenset({"transcript_events", "session_entries"}), "the database of an OpenClaw agent", _READ_ADVICE),
    (
        frozenset({"auth_profile_store", "schema_meta"}),
        "the database of an OpenClaw agent from before sessions were kept in it",
        "the sessions are the files agents/*/sessions/*.jsonl of OpenClaw's folder",
    ),
    (
        frozenset({"subagent_runs", "task_runs"}),
        "the database that the agents of OpenClaw share",
        "the sessions are in agents/*/agent/openclaw-agent.sqlite of OpenClaw's folder",
    ),
    (frozenset({"ItemTable", "cursorDiskKV"}), "the state of Cursor, which is not read", _ADVICE),
    (frozenset({"ItemTable"}), "the state of VS Code or an editor made of it, which is not read", _ADVICE),
    (frozenset({"sessions", "turns", "checkpoints"}), "the store of GitHub Copilot CLI, which is not read", _ADVICE),
    (frozenset({"sessions", "messages", "files"}), "the database of Crush, which is not read", _ADVICE),
    (frozenset({"sessions", "messages", "messages_fts"}), "the database of Hermes, which is not read", _ADVICE),
    (frozenset({"sessions", "messages", "schema_version"}), "the database of goose", _READ_ADVICE),
    (frozenset({"conversations_v2"}), "the database of Kiro CLI, which is not read", _ADVICE),
    (frozenset({"conversations", "history", "state"}), "the database of Amazon Q, which is not read", _ADVICE),
    (frozenset({"conversations", "responses"}), "the log of the program llm, which is not read", _ADVICE),
    (frozenset({"ai_queries", "agent_conversations"}), "the database of Warp, which is not read", _ADVICE),
    (frozenset({"threads"}), "a database of threads, as Zed keeps them, which is not read", _ADVICE),
)
