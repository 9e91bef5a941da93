"""The environment: one prompt for all requests, from folders that may hold anything."""

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
from holdfast.providers.requests.request_body import build_request_body, parse_request
from holdfast.providers.rules.validate import validate_request

READ = FunctionTool("read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})


def skill(folder, name, text):
    """Write the SKILL.md of a skill and return its path."""
    path = folder / ".agents" / "skills" / name / "SKILL.md"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def called(tool, /, **arguments):
    """Return a message that calls a tool."""
    return Message("assistant", (ToolCall("c", tool, msgspec.json.encode(arguments).decode()),))


# -- what is read ------------------------------------------------------------------------------------------------------


def test_rules_stand_in_the_prompt_the_nearest_last(tmp_path):
    """The system prompt is the author's words, then skills, then rules from the outermost folder inwards."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "AGENTS.md").write_text("Use tabs.\n")
    (inner / "AGENTS.md").write_text("Use blanks.\n")
    skill(inner, "tides", "---\nname: tides\ndescription: Reads tide tables.\n---\n# Tides\nLook at the moon.\n")
    made = load_environment(inner, system="You help.", parent_folders=[tmp_path])
    places = [made.prompt.index(words) for words in ("You help.", "tides: Reads tide tables.", "Use tabs.", "blanks.")]
    assert places == sorted(places)
    assert "Look at the moon" not in made.prompt, "the body of a skill is read when it is used"
    assert made.notices == ()


def test_an_empty_folder_is_an_empty_environment(tmp_path):
    """Where nothing is there nothing is said; a folder that is not there is one too."""
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert load_environment(folder) == Environment(folders=(str(folder),))
    assert Environment().prompt == ""


@pytest.mark.parametrize(
    ("data", "notice"), [(b"a\0b", "zero bytes"), (b"caf\xe9 au lait", "not UTF-8"), (None, "not a file")]
)
def test_rules_that_are_no_text_are_told(tmp_path, data, notice):
    """Binary rules, other encodings and a folder of that name give a notice and no rules."""
    path = tmp_path / "AGENTS.md"
    path.mkdir() if data is None else path.write_bytes(data)
    made = load_environment(tmp_path)
    assert made.rules == ()
    assert len(made.notices) == 1
    assert notice in made.notices[0]


def test_a_pipe_makes_nobody_wait(tmp_path):
    """A named pipe called AGENTS.md, which would never be read to its end, gives a notice at once."""
    os.mkfifo(tmp_path / "AGENTS.md")
    assert "not a file" in load_environment(tmp_path).notices[0]


def test_rules_that_may_not_be_read_are_told(tmp_path, without_rights):
    """Missing permissions give a notice."""
    (tmp_path / "AGENTS.md").write_text("Secret.")
    (tmp_path / "AGENTS.md").chmod(0)
    with without_rights():
        assert "left out" in load_environment(tmp_path).notices[0]


def test_rules_have_a_budget_and_the_nearest_are_whole(tmp_path):
    """Rules beyond the budget are cut where the farthest begin to be too many, and both prompt and notice say so."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "AGENTS.md").write_text("é" * MAX_RULES_BYTES)
    (inner / "AGENTS.md").write_text("near " * 100)
    made = load_environment(inner, parent_folders=[tmp_path])
    assert [rule.text.startswith(start) for rule, start in zip(made.rules, ("éé", "near"), strict=True)] == [True, True]
    assert "left out here" in made.rules[0].text
    assert made.rules[1].text == ("near " * 100).strip()
    assert sum(len(rule.text.encode()) for rule in made.rules) < MAX_RULES_BYTES + 200
    assert "are cut" in made.notices[0]


def test_nothing_outside_of_the_folders_is_read(tmp_path):
    """Links that lead out of their folder are not followed: rules, a skill's file, a skill's folder, all skills."""
    outside = tmp_path / "outside"
    skill(outside, "spy", "---\nname: spy\ndescription: SECRET\n---\nSECRET")
    (outside / "AGENTS.md").write_text("SECRET")
    for name, link, to in (
        ("a", "AGENTS.md", outside / "AGENTS.md"),
        ("b", ".agents", outside / ".agents"),
        ("c", ".agents/skills/spy", outside / ".agents/skills/spy"),
        ("d", ".agents/skills/spy/SKILL.md", outside / ".agents/skills/spy/SKILL.md"),
    ):
        folder = tmp_path / name
        (folder / link).parent.mkdir(parents=True)
        (folder / link).symlink_to(to)
        made = load_environment(folder)
        assert "SECRET" not in made.prompt, link
        assert "outside" in "".join(made.notices), link


def test_links_within_the_folder_are_followed(tmp_path):
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
    ("text", "name", "about"),
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
def test_front_matter_is_read_as_people_write_it(tmp_path, text, name, about):
    """Quotes, blocks, other fields, a byte order mark; without a name the folder's, without words the first line."""
    skill(tmp_path, "folder", text)
    made = load_environment(tmp_path)
    assert [(one.name, one.description) for one in made.skills] == [(name, about)]


@pytest.mark.parametrize("text", ["", "---\nname: ../../x\ndescription: d\n---\n", "---\nname: x\n---\n", "a\0b"])
def test_a_skill_that_is_none_is_told(tmp_path, text):
    """No words at all, a name that is a path, no text: a notice, and the other skills are there."""
    skill(tmp_path, "bad", text)
    skill(tmp_path, "good", "---\ndescription: d\n---\nb")
    made = load_environment(tmp_path)
    assert [one.name for one in made.skills] == ["good"]
    assert "bad" in made.notices[0]


def test_the_nearest_skill_of_a_name_counts(tmp_path):
    """A skill of the working folder takes the place of one with its name further out, and there is a most of them."""
    near, more = tmp_path / "near", tmp_path / "more"
    skill(tmp_path, "tides", "---\ndescription: far\n---\nb")
    skill(near, "tides", "---\ndescription: near\n---\nb")
    made = load_environment(near, parent_folders=[tmp_path])
    assert [one.description for one in made.skills] == ["near"]
    for number in range(MAX_LISTED_SKILLS + 5):
        (more / f"s{number:03}").mkdir(parents=True)
        (more / f"s{number:03}" / "SKILL.md").write_text("what")
    made = load_environment(near, skills=[more])
    assert len(made.skills) == MAX_LISTED_SKILLS
    assert any(str(MAX_LISTED_SKILLS) in notice for notice in made.notices)


@given(st.text())
def test_any_text_has_front_matter_and_a_body(text):
    """Whatever stands in a SKILL.md is read without an error, and a text without front matter is all body."""
    told, rest = parse_front_matter(text)
    assert all(isinstance(value, str) for value in told.values())
    if not text.removeprefix("\ufeff").startswith("---"):
        assert (told, rest) == ({}, text)


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", API_NAMES)
def test_every_api_gets_prompt_and_tools(tmp_path, api):
    """The fields make a request that the rules of the API take, with the prompt and the tools in it."""
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    made = load_environment(tmp_path, system="You help.", tools=[READ])
    said = [Message.from_text("user", "Go.")]
    request = build_request_body(
        api, "some-model", [build_sized_message(one) for one in said], setup_fields=made.build_fields(api)
    )
    assert validate_request(request, api=api) == ()
    for words in (b"You help.", b"Use tabs.", b"Reads a file."):
        assert request.count(words) == 1, words
    assert parse_request(request, api).requested_max_tokens == made.max_output


@pytest.mark.parametrize("api", API_NAMES)
def test_nothing_said_is_nothing_sent(api):
    """An empty environment asks for an answer of some length and nothing else."""
    assert set(Environment().build_fields(api)) <= {
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "generationConfig",
    }


# -- behind a summary --------------------------------------------------------------------------------------------------


def test_what_is_in_use_stands_behind_a_summary(tmp_path):
    """Skills that were read, the last one first, and the plan come back from what the conversation tells."""
    for name in ("tides", "moon", "unused"):
        skill(tmp_path, name, f"---\nname: {name}\ndescription: d\n---\nAll of {name}.")
    made = load_environment(tmp_path)
    told = made.restore_texts(
        [
            called("read", path="skill:moon"),
            called("read", path="skill:tides"),
            called("read", path="./.agents/skills/moon/SKILL.md"),
            called("todo", items=[{"text": "old"}]),
            called("todo", items=[{"text": "look", "status": "done"}, {"text": "mend", "status": "active"}]),
            called("read", path="SKILL.md"),
            called("lookup", name="unused"),
        ]
    )
    assert told == (
        "Skill moon, in use:\n\nAll of moon.",
        "Skill tides, in use:\n\nAll of tides.",
        "The plan as it stands:\n- [done] look\n- [active] mend",
    )


def test_skills_of_other_tools_count(tmp_path):
    """A tool that is called ``Skill``, as Claude Code has it, uses the skill that it names."""
    skill(tmp_path, "tides", "---\nname: tides\ndescription: d\n---\nAll of it.")
    assert load_environment(tmp_path).restore_texts([called("Skill", skill="tides")]) == (
        "Skill tides, in use:\n\nAll of it.",
    )


def test_it_comes_back_again_and_again(tmp_path):
    """What a summary brought back counts as used: the next summary brings it back too, and after a restart as well."""
    path = skill(tmp_path, "tides", "---\nname: tides\ndescription: d\n---\nOld words.")
    first = load_environment(tmp_path).restore_texts(
        [called("read", path="skill:tides"), called("todo", items=[{"text": "mend"}])]
    )
    path.write_text("---\nname: tides\ndescription: d\n---\nNew words.")
    summary = Message("user", tuple(map(Text, ("What was done.", *first))))
    again = load_environment(tmp_path).restore_texts([summary, Message.from_text("user", "Go on.")])
    assert again == ("Skill tides, in use:\n\nNew words.", "The plan as it stands:\n- [open] mend")


@given(st.lists(st.lists(st.sampled_from(["tides", "moon", "kelp"]), max_size=4), min_size=1, max_size=4))
def test_skills_keep_the_order_of_their_use(uses):
    """Law: however many summaries lie between, the skills stand as if none did: the last one used first."""
    skills = {name: f"/skills/{name}/SKILL.md" for name in ("tides", "moon", "kelp")}
    read = [[called("read", path=f"skill:{name}") for name in names] for names in uses]
    once = find_used_skills([message for messages in read for message in messages], skills)
    summary = Message.from_text("user", "What was done.")
    for messages in read:
        used = find_used_skills([summary, *messages], skills)
        summary = Message(
            "user", (Text("What was done."), *(Text(format_used_skill(name, "It says.")) for name in used))
        )
    assert used == once


def test_a_plan_that_is_done_is_over(tmp_path):
    """A plan of which every item is done is not brought back; a broken call makes none."""
    made = load_environment(tmp_path)
    assert made.restore_texts([called("todo", items=[{"text": "a", "status": "done"}])]) == ()
    assert made.restore_texts([Message("assistant", (ToolCall("c", "todo", "{broken"),))]) == ()


def test_rules_come_back_where_they_changed(tmp_path):
    """Rules stand in the prompt of every request; only what they say since then stands behind a summary."""
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    made = load_environment(tmp_path)
    assert made.restore_texts() == ()
    (tmp_path / "AGENTS.md").write_text("Use blanks.")
    assert [text.splitlines()[-1] for text in made.restore_texts()] == ["Use blanks."]
    (tmp_path / "AGENTS.md").unlink()
    assert made.restore_texts() == ()


def test_rules_that_are_new_come_too(tmp_path):
    """Rules that were written since the prompt was made stand behind a summary, in the folders of the others alone."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "AGENTS.md").write_text("Use tabs.")
    made = load_environment(inner, parent_folders=[tmp_path])
    for folder in (tmp_path, inner / "deeper"):
        folder.mkdir(exist_ok=True)
        (folder / "AGENTS.md").write_text(f"Rules of {folder.name}.")
    assert [text.splitlines()[-1] for text in made.restore_texts()] == [f"Rules of {tmp_path.name}."]
    assert made.prompt.endswith("Use tabs."), "the prompt of a session stays as it is"


def test_restored_texts_have_budgets(tmp_path):
    """A long skill is cut with a line that says so, and all of them together stay within what is given."""
    for name in ("one", "two", "three"):
        skill(tmp_path, name, f"---\nname: {name}\ndescription: d\n---\n" + "kelp grows on rocks\n" * 6_000)
    made = load_environment(tmp_path)
    used = ["one", "two", "three"]
    told = made.restore_texts(skills=used)
    assert len(told) == 3
    assert all(4_500 < estimate_text_tokens(text) < 5_200 for text in told)
    assert all("left out here" in text for text in told)
    assert sum(map(estimate_text_tokens, made.restore_texts(skills=used, max_tokens=7_000))) < 7_200
    assert made.restore_texts(skills=["gone", "one"], max_tokens=0) == ()
