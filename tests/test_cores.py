"""Which cores a process may use, and how its threads wait for each other."""

import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paucal import cores
from paucal.cores import choose_threads, count_usable_cores, limited_threads, read_cpu_quota

needs_binding = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="processes are bound to cores on Linux alone"
)


@needs_binding
def test_usable_cores__are_those_the_process_is_bound_to():
    before = os.sched_getaffinity(0)
    assert count_usable_cores() == min(len(before), math.ceil(min(read_cpu_quota(), 1e6)))
    try:
        os.sched_setaffinity(0, {min(before)})
        assert count_usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def grouped(tmp_path, membership, limits):
    """Write what the system says of a process's groups; return where."""
    (tmp_path / "cgroup").write_text(membership)
    for name, text in limits.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "cgroup", tmp_path / "fs"


V1 = "5:memory:/a\n4:cpu,cpuacct:/docker/1f\n1:name=systemd:/docker/1f\n0::/\n"


@pytest.mark.parametrize(
    ("membership", "limits", "quota"),
    [
        # Version 2: a container, a service within a slice whose limit is lower, no limit.
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a.slice/b.service\n", {"a.slice/b.service/cpu.max": "max 100000\n"}, math.inf),
        (
            "0::/a.slice/b.service\n",
            {"a.slice/b.service/cpu.max": "400000 100000\n", "a.slice/cpu.max": "50000 100000\n"},
            0.5,
        ),
        ("0::/a.slice/b.service\n", {"other.slice/cpu.max": "50000 100000\n"}, math.inf),
        # Version 1: a container that sees its own group at the top, one that sees the machine's groups, no limit.
        (V1, {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.5),
        (
            V1,
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
                "cpu,cpuacct/docker/1f/cpu.cfs_quota_us": "75000\n",
                "cpu,cpuacct/docker/1f/cpu.cfs_period_us": "50000\n",
            },
            1.5,
        ),
        (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        # What is damaged or strange limits nothing.
        ("0::/\n", {"cpu.max": "\n"}, math.inf),
        ("0::/\n", {"cpu.max": "0 0\n"}, math.inf),
        ("nonsense\n", {}, math.inf),
        ("0::/../../x\n", {"cpu.max": "300000 100000\n"}, 3.0),
        ("", {"cpu.max": "300000 100000\n"}, math.inf),
    ],
)
def test_quota__is_read_from_groups_of_both_versions(membership, limits, quota, tmp_path):
    assert read_cpu_quota(*grouped(tmp_path, membership, limits)) == quota


def test_quota__is_none_where_there_are_no_groups(tmp_path):
    assert read_cpu_quota(tmp_path / "cgroup", tmp_path) == math.inf


@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | st.integers(1, 8_000_000), min_size=1, max_size=5), st.booleans())
def test_quota__is_the_lowest_on_the_way_up(tmp_path_factory, limits, second):
    """Against the lowest of the limits that were written."""
    names, files = [f"level{number}" for number in range(len(limits))], {}
    for depth, limit in enumerate(limits):
        folder = "/".join(names[: depth + 1])
        if second:
            files[f"{folder}/cpu.max"] = f"{'max' if limit is None else limit} 100000\n"
        else:
            files[f"cpu/{folder}/cpu.cfs_quota_us"] = f"{-1 if limit is None else limit}\n"
            files[f"cpu/{folder}/cpu.cfs_period_us"] = "100000\n"
    own = "/".join(names)
    text = f"0::/{own}\n" if second else f"3:cpu:/{own}\n0::/\n"
    expected = min((limit / 100_000 for limit in limits if limit is not None), default=math.inf)
    assert read_cpu_quota(*grouped(tmp_path_factory.mktemp("groups"), text, files)) == expected


@pytest.mark.parametrize(("quota", "bound", "expected"), [(1.5, 64, 2), (0.3, 64, 1), (math.inf, 6, 6), (9.0, 4, 4)])
def test_usable_cores__are_within_the_quota(quota, bound, expected, monkeypatch):
    monkeypatch.setattr(cores, "read_cpu_quota", lambda: quota)
    monkeypatch.setattr(cores, "_count_bound_cores", lambda: bound)
    assert count_usable_cores() == expected


@pytest.fixture
def before_torch(monkeypatch):
    """Return a function that prepares threads in a program of its own, and returns the variables that it has then."""

    def prepared(loaded=False, **variables):
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", dict(variables))
            patch.setitem(cores._state, "threads", "")
            patch.setitem(cores._state, "late", False)
            if not loaded:
                patch.delitem(sys.modules, "torch")
            cores.prepare_threads()
            return os.environ, cores.is_thread_count_set(), cores._state["late"]

    return prepared


