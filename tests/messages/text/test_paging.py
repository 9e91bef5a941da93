"""Pages of a text: ranges, and what a search finds; every character once, in few calls, whatever is asked."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import FormatError
from holdfast.messages.text import scan as pieces
from holdfast.messages.text.paging import (
    MAX_PAGE_BYTES,
    MAX_PAGE_CHARS,
    MIN_PAGE_CHARS,
    MIN_PAGE_LIMIT,
    count_page_chars,
    iter_text_pages,
    read_text_page,
)
from holdfast.messages.text.scan import find_line_number, find_line_start, make_text_reader, measure_extent
from holdfast.messages.text.search import (
    MATCH_LINE_CHARS,
    MAX_ROW_CHARS,
    ROW_OVERLAP_CHARS,
    lowercase_keep_length,
    parse_search_query,
)

ODD = "aB \n\n\r\u2028\x00\ud83d\udc4d\u0301配İß\U0001f980"
units = st.text(st.sampled_from(ODD), min_size=1, max_size=30)
"""A few odd characters that are repeated until they fill pages."""
long_texts = st.builds(lambda unit, times, rest: unit * times + rest, units, st.integers(0, 9_000), units)
short_texts = st.text(st.sampled_from(ODD), max_size=80)


def read_whole(text: str, **asked: str) -> list[str]:
    """Return the texts of the pages, each asked for with the ``next_arguments`` of the one before."""
    texts, following_ = [], dict(asked)
    while True:
        found = read_text_page(make_text_reader(text), **following_)
        texts.append(found.text)
        if found.next_arguments is None:
            return texts
        following_ = found.next_arguments


# -- laws --------------------------------------------------------------------------------------------------------------


@given(long_texts)
def test_reading_ends_and_gives_every_character_once(text):
    """paging-is-complete: following ``next_arguments`` gives the whole text, each character once.

    It takes at most ⌈n / page⌉ calls for n bytes.
    """
    pages = read_whole(text)
    assert "".join(pages) == text
    assert len(pages) <= max(1, -(-len(text.encode("utf-8", "surrogatepass")) // MIN_PAGE_CHARS))


@given(long_texts)
def test_every_page_is_within_its_limits(text):
    """No page has more characters or bytes than it may, and each but the last is full or ends a line."""
    for found in iter_text_pages(make_text_reader(text)):
        size = len(found.text.encode("utf-8", "surrogatepass"))
        assert len(found.text) <= MAX_PAGE_CHARS
        assert size <= MAX_PAGE_BYTES
        assert found.next_arguments is None or size >= MIN_PAGE_CHARS
        assert found.text == text[found.start_char : found.stop_char]
        assert (found.total_chars, found.total_lines) == (len(text), text.count("\n") + 1)
        assert found.first_line == text.count("\n", 0, found.start_char) + 1
        assert found.last_line == text.count("\n", 0, max(found.start_char, found.stop_char - 1)) + 1


@given(long_texts, st.integers(-1, 60_000))
def test_pages_may_be_limited_to_less(text, most):
    """In a small window pages are shorter, within reason, and still give every character once."""
    found = list(iter_text_pages(make_text_reader(text), max_chars=most))
    limit = max(MIN_PAGE_LIMIT, min(most, MAX_PAGE_CHARS))
    assert "".join(one.text for one in found) == text
    assert all(len(one.text) <= limit for one in found)
    assert len(found) <= max(1, -(-len(text.encode("utf-8", "surrogatepass")) // int(0.9 * limit)))


@given(long_texts, st.integers(1, 5))
def test_a_page_by_its_number_is_the_one_that_next_leads_to(text, number):
    """Page n is what n − 1 times ``next_arguments`` gives; beyond the last one, an error says how many there are."""
    pages = list(iter_text_pages(make_text_reader(text)))
    if number <= len(pages):
        assert read_text_page(make_text_reader(text), number=number) == pages[number - 1]
    else:
        with pytest.raises(FormatError, match=f"ends on page {len(pages)}"):
            read_text_page(make_text_reader(text), number=number)


@given(long_texts, st.data())
def test_a_range_of_characters_is_that_range(text, data):
    """``chars`` gives those characters; an end beyond the text is the text's end."""
    start = data.draw(st.integers(0, max(0, len(text) - 1)))
    stop = data.draw(st.integers(start + 1, len(text) + 9))
    assert "".join(read_whole(text, chars=f"{start}-{stop}")) == text[start:stop]


