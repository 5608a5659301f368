"""Rows of tables in every separator, quoting and encoding, against a writer of the library."""

import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paucal.data.sources.table_reading import read_table
from paucal.types import UserError

CELLS = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=8).map(str.strip).filter(bool)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=6),
    separator=st.sampled_from(",;\t|"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    lines=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32"]),
)
def test_read_table__gives_back_what_was_written(tmp_path_factory, rows, separator, quoting, lines, encoding):
    file = tmp_path_factory.mktemp("rows") / "labels.csv"
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, quoting=quoting, lineterminator=lines).writerows(
        [("image", "label", "x"), *rows]
    )
    file.write_bytes(text.getvalue().encode(encoding))
    found = read_table(file)
    assert [tuple(row.cells) for row in found.rows] == [("image", "label", "x"), *rows]
    assert found.note == ""


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('"image" ; "label"\n"a.png" ; "cat"\n', [["image", "label"], ["a.png", "cat"]]),
        ("sep=;\nimage;label\na.png;cat,dog\n", [["image", "label"], ["a.png", "cat,dog"]]),
        ("sep=,\r\nimage,label\r\na.png,cat;dog\r\n", [["image", "label"], ["a.png", "cat;dog"]]),
        ("image,label\r1.png,a\r", [["image", "label"], ["1.png", "a"]]),
        ("image,label\n1.png,a;b\n2.png,a;b\n", [["image", "label"], ["1.png", "a;b"], ["2.png", "a;b"]]),
        ('image,label\n\n , \n1.png,5" pipe\n', [["image", "label"], ["1.png", '5" pipe']]),
        ("image , label\n 1.png , a\n", [["image", "label"], ["1.png", "a"]]),
        ("\ufeff\ufeffimage,label\n", [["image", "label"]]),
    ],
)
def test_read_table__as_people_and_their_programs_write(tmp_path, text, rows):
    (tmp_path / "labels.csv").write_bytes(text.encode())
    assert [row.cells for row in read_table(tmp_path / "labels.csv").rows] == rows


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('image,label\n1.png,"cat\n2.png,dog\n3.png,dog\n', 2),
        ('image,label\n1.png,cat\n2.png,"dog\n3.png,"cat"\n4.png,"dog"\n', 3),
        ('image,label,text\n1.png,cat,"two\nlines"\n2.png,"dog,x\n', 4),
    ],
)
def test_read_table__names_the_line_of_an_open_quote(tmp_path, text, line):
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(UserError, match=rf"line {line} of .* has a quote \(\"\) that is not closed"):
        read_table(tmp_path / "labels.csv")


def test_read_table__counts_lines_and_not_rows(tmp_path):
    (tmp_path / "labels.csv").write_text('image,text\n1.png,"two\nlines"\n\n2.png,one\n')
    assert [row.line for row in read_table(tmp_path / "labels.csv").rows] == [1, 2, 5]


def test_read_table__of_json_lines(tmp_path):
    lines = [{"file_name": "1.png", "label": ["a", "b"]}, {"file_name": "2.png", "extra": None, "label": 3}]
    file = tmp_path / "metadata.jsonl"
    file.write_text("\ufeff" + "\n\n".join(json.dumps(line) for line in lines))
    assert [row.cells for row in read_table(file).rows] == [
        ["file_name", "label", "extra"],
        ["1.png", '["a", "b"]', ""],
        ["2.png", "3", ""],
    ]
    file.write_text('{"file_name": "1.png"}\n[1]\n')
    with pytest.raises(UserError, match=r"line 2 of .* is '\[1\]'; expected a JSON object"):
        read_table(file)
    file.write_text('{"file_name": "1.png"\n')
    with pytest.raises(UserError, match=r"line 1 of .* cannot be read: it is not valid JSON"):
        read_table(file)
