"""Everything public is documented, and every reference in the documentation resolves."""

from __future__ import annotations

import re
from pathlib import Path

import click
import msgspec
import pytest

import holdfast
from holdfast.cli import COMMAND_HELP
from holdfast.cli import holdfast_command as program
from holdfast.formats import EXPORT_FORMATS, RECORDING_READERS
from holdfast.hooks import Hooks
from holdfast.planning.pipeline import Policy
from holdfast.planning.presets.openclaw.rules import OPENCLAW_2026_9
from holdfast.planning.presets.opencode import OPENCODE_2
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings_check import get_setting_origin, list_setting_names
from holdfast.providers.rules.validate import ALL_RULES
from holdfast.replay.losses import LossReport, encode_losses
from holdfast.replay.measure import PolicyFigures
from holdfast.replay.recall import RecallCounts
from holdfast.replay.report import PolicyRow, ReportSubject, encode_policy_row
from holdfast.state.plan import Plan
from holdfast.state.target import PlanInputs, Target

ROOT = Path(__file__).parents[2]
PAGES = {path: path.read_text("utf-8") for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])}
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|src=\"([^\"]+)\"")


def get_page(name: str) -> str:
    return PAGES[ROOT / name]


def list_commands() -> list[tuple[str, click.Command]]:
    commands = []
    context = click.Context(program)
    for name in COMMAND_HELP:
        command = program.get_command(context, name)
        commands.append((name, command))
        if isinstance(command, click.Group):
            commands += [(f"{name} {inner}", subcommand) for inner, subcommand in command.commands.items()]
    return commands


def test_public_names_are_documented():
    """Each name in ``holdfast.__all__`` is in the README or on the library page."""
    for name in holdfast.__all__:
        assert f"`{name}`" in get_page("README.md") + get_page("docs/library.md"), name


@pytest.mark.parametrize("module", ["hooks", "sync"])
def test_public_modules_are_documented(module):
    """The purpose of the public modules, and each hook by its method, is on the engine page."""
    assert f"`holdfast.{module}`" in get_page("docs/engine.md")
    for name in Hooks.__struct_fields__ if module == "hooks" else ("open_engine",):
        assert f"`{name}" in get_page("docs/engine.md"), name


@pytest.mark.parametrize("kind", [Plan, PlanInputs])
def test_plan_and_inputs_fields_are_documented(kind):
    """Each field of the planner's inputs and result is on the library page."""
    for name in kind.__struct_fields__:
        assert re.search(rf"\b{name}\b", get_page("docs/library.md")), name


def test_target_fields_are_documented():
    """Each field of a target is on the library page."""
    assert f"Target({', '.join(Target.__struct_fields__)})" in get_page("docs/library.md")


def test_conversation_state_methods_are_documented():
    """The methods of a state that authors need are on the library page."""
    for name in ("with_reported_usage", "dump", "load"):
        assert f".{name}(" in get_page("docs/library.md"), name


def test_settings_are_documented():
    """Each setting is in the table with its origin, and no origin is empty."""
    for preset in PRESETS.values():
        rules_type = type(preset.rules)
        for name in list_setting_names(rules_type):
            assert f"| `{name}` |" in get_page("docs/policies.md"), name
            assert get_setting_origin(name, rules_type), name


def test_presets_and_stages_are_documented():
    """Each preset has a section and each stage a line."""
    for name in PRESETS:
        assert f"### `{name}`" in get_page("docs/policies.md"), name
        for stage, _ in Policy.preset(name).stages:
            assert re.search(rf"[|,] `{stage}`[ ,]", get_page("docs/policies.md")), stage


@pytest.mark.parametrize(("name", "command"), list_commands(), ids=[name for name, _ in list_commands()])
def test_commands_and_options_are_documented(name, command):
    """Each command has a section with each of its options, and each option has help text."""
    sections = get_page("docs/cli.md").split("\n## ")
    section = next(part for part in sections if part.startswith(f"holdfast {name}\n"))
    for option in (param for param in command.params if isinstance(param, click.Option)):
        assert option.help, f"{name}: {option.opts} has no help"
        for spelling in (*option.opts, *option.secondary_opts):
            assert re.search(rf"(?<![\w-]){spelling}(?![\w-])", section), f"{name}: {spelling}"


def test_lint_rules_are_documented():
    """Each lint rule is in the table with the text of its own docstring."""
    for rule in ALL_RULES:
        assert f"| `{rule.name}` |" in get_page("docs/lint-rules.md"), rule.name
        assert rule.text.endswith("."), rule.name


def test_formats_are_documented():
    """Each format that is read or written has a line."""
    for name in {*RECORDING_READERS, *EXPORT_FORMATS} - {"body"}:
        assert f"| `{name}` |" in get_page("docs/formats.md"), name


