"""The pages of a PDF, counted without a library."""

from __future__ import annotations

import base64
import zlib

import pytest

from holdfast.messages.size.pdf_pages import count_pdf_pages


def encode(pdf):
    return base64.b64encode(pdf).decode()


def make_pdf(page_count, stated_count=None):
    """Return a PDF of the old form: every object stands in the file as it is."""
    stated_count = page_count if stated_count is None else stated_count
    kids = b" ".join(b"%d 0 R" % (number + 3) for number in range(page_count))
    objects = [
        b"1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n",
        b"2 0 obj\n<< /Type /Pages /Kids [%s] /Count %d >>\nendobj\n" % (kids, stated_count),
    ]
    objects += [b"%d 0 obj\n<</Type/Page/Parent 2 0 R>>\nendobj\n" % (number + 3) for number in range(page_count)]
    return b"%PDF-1.4\n" + b"".join(objects) + b"trailer << /Root 1 0 R >>\n%%EOF\n"


def make_packed_pdf(page_count):
    """Return a PDF of the newer form: pages and their tree stand in a compressed object stream."""
    objects = [b"<< /Type /Pages /Kids [] /Count %d >>" % page_count]
    objects += [b"<< /Type /Page /Parent 2 0 R >>"] * page_count
    places, body = [], b""
    for number, content in enumerate(objects, 2):
        places.append(b"%d %d" % (number, len(body)))
        body += content + b"\n"
    head = b" ".join(places) + b"\n"
    packed = zlib.compress(head + body)
    dictionary = b"<< /Type /ObjStm /N %d /First %d /Filter /FlateDecode >>" % (len(objects), len(head))
    return b"%PDF-1.5\n900 0 obj\n" + dictionary + b"\nstream\n" + packed + b"\nendstream\nendobj\n%%EOF\n"


@pytest.mark.parametrize("count", [1, 2, 125])
def test_count_pdf_pages_counts_both_forms_of_a_file(count):
    """Pages count whether their objects stand in the file as they are or in an object stream."""
    assert count_pdf_pages(encode(make_pdf(count))) == count
    assert count_pdf_pages(encode(make_packed_pdf(count))) == count


def test_count_pdf_pages_counts_a_page_that_was_edited_once():
    """An edited file appends new versions of its objects; a page counts once."""
    edited = make_pdf(3) + b"3 0 obj\n<</Type/Page/Parent 2 0 R/Rotate 90>>\nendobj\n"
    assert count_pdf_pages(encode(edited)) == 3


def test_count_pdf_pages_believes_the_smaller_number():
    """Pages that were taken out of the tree are still in the file; those of the tree count."""
    assert count_pdf_pages(encode(make_pdf(5, stated_count=2))) == 2
    assert count_pdf_pages(encode(make_pdf(2, stated_count=5))) == 2


@pytest.mark.parametrize(
    "pdf",
    [
        b"",
        b"%PDF-1.7\n",
        b"%PDF-1.5\n1 0 obj\n<< /Type /ObjStm /N 3 /First 9 >>\nstream\nencrypted\nendstream\nendobj\n",
        b"%PDF-1.4\n3 0 obj\n<< /Type /Page >>\nendobj\n",  # without a tree
        b"%PDF-1.4\n2 0 obj\n<< /Type /Pages /Count 9 >>\nendobj\n",  # without a page
    ],
)
def test_count_pdf_pages_claims_nothing_about_what_it_cannot_read(pdf):
    """What cannot be read for certain has 0 pages."""
    assert count_pdf_pages(encode(pdf)) == 0
    assert count_pdf_pages("no base64 !") == 0


def test_count_pdf_pages_opens_no_more_than_its_bound():
    """A stream that is made to fill the memory is opened up to the bound only."""
    packed = zlib.compress(b"0" * 200_000_000, 1)
    bomb = b"%PDF-1.5\n1 0 obj\n<< /Type /ObjStm /N 1 /First 5 >>\nstream\n" + packed + b"\nendstream\nendobj\n"
    assert count_pdf_pages(encode(bomb)) == 0
