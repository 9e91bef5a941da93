"""What a comparison asks and answers, and the lines that the replaying process and the inspector exchange."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from holdfast.inspector.charts import SizeColumn


class ComparisonQuestion(Struct, frozen=True):
    """What is compared: policies on the branch of a session, in a window of so many tokens, at a model's prices."""

    session: str
    leaf: str | None
    """The end of the branch. A session that went on since is another question."""
    policies: tuple[str, ...]
    window: int
    model: str


class ComparedPolicy(Struct, frozen=True):
    """The figures of one policy, under the names and by the definitions of docs/metrics.md."""

    policy: str
    requests: int
    invalid_requests: int
    over_window: int
    refused_requests: int
    """Requests that are invalid or over the window; one that is both counts once."""
    user_words_missing: int
    tokens_peak: int
    compactions: int
    cache_hit: float | None
    usd: float | None
    """None if the prices of the model are not known."""
    online_fact_recall: float | None
    """None if no answer used anything again."""
    notes: tuple[str, ...]
    sizes: tuple[SizeColumn, ...]
    """The size of every request, for its chart."""

    @property
    def is_degenerate(self) -> bool:
        """Whether the window is below the policy's own minimum, so that its figures say little."""
        return any(note.startswith("degenerate") for note in self.notes)


class FailedPolicy(Struct, frozen=True):
    """A policy that could not be replayed, and why."""

    policy: str
    error: str


class Comparison(Struct, frozen=True):
    """The answer: the setting, and each policy's figures. Sizes are tokens."""

    window: int
    usable: int
    """The part of the window that a request may use."""
    setup_tokens: int
    model: str
    api: str
    tokenizer: str
    steps: int
    """Answers of the model, for each of which every policy made a request."""
    peak_tokens: int
    """The largest request if nothing were ever removed."""
    problems: tuple[str, ...]
    """What is wrong with the recording, or strange about it."""
    policies: tuple[ComparedPolicy, ...]
    failures: tuple[FailedPolicy, ...] = ()


class ComparisonTask(Struct, frozen=True):
    """What the replaying process is told, as one line of JSON."""

    location: str
    """The store, as ``open_store`` takes it."""
    question: ComparisonQuestion


class ComparisonProgress(Struct, frozen=True, tag="progress"):
    """How far the replay is. ``total`` is 0 while the session is read."""

    policy: str = ""
    """The policy that is replayed now; empty while the session is read."""
    done: int = 0
    """Requests that were made, of all policies together."""
    total: int = 0


class ComparisonResult(Struct, frozen=True, tag="result"):
    """The replay is done."""

    comparison: Comparison


class ComparisonFailure(Struct, frozen=True, tag="failure"):
    """The replay cannot be done, and why."""

    reason: str


WorkerMessage: TypeAlias = ComparisonProgress | ComparisonResult | ComparisonFailure
"""A line that the replaying process writes."""
