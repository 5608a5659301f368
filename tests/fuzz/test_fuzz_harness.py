"""The harness sees what it looks for, tried with small programs in place of paucal."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from fuzz.__main__ import Report
from fuzz.calls import LIMITS, Case, Outcome, Step
from fuzz.damage import HOWS, damage
from fuzz.layouts import LAYOUTS, make_layout
from fuzz.trial import Trial, trial

SAY = "print({!r}, file=sys.stderr); sys.exit(2)"
SLEEP = "time.sleep(99)"
# In steps, so that a machine short of memory is not filled before the harness looks.
FILL = "held = []\nfor _ in range(48): held.append(b'x' * (1 << 25)); time.sleep(0.02)\n" + SLEEP
FORK = "for _ in range(20):\n  if not os.fork(): os.execvp('sleep', ['sleep', '99'])\n" + SLEEP
# CPython 3.11 does not catch an interrupt at the jump back to the first instruction of a `try`, so another comes first.
SPIN = "try:\n  time.time()\n  while True: time.time()\nexcept KeyboardInterrupt: sys.exit(130)"
DEAF = "import signal; signal.signal(2, signal.SIG_IGN)\n" + SLEEP
MISBEHAVED = [
    ("traceback", "raise ValueError('no')"),
    ("traceback", "print('Traceback (most recent call last)')"),
    ("exit code 7", "sys.exit(7)"),
    ("exit code -11", "os.kill(os.getpid(), 11)"),
    ("control characters", SAY.format("error: a\x1b[31mb")),
    ("long", SAY.format("error: " + "ab " * 400)),
    ("more than a sentence", SAY.format("UserWarning: x\nerror: no")),
    ("no sentence", "sys.exit(2)"),
    ("touched: 0.png", "open('../material/photos/class0/0.png', 'ab').write(b'x')"),
    ("touched: new", "open('../home/new', 'w').close()"),
    ("touched: index.json", "open('../material/maps/index.json', 'w').close()\n" + SAY.format("error: no")),
    ("touched: nothing", "os.mkdir('../material/odd/nothing/x'); os.rmdir('../material/odd/nothing/x')"),
    ("lost", "import shutil; shutil.rmtree('old')\n" + SAY.format("error: no")),
    ("idle", SLEEP),
    ("busy", SPIN),
    ("memory", FILL),
    ("processes", FORK),
]


@pytest.fixture
def strict(caller, monkeypatch):
    monkeypatch.setattr(caller, "limits", {**LIMITS, "memory": 1 << 30})
    monkeypatch.setattr("fuzz.trial.KEPT", ("config.yaml",))
    return caller


@pytest.mark.parametrize(("fault", "program"), MISBEHAVED, ids=range(len(MISBEHAVED)))
def test_harness__sees_each_fault(strict, fault, program):
    if fault in ("idle", "busy"):  # for others these limits are far away, however slow the machine is
        strict.limits[fault] = 0.5
    case = Case(
        "overwrite", ("train", "--output", "../material/maps"), (Step("copy", "old", "run"),), ("old",), program
    )
    found = trial(strict, case)
    assert len(found.faults) == 1, str(found)
    assert found.faults[0].startswith(fault)


@pytest.mark.slow
def test_harness__sees_a_call_that_ignores_interrupts(strict):
    assert trial(strict, Case("x", (), instead=DEAF)).faults[0].startswith("deaf")


@pytest.mark.parametrize(
    "program", ["", SAY.format("error: no such file: correct it."), "os.makedirs('../material/new/run')"]
)
def test_harness__lets_good_calls_pass(strict, program):
    argv = ("recipes",) if not program else ("x", "--output=../material/new/run")
    assert trial(strict, Case("x", argv, instead=program)).faults == []


def test_harness__limits_memory_and_reaches_no_network(strict):
    network = "import socket\ntry: socket.create_connection(('192.0.2.1', 80))\nexcept OSError as e: sys.exit(e.errno)"
    assert trial(strict, Case("x", (), instead=network)).outcome.code == 101
    space = "try: bytearray(1 << 40)\nexcept MemoryError: sys.exit(44)"
    assert trial(strict, Case("x", (), instead=space)).outcome.code == 44


def test_case__is_a_command_line_to_paste(tmp_path):
    steps = (Step("copy", "old", "run"), Step("damage", "old/model.json", "flip-3"), Step("write", "a b", "x: 'y'"))
    words = ("eval", "old", "", "a\x1b'b", "é" * 5000, "ab'" * 200, "\udcff\n", "$HOME `id` %s")
    start, *_, end = str(Case("run", words, steps)).split(" && ")
    assert start == "cp -r ../material/run old"
    assert "python -m fuzz.damage old/model.json flip-3" in str(Case("run", words, steps))
    assert len(end) < 400
    program = "import json, os, sys; print(json.dumps([list(os.fsencode(word)) for word in sys.argv[1:]]))"
    pasted = end.replace("paucal", f"{sys.executable} -c {shlex.quote(program)}", 1).replace("python -c", "python3 -c")
    said = subprocess.run(["bash", "-c", pasted], capture_output=True, check=True, text=True).stdout
    assert json.loads(said) == [list(os.fsencode(word)) for word in words]


@pytest.mark.parametrize("how", HOWS)
def test_damage__leaves_something_else(tmp_path, how):
    for name, content in (("a.json", '{"a": [1, {"b": "c"}], "d": 2}'), ("b.csv", "a,b\n1,2\n")):
        path = tmp_path / name
        path.write_text(content)
        (tmp_path / "other").write_text("other")
        damage(path, f"{how}-5")
        assert not path.is_file() or path.stat().st_size > 1 << 20 or path.read_bytes() != content.encode()


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts__are_made(tmp_path, name):
    for number in range(3):
        make_layout(tmp_path / str(number), f"{name}-{number}")
        assert (tmp_path / str(number)).is_dir()


def test_report__goes_on_and_counts_each_fault_once(tmp_path):
    outcome = Outcome(1, "", 'Traceback\n  File "/x/paucal/a.py", line 3, in f\nValueError: no', 0.1, "")
    bad = Trial(Case("flag", ("train", "--lr", "x")), outcome, ["traceback: paucal/a.py:3 f"])
    for _ in range(2):
        report = Report(tmp_path / "report.json", 3)
        report.count(bad)
        report.count(Trial(Case("run", ("eval",)), outcome, []))
        report.finish_block(1.0)
    stored = json.loads((tmp_path / "report.json").read_text())
    assert (stored["calls"], stored["blocks"], stored["kinds"]) == (4, 2, {"flag": 2, "run": 2})
    assert stored["faults"]["traceback: paucal/a.py:3 f"]["count"] == 2
    with pytest.raises(SystemExit, match="--seed 3"):
        Report(tmp_path / "report.json", 4)