@given(long_texts, st.data())
def test_a_range_of_lines_is_those_lines(text, data):
    """``lines`` gives those lines whole, the last one's end too, however long they are."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    first = data.draw(st.integers(1, len(lines)))
    last = data.draw(st.integers(first, len(lines) + 3))
    assert "".join(read_whole(text, lines=f"{first}-{last}")) == "".join(lines[first - 1 : last])


@given(short_texts, st.integers(1, 7))
def test_lines_are_found_however_the_text_is_cut(text, size):
    """Where a line begins, and which line a character belongs to, do not depend on the pieces that are read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "SCAN_PIECE_CHARS", size)
        read, held = make_text_reader(text), measure_extent(make_text_reader(text))
        starts = [0, *(at + 1 for at, char in enumerate(text) if char == "\n")]
        assert [find_line_start(read, held, number + 1) for number in range(len(starts))] == starts
        assert [find_line_number(read, held, at) for at in range(len(text))] == [
            text.count("\n", 0, at) + 1 for at in range(len(text))
        ]
        assert (held.chars, held.lines) == (len(text), len(starts))


@given(short_texts, st.sampled_from(["a", "b", "配", "ß", "a|配", "b.*a", "B a"]), st.integers(1, 9), st.data())
def test_a_search_finds_what_a_look_at_every_line_finds(text, words, size, data):
    """The numbers of the lines that match are those that a plain look gives, for any pieces and any rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "SCAN_PIECE_CHARS", size)
        patch.setattr("holdfast.messages.text.search.CONTEXT_LINES", data.draw(st.integers(0, 2)))
        found = read_text_page(make_text_reader(text), search=words)
    lines = [number for number, line in enumerate(text.split("\n"), 1) if matches(line, words)]
    assert [
        int(line.partition(":")[0]) for line in found.text.split("\n") if line[:1].isdigit() and ":" in line[:3]
    ] == lines
    assert (found.match_count, found.next_arguments) == (len(lines), None)


many_lines = st.lists(st.text(st.sampled_from("ab配İß "), max_size=12), min_size=1, max_size=150).map("\n".join)


@given(
    many_lines, st.sampled_from(["aa", "b配", "ßa|İİ", "a.*b.*配"]), st.integers(1, 700), st.integers(1, 40), st.data()
)
def test_lines_that_cannot_match_change_nothing(text, words, size, few, data):
    """A search shows what a look at every line shows, also where most are passed over: matches and neighbours."""
    context = data.draw(st.integers(0, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "SCAN_PIECE_CHARS", size)
        patch.setattr("holdfast.messages.text.search.ROW_BY_ROW_CHARS", few)
        patch.setattr("holdfast.messages.text.search.CONTEXT_LINES", context)
        found = read_text_page(make_text_reader(text), search=words)
    lines = text.split("\n")
    hits = {number for number, line in enumerate(lines) if matches(line, words)}
    near = {number + step for number in hits for step in range(-context, context + 1)}
    assert found.text == "\n".join(
        f"{number + 1}{':' if number in hits else '-'} {line}" for number, line in enumerate(lines) if number in near
    )


def test_a_search_takes_the_length_of_the_text(grows_slowly):
    """A text is searched in time that grows with it."""

    def searching(size):
        read = make_text_reader("a line of twenty-four\n" * size)
        return lambda: read_text_page(read, search="twenty.*five|zzz")

    assert searching(10)().match_count == 0
    grows_slowly(searching, 50_000)


def matches(line: str, words: str) -> bool:
    """Return whether a line matches, told in another way than the search does it."""
    for one in words.split("|"):
        at = 0
        for part in one.split(".*"):
            at = lowercase_keep_length(line).find(lowercase_keep_length(part), at) + len(part)
            if at < len(part):
                break
        else:
            return True
    return False


@given(st.text(st.sampled_from("aA|.*\\([ßΣσς"), min_size=1, max_size=12), short_texts)
def test_words_as_they_were_written_always_match(words, around):
    """Whatever marks a text has, a search for a line's own words finds it."""
    around = around.replace("\n", " ")
    try:
        wanted = read_text_page(make_text_reader(f"x\n{around}{words}{around}\ny"), search=words)
    except FormatError:
        assert not words.replace("|", "").replace(".*", "").replace("\\", "")
        return
    assert "2: " in wanted.text


