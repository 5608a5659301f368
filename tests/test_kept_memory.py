"""Memory that is freed is kept for what is needed next, and given back at the end."""

import subprocess
import sys

import pytest

import page_faults
from paucal.memory import _USER_VARIABLES, _glibc_function

FEW = page_faults.BLOCK >> 21  # faults for a block with pages of 2 MiB; with small pages there are 512 times as many


@pytest.mark.skipif(_glibc_function("mallopt") is None, reason="this is no glibc")
def test_kept_memory__is_taken_once_and_given_back(monkeypatch, tmp_path):
    for name in _USER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    # In a new process, in which no other thread needs memory; a fork would inherit the free memory of other tests.
    command = [sys.executable, page_faults.__file__, str(tmp_path / "found"), "MALLOC_TRIM_THRESHOLD_"]
    subprocess.run(command, check=True, timeout=240)
    plain, first, kept, more, after, set_by_user = map(int, (tmp_path / "found").read_text().split())
    assert plain >= page_faults.TIMES * FEW
    assert after >= page_faults.TIMES * FEW
    assert set_by_user >= page_faults.TIMES * FEW  # who has set it himself shall have what he set
    assert more < page_faults.BLOCK // 2
    assert first >= FEW
    assert kept <= 2 * first  # several times the same, and at most one more block
