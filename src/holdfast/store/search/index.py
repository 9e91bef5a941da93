"""Which entries may hold some words: an index over every three characters of a text, made when somebody searches.

It tells candidates and never the answer: whoever asks looks into the texts. So it may be out of date, hold too much,
or be missing (SQLite without FTS5): a search then looks at more entries and finds the same. It holds no text.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress

INDEX_VERSION = 3
"""Version of what is indexed of an entry, and how: raise it when ``searching.words`` or this file says otherwise. An
index that an older rule made is made anew by the next search that can write, and not asked until then."""
GRAM_CHARS = 3
"""Characters that are indexed together: parts of words, code and Chinese are found; shorter words are not in it."""
MAX_INDEXED_CHARS = 1_000_000
"""Characters of the longest text that is taken apart (a tenth of a second); longer ones are always candidates."""
INDEX_BATCH_CHARS = 4_000_000
"""Characters that are indexed in one transaction (0.4 s): other writers wait for it."""
MAX_QUERY_GRAMS = 64
"""How many pieces of a query are asked for; more would tell no more."""
ALWAYS_CANDIDATE = "\ue000\ue001\ue002"
"""What the index holds for a text that is always a candidate."""
_CREATE_TABLE = "CREATE VIRTUAL TABLE words USING fts5(text, content = '', detail = 'none', tokenize = 'trigram')"
_TABLE_EXISTS = "EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'words')"
_OTHER_VERSION_EXISTS = "EXISTS (SELECT 1 FROM searched WHERE rule <> ?)"
_SELECT_UPTO = f"SELECT upto FROM searched WHERE session = ? AND NOT {_OTHER_VERSION_EXISTS} AND {_TABLE_EXISTS}"  # noqa: S608

_SELECT_MATCHING = """
    SELECT rowid FROM words WHERE words MATCH ?
    AND rowid >= (SELECT min(seq) FROM entries WHERE session = ?)
    AND rowid <= (SELECT max(seq) FROM entries WHERE session = ?)
    AND EXISTS (SELECT 1 FROM entries e WHERE e.seq = words.rowid AND e.session = ?)
    ORDER BY rowid DESC"""


def build_match_query(search_terms: Iterable[str]) -> str:
    """Return what to ask the index for texts that hold all of ``search_terms``; nothing if it cannot tell."""
    grams = {
        term[at : at + GRAM_CHARS]: None
        for term in map(_clean_index_text, search_terms)
        for at in range(max(0, len(term) - GRAM_CHARS + 1))
    }
    quoted_grams = ['"{}"'.format(gram.replace('"', '""')) for gram in list(grams)[:MAX_QUERY_GRAMS]]
    return f'({" AND ".join(quoted_grams)}) OR "{ALWAYS_CANDIDATE}"' if quoted_grams else ""


def get_indexed_seq(db: sqlite3.Connection, session: int) -> int:
    """Return the ``seq`` up to which the session's entries are in an index by the rule of this version alone."""
    try:
        row = db.execute(_SELECT_UPTO, (session, INDEX_VERSION)).fetchone()
    except sqlite3.OperationalError:  # a store of an older schema that is open for reading
        return 0
    return int(row[0]) if row else 0


def index_texts(db: sqlite3.Connection, session: int, texts: Sequence[tuple[int, str | None]]) -> None:
    """Put texts into the index under their ``seq``; nothing stands for an entry that says nothing.

    An empty text is always a candidate: what it stands for lies elsewhere.
    """
    if db.execute(f"SELECT {_TABLE_EXISTS}").fetchone() == (0,):
        db.execute(_CREATE_TABLE)
        db.execute("DELETE FROM searched")
    elif db.execute(f"SELECT {_OTHER_VERSION_EXISTS}", (INDEX_VERSION,)).fetchone() == (1,):
        _clear_index(db)
    rows = [
        (seq, _clean_index_text(text) if 0 < len(text) <= MAX_INDEXED_CHARS else ALWAYS_CANDIDATE)
        for seq, text in texts
        if text is not None
    ]
    db.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", rows)
    progress_row = (session, texts[-1][0], INDEX_VERSION)
    db.execute("INSERT OR REPLACE INTO searched (session, upto, rule) VALUES (?, ?, ?)", progress_row)


def find_candidate_seqs(db: sqlite3.Connection, session: int, match_query: str) -> list[int] | None:
    """Return the ``seq`` of each entry of a session that may match, the newest first.

    Nothing where the index cannot be asked. What others say between the session's first entry and its last is passed
    over, what they say before and behind is not looked at.
    """
    try:
        return [seq for (seq,) in db.execute(_SELECT_MATCHING, (match_query, session, session, session))]
    except sqlite3.DatabaseError:
        return None


def clear_word_index_if_indexed(db: sqlite3.Connection, session: int) -> None:
    """Empty the index if the session is in it: its numbers will be others'. The rest is indexed again when needed."""
    if db.execute("SELECT EXISTS (SELECT 1 FROM searched WHERE session = ?)", (session,)).fetchone() == (1,):
        _clear_index(db)


def has_word_index(db: sqlite3.Connection) -> bool:
    """Return whether there is an index."""
    return bool(db.execute(f"SELECT {_TABLE_EXISTS}").fetchone()[0])


def is_word_index_intact(db: sqlite3.Connection) -> bool:
    """Return whether SQLite finds nothing wrong with the index."""
    try:
        db.execute("INSERT INTO words (words) VALUES ('integrity-check')")
    except sqlite3.DatabaseError:
        return False
    return True


def drop_word_index(db: sqlite3.Connection) -> None:
    """Take the index away: the next search makes it anew."""
    db.execute("DELETE FROM searched")
    db.execute("DROP TABLE words")


def _clear_index(db: sqlite3.Connection) -> None:
    with suppress(sqlite3.DatabaseError):
        db.execute("INSERT INTO words (words) VALUES ('delete-all')")
    db.execute("DELETE FROM searched")


def _clean_index_text(text: str) -> str:
    """Return ``text`` as the index can hold it: no NUL, no half characters."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
