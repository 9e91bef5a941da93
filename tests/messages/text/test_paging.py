"""Pages of a text, by range or search: every character once, in few calls, whatever the arguments."""

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
"""A few odd characters, to be repeated until they fill pages."""
long_texts = st.builds(lambda unit, times, rest: unit * times + rest, units, st.integers(0, 9_000), units)
short_texts = st.text(st.sampled_from(ODD), max_size=80)


def read_all_pages(text: str, **arguments: str) -> list[str]:
    """Return the texts of all pages, each requested with the ``next_arguments`` of the page before."""
    texts, page_arguments = [], dict(arguments)
    while True:
        page = read_text_page(make_text_reader(text), **page_arguments)
        texts.append(page.text)
        if page.next_arguments is None:
            return texts
        page_arguments = page.next_arguments


# -- properties --------------------------------------------------------------------------------------------------------


@given(long_texts)
def test_following_next_arguments_reads_every_character_once(text):
    """paging-is-complete: following ``next_arguments`` gives the whole text, each character once, in at most ⌈n / page⌉
    calls for n bytes.
    """
    pages = read_all_pages(text)
    assert "".join(pages) == text
    assert len(pages) <= max(1, -(-len(text.encode("utf-8", "surrogatepass")) // MIN_PAGE_CHARS))


@given(long_texts)
def test_every_page_is_within_its_limits(text):
    """No page exceeds its characters or bytes, and each but the last is full or ends a line."""
    for page in iter_text_pages(make_text_reader(text)):
        size = len(page.text.encode("utf-8", "surrogatepass"))
        assert len(page.text) <= MAX_PAGE_CHARS
        assert size <= MAX_PAGE_BYTES
        assert page.next_arguments is None or size >= MIN_PAGE_CHARS
        assert page.text == text[page.start_char : page.stop_char]
        assert (page.total_chars, page.total_lines) == (len(text), text.count("\n") + 1)
        assert page.first_line == text.count("\n", 0, page.start_char) + 1
        assert page.last_line == text.count("\n", 0, max(page.start_char, page.stop_char - 1)) + 1


@given(long_texts, st.integers(-1, 60_000))
def test_iter_text_pages_accepts_a_lower_limit(text, requested_limit):
    """With a lower limit pages are shorter, within reason, and still give every character once."""
    pages = list(iter_text_pages(make_text_reader(text), max_chars=requested_limit))
    limit = max(MIN_PAGE_LIMIT, min(requested_limit, MAX_PAGE_CHARS))
    assert "".join(page.text for page in pages) == text
    assert all(len(page.text) <= limit for page in pages)
    assert len(pages) <= max(1, -(-len(text.encode("utf-8", "surrogatepass")) // int(0.9 * limit)))


@given(long_texts, st.integers(1, 5))
def test_read_text_page_by_number_equals_following_next_arguments(text, number):
    """Page n is what n − 1 times ``next_arguments`` gives; beyond the last page an error states how many there are."""
    pages = list(iter_text_pages(make_text_reader(text)))
    if number <= len(pages):
        assert read_text_page(make_text_reader(text), number=number) == pages[number - 1]
    else:
        with pytest.raises(FormatError, match=f"ends on page {len(pages)}"):
            read_text_page(make_text_reader(text), number=number)


@given(long_texts, st.data())
def test_read_text_page_reads_a_range_of_characters(text, data):
    """``chars`` gives those characters; an end beyond the text is the end of the text."""
    start = data.draw(st.integers(0, max(0, len(text) - 1)))
    stop = data.draw(st.integers(start + 1, len(text) + 9))
    assert "".join(read_all_pages(text, chars=f"{start}-{stop}")) == text[start:stop]


@given(long_texts, st.data())
def test_read_text_page_reads_a_range_of_lines(text, data):
    """``lines`` gives those lines whole, including the last line end, however long they are."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    first = data.draw(st.integers(1, len(lines)))
    last = data.draw(st.integers(first, len(lines) + 3))
    assert "".join(read_all_pages(text, lines=f"{first}-{last}")) == "".join(lines[first - 1 : last])


@given(short_texts, st.integers(1, 7))
def test_find_line_start_does_not_depend_on_the_scan_pieces(text, size):
    """Line starts and line numbers do not depend on the pieces in which the text is scanned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "SCAN_PIECE_CHARS", size)
        read, extent = make_text_reader(text), measure_extent(make_text_reader(text))
        starts = [0, *(at + 1 for at, char in enumerate(text) if char == "\n")]
        assert [find_line_start(read, extent, number + 1) for number in range(len(starts))] == starts
        assert [find_line_number(read, extent, at) for at in range(len(text))] == [
            text.count("\n", 0, at) + 1 for at in range(len(text))
        ]
        assert (extent.chars, extent.lines) == (len(text), len(starts))


@given(short_texts, st.sampled_from(["a", "b", "配", "ß", "a|配", "b.*a", "B a"]), st.integers(1, 9), st.data())
def test_search_finds_the_same_lines_as_a_naive_search(text, words, size, data):
    """The numbers of the matching lines equal those of a plain loop, for any piece and context size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "SCAN_PIECE_CHARS", size)
        patch.setattr("holdfast.messages.text.search.CONTEXT_LINES", data.draw(st.integers(0, 2)))
        found = read_text_page(make_text_reader(text), search=words)
    lines = [number for number, line in enumerate(text.split("\n"), 1) if is_match(line, words)]
    assert [
        int(line.partition(":")[0]) for line in found.text.split("\n") if line[:1].isdigit() and ":" in line[:3]
    ] == lines
    assert (found.match_count, found.next_arguments) == (len(lines), None)


many_lines = st.lists(st.text(st.sampled_from("ab配İß "), max_size=12), min_size=1, max_size=150).map("\n".join)


@given(
    many_lines, st.sampled_from(["aa", "b配", "ßa|İİ", "a.*b.*配"]), st.integers(1, 700), st.integers(1, 40), st.data()
)
def test_search_skips_lines_that_cannot_match_without_changes(text, words, size, row_chars, data):
    """Matches and neighbours equal those of a plain loop even when most lines are skipped."""
    context = data.draw(st.integers(0, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "SCAN_PIECE_CHARS", size)
        patch.setattr("holdfast.messages.text.search.ROW_BY_ROW_CHARS", row_chars)
        patch.setattr("holdfast.messages.text.search.CONTEXT_LINES", context)
        found = read_text_page(make_text_reader(text), search=words)
    lines = text.split("\n")
    hits = {number for number, line in enumerate(lines) if is_match(line, words)}
    near = {number + step for number in hits for step in range(-context, context + 1)}
    assert found.text == "\n".join(
        f"{number + 1}{':' if number in hits else '-'} {line}" for number, line in enumerate(lines) if number in near
    )


def test_search_takes_linear_time(assert_subquadratic):
    """A text is searched in time proportional to its length."""

    def make_search(size):
        read = make_text_reader("a line of twenty-four\n" * size)
        return lambda: read_text_page(read, search="twenty.*five|zzz")

    assert make_search(10)().match_count == 0
    assert_subquadratic(make_search, 50_000)


def is_match(line: str, words: str) -> bool:
    """Return whether a line matches, computed in a simpler way than by the search."""
    for alternative in words.split("|"):
        at = 0
        for part in alternative.split(".*"):
            at = lowercase_keep_length(line).find(lowercase_keep_length(part), at) + len(part)
            if at < len(part):
                break
        else:
            return True
    return False


@given(st.text(st.sampled_from("aA|.*\\([ßΣσς"), min_size=1, max_size=12), short_texts)
def test_search_for_the_own_words_of_a_line_always_matches(words, around):
    """Whatever special characters a line contains, a search for its text finds it."""
    around = around.replace("\n", " ")
    try:
        page = read_text_page(make_text_reader(f"x\n{around}{words}{around}\ny"), search=words)
    except FormatError:
        assert not words.replace("|", "").replace(".*", "").replace("\\", "")
        return
    assert "2: " in page.text


@example(rows=1, back=5, after=3_000, size=10, piece=900)
@given(
    st.integers(0, 3),
    st.integers(0, 60) | st.integers(0, MAX_ROW_CHARS),
    st.integers(0, MAX_ROW_CHARS),
    st.integers(1, 40),
    st.sampled_from([900, 1 << 16]),
)
def test_search_finds_a_match_in_a_very_long_line_once(rows, back, after, size, piece):
    """A line of any length is searched whole, across rows and pieces: a match is found in place and only once."""
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
def test_search_pages_show_every_match_once(interval, width):
    """Following ``next_arguments`` of a search shows each match once, in order."""
    text = "\n".join(f"line {n} {'needle' if n % interval == 0 else 'hay'} {'z' * width}" for n in range(1_000))
    shown = "\n".join(read_all_pages(text, search="NEEDLE")).split("\n")
    numbers = [int(line.partition(":")[0]) for line in shown if "needle" in line]
    assert numbers == [n + 1 for n in range(0, 1_000, interval)]


@pytest.mark.parametrize("filling", ["z", "配"])
def test_search_pages_are_within_the_limits(filling):
    """Long matching lines make more pages, none of them too long."""
    text = "\n".join(f"needle {n} {filling * 390}" for n in range(500))
    pages = list(iter_text_pages(make_text_reader(text), search="needle"))
    assert len(pages) > 3
    assert sum(page.match_count for page in pages) == 500
    for page in pages:
        assert len(page.text) <= MAX_PAGE_CHARS
        assert len(page.text.encode()) <= MAX_PAGE_BYTES


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20), st.integers(-2, 3), short_texts)
def test_read_text_page_returns_a_page_or_a_format_error(lines, chars, search, number, text):
    """Whatever the arguments, the result is a page or an error that says what to do."""
    with suppress(FormatError):
        page = read_text_page(make_text_reader(text), lines=lines, chars=chars, search=search, number=number)
        assert 0 <= page.start_char <= page.stop_char <= len(text)


# -- cases -------------------------------------------------------------------------------------------------------------

TEXT = "\n".join(f"line {n}" for n in range(1, 101))


@pytest.mark.parametrize(
    ("arguments", "first", "last"),
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
def test_read_text_page_accepts_ranges_in_several_spellings(arguments, first, last):
    """Ranges may be open, contain blanks, and end beyond the text."""
    found = read_text_page(make_text_reader(TEXT), **arguments)
    assert (found.first_line, found.last_line) == (first, last)
    assert found.text.startswith(f"line {first}")


@pytest.mark.parametrize(
    "arguments",
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
def test_read_text_page_rejects_impossible_ranges_with_the_totals(arguments):
    """Negative, reversed, out-of-range, non-numeric or huge ranges give an error with the totals and what to do."""
    with pytest.raises(FormatError, match=r"100 lines and 791 characters: give a range within it") as raised:
        read_text_page(make_text_reader(TEXT), **arguments)
    assert len(str(raised.value)) < 300


def test_read_text_page_rejects_two_ranges():
    """Lines and characters at once are an error."""
    with pytest.raises(FormatError, match="give one of them"):
        read_text_page(make_text_reader(TEXT), lines="1-2", chars="0-9")


@pytest.mark.parametrize("words", ["|", ".*", "||.*", "a\nb", "x" * 501, "a|" * 20 + "b"])
def test_parse_search_query_rejects_empty_and_oversized_queries(words):
    """A query without a word, over several lines, or too long is an error."""
    with pytest.raises(FormatError):
        parse_search_query(words)


def test_search_shows_line_numbers_and_context():
    """A match has its line number and two lines on either side; shared neighbours are shown once."""
    assert read_text_page(make_text_reader(TEXT), search="line 50|LINE 53").text.split("\n") == [
        "48- line 48", "49- line 49", "50: line 50", "51- line 51", "52- line 52", "53: line 53", "54- line 54",
        "55- line 55",
    ]  # fmt: skip


def test_search_accepts_escaped_special_characters():
    """A backslash before a special character may be an escape, as in a regular expression, or literal."""
    assert read_text_page(make_text_reader("call(x)\nother"), search=r"call\(x").match_count == 1
    assert read_text_page(make_text_reader("a\\(b\nother"), search=r"a\(b").match_count == 1


def test_search_can_be_limited_to_a_range():
    """Only the lines of the range are searched, under their own numbers."""
    found = read_text_page(make_text_reader(TEXT), search="line 5", lines="20-55")
    assert [line[:2] for line in found.text.split("\n") if ":" in line] == ["50", "51", "52", "53", "54", "55"]
    assert (found.first_line, found.last_line) == (20, 55)


def test_search_takes_linear_time_for_explosive_patterns(assert_subquadratic):
    """A pattern that makes backtracking engines run for ever is plain text here."""

    def make_search(size):
        read = make_text_reader(("a" * size + "\n") * 20)
        return lambda: [read_text_page(read, search=pattern).match_count for pattern in patterns]

    patterns = ["(a+)+$", ".*".join("a" * 60) + ".*b", "a" * 499 + "b"]
    assert make_search(1_000)() == [0, 0, 0]
    assert_subquadratic(make_search, 1_000)


def test_read_text_page_pages_few_very_long_lines():
    """F186: five lines of 100,000 characters each come in pages, and so does a range of them."""
    text = "\n".join(str(n) * 100_000 for n in range(5))
    assert len(read_all_pages(text)) == 11
    assert "".join(read_all_pages(text, lines="2-3")) == f"{'1' * 100_000}\n{'2' * 100_000}\n"


def test_pages_end_at_a_line_end_nearby():
    """A short line that would be cut goes to the next page."""
    text = ("x" * 79 + "\n") * 2_000
    assert all(found.text.endswith("\n") for found in iter_text_pages(make_text_reader(text)))


def test_next_arguments_are_json_and_keep_open_ends():
    """``next_arguments`` has the arguments of a call; an open end stays open and a bounded one bounded."""
    text = "x" * 200_000
    assert json.loads(json.dumps(read_text_page(make_text_reader(text)).next_arguments)) == {"chars": "49500-"}
    assert read_text_page(make_text_reader(text), chars="10-100000").next_arguments == {"chars": "49510-100000"}
    assert read_text_page(make_text_reader(text), chars="10-100").next_arguments is None


def test_count_page_chars_cuts_between_characters():
    """A page that is full by bytes ends between two characters."""
    assert count_page_chars("\U0001f980" * 50_000) == MAX_PAGE_BYTES // 4
    assert ROW_OVERLAP_CHARS < MAX_ROW_CHARS
