"""The code on our pages runs, and the commands on them are ones that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

from holdfast.cli import command as program
from holdfast.providers.rules.validate import validate_request
from holdfast.testing.provider import Provider
from holdfast.testing.provider.server.local_server import serve_provider

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
_CALL = re.compile(r"(?:^|[|&]\s*|uv run .*?|-m )(holdfast(?: [^|&]*)?)(?=$|[|&])")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code: where it stands, and what is in it."""

    page: Path
    line: int
    text: str


def blocks(language: str) -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        found += [
            Block(page, text.count("\n", 0, match.start()) + 2, match[2])
            for match in _BLOCK.finditer(text)
            if match[1] == language
        ]
    return found


def name(block: Block) -> str:
    return f"{block.page.name}:{block.line}"


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """Blocks run in an empty folder that has the examples, with a store and settings of their own."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "store.db"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for variable in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def anthropic_server(monkeypatch):
    """What an official client finds by its variables: a strict provider on this machine."""
    with serve_provider(Provider()) as url:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
        yield


@pytest.mark.parametrize("block", blocks("python"), ids=name)
@pytest.mark.usefixtures("anthropic_server")
def test_python_runs(block):
    """Every Python block on a page runs by itself, as it is written."""
    code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
    held: dict[str, Any] = {"__name__": "__main__"}
    exec(code, held)
    if "planned" in held and "body" in held:
        assert validate_request(held["body"]) == (), "what the page calls a request is one"


@pytest.mark.parametrize("block", blocks("console"), ids=name)
def test_console_prints_what_the_page_says(block):
    """Every ``$ holdfast`` line of a console block prints the lines below it; ``...`` stands for anything."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, wanted = part.partition("\n")
        words = shlex.split(line, comments=True)
        assert words[0] == "holdfast", f"{line!r} cannot be checked; use a block of sh"
        got = CliRunner().invoke(program, words[1:]).output
        pattern = ".*?".join(re.escape(piece) for piece in _bare(wanted).split("..."))
        assert re.fullmatch(pattern, _bare(got), re.DOTALL), got


def _bare(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def lines() -> list[tuple[str, str]]:
    """Return every line of a shell block that calls our program, with its place."""
    return [
        (f"{block.page.name}:{block.line + number}", call)
        for block in blocks("sh")
        for number, line in enumerate(block.text.splitlines())
        for call in _CALL.findall(line.strip())
    ]


@pytest.mark.parametrize(("where", "line"), lines(), ids=[where for where, _ in lines()])
def test_shell_lines_are_commands_that_exist(where, line):
    """Every command and option in a shell block is one that the program knows."""
    words = [word for word in shlex.split(line, comments=True)[1:] if word != ";"]
    words = words[: next((at for at, word in enumerate(words) if word.startswith(">")), len(words))]
    found: click.Command = program
    context = click.Context(program, info_name="holdfast", **program.context_settings)
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        inner = found.get_command(context, words[0])
        assert inner is not None, f"{where}: there is no command {words[0]!r}"
        found, words = inner, words[1:]
        context = click.Context(found, parent=context, info_name=found.name)
    found.make_parser(context).parse_args(words)


def test_there_are_examples():
    """The patterns above find something to run: a page that changes its form does not switch the tests off."""
    assert len(blocks("python")) >= 10
    assert sum(block.text.count("$ ") for block in blocks("console")) >= 5
    assert len(lines()) >= 30
