"""The table of runs in a narrow terminal."""

from pathlib import Path

from rich.console import Console as Terminal

from paucal.runner.console import Console
from paucal.verbs.runs.launch import show
from paucal.verbs.runs.rows import ListedRun
from paucal.verbs.runs.settings import RunsSettings


def printed(width: int, **settings) -> str:
    runs = [
        ListedRun(
            Path(name),
            name,
            "finished",
            "train",
            {"model": "tf_efficientnet_lite0.in1k", "seed": seed},
            {},
            1,
            2.0,
            "",
            "",
        )
        for seed, name in enumerate(("one", "two"))
    ]
    console = Terminal(width=width, record=True, highlight=False)
    show(runs, Path("runs"), RunsSettings(**settings), Console(console))
    return console.export_text()


def test_show__leaves_out_columns_rather_than_break_names_and_numbers():
    wide, narrow = printed(200), printed(26)
    assert "seed" in wide.splitlines()[0]
    assert "columns left out" not in wide
    assert "columns left out: seed" in narrow
    assert all(name in narrow for name in ("one", "two", "finished"))


def test_show__keeps_a_column_that_was_asked_for():
    assert "seed" in printed(26, columns=["seed"]).splitlines()[0]
