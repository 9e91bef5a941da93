"""The caches of the planner, which a benchmark empties so that runs do not help each other."""

from __future__ import annotations

from holdfast.messages import references
from holdfast.planning.extract import ledger, salience
from holdfast.planning.open_work import find_open_work


def clear_planner_caches() -> None:
    """Empty every cache that an earlier plan may have filled."""
    for cached in (
        references.get_cached_word_references,
        salience.find_reference_lines,
        salience.find_distinctive_references,
        salience.find_list_references,
        salience.scan_message,
        find_open_work.read_exchange,
        ledger.find_first_error,
        ledger.find_subject,
        ledger.ends_with_failure,
    ):
        cached.cache_clear()
