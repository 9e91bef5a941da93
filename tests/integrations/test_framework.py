"""``require_framework``: what somebody reads who imports an adapter without its framework, or with an old one."""

from __future__ import annotations

import importlib
import re

import pytest

from holdfast.integrations.common.framework import is_older_version, require_framework


def write_distribution(folder, name, version):
    """Put the metadata of an installed distribution, without its code, into ``folder``."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def require_weaver():
    """Return the check of a framework that nobody has."""
    return require_framework("Weaver", distribution="weaver-agents", oldest_version="2.10", extra="weaver")


def test_a_framework_that_is_too_old_is_named_with_what_to_install(tmp_path, monkeypatch):
    """The error names the version that was found, the one that is needed, and the command; nothing was imported."""
    write_distribution(tmp_path, "weaver_agents", "2.9.4")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as caught, require_weaver():
        pytest.fail("the adapter must not be imported")
    assert str(caught.value) == (
        "Holdfast's adapter needs Weaver 2.10 or newer: pip install -U 'holdfast[weaver]' "
        "(weaver-agents 2.9.4 is installed)"
    )


@pytest.mark.parametrize("version", ["2.10", "2.10.0rc1", "2.11.3", "3.0"])
def test_a_framework_that_is_new_enough_is_imported(version, tmp_path, monkeypatch):
    """Nothing is said, and nothing is raised."""
    write_distribution(tmp_path, "weaver_agents", version)
    monkeypatch.syspath_prepend(tmp_path)
    with require_weaver():
        pass


def test_a_framework_that_is_missing_or_broken_keeps_the_cause():
    """The error says what could not be imported, and has the original one inside."""
    with (
        pytest.raises(
            ImportError, match=re.escape("weaver-agents is not installed: No module named 'weaver'")
        ) as caught,
        require_weaver(),
    ):
        importlib.import_module("weaver")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("version", "other", "is_older"),
    [
        ("1.9", "1.10", True),
        ("1.10", "1.9", False),
        ("1.5", "1.5.0", False),
        ("1.5.0", "1.5", False),
        ("1.5.1.dev3+local", "1.5.1", False),
        ("1.5rc2", "1.5", False),
        ("v1.4", "1.5", True),
        ("unknown", "1.5", False),
    ],
)
def test_versions_are_compared_by_their_numbers(version, other, is_older):
    """As numbers, not as texts; what follows them does not count, and one without numbers passes."""
    assert is_older_version(version, other) is is_older
