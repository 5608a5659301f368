"""What `import paucal` offers: one table, loaded name by name, and the same for type checkers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import paucal

SOURCE = Path(paucal.__file__)


def test_names__are_all_there():
    for name in paucal.__all__:
        assert getattr(paucal, name) is not None
        assert name in dir(paucal)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = paucal.nothing


def test_verbs__can_be_called_by_the_names_of_the_command_line():
    for name in ("train", "pretrain", "evaluate", "predict", "label", "load", "load_published"):
        assert name in paucal.__all__
        assert callable(getattr(paucal, name))


def test_packages__can_be_reached_without_an_import():
    rooms = {path.parent.name for path in SOURCE.parent.glob("*/__init__.py")} - {"cli"}
    assert {*rooms, "types"} == set(paucal._PACKAGES)
    for name in rooms:
        assert getattr(paucal, name).__name__ == f"paucal.{name}"
        assert name in dir(paucal)


def test_table__is_what_type_checkers_read():
    """They see the imports below TYPE_CHECKING, which are not run."""
    conditions = [node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If)]
    block = next(node for node in conditions if ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for one in node.names:
            seen[one.asname] = str(node.module) + ("" if one.name == one.asname else f":{one.name}")
    assert seen == paucal._MODULES
    assert {*seen, "__version__"} == set(paucal.__all__)


def test_import__of_the_command_loads_nothing_heavy():
    lines = ("import sys; sys.argv = ['paucal']", "import paucal", "assert not {'torch', 'timm'} & set(sys.modules)")
    lines += ("assert 'train' in dir(paucal) and 'verbs' in dir(paucal)", "assert 'paucal.verbs' not in sys.modules")
    assert subprocess.run([sys.executable, "-c", "; ".join(lines)], check=False).returncode == 0
