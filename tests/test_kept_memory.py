"""Memory that is freed is kept for what is needed next, and given back at the end."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paucal.memory import _glibc_function, keep_freed_memory


def faults(times: int = 10) -> int:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(16 << 20)  # 64 MiB, 16,384 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def held() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def measure(path: Path) -> None:
    torch.set_num_threads(1)
    faults(1)
    plain, before = faults(), held()
    with keep_freed_memory():
        first = faults(1)
        with keep_freed_memory():
            pass
        kept = faults()
    path.write_text(f"{plain} {first} {kept} {held() - before} {faults()}")


@pytest.mark.skipif(_glibc_function("mallopt") is None, reason="this is no glibc")
@pytest.mark.parametrize("asked", [None, "MALLOC_TRIM_THRESHOLD_"])
def test_kept_memory__is_taken_once_and_given_back(asked, monkeypatch, tmp_path):
    for name in ("MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    if asked:  # who has set it himself shall have what he set
        monkeypatch.setenv(asked, "131072")
    # In a new process, in which no other thread needs memory; a fork would inherit the free memory of other tests.
    subprocess.run([sys.executable, __file__, str(tmp_path / "found")], check=True, timeout=240)
    plain, first, kept, more, after = map(int, (tmp_path / "found").read_text().split())
    # With pages of 2 MiB there are 32 faults in place of 16,384.
    assert plain > 10 * 30
    assert after > 10 * 30
    assert more < 32 << 20
    if asked:
        assert kept > 10 * 30
    else:
        assert first > 30
        assert kept <= 2 * first  # ten times the same, and at most one more block


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