@example(rows=1, back=5, after=3_000, size=10, piece=900)
@given(
    st.integers(0, 3),
    st.integers(0, 60) | st.integers(0, MAX_ROW_CHARS),
    st.integers(0, MAX_ROW_CHARS),
    st.integers(1, 40),
    st.sampled_from([900, 1 << 16]),
)
def test_a_match_in_a_very_long_line_is_found_once(rows, back, after, size, piece):
    """A line of any length is searched whole, over rows and pieces: a match is found where it stands, only once."""
    needle = "n" * size
    before = max(0, rows * MAX_ROW_CHARS - back)
    text = f"first\n{'x' * before}{needle}{'y' * after}\nlast"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "SCAN_PIECE_CHARS", piece)
        found = read_text_page(make_text_reader(text), search=needle)
    assert found.match_count == 1
    assert needle in found.text
    assert len(found.text) < MATCH_LINE_CHARS + 5 * 170


@given(st.integers(1, 400), st.integers(0, 600))
def test_every_match_is_on_one_page(every, width):
    """Following ``next_arguments`` of a search shows each match once, in order."""
    text = "\n".join(f"line {n} {'needle' if n % every == 0 else 'hay'} {'z' * width}" for n in range(1_000))
    shown = "\n".join(read_whole(text, search="NEEDLE")).split("\n")
    numbers = [int(line.partition(":")[0]) for line in shown if "needle" in line]
    assert numbers == [n + 1 for n in range(0, 1_000, every)]


@pytest.mark.parametrize("filling", ["z", "配"])
def test_a_page_of_matches_is_within_the_limits_too(filling):
    """Long lines that match make more pages, none of them too long."""
    text = "\n".join(f"needle {n} {filling * 390}" for n in range(500))
    found = list(iter_text_pages(make_text_reader(text), search="needle"))
    assert len(found) > 3
    assert sum(one.match_count for one in found) == 500
    for one in found:
        assert len(one.text) <= MAX_PAGE_CHARS
        assert len(one.text.encode()) <= MAX_PAGE_BYTES


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20), st.integers(-2, 3), short_texts)
def test_any_arguments_give_a_page_or_a_message(lines, chars, search, number, text):
    """Whatever is asked for: a page, or an error that says what to do."""
    with suppress(FormatError):
        found = read_text_page(make_text_reader(text), lines=lines, chars=chars, search=search, number=number)
        assert 0 <= found.start_char <= found.stop_char <= len(text)


# -- cases -------------------------------------------------------------------------------------------------------------

TEXT = "\n".join(f"line {n}" for n in range(1, 101))


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ({"lines": "12-48"}, 12, 48),
        ({"lines": " 12 – 48 "}, 12, 48),
        ({"lines": "12..48"}, 12, 48),
        ({"lines": "12"}, 12, 12),
        ({"lines": "90-"}, 90, 100),
        ({"lines": "90-99999999999999999999999"}, 90, 100),
        ({"chars": "0-7"}, 1, 1),
        ({}, 1, 100),
    ],
)
def test_ranges_are_taken_as_they_are_written(asked, first, last):
    """Ranges may be open, have blanks, and end beyond the text."""
    found = read_text_page(make_text_reader(TEXT), **asked)
    assert (found.first_line, found.last_line) == (first, last)
    assert found.text.startswith(f"line {first}")


