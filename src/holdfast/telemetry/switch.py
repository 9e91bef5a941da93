"""The switch: without it nothing of OpenTelemetry is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.telemetry.telemetry import Telemetry

TELEMETRY_VARIABLE = "HOLDFAST_TELEMETRY"
"""Environment variable that switches telemetry on for everything that nobody switched on or off itself."""
CONTENT_VARIABLE = "HOLDFAST_TELEMETRY_CONTENT"
"""Environment variable that adds the words of conversations to telemetry, for everything that nobody told otherwise."""
STANDARD_CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The same for all instrumentations of models; ours takes precedence."""
# Events alone, as EVENT_ONLY asks for them, are not among what we have; an unknown word must not give away content.
_STANDARD_CONTENT_VALUES = frozenset({"true", "span_only", "span_and_event"})
"""Values of the standard variable that ask for content on spans, in lower case; ``true`` is from before the others."""
MIN_VERSION = (1, 39)
"""The oldest OpenTelemetry that works, as the extra ``otel`` has it."""
FALSE_VALUES = frozenset({"", "0", "false", "no", "off"})
"""Values of a variable that switch off what it names, in lower case."""


def is_telemetry_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment asks for telemetry."""
    return environment.get(TELEMETRY_VARIABLE, "").strip().lower() not in FALSE_VALUES


def is_content_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment asks for the words of conversations on spans."""
    if CONTENT_VARIABLE in environment:
        return environment[CONTENT_VARIABLE].strip().lower() not in FALSE_VALUES
    return environment.get(STANDARD_CONTENT_VARIABLE, "").strip().lower() in _STANDARD_CONTENT_VALUES


def load_telemetry(wanted: bool | None = None, content: bool | None = None) -> Telemetry | None:
    """Return what records spans and metrics, with the providers that the program has set; None if nobody wants it.

    With ``content`` the spans have the words of requests and answers too. None leaves either to the environment. Raises
    ``ConfigError`` if OpenTelemetry is not installed.
    """
    if wanted is None:
        wanted = is_telemetry_wanted()
    if not wanted:
        return None
    with _explain_missing_package():
        from holdfast.telemetry.telemetry import Telemetry
    return Telemetry(records_content=is_content_wanted() if content is None else content)


@contextmanager
def export_telemetry(
    wanted: bool, report_problem: Callable[[str], object], *, content: bool = False
) -> Iterator[Telemetry | None]:
    """Yield what records spans and metrics, with exporters of our own if the process has none; None if not ``wanted``.

    With ``content`` the spans have the words of requests and answers too.
    At the end of the block everything recorded is exported. ``report_problem`` is called once, from any thread, if that
    fails. Raises ``ConfigError`` if a package is not installed, or if
    a variable of OpenTelemetry asks for something that we do not have.
    """
    if not wanted:
        yield None
        return
    with _explain_missing_package():
        from holdfast.telemetry.exporters import open_exporters
    with open_exporters(os.environ, report_problem, records_content=content) as telemetry:
        yield telemetry


@contextmanager
def _explain_missing_package() -> Iterator[None]:
    """Raise ``ConfigError`` if what is imported in the block is missing or too old."""
    from importlib.metadata import PackageNotFoundError, version

    # Without its metadata the package may still be there, and its import says whether it is.
    with suppress(PackageNotFoundError):
        found_version = version("opentelemetry-api")
        if tuple(map(int, re.findall(r"\d+", found_version)[:2])) < MIN_VERSION:
            oldest = ".".join(map(str, MIN_VERSION))
            raise ConfigError(
                f"telemetry is switched on, but opentelemetry-api {found_version} is too old: Holdfast needs "
                f"{oldest} or newer; upgrade it with pip install --upgrade 'holdfast[otel]', or switch telemetry off"
            )
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"telemetry is switched on, but OpenTelemetry cannot be imported ({error}); install it with "
            "pip install 'holdfast[otel]', or switch telemetry off"
        ) from error