@pytest.mark.parametrize(
    "variables",
    [{"GOMP_SPINCOUNT": "7"}, {"KMP_BLOCKTIME": "200"}, {"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "passive"}],
)
def test_wait__that_the_user_has_set_stays(variables, before_torch, monkeypatch):
    monkeypatch.setattr(cores, "count_usable_cores", cores._count_bound_cores)
    assert before_torch(**variables) == (variables, False, False)
    assert before_torch(loaded=True, **variables) == (variables, False, False)


def test_wait__is_short_where_nobody_has_set_it(before_torch, monkeypatch):
    monkeypatch.setattr(cores, "count_usable_cores", cores._count_bound_cores)
    short = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
    assert before_torch() == (short, False, False)
    assert before_torch(OMP_NUM_THREADS="3") == ({**short, "OMP_NUM_THREADS": "3"}, True, False)
    assert before_torch(loaded=True) == ({}, False, True)  # what is read no more is not set


def test_threads__are_limited_to_a_quota_where_nobody_has_said_how_many(before_torch, monkeypatch):
    monkeypatch.setattr(cores, "_count_bound_cores", lambda: 8)
    monkeypatch.setattr(cores, "read_cpu_quota", lambda: 2.5)
    found, given, _ = before_torch()
    assert (found["OMP_NUM_THREADS"], given) == ("3", False)
    found, given, _ = before_torch(OMP_NUM_THREADS="5")
    assert (found["OMP_NUM_THREADS"], given) == ("5", True)


def in_process(code, folder):
    """Return what a program of Python prints, and what it complains of; nobody has set variables of OpenMP for it.

    Modules in a folder stand for those of the same name.
    """
    names = (*cores.SHORT_SPIN, "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    kept["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [kept.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=kept, check=True)
    return done.stdout.split(), done.stderr


SHOWN = "import os; print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('KMP_BLOCKTIME'))"


def test_import__sets_the_wait_for_torch_and_for_processes_that_follow(tmp_path):
    # Stands for torch, which reads them when it is imported.
    (tmp_path / "torch.py").write_text(f"{SHOWN}\nget_num_threads = lambda: 2\n")
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SHOWN!r}])"
    note = "from paucal.cores import warn_of_late_import as note; note()"
    command = "import sys; sys.argv[0] = 'paucal'"  # so that importing paucal does not load timm
    assert in_process(f"{command}; import paucal, torch; {note}; {child}", tmp_path) == (["1000", "0"] * 2, "")


def test_note__is_made_once_where_torch_was_there_before(monkeypatch, caplog, threads):
    torch.set_num_threads(2)
    monkeypatch.setitem(cores._state, "late", True)
    for _ in range(2):
        cores.warn_of_late_import()
    assert [record.message for record in caplog.records] == [cores.LATE_IMPORT_WARNING]
    assert "GOMP_SPINCOUNT=1000 and KMP_BLOCKTIME=0" in cores.LATE_IMPORT_WARNING
    torch.set_num_threads(1)  # which wait for nobody
    monkeypatch.setitem(cores._state, "late", True)
    cores.warn_of_late_import()
    assert len(caplog.records) == 1


@pytest.fixture
def threads(monkeypatch):
    """Let the number of threads be free on a machine of eight cores; give it back afterwards."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cores, "count_usable_cores", lambda: 8)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("begin", "seconds", "expected"),
    [
        (8, {8: 8.0, 4: 4.0, 2: 2.0, 1: 3.0}, 2),
        (8, {8: 1.0, 4: 1.5}, 8),
        (8, {8: 1.0, 4: 0.95}, 8),  # no clear gain
        (2, {2: 2.0, 1: 3.0, 4: 1.0, 8: 0.5}, 8),
        (1, {1: 1.0, 2: 0.99}, 1),
    ],
)
def test_threads__are_those_with_which_a_step_is_quickest(begin, seconds, expected, threads, monkeypatch):
    now = [0.0]

    def step():
        now[0] += seconds[torch.get_num_threads()]

    monkeypatch.setattr(cores.time, "perf_counter", lambda: now[0])
    torch.set_num_threads(begin)
    assert choose_threads(step) == torch.get_num_threads() == expected


def test_threads__that_somebody_has_set_stay(threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    assert choose_threads(lambda: pytest.fail("nothing is measured")) == 2


def test_threads__are_no_more_than_cores_inside_the_block(threads, monkeypatch):
    torch.set_num_threads(4)
    monkeypatch.setattr(cores, "count_usable_cores", lambda: 2)
    with limited_threads():
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
    assert torch.get_num_threads() == 4


@pytest.mark.skipif(not hasattr(os, "getloadavg"), reason="this system does not say")
@pytest.mark.parametrize(
    ("load", "quota", "bound", "shared"),
    [(0.1, 9, 4, False), (2.0, 9, 4, True), (0.0, 1.5, 4, True), (3.5, 9, 2, False)],
)
def test_cores__are_shared_where_there_is_other_work_or_a_part_of_a_core(load, quota, bound, shared, monkeypatch):
    monkeypatch.setattr(cores.os, "getloadavg", lambda: (load, 0, 0))
    monkeypatch.setattr(cores.os, "cpu_count", lambda: max(bound, 4) if bound == 4 else 6)
    monkeypatch.setattr(cores.time, "process_time", lambda: 6.0)
    monkeypatch.setattr(cores, "read_cpu_quota", lambda: quota)
    monkeypatch.setattr(cores, "_count_bound_cores", lambda: bound)
    assert cores.cores_are_shared() == shared


def test_slowdown__is_the_time_that_work_waits_for_a_core(monkeypatch):
    now = [0.0, 0.0]

    def work():  # of each 4 seconds a thread has a core for one
        now[0], now[1] = now[0] + 0.04, now[1] + 0.01
        return now[1]

    monkeypatch.setattr(cores.time, "thread_time", work)
    monkeypatch.setattr(cores.time, "perf_counter", lambda: now[0])
    assert cores.measure_slowdown() == pytest.approx(4.0, rel=0.2)
    monkeypatch.setattr(cores.time, "perf_counter", lambda: now[1])
    assert cores.measure_slowdown() == pytest.approx(1.0, rel=0.2)
