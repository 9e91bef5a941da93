"""The code on the documentation pages runs, and the commands on them exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

from holdfast.cli import holdfast_command as program
from holdfast.providers.rules.validate import validate_request
from holdfast.testing.provider import Provider
from holdfast.testing.provider.server.local_server import serve_provider

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
_CALL = re.compile(r"(?:^|[|&]\s*|uv run .*?|-m )(holdfast(?: [^|&]*)?)(?=$|[|&])")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code: its page, its line and its text."""

    page: Path
    line: int
    text: str


def list_blocks(language: str) -> list[Block]:
    blocks = []
    for page in PAGES:
        text = page.read_text("utf-8")
        blocks += [
            Block(page, text.count("\n", 0, match.start()) + 2, match[2])
            for match in _BLOCK.finditer(text)
            if match[1] == language
        ]
    return blocks


def format_block_id(block: Block) -> str:
    return f"{block.page.name}:{block.line}"


@pytest.fixture(autouse=True)
def block_folder(tmp_path, monkeypatch):
    """Run each block in an empty folder with the examples, a store and settings of its own."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "store.db"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    for variable in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def anthropic_server(monkeypatch):
    """Serve a strict provider on this machine, and point an official client to it by its variables."""
    with serve_provider(Provider()) as url:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
        yield


@pytest.mark.parametrize("block", list_blocks("python"), ids=format_block_id)
@pytest.mark.usefixtures("anthropic_server")
def test_python_blocks_run(block):
    """Every Python block on a page runs by itself as it is written."""
    for module in re.findall(r"holdfast\.integrations\.\w+", block.text):
        pytest.importorskip(module, reason=f"the framework of {module} is not installed", exc_type=ImportError)
    code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(code, namespace)
    if "planned" in namespace and "body" in namespace:
        assert validate_request(namespace["body"]) == (), "the body on the page is a valid request"


@pytest.mark.parametrize("block", list_blocks("console"), ids=format_block_id)
def test_console_blocks_print_what_the_page_shows(block):
    """Every ``$ holdfast`` line of a console block prints the lines below it; ``...`` stands for any text."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, expected = part.partition("\n")
        words = shlex.split(line, comments=True)
        assert words[0] == "holdfast", f"{line!r} cannot be checked; use a block of sh"
        output = CliRunner().invoke(program, words[1:]).output
        pattern = ".*?".join(re.escape(piece) for piece in _strip_lines(expected).split("..."))
        assert re.fullmatch(pattern, _strip_lines(output), re.DOTALL), output


def _strip_lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def list_shell_lines() -> list[tuple[str, str]]:
    """Return every line of a shell block that calls Holdfast, with its place."""
    return [
        (f"{block.page.name}:{block.line + number}", call)
        for block in list_blocks("sh")
        for number, line in enumerate(block.text.splitlines())
        for call in _CALL.findall(line.strip())
    ]


@pytest.mark.parametrize(("place", "line"), list_shell_lines(), ids=[place for place, _ in list_shell_lines()])
def test_shell_lines_use_existing_commands_and_options(place, line):
    """Every command and option in a shell block exists."""
    words = [word for word in shlex.split(line, comments=True)[1:] if word != ";"]
    words = words[: next((at for at, word in enumerate(words) if word.startswith(">")), len(words))]
    command: click.Command = program
    context = click.Context(program, info_name="holdfast", **program.context_settings)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        subcommand = command.get_command(context, words[0])
        assert subcommand is not None, f"{place}: there is no command {words[0]!r}"
        command, words = subcommand, words[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    command.make_parser(context).parse_args(words)


def test_pages_contain_code_blocks():
    """The patterns above find blocks to run: a page that changes its markup does not switch the tests off."""
    assert len(list_blocks("python")) >= 10
    assert sum(block.text.count("$ ") for block in list_blocks("console")) >= 5
    assert len(list_shell_lines()) >= 30
