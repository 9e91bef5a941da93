"""Forecast a policy for the sessions of a store that were only observed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from holdfast.cli.files.user_paths import open_named_store
from holdfast.cli.output.errors import EXPECTED_ERRORS
from holdfast.config import Configuration
from holdfast.reports.requests.dry_run import MAX_PLANNED_SESSIONS, PolicyForecast, forecast_session


def forecast_sessions(
    option: str | None,
    keys: Sequence[str],
    configuration: Configuration,
    policy: str,
) -> PolicyForecast:
    """Forecast ``policy`` for the first of ``keys``, sessions of the store ``option``."""
    total = PolicyForecast(policy)
    with suppress(*EXPECTED_ERRORS), open_named_store(option, readonly=True) as there:
        for key in keys[:MAX_PLANNED_SESSIONS]:
            info = there.get_session(key)
            forecast = forecast_session(info, there.read_entries(key), configuration, policy)
            total = total.add_dry_run(forecast)
    return total
