"""Enabling writes only what is ours, and undoing it gives every file its bytes back."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.cli.always_on.file_changes import (
    FileChange,
    OwnFile,
    append_block,
    record_change,
    set_json_members,
    undo_change,
)
from holdfast.cli.clients.client_settings import parse_lenient_json
from holdfast.errors import ConfigError

URL = "http://127.0.0.1:8642"
ENV_URL = (("env", "ANTHROPIC_BASE_URL"), URL)
SETTINGS = [ENV_URL, (("env", "FLAG"), "1"), (("provider", "own", "options", "baseURL"), f"{URL}/v1")]

line_ends = st.sampled_from(["\n", "\r\n"])
keys = st.one_of(st.sampled_from(["env", "provider", "own", "options", "ANTHROPIC_BASE_URL"]), st.text(max_size=5))
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.just("http://x//y /* z */ ,}"))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=8,
)


@st.composite
def jsonc_texts(draw: st.DrawFn, value: object) -> str:
    """Write a value as JSON with any blanks, comments and trailing commas."""
    gap = draw(st.sampled_from(["", " ", "\n  ", "\r\n\t", " // a, } comment\n", "/* one */", "\t"]))
    if isinstance(value, dict | list):
        items = []
        for item in value:
            text = draw(jsonc_texts(value[item] if isinstance(value, dict) else item))
            items.append(f"{json.dumps(item)}{gap}:{gap}{text}" if isinstance(value, dict) else text)
        tail = "," if items and draw(st.booleans()) else ""
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        return f"{opening}{gap}{(gap + ',' + gap).join(items)}{gap}{tail}{gap}{closing}"
    return json.dumps(value, ensure_ascii=draw(st.booleans()))


@st.composite
def settings_files(draw: st.DrawFn) -> bytes:
    """Settings in which nothing is in the way of ours."""
    document = draw(st.dictionaries(keys, values, max_size=4))
    for name in ("env", "provider"):
        if name in document:
            document[name] = draw(st.dictionaries(st.sampled_from(["X", "ANTHROPIC_BASE_URL"]), scalars))
    text = draw(jsonc_texts(document))
    mark = draw(st.sampled_from(["", "\ufeff"]))
    return (mark + text + draw(st.sampled_from(["", "\n", "\r\n"]))).encode("utf-8", "surrogatepass")


def apply_and_undo(change: FileChange, current: bytes) -> bytes | None:
    return undo_change(record_change(change), current).after


@given(st.one_of(st.none(), st.binary(max_size=60), st.text("a\r\n# é", max_size=30).map(str.encode)), st.booleans())
def test_undo_of_a_block_gives_the_same_bytes(before, at_top):
    """For any file, or none, with any line ends and with or without a last one."""
    change = append_block("p", before, "default", ["export A=1", "export B='2 3'"], at_top=at_top)
    assert (before or b"") != change.after
    assert apply_and_undo(change, change.after) == before


@given(settings_files())
def test_json_settings_are_set_and_undone_to_the_same_bytes(before):
    """Every value that was there is still there, ours are set, and the undo gives the same bytes."""
    change = set_json_members("p", before, SETTINGS)
    document = parse_lenient_json(change.after.decode("utf-8-sig"))
    expected = parse_lenient_json(before.decode("utf-8-sig"))
    for names, value in SETTINGS:
        inner = expected
        for name in names[:-1]:
            inner = inner.setdefault(name, {})
        inner[names[-1]] = value
    assert document == expected
    assert apply_and_undo(change, change.after) == before


@given(settings_files(), st.sampled_from([None, 2, "\t"]))
def test_json_settings_that_a_client_rewrote_lose_only_ours(before, indent):
    """A client that writes its settings anew, with another one added, keeps all but our members."""
    change = set_json_members("p", before, SETTINGS)
    document = parse_lenient_json(change.after.decode("utf-8-sig"))
    document["added"] = {"later": [1, 2]}
    current = json.dumps(document, indent=indent).encode()
    undone = undo_change(record_change(change), current)
    assert undone.left == ()
    assert undone.after is not None
    expected = parse_lenient_json(before.decode("utf-8-sig"))
    assert parse_lenient_json(undone.after.decode()) == expected | {"added": {"later": [1, 2]}}


@given(settings_files())
def test_comments_added_between_stay(before):
    """A comment that somebody added at either end stays, and so does all that was there."""
    change = set_json_members("p", before, SETTINGS)
    current = change.after + b"\n// mine\n"
    undone = undo_change(record_change(change), current)
    assert undone.after is not None
    assert undone.after.endswith(b"\n// mine\n")
    assert undone.left == ()
    text = undone.after.decode("utf-8-sig")
    assert parse_lenient_json(text) == parse_lenient_json(before.decode("utf-8-sig"))


@given(settings_files())
@example(b"{}")
@example(b'{\n  "model": "opus"\n}')
def test_comment_lines_added_between_all_lines_stay(before):
    """Comments that somebody wrote between any two lines, also around our members, are kept whole."""
    change = set_json_members("p", before, SETTINGS)
    comment = "// ist à moi, }\n".encode()
    current = change.after.replace(b"\n", b"\n" + comment)
    undone = undo_change(record_change(change), current)
    assert undone.left == ()
    assert undone.after is not None
    assert undone.after.count(comment) == current.count(comment)
    document = parse_lenient_json(undone.after.decode("utf-8-sig"))
    for name in ("env", "provider"):
        # An object of ours in which somebody wrote a comment stays for the comment.
        if name not in parse_lenient_json(before.decode("utf-8-sig")):
            assert not any(document.get(name, {}).get(key) for key in ("ANTHROPIC_BASE_URL", "FLAG"))
            document.pop(name, None)
    expected = parse_lenient_json(before.decode("utf-8-sig"))
    document.get("provider", {}).pop("own", None)
    expected.get("provider", {}).pop("own", None)
    assert document == expected


@given(
    st.lists(st.sampled_from(["alias a=b", "# c", ""]), max_size=4),
    line_ends,
    st.booleans(),
    st.lists(st.sampled_from(["export LATER=1", "echo hi"]), max_size=3),
    st.lists(st.sampled_from(["export LATER=1", "echo hi"]), max_size=3),
)
@example(lines=["alias a=b"], newline="\n", has_last_newline=False, above=["echo hi"], below=[])
@example(lines=["a", "# c"], newline="\r\n", has_last_newline=False, above=["echo hi"], below=["export LATER=1"])
def test_lines_added_to_a_profile_stay(lines, newline, has_last_newline, above, below):
    """Lines that somebody added above and below our block stay where they are."""
    text = newline.join(lines) + (newline if has_last_newline else "")
    change = append_block("p", text.encode(), "default", ["export A=1"])
    head = "".join(line + newline for line in above).encode()
    tail = "".join(line + newline for line in below).encode()
    after = apply_and_undo(change, head + change.after + tail)
    if below and text and not text.endswith("\n"):
        # The line end that we added now keeps two lines of the user's apart.
        assert after == head + text.encode() + newline_of(text) + tail
    else:
        assert after == head + text.encode() + tail


def newline_of(text: str) -> bytes:
    return b"\r\n" if "\r\n" in text else b"\n"


def test_line_inside_the_block_is_kept():
    """A line that somebody wrote between our marks is theirs."""
    change = append_block("p", b"a\n", "default", ["export A=1"])
    current = change.after.replace(b"export A=1\n", b"export A=1\nexport MINE=2\n")
    assert apply_and_undo(change, current) == b"a\nexport MINE=2\n"


def test_block_of_another_instance_stays():
    """Two instances share a profile; each takes out its own block."""
    first = append_block("p", b"a\n", "default", ["export A=1"])
    second = append_block("p", first.after, "work", ["export B=1"])
    after = apply_and_undo(first, second.after)
    assert after == append_block("p", b"a\n", "work", ["export B=1"]).after
    assert after is not None
    assert apply_and_undo(second, after) == b"a\n"


def test_value_that_the_user_changed_stays_with_the_reason():
    """An address that the user has set since is not ours."""
    change = set_json_members("p", b"{}", [ENV_URL])
    current = change.after.replace(b"8642", b"9999")
    undone = undo_change(record_change(change), current)
    assert undone.after == current
    assert "another value" in undone.left[0]


def test_own_address_comes_back_in_a_changed_file():
    """An address that ours stood for is put back, in the user's spelling."""
    before = b'{"env": {"ANTHROPIC_BASE_URL": "https:\\/\\/own"}}'
    change = set_json_members("p", before, [ENV_URL])
    assert apply_and_undo(change, change.after + b"\n") == before + b"\n"


