"""The environment: the system prompt built from rules and skills in folders that may hold anything."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.environment.environment import MAX_RULES_BYTES, Environment, FunctionTool, load_environment
from holdfast.engine.environment.skills import (
    MAX_LISTED_SKILLS,
    find_used_skills,
    format_used_skill,
    parse_front_matter,
)
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.providers.registry import API_NAMES
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.requests.request_body import build_request_body
from holdfast.providers.rules.validate import validate_request

READ = FunctionTool("read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})


def write_skill(folder, name, text):
    """Write the SKILL.md of a skill and return its path."""
    path = folder / ".agents" / "skills" / name / "SKILL.md"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def build_tool_call(tool, /, **arguments):
    """Return a message that calls a tool."""
    return Message("assistant", (ToolCall("c", tool, msgspec.json.encode(arguments).decode()),))


# -- rules -------------------------------------------------------------------------------------------------------------


def test_load_environment_puts_the_nearest_rules_last_in_the_prompt(tmp_path):
    """The prompt is the author's text, then the skills, then the rules from the outermost folder inwards."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "AGENTS.md").write_text("Use tabs.\n")
    (inner / "AGENTS.md").write_text("Use blanks.\n")
    write_skill(inner, "tides", "---\nname: tides\ndescription: Reads tide tables.\n---\n# Tides\nLook at the moon.\n")
    environment = load_environment(inner, system="You help.", parent_folders=[tmp_path])
    places = [
        environment.prompt.index(words) for words in ("You help.", "tides: Reads tide tables.", "Use tabs.", "blanks.")
    ]
    assert places == sorted(places)
    assert "Look at the moon" not in environment.prompt, "the body of a skill is read when it is used"
    assert environment.notices == ()


def test_load_environment_of_an_empty_or_missing_folder_is_empty(tmp_path):
    """Without rules and skills the environment has no prompt and no notices."""
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert load_environment(folder) == Environment(folders=(str(folder),))
    assert Environment().prompt == ""


@pytest.mark.parametrize(
    ("data", "notice"), [(b"a\0b", "zero bytes"), (b"caf\xe9 au lait", "not UTF-8"), (None, "not a file")]
)
def test_load_environment_reports_rules_that_are_no_text(tmp_path, data, notice):
    """Binary rules, other encodings and a folder with that name give a notice and no rules."""
    path = tmp_path / "AGENTS.md"
    path.mkdir() if data is None else path.write_bytes(data)
    environment = load_environment(tmp_path)
    assert environment.rules == ()
    assert len(environment.notices) == 1
    assert notice in environment.notices[0]


def test_load_environment_does_not_read_a_named_pipe(tmp_path):
    """A named pipe called AGENTS.md would block for ever, so it gives a notice at once."""
    os.mkfifo(tmp_path / "AGENTS.md")
    assert "not a file" in load_environment(tmp_path).notices[0]


def test_load_environment_reports_rules_without_read_permission(tmp_path, without_root):
    """Missing permissions give a notice."""
    (tmp_path / "AGENTS.md").write_text("Secret.")
    (tmp_path / "AGENTS.md").chmod(0)
    with without_root():
        assert "left out" in load_environment(tmp_path).notices[0]


