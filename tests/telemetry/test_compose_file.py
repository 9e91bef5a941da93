"""The compose file of the examples has the form that Docker Compose reads. It is not started here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "examples" / "telemetry" / "compose.yaml"
PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text("utf-8")
_LINE = re.compile(r'(?P<indent> *)(?:(?P<key>[a-z-]+):(?: (?P<value>"[^"]*"|\{\}))?|- "(?P<item>[^"]*)")')


def read_block(lines, indent=0):
    """Return the value of the ``lines`` at ``indent``, and take them away: mappings and lists of quoted texts only.

    No line may have any other form, so that a parser of all of YAML reads the same.
    """
    mapping, items = {}, []
    while lines:
        match = _LINE.fullmatch(lines[0])
        assert match, lines[0]
        depth = len(match["indent"])
        if depth < indent:
            break
        assert depth == indent, lines[0]
        lines.pop(0)
        if match["item"] is not None:
            items.append(match["item"])
        elif match["value"] is None:
            mapping[match["key"]] = read_block(lines, indent + 2)
        else:
            assert match["key"] not in mapping
            mapping[match["key"]] = {} if match["value"] == "{}" else match["value"].strip('"')
    assert bool(mapping) != bool(items)
    return mapping or items


def read_compose_file():
    """Return the file as a value."""
    lines = [line for line in FILE.read_text("utf-8").splitlines() if not line.lstrip().startswith("#")]
    return read_block(lines)


def test_compose_file_starts_one_pinned_service_on_this_machine_alone():
    """The image has a version, the ports are those of the exporter and the page, on loopback, and the volume exists."""
    compose = read_compose_file()
    assert set(compose) == {"services", "volumes"}
    [service] = compose["services"].values()
    assert set(service) == {"image", "ports", "volumes"}
    assert re.fullmatch(r"grafana/otel-lgtm:\d+\.\d+\.\d+", service["image"])
    assert service["ports"] == ["127.0.0.1:3000:3000", "127.0.0.1:4318:4318"]
    assert [volume.partition(":")[0] for volume in service["volumes"]] == list(compose["volumes"])


def test_compose_file_is_read_the_same_by_a_parser_of_yaml():
    """A real parser reads what the check above reads."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    assert yaml.safe_load(FILE.read_text("utf-8")) == read_compose_file()


def test_page_shows_the_commands_of_the_file():
    """The commands in the file's comment are those of the page."""
    commands = re.findall(r"^#   (.+)$", FILE.read_text("utf-8"), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert command in PAGE
