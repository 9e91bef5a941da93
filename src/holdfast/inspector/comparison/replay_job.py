"""The replay that answers a question: the page checks it before it starts, and the process that replays does it."""

from __future__ import annotations

from holdfast.config import load_configuration
from holdfast.inspector.comparison.values import ComparisonQuestion
from holdfast.reports.sessions.session_replay import ReplayJob


def make_replay_job(question: ComparisonQuestion) -> ReplayJob:
    """Return the replay that answers ``question``, as ``holdfast replay`` would do it with the same options.

    Raises ``UnknownPolicy``, or ``ConfigError`` if a configuration file is wrong.
    """
    configuration = load_configuration()
    return ReplayJob(
        policies=tuple(configuration.build_policy(name) for name in question.policies),
        window=question.window,
        window_origin="as chosen",
        catalog=configuration.catalog,
        model=question.model,
        pictured_policies=question.policies,
    )
