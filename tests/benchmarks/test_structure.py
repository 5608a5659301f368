"""The count of settings that get a value in place of None."""

import ast
import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "structure.py"))


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("x = settings.lr or 0.0", 1),
        ("x = 1 if setup.settings.lr is None else settings.lr", 0),
        ("x = 1 if settings.lr is None else 2 * settings.lr", 1),
        ("x = settings.lr if settings.lr is not None else 1", 1),
        ("x = None if settings.lr is None else f(settings.lr)", 0),
        ("x = 1 if settings.lr is None else 2", 0),
        ("x = f(settings.lr or settings.batch)", 1),
        ("if settings.lr or other: pass", 0),
        ("if not (settings.lr or other) and third: pass", 0),
        ("if f(settings.lr or 1): pass", 1),
        ("x = [i for i in all if settings.lr or i]", 0),
        ("x = value or 1", 0),
    ],
)
def test_count__takes_a_value_in_place_of_none_and_no_condition(source, count):
    assert SCRIPT["_second_defaults"](ast.parse(source)) == count