def test_replay_figures_are_documented():
    """Each field of ``replay --json`` is explained, including those of the cut points."""
    subject = ReportSubject("f", "f", 1, 1, 1, "anthropic", "m", "o200k", 1.0, 1, 1, 1)
    figures = PolicyFigures("holdfast", 1, 0, 0, 0, 0, 1, 1, None, 0.0, RecallCounts(), 0, 0, 0.0, 0.0, ())
    from holdfast.replay.recall_at_cuts import CutScore, pool_scores

    row = PolicyRow(figures, {"8000": CutScore(dependencies=1)}, losses=LossReport())
    for name in (
        *encode_policy_row(subject, row),
        *encode_losses(LossReport()),
        *msgspec.structs.asdict(pool_scores([row.cut_scores["8000"]])),
    ):
        assert re.search(rf"`{name}`", get_page("docs/metrics.md")), name


def test_invariants_are_listed_and_proven():
    """Each invariant that a test names is on the page of invariants, and each one on the page is named by a test."""
    tests = [
        path.read_text("utf-8")
        for path in (ROOT / "tests").rglob("*.py")
        if path.name != "test_documentation_coverage.py"
    ]
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", get_page("docs/invariants.md"), re.MULTILINE))
    named = {
        name
        for text in tests
        for names in re.findall(r'"""((?:[a-z]+(?:-[a-z]+)+(?:, )?)+):', text)
        for name in names.split(", ")
    }
    assert {"nothing-lost", "valid-request"} <= named
    assert named <= listed, named - listed
    unproven = [name for name in listed if not any(re.search(rf"\b{name}\b", text) for text in tests)]
    assert unproven == []


def test_index_lists_every_page():
    """Each page can be reached from the index."""
    for path in PAGES:
        if path.parent == ROOT / "docs" and path.name != "index.md":
            assert f"]({path.name})" in get_page("docs/index.md"), path.name


PUBLIC_MODULES = ("holdfast", *(f"holdfast.{name}" for name in holdfast.PUBLIC_MODULES))
"""The modules that a user's program imports, beside ``holdfast.testing`` and ``holdfast.integrations``."""
SESSION_GENERATORS = ("make_long_session.py", "session_record.py", "session_tools.py", "session_files.py")
"""Scripts that generate ``long-session.jsonl`` and are no examples of how to use the package."""


def test_pages_and_examples_import_public_modules_only():
    """Code for users shows public names only, so nobody copies an import that a later version may move."""
    examples = [path for path in (ROOT / "examples").glob("*.py") if path.name not in SESSION_GENERATORS]
    texts = {path: PAGES.get(path) or path.read_text("utf-8") for path in [*PAGES, *examples]}
    for path, text in texts.items():
        for module in re.findall(r"^\s*(?:from|import) (holdfast[\w.]*)", text, re.MULTILINE):
            is_public = module in PUBLIC_MODULES or module.startswith(("holdfast.testing", "holdfast.integrations"))
            assert is_public, f"{path.name}: {module}"


@pytest.mark.parametrize(
    ("preset", "changes", "result"), [("opencode", OPENCODE_2, "policy"), ("openclaw", OPENCLAW_2026_9, "new")]
)
def test_newer_presets_equal_the_blocks_on_the_page(preset, changes, result):
    """The block of docs/presets.md that makes a newer opencode or OpenClaw makes the policy that the tests use."""
    blocks = re.findall(r"^```python\n(.*?)^```$", get_page("docs/presets.md"), re.MULTILINE | re.DOTALL)
    [block] = [block for block in blocks if f'Policy.preset("{preset}")' in block and "preset={" in block]
    names: dict[str, object] = {}
    exec(block, names)
    assert names[result] == Policy.preset(preset).with_settings(**changes)


def list_links() -> list[tuple[Path, str]]:
    return [
        (path, next(filter(None, groups)))
        for path, text in PAGES.items()
        for groups in _LINK.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    ]


@pytest.mark.parametrize(
    ("path", "target"), list_links(), ids=[f"{path.name}:{target}" for path, target in list_links()]
)
def test_links_resolve(path, target):
    """A link to a file leads to an existing one, and its anchor is a heading of that page."""
    if "://" in target:
        return
    name, _, anchor = target.partition("#")
    linked_file = (path.parent / name).resolve() if name else path
    if linked_file.is_relative_to(ROOT / "src") and not (ROOT / "src").exists():
        return  # these tests also run beside an installed wheel, the sources away
    assert linked_file.exists(), target
    if anchor:
        headings = re.findall(r"^#+ (.+)$", linked_file.read_text("utf-8"), re.MULTILINE)
        assert anchor in {_anchor(heading) for heading in headings}, target


def _anchor(heading: str) -> str:
    """Return the anchor of a heading: lower case, no punctuation, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("name", ["demo.svg", "replay.svg"])
def test_images_are_small_and_self_contained(name):
    """An image is under 100 KB and loads nothing from elsewhere."""
    picture = (ROOT / "docs" / "images" / name).read_text("utf-8")
    assert len(picture.encode()) < 100_000
    assert re.findall(r"url\(\s*[\"']?(?!#)|<image|<script|@import|href=", picture) == []
