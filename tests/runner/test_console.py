"""What a run says when nobody can hear it."""

import io
from pathlib import Path

import pytest
from rich.console import Console as Terminal

from paucal.runner.console import Console


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_voice__a_full_disk_or_a_closed_terminal_does_not_end_the_run(capfd):
    class Closed(io.StringIO):
        def write(self, text):
            raise OSError(5, "Input/output error")

    console = Console(Terminal(file=Closed()))
    with console.logging_to(Path("/dev/full")):
        console.say("an epoch")
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
