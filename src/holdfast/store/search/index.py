"""The word index: for each three characters, the entries whose text may contain them, built by the first search.

The index gives candidates and never results: the search looks into their texts. So it may be out of date, have too
many entries, or be missing (SQLite without FTS5); a search then looks at more entries and finds the same. The index
holds no text.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice

INDEX_VERSION = 3
"""Version of the rules for indexing. Raise it when ``search.get_searchable_text`` or this module changes them.

An index of other rules is not used, and is built again by the next search that can write.
"""
GRAM_CHARS = 3
"""Number of characters indexed together. Three find parts of words, code and Chinese; shorter words are not indexed."""
MAX_INDEXED_CHARS = 1_000_000
"""Characters of the longest text that is indexed, which takes a tenth of a second; longer ones are always candidates.
"""
INDEX_BATCH_CHARS = 4_000_000
"""Characters indexed in one transaction, about 0.4 s. Other writers wait for it; smaller batches take longer in total.
"""
MAX_QUERY_GRAMS = 64
"""Number of pieces of a query that are looked up. Chosen by judgement: more hardly reduce the candidates further."""
ALWAYS_CANDIDATE = "\ue000\ue001\ue002"
"""Text in the index for entries that are always candidates: private-use characters, which no query matches by chance.
"""
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
    """Return the FTS5 query for texts that may contain all terms, or "" if all terms are too short for the index."""
    grams: dict[str, None] = {}  # an ordered set: the first pieces are kept if there are too many
    for term in search_terms:
        text = _clean_index_text(term)
        for start in range(len(text) - GRAM_CHARS + 1):
            grams[text[start : start + GRAM_CHARS]] = None
    if not grams:
        return ""
    quoted_grams = []
    for gram in islice(grams, MAX_QUERY_GRAMS):
        escaped = gram.replace('"', '""')
        quoted_grams.append(f'"{escaped}"')
    return f'({" AND ".join(quoted_grams)}) OR "{ALWAYS_CANDIDATE}"'


def get_indexed_seq(db: sqlite3.Connection, session: int) -> int:
    """Return the ``seq`` up to which the session's entries are in an index of this version, 0 without such an index."""
    try:
        row = db.execute(_SELECT_UPTO, (session, INDEX_VERSION)).fetchone()
    except sqlite3.OperationalError:  # a store of an older schema that is open for reading
        return 0
    return int(row[0]) if row else 0


def index_texts(db: sqlite3.Connection, session: int, texts: Sequence[tuple[int, str | None]]) -> None:
    """Add texts to the index under their ``seq``. None is an entry without words, which is left out.

    An empty text is always a candidate: its words are elsewhere, in a blob.
    """
    has_table = db.execute(f"SELECT {_TABLE_EXISTS}").fetchone() == (1,)
    if not has_table:
        # Without the table, ``searched`` tells of an index that is gone.
        db.execute(_CREATE_TABLE)
        db.execute("DELETE FROM searched")
    elif db.execute(f"SELECT {_OTHER_VERSION_EXISTS}", (INDEX_VERSION,)).fetchone() == (1,):
        _clear_index(db)
    rows = []
    for seq, text in texts:
        if text is None:
            continue
        # A text that is not indexed is a candidate of every search, which then reads it.
        is_indexed = 0 < len(text) <= MAX_INDEXED_CHARS
        rows.append((seq, _clean_index_text(text) if is_indexed else ALWAYS_CANDIDATE))
    db.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", rows)
    progress_row = (session, texts[-1][0], INDEX_VERSION)
    db.execute("INSERT OR REPLACE INTO searched (session, upto, rule) VALUES (?, ?, ?)", progress_row)


def find_candidate_seqs(db: sqlite3.Connection, session: int, match_query: str) -> list[int] | None:
    """Return the ``seq`` of each entry of a session that may match, the newest first, or None without a usable index.

    The index covers all sessions. Only matches between the session's first and last ``seq`` are looked at, so those
    of other sessions cost little.
    """
    try:
        return [seq for (seq,) in db.execute(_SELECT_MATCHING, (match_query, session, session, session))]
    except sqlite3.DatabaseError:
        return None  # damaged, dropped meanwhile, or an SQLite without FTS5: the search reads all entries


def clear_word_index_if_indexed(db: sqlite3.Connection, session: int) -> None:
    """Empty the index if the session is in it, before its ``seq`` numbers are used for other entries.

    The other sessions are indexed again when they are searched.
    """
    # A contentless FTS5 table cannot delete single rows without their texts, so all of it goes.
    if db.execute("SELECT EXISTS (SELECT 1 FROM searched WHERE session = ?)", (session,)).fetchone() == (1,):
        _clear_index(db)


def has_word_index(db: sqlite3.Connection) -> bool:
    """Return whether the index exists."""
    return bool(db.execute(f"SELECT {_TABLE_EXISTS}").fetchone()[0])


def is_word_index_intact(db: sqlite3.Connection) -> bool:
    """Return whether SQLite's check of the index succeeds."""
    try:
        db.execute("INSERT INTO words (words) VALUES ('integrity-check')")
    except sqlite3.DatabaseError:
        return False
    return True


def drop_word_index(db: sqlite3.Connection) -> None:
    """Drop the index; the next search builds it again."""
    db.execute("DELETE FROM searched")
    db.execute("DROP TABLE words")


def _clear_index(db: sqlite3.Connection) -> None:
    # A damaged index cannot be emptied. Without its rows in ``searched`` it is not used either.
    with suppress(sqlite3.DatabaseError):
        db.execute("INSERT INTO words (words) VALUES ('delete-all')")
    db.execute("DELETE FROM searched")


def _clean_index_text(text: str) -> str:
    """Return ``text`` without characters that the index cannot hold: NUL and lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
