"""What is printed is one line, shows no control codes and is never as long as a file."""

import pytest

from paucal.types import UserError
from paucal.wording import counted, escape_controls, one_line_message, shorten, was_or_were


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cat.png", "cat.png"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\rb\x07", r"a\rb\x07"),
        ("\x9b31m", r"\x9b31m"),  # one character that is "escape [" to terminals of 8 bits
        ("gnp.\u202etac", r"gnp.\u202etac"),  # would be read from right to left
        ("a\u2028b", r"a\u2028b"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("Katze 猫 ❤️ नमस्ते 👩‍🔬", "Katze 猫 ❤️ नमस्ते 👩‍🔬"),
        ("caf\udce9", "caf\udce9"),  # a byte that is not UTF-8 is written back as it is
        ("\udc9b", r"\udc9b"),
    ],
)
def test_showable__escapes_what_moves_a_terminal_and_nothing_else(text, shown):
    assert escape_controls(text) == shown


def test_shortened__keeps_beginning_and_end():
    text = "b" * 30 + "-" * 500 + "e" * 30
    assert len(shorten(text, 100)) == 100
    assert shorten(text, 100).startswith("b" * 30)
    assert shorten(text, 100).endswith("e" * 25)
    assert shorten("short", 100) == "short"


def test_sentence__shortens_long_values_and_keeps_the_advice():
    text = f"--data is {'A' * 5000!r}, expected a folder; check the path."
    assert len(one_line_message(text)) < 250
    assert one_line_message(text).endswith("', expected a folder; check the path.")
    words = f"the file holds {'some words ' * 5000}; give another one."
    assert len(one_line_message(words)) == 1000
    assert one_line_message(words).endswith("give another one.")
    path = "/".join(["a_folder_of_a_usual_length"] * 8)
    assert one_line_message(f"{path} is missing") == f"{path} is missing"


def test_user_error__is_one_line_that_can_be_shown():
    error = UserError("no image \x1b[31mred\n  expected:\n  a file")
    assert str(error) == r"no image \x1b[31mred expected: a file"


def test_counted__has_one_thing_in_the_singular():
    assert [counted(n, "match", "matches") for n in (0, 1, 2)] == ["0 matches", "1 match", "2 matches"]
    assert [f"{counted(n, 'row')} {was_or_were(n)}" for n in (1, 3)] == ["1 row was", "3 rows were"]