def test_new_file_is_removed_and_a_changed_one_kept():
    """A file that did not exist is gone; with lines of the user's it stays; a changed file of ours is named."""
    change = append_block("p", None, "default", ["export A=1"])
    assert apply_and_undo(change, change.after) is None
    assert apply_and_undo(change, b"mine\n" + change.after) == b"mine\n"
    new_settings = set_json_members("p", None, [ENV_URL])
    assert apply_and_undo(new_settings, new_settings.after + b"\n\n") is None
    own = FileChange("p", None, b"ours", (OwnFile(),))
    undone = undo_change(record_change(own), b"ours, changed")
    assert undone.after == b"ours, changed"
    assert undone.left


def test_removed_and_restored_files_stay_as_they_are():
    """A file that is gone stays gone, and one that was put back by hand is left alone."""
    change = append_block("p", b"a\n", "default", ["export A=1"])
    assert undo_change(record_change(change), None).after is None
    assert undo_change(record_change(change), b"a\n").after == b"a\n"


@pytest.mark.parametrize("data", [b"[]", b"{", b'{"env": 1}', b'{"env": {"a" 1}}', b"\xff", b'{"a": 1} x {"b"'])
def test_settings_that_cannot_be_changed_are_refused(data):
    """Broken settings, or ones with something else in the place of an object, are an error that names the file."""
    with pytest.raises(ConfigError, match=r"settings\.json"):
        set_json_members("settings.json", data, [ENV_URL])