def test_load_environment_cuts_the_farthest_rules_to_the_budget(tmp_path):
    """Rules beyond the budget are cut from the farthest folder, and both prompt and notice mention it."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "AGENTS.md").write_text("é" * MAX_RULES_BYTES)
    (inner / "AGENTS.md").write_text("near " * 100)
    environment = load_environment(inner, parent_folders=[tmp_path])
    assert [rule.text.startswith(start) for rule, start in zip(environment.rules, ("éé", "near"), strict=True)] == [
        True,
        True,
    ]
    assert "left out here" in environment.rules[0].text
    assert environment.rules[1].text == ("near " * 100).strip()
    assert sum(len(rule.text.encode()) for rule in environment.rules) < MAX_RULES_BYTES + 200
    assert "are cut" in environment.notices[0]


def test_load_environment_does_not_follow_links_out_of_its_folders(tmp_path):
    """Links that lead out of their folder are not followed: rules, a skill's file, a skill's folder, all skills."""
    outside = tmp_path / "outside"
    write_skill(outside, "spy", "---\nname: spy\ndescription: SECRET\n---\nSECRET")
    (outside / "AGENTS.md").write_text("SECRET")
    for name, link, target in (
        ("a", "AGENTS.md", outside / "AGENTS.md"),
        ("b", ".agents", outside / ".agents"),
        ("c", ".agents/skills/spy", outside / ".agents/skills/spy"),
        ("d", ".agents/skills/spy/SKILL.md", outside / ".agents/skills/spy/SKILL.md"),
    ):
        folder = tmp_path / name
        (folder / link).parent.mkdir(parents=True)
        (folder / link).symlink_to(target)
        environment = load_environment(folder)
        assert "SECRET" not in environment.prompt, link
        assert "outside" in "".join(environment.notices), link


def test_load_environment_follows_links_within_its_folder(tmp_path):
    """AGENTS.md may be a link to another file of its folder; links in a circle give a notice."""
    (tmp_path / "CLAUDE.md").write_text("Be brief.")
    (tmp_path / "AGENTS.md").symlink_to("CLAUDE.md")
    assert load_environment(tmp_path).rules[0].text == "Be brief."
    other = tmp_path / "other"
    other.mkdir()
    (other / "AGENTS.md").symlink_to("AGENTS.md")
    assert load_environment(other).notices != ()


# -- skills ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "description"),
    [
        ("---\nname: tides\ndescription: Reads tables.\n---\nbody", "tides", "Reads tables."),
        ("---\nname: \"tides\"\ndescription: 'Reads: all.'\nlicense: MIT\n---\nbody", "tides", "Reads: all."),
        ("---\nname: tides\ndescription: >-\n  Reads\n  tables.\nother: 1\n---\nbody", "tides", "Reads tables."),
        ("\ufeff---\r\nname: tides\r\ndescription: Reads tables.\r\n---\r\nbody", "tides", "Reads tables."),
        ("# Low water\n\nbody", "folder", "Low water"),
        ("---\nname: tides\n---\n\nFor low water.", "tides", "For low water."),
        ("---\nname: tides\nno end of it", "folder", "---"),
    ],
)
def test_load_environment_reads_front_matter_in_its_common_forms(tmp_path, text, name, description):
    """Quotes, blocks, other fields and a BOM are read; the folder and the first line stand in for a missing name and
    description.
    """
    write_skill(tmp_path, "folder", text)
    environment = load_environment(tmp_path)
    assert [(entry.name, entry.description) for entry in environment.skills] == [(name, description)]


@pytest.mark.parametrize("text", ["", "---\nname: ../../x\ndescription: d\n---\n", "---\nname: x\n---\n", "a\0b"])
def test_load_environment_reports_invalid_skills_and_keeps_the_others(tmp_path, text):
    """An empty file, a name that is a path and binary data give a notice."""
    write_skill(tmp_path, "bad", text)
    write_skill(tmp_path, "good", "---\ndescription: d\n---\nb")
    environment = load_environment(tmp_path)
    assert [entry.name for entry in environment.skills] == ["good"]
    assert "bad" in environment.notices[0]


def test_load_environment_prefers_the_nearest_skill_and_caps_their_number(tmp_path):
    """A skill of the working folder replaces one with the same name further out, and at most MAX_LISTED_SKILLS are
    listed.
    """
    near, more = tmp_path / "near", tmp_path / "more"
    write_skill(tmp_path, "tides", "---\ndescription: far\n---\nb")
    write_skill(near, "tides", "---\ndescription: near\n---\nb")
    environment = load_environment(near, parent_folders=[tmp_path])
    assert [entry.description for entry in environment.skills] == ["near"]
    for number in range(MAX_LISTED_SKILLS + 5):
        (more / f"s{number:03}").mkdir(parents=True)
        (more / f"s{number:03}" / "SKILL.md").write_text("what")
    environment = load_environment(near, skills=[more])
    assert len(environment.skills) == MAX_LISTED_SKILLS
    assert any(str(MAX_LISTED_SKILLS) in notice for notice in environment.notices)


@given(st.text())
def test_parse_front_matter_accepts_any_text(text):
    """Any SKILL.md is parsed without an error, and a text without front matter is all body."""
    fields, body = parse_front_matter(text)
    assert all(isinstance(value, str) for value in fields.values())
    if not text.removeprefix("\ufeff").startswith("---"):
        assert (fields, body) == ({}, text)


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", API_NAMES)
def test_environment_fields_are_valid_on_every_api(tmp_path, api):
    """The fields make a valid request of each API that contains the prompt and the tools."""
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    environment = load_environment(tmp_path, system="You help.", tools=[READ])
    messages = [Message.from_text("user", "Go.")]
    request = build_request_body(
        api,
        "some-model",
        [build_sized_message(message) for message in messages],
        setup_fields=environment.build_fields(api),
    )
    assert validate_request(request, api=api) == ()
    for words in (b"You help.", b"Use tabs.", b"Reads a file."):
        assert request.count(words) == 1, words
    assert parse_request(request, api).requested_max_tokens == environment.max_output


@pytest.mark.parametrize("api", API_NAMES)
def test_environment_fields_of_an_empty_environment_hold_only_a_token_limit(api):
    """An empty environment sets the answer's length and nothing else."""
    assert set(Environment().build_fields(api)) <= {
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "generationConfig",
    }


# -- behind a summary --------------------------------------------------------------------------------------------------


