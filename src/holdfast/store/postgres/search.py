"""Searchable text in the database: filled by the first search of a session, compared by the server.

It gives candidates and never results: the search looks into the entries. So it may be out of date, or not be there in
tables of an older version; a search then reads more entries and finds the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.postgres.database import Transaction
from holdfast.store.search.index import INDEX_VERSION, MAX_INDEXED_CHARS
from holdfast.store.search.search import lower_keeping_length

SEARCH_SCHEMA_VERSION = 2
"""Version of the tables that has searchable text."""
_SELECT_UPTO = "SELECT upto FROM searched WHERE session = %s AND rule = %s"
_SAVE_UPTO = """
    INSERT INTO searched (session, tenant, upto, rule) VALUES (%s, %s, %s, %s)
    ON CONFLICT (session) DO UPDATE SET upto = excluded.upto, rule = excluded.rule"""
_SAVE_TEXT = """
    INSERT INTO searched_texts (session, seq, tenant, words) VALUES (%s, %s, %s, %s)
    ON CONFLICT (session, seq) DO UPDATE SET words = excluded.words"""


def get_indexed_seq(transaction: Transaction, session: int) -> int:
    """Return the ``seq`` up to which the texts of a session are there, by the rules of this version."""
    row = transaction.fetch_one(_SELECT_UPTO, (session, INDEX_VERSION))
    return 0 if row is None else int(row[0])


def index_texts(transaction: Transaction, session: int, tenant: str, texts: Sequence[tuple[int, str | None]]) -> None:
    """Add texts under their ``seq``. None is an entry without words, which is left out.

    An empty text is always a candidate: its words are elsewhere, in a blob. So is one that is too long.
    """
    rows = []
    for seq, text in texts:
        if text is None:
            continue
        is_indexed = 0 < len(text) <= MAX_INDEXED_CHARS
        words = replace_unstorable(lower_keeping_length(text)) if is_indexed else None
        rows.append((session, seq, tenant, words))
    if rows:
        transaction.execute_later(_SAVE_TEXT, rows)
    transaction.execute_later(_SAVE_UPTO, [(session, tenant, texts[-1][0], INDEX_VERSION)])


def find_candidate_seqs(transaction: Transaction, session: int, search_terms: Sequence[str], upto: int) -> list[int]:
    """Return the ``seq`` of each indexed entry that may have all terms, the newest first."""
    conditions = " AND ".join(["words LIKE %s"] * len(search_terms))
    patterns = [f"%{_escape_pattern(replace_unstorable(term))}%" for term in search_terms]
    query = f"""
        SELECT seq FROM searched_texts
        WHERE session = %s AND seq <= %s AND (words IS NULL OR ({conditions})) ORDER BY seq DESC"""  # noqa: S608 -- only a constant is repeated
    return [seq for (seq,) in transaction.fetch_all(query, (session, upto, *patterns))]


def replace_unstorable(text: str) -> str:
    """Return ``text`` as PostgreSQL can hold it: lone surrogates become question marks, null characters U+FFFD."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _escape_pattern(text: str) -> str:
    """Return ``text`` as a pattern that matches only itself."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
