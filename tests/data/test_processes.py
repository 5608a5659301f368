"""Scripts that start loader processes, each of which runs the script again where processes begin anew."""

import multiprocessing
import sys
from types import ModuleType

import pytest

from paucal.data import processes
from paucal.data.processes import require_main_guard
from paucal.types import UserError

CALL = "require_main_guard(2)"
UNGUARDED = [
    CALL,
    f"def main():\n    {CALL}\nmain()",
    f"try:\n    {CALL}\nfinally:\n    pass",
    f"if True:\n    {CALL}",
    f"for _ in range(1): {CALL}",
    f"if __name__ == '__main__':\n    pass\n{CALL}",
    f"name = '__name__'\nif name:\n    {CALL}",
]
GUARDED = [
    f"if __name__ == '__main__':\n    {CALL}",
    f"if '__main__' == __name__ and 1: {CALL}",
    f"def main():\n    {CALL}\nif __name__ == '__main__':\n    main()",
    f"try:\n    if __name__ == '__main__':\n        print(\n            1,\n            {CALL})\nfinally:\n    pass",
    f"if __name__ != '__main__':\n    pass\nelse:\n    {CALL}",
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a text as the main script of the program."""

    def run(text: str, file: str | None = "script.py") -> None:
        main = ModuleType("__main__")
        vars(main)["require_main_guard"] = require_main_guard
        path = tmp_path / (file or "cell.py")
        path.write_text(text)
        if file is not None:
            main.__file__ = str(path)
        monkeypatch.setitem(sys.modules, "__main__", main)
        exec(compile(text, str(path), "exec"), vars(main))

    return run


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("text", UNGUARDED)
def test_script__without_a_guard_is_told_the_mend(text, method, run, monkeypatch):
    monkeypatch.setattr(processes, "start_method", lambda: method)
    with pytest.raises(UserError, match=r"^line \d of .*script.py starts processes that load images, and .* again: put "
                       r'the call below if __name__ == "__main__":, or set workers=0.$'):  # fmt: skip
        run(text)
    run(text.replace("2", "0"))
    run(text.replace("2", "None"))
    run(text, file=None)  # a notebook, which no process runs again


@pytest.mark.parametrize("text", GUARDED)
def test_script__with_a_guard_passes(text, run, monkeypatch):
    monkeypatch.setattr(processes, "start_method", lambda: "spawn")
    run(text)


@pytest.mark.parametrize("text", UNGUARDED)
def test_script__passes_where_processes_are_forked(text, run, monkeypatch):
    monkeypatch.setattr(processes, "start_method", lambda: "fork")
    run(text)


def test_script__that_no_process_can_read_is_refused(run, monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "start_method", lambda: "spawn")
    with pytest.raises(UserError, match="line 2 of"):
        run(f"import os; os.remove({str(tmp_path / 'script.py')!r})\n{CALL}")


def test_start_method__that_somebody_has_set_is_taken(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "spawn")
    assert processes.start_method() == "spawn"
