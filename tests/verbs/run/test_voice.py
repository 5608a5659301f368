"""What a run says when nobody can hear it."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from paucal.verbs.run.voice import Voice


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_voice__a_full_disk_or_a_closed_terminal_does_not_end_the_run(capfd):
    class Closed(io.StringIO):
        def write(self, text):
            raise OSError(5, "Input/output error")

    voice = Voice(Console(file=Closed()))
    with voice.logging_to(Path("/dev/full")):
        voice.say("an epoch")
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