def test_restore_texts_returns_the_skills_in_use_without_the_plan(tmp_path):
    """The skills that the conversation read are restored, the last one first. Its to-do list is not: the planner shows
    it with everything else that is still open, and it must not be shown twice.
    """
    for name in ("tides", "moon", "unused"):
        write_skill(tmp_path, name, f"---\nname: {name}\ndescription: d\n---\nAll of {name}.")
    environment = load_environment(tmp_path)
    texts = environment.restore_texts(
        [
            build_tool_call("read", path="skill:moon"),
            build_tool_call("read", path="skill:tides"),
            build_tool_call("read", path="./.agents/skills/moon/SKILL.md"),
            build_tool_call("todo", items=[{"text": "look", "status": "done"}, {"text": "mend", "status": "active"}]),
            build_tool_call("read", path="SKILL.md"),
            build_tool_call("lookup", name="unused"),
        ]
    )
    assert texts == (
        "Skill moon, in use:\n\nAll of moon.",
        "Skill tides, in use:\n\nAll of tides.",
    )


def test_restore_texts_recognizes_the_skill_tool_of_claude_code(tmp_path):
    """A call of a tool named ``Skill`` counts as use of the skill that it names."""
    write_skill(tmp_path, "tides", "---\nname: tides\ndescription: d\n---\nAll of it.")
    assert load_environment(tmp_path).restore_texts([build_tool_call("Skill", skill="tides")]) == (
        "Skill tides, in use:\n\nAll of it.",
    )


def test_restore_texts_restores_again_after_a_second_summary(tmp_path):
    """A skill that a summary restored counts as used, so the next summary restores it too, with its current text."""
    path = write_skill(tmp_path, "tides", "---\nname: tides\ndescription: d\n---\nOld words.")
    first = load_environment(tmp_path).restore_texts([build_tool_call("read", path="skill:tides")])
    path.write_text("---\nname: tides\ndescription: d\n---\nNew words.")
    summary = Message("user", tuple(map(Text, ("What was done.", *first))))
    again = load_environment(tmp_path).restore_texts([summary, Message.from_text("user", "Go on.")])
    assert again == ("Skill tides, in use:\n\nNew words.",)


@given(st.lists(st.lists(st.sampled_from(["tides", "moon", "kelp"]), max_size=4), min_size=1, max_size=4))
def test_find_used_skills_keeps_the_order_of_use_across_summaries(uses):
    """Law: however many summaries lie between, the skill used last stands first, as without summaries."""
    skills = {name: f"/skills/{name}/SKILL.md" for name in ("tides", "moon", "kelp")}
    messages_by_summary = [[build_tool_call("read", path=f"skill:{name}") for name in names] for names in uses]
    once = find_used_skills([message for messages in messages_by_summary for message in messages], skills)
    summary = Message.from_text("user", "What was done.")
    for messages in messages_by_summary:
        used = find_used_skills([summary, *messages], skills)
        summary = Message(
            "user", (Text("What was done."), *(Text(format_used_skill(name, "It says.")) for name in used))
        )
    assert used == once


def test_restore_texts_returns_only_changed_rules(tmp_path):
    """Every prompt already has the rules, so a summary repeats only what changed since."""
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    environment = load_environment(tmp_path)
    assert environment.restore_texts() == ()
    (tmp_path / "AGENTS.md").write_text("Use blanks.")
    assert [text.splitlines()[-1] for text in environment.restore_texts()] == ["Use blanks."]
    (tmp_path / "AGENTS.md").unlink()
    assert environment.restore_texts() == ()


def test_restore_texts_includes_new_rules_of_its_folders(tmp_path):
    """Rules written after the prompt was made are restored, but only those of the environment's own folders."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "AGENTS.md").write_text("Use tabs.")
    environment = load_environment(inner, parent_folders=[tmp_path])
    for folder in (tmp_path, inner / "deeper"):
        folder.mkdir(exist_ok=True)
        (folder / "AGENTS.md").write_text(f"Rules of {folder.name}.")
    assert [text.splitlines()[-1] for text in environment.restore_texts()] == [f"Rules of {tmp_path.name}."]
    assert environment.prompt.endswith("Use tabs."), "the prompt of a session stays as it is"


def test_restore_texts_cuts_each_text_and_their_total_to_a_budget(tmp_path):
    """A long skill is cut with a line that says so, and all texts together stay within ``max_tokens``."""
    for name in ("one", "two", "three"):
        write_skill(tmp_path, name, f"---\nname: {name}\ndescription: d\n---\n" + "kelp grows on rocks\n" * 6_000)
    environment = load_environment(tmp_path)
    used = ["one", "two", "three"]
    texts = environment.restore_texts(skills=used)
    assert len(texts) == 3
    assert all(4_500 < estimate_text_tokens(text) < 5_200 for text in texts)
    assert all("left out here" in text for text in texts)
    assert sum(map(estimate_text_tokens, environment.restore_texts(skills=used, max_tokens=7_000))) < 7_200
    assert environment.restore_texts(skills=["gone", "one"], max_tokens=0) == ()
