"""Prometheus' text format: what is written is read back the same, whatever stands in it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.proxy.metrics.prometheus import Metric, Sample, format_metrics, format_number

LINE = re.compile(r'(?P<name>[a-z_:]+)(?:\{(?P<labels>(?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (?P<value>\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', re.DOTALL)
BACK = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def read(line):
    """Return the name, labels and value of a line, as the format's description has it."""
    found = LINE.fullmatch(line)
    assert found, line
    labels = {
        name: re.sub(r'\\[\\"n]', lambda one: BACK[one[0]], value)
        for name, value in LABEL.findall(found["labels"] or "")
    }
    return found["name"], labels, float(found["value"])


def test_a_counter():
    """A metric is three kinds of lines: what it says, its kind, its samples."""
    samples = (Sample(3, {"api": "gemini"}), Sample(0.5, suffix="_sum"))
    assert format_metrics([Metric("kelp_total", "counter", "Kelp.", samples)]) == (
        '# HELP kelp_total Kelp.\n# TYPE kelp_total counter\nkelp_total{api="gemini"} 3\nkelp_total_sum 0.5\n'
    )


def test_help_is_on_one_line():
    """A line end in what a metric says would begin a line that is no sample."""
    assert format_metrics([Metric("a", "gauge", "b\nc\\d", ())]) == "# HELP a b\\nc\\\\d\n# TYPE a gauge\n"


@given(st.dictionaries(st.sampled_from(["api", "state", "le"]), st.text()), st.floats(allow_nan=False))
def test_any_label_and_number_can_be_read_back(labels, value):
    """Quotes, backslashes and line ends in a label end neither it nor its line, and no number changes."""
    text = format_metrics([Metric("kelp", "gauge", "", (Sample(value, labels),))])
    assert text.endswith("\n")
    assert read(text.split("\n", 2)[2][:-1]) == ("kelp", labels, value)


@pytest.mark.parametrize(
    ("value", "text"), [(float("inf"), "+Inf"), (float("-inf"), "-Inf"), (0.25, "0.25"), (7.0, "7"), (True, "1")]
)
def test_numbers(value, text):
    """Whole numbers have no point, and infinity is spelt as the format spells it."""
    assert format_number(value) == text
