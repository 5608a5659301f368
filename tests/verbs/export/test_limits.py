"""The limits of an exported file: sizes as people write them, and how far a file is beyond them."""

import pytest

from paucal.export.comparison import Comparison
from paucal.types import UserError
from paucal.verbs.export.fitting import Limits, parse_limits, parse_size
from paucal.verbs.export.settings import ExportSettings


@pytest.mark.parametrize(
    ("text", "size"), [("5MB", 5_000_000), ("5 mb", 5_000_000), ("0.5KiB", 512), ("1GB", 10**9), ("800KB", 800_000)]
)
def test_size__has_its_unit(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["5", "0MB", "MB", "-1MB", "5 apples", "0.0001B", "1e3MB", ""])
def test_size__that_is_none_is_refused(text):
    with pytest.raises(UserError, match=r"--max-size is .* such as 5MB"):
        parse_size(text)


def test_excess__is_that_of_the_limit_that_is_missed_most():
    found = Comparison(1, 0.0, 1.0, (40.0, 15.0), size=6_000_000)
    assert Limits(5_000_000, 30).excess(found) == pytest.approx(1.2)
    assert Limits(10_000_000, 10).excess(found) == pytest.approx(1.5)
    assert Limits(None, 15).excess(found) == 1
    assert str(Limits(5_000_000, 30)) == "5 MB and 30 ms per image"


def test_limits__are_none_unless_given():
    assert parse_limits(ExportSettings()) is None
    assert parse_limits(ExportSettings(max_ms=30)) == Limits(None, 30)
    with pytest.raises(UserError, match="--time limits the training of the smaller model"):
        parse_limits(ExportSettings(time="5m"))