@pytest.mark.parametrize(
    "asked",
    [
        {"lines": "0-5"},
        {"lines": "-5"},
        {"lines": "-5-10"},
        {"lines": "48-12"},
        {"lines": "101"},
        {"lines": "9" * 5_000},
        {"lines": "three"},
        {"lines": "1,2"},
        {"lines": "١"},
        {"chars": "900-100"},
        {"chars": "5-5"},
        {"chars": "100000-100001"},
        {"chars": "0x10"},
        {"chars": "1e3"},
        {"number": 0},
        {"number": -3},
        {"number": 2},
        {"number": 10**30},
    ],
)
def test_what_is_not_there_is_told_with_the_totals(asked):
    """Negative, turned around, beyond the end, no numbers, huge: the message has the totals and what to do."""
    with pytest.raises(FormatError, match=r"100 lines and 791 characters: give a range within it") as raised:
        read_text_page(make_text_reader(TEXT), **asked)
    assert len(str(raised.value)) < 300


def test_two_ranges_are_refused():
    """Lines and characters at once mean nothing."""
    with pytest.raises(FormatError, match="give one of them"):
        read_text_page(make_text_reader(TEXT), lines="1-2", chars="0-9")


@pytest.mark.parametrize("words", ["|", ".*", "||.*", "a\nb", "x" * 501, "a|" * 20 + "b"])
def test_a_search_for_nothing_or_too_much_is_refused(words):
    """A query without a word, over several lines, or too long has an error."""
    with pytest.raises(FormatError):
        parse_search_query(words)


def test_a_search_shows_numbers_and_neighbours():
    """A match has its line number and the two lines on either side; neighbours of two matches are shown once."""
    assert read_text_page(make_text_reader(TEXT), search="line 50|LINE 53").text.split("\n") == [
        "48- line 48", "49- line 49", "50: line 50", "51- line 51", "52- line 52", "53: line 53", "54- line 54",
        "55- line 55",
    ]  # fmt: skip


def test_escaped_marks_are_found():
    """A backslash before a mark may be meant as in a regular expression, or as it stands."""
    assert read_text_page(make_text_reader("call(x)\nother"), search=r"call\(x").match_count == 1
    assert read_text_page(make_text_reader("a\\(b\nother"), search=r"a\(b").match_count == 1


def test_a_search_within_a_range():
    """Only the lines of the range are looked at, under their own numbers."""
    found = read_text_page(make_text_reader(TEXT), search="line 5", lines="20-55")
    assert [line[:2] for line in found.text.split("\n") if ":" in line] == ["50", "51", "52", "53", "54", "55"]
    assert (found.first_line, found.last_line) == (20, 55)


def test_regular_expressions_that_explode_elsewhere_take_their_length(grows_slowly):
    """A pattern that makes backtracking engines run for ever is plain words here."""

    def searching(size):
        read = make_text_reader(("a" * size + "\n") * 20)
        return lambda: [read_text_page(read, search=one).match_count for one in patterns]

    patterns = ["(a+)+$", ".*".join("a" * 60) + ".*b", "a" * 499 + "b"]
    assert searching(1_000)() == [0, 0, 0]
    grows_slowly(searching, 1_000)


def test_few_very_long_lines_are_paged():
    """F186: five lines of 100,000 characters each come in pages, and a range of lines of them too."""
    text = "\n".join(str(n) * 100_000 for n in range(5))
    assert len(read_whole(text)) == 11
    assert "".join(read_whole(text, lines="2-3")) == f"{'1' * 100_000}\n{'2' * 100_000}\n"


def test_a_page_ends_with_a_line_where_one_ends_nearby():
    """A line that would be cut goes to the next page, if it is short."""
    text = ("x" * 79 + "\n") * 2_000
    assert all(found.text.endswith("\n") for found in iter_text_pages(make_text_reader(text)))


def test_next_is_json_and_says_where():
    """``next_arguments`` holds arguments as they stand in a call, an open end open and a bound one bound."""
    text = "x" * 200_000
    assert json.loads(json.dumps(read_text_page(make_text_reader(text)).next_arguments)) == {"chars": "49500-"}
    assert read_text_page(make_text_reader(text), chars="10-100000").next_arguments == {"chars": "49510-100000"}
    assert read_text_page(make_text_reader(text), chars="10-100").next_arguments is None


def test_cut_takes_whole_characters():
    """A page that is full by bytes ends between two characters."""
    assert count_page_chars("\U0001f980" * 50_000) == MAX_PAGE_BYTES // 4
    assert ROW_OVERLAP_CHARS < MAX_ROW_CHARS
