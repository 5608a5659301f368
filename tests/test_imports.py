"""The table of who may import whom, read from the code."""

import ast
import functools
import sys
from collections.abc import Callable
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from paucal.methods import pretraining, training

PACKAGE = Path(__file__).parents[1] / "src" / "paucal"
BASE = {"wording", "memory", "cores", "reading", "writing", "signals"}
LOWER = {
    *BASE,
    *("types", "distributed", "losses", "backbones", "data", "metrics", "runs", "models", "objectives", "labeling"),
    *("training", "evaluation", "explain", "export", "report"),
}
# Each may import those before it, and all lower.
UPPER = (
    "settings",
    "recipes",
    "rules",
    "methods",
    "runner",
    "tasks",
    "verbs",
    "studies",
    "estimators",
    "cli",
    "__main__",
)
ALLOWED = {
    "wording": set(),
    "memory": set(),
    "cores": set(),
    "reading": {"types"},
    "writing": set(),
    "signals": set(),
    "types": {"wording"},
    "distributed": {"types"},
    "losses": {"types", "distributed"},
    "backbones": {"types", "wording", "memory"},
    "data": {"types", "wording", "memory", "cores", "reading", "writing", "signals"},
    "metrics": {"types", "distributed", "data"},
    "models": {"types", "wording", "reading", "writing", "distributed", "backbones", "data", "runs"},
    "objectives": {"types", "distributed", "losses", "backbones"},
    "labeling": {"types", "reading", "backbones", "data", "runs"},
    "runs": {"types", "reading", "writing", "cores"},
    "training": {
        "types",
        "wording",
        "memory",
        "cores",
        "signals",
        "writing",
        "distributed",
        "data",
        "runs",
        "evaluation",
        "objectives.base",
    },
    "evaluation": {
        "types",
        "wording",
        "reading",
        "writing",
        "distributed",
        "backbones",
        "data",
        "metrics",
        "runs",
        "models",
    },
    "explain": {"types", "wording", "backbones", "data", "runs"},
    "export": {"types", "wording", "writing", "backbones", "data", "evaluation", "runs", "models"},
    "report": {"types", "wording", "writing", "metrics", "runs", "evaluation", "explain"},
    **{part: LOWER | set(UPPER[:place]) for place, part in enumerate(UPPER)},
}
# The public modules of `verbs.compare`; its others begin with an underscore, or are called by the command line.
COMPARE = {
    f"verbs.compare.{name}" for name in ("settings", "grid", "jobs", "preparation", "running", "findings", "report")
}
# The modules of another verb that a verb may import, and why.
OTHER_VERBS = {
    "compare": {"verbs.eval"},  # a cell may be evaluated as `paucal eval` does
    # The page draws the explanations of `paucal explain`, and shows the images to label in the order of `paucal next`.
    "serve": {"verbs.explain", "verbs.next"},
    "predict": {"verbs.convert"},  # answers are written in the layouts of `paucal convert`
    "export": {"verbs.explain"},  # both write into the next numbered folder
    "next": {"verbs.predict", "verbs.convert"},  # the answers of a model, written as labels to correct
}
# What studies may import of tasks and verbs: comparisons, label maps from a teacher, and the cost of networks.
STUDIES = {
    *COMPARE,
    *("verbs.label.launch", "verbs.label.settings"),
    *("tasks.detection.cost", "tasks.detection.settings", "tasks.segmentation.cost"),
}
THIRD_PARTY_OF_PURE_PARTS = {"types": {"torch"}, "distributed": {"torch"}, "losses": {"torch"}}


@functools.cache
def imported_names(file: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def files() -> list[Path]:
    return sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")


def files_of(part: str) -> list[Path]:
    return [file for file in files() if part_of(file) == part and len(file.relative_to(PACKAGE).parts) > 2]


def violations(part: str, names: list[str]) -> list[str]:
    wrong = []
    for name in names:
        parts = name.split(".")
        if parts[0] != "paucal" or parts[1] == part:
            continue
        within = {".".join(parts[1:end]) for end in range(2, len(parts) + 1)}
        if parts[1] not in ALLOWED[part] and not within & ALLOWED[part]:
            wrong.append(name)
    return wrong


def require_none(wrong: Callable[[Path], list[str]], files: list[Path]) -> None:
    """Let a function find nothing wrong in files; a failed test shows what it found in each."""
    assert files
    found = {str(file.relative_to(PACKAGE)): wrong(file) for file in files}
    assert {name: names for name, names in found.items() if names} == {}


def test_imports__follow_the_table():
    assert {part_of(file) for file in files()} <= ALLOWED.keys()
    require_none(lambda file: violations(part_of(file), imported_names(file)), files())


def test_tasks__import_no_other_task():
    def others(file: Path) -> list[str]:
        own = ["paucal", "tasks", file.relative_to(PACKAGE).parts[1]]
        names = [name for name in imported_names(file) if name.startswith("paucal.tasks.")]
        return [name for name in names if name.split(".")[:3] != own]

    require_none(others, files_of("tasks"))


def foreign_modules(file: Path, part: str, allowed: set[str]) -> list[str]:
    """Return the imported modules of a part that are neither allowed nor of the file's own task or verb."""
    own = ".".join(file.relative_to(PACKAGE).parts[:2])
    names = [name.removeprefix("paucal.") for name in imported_names(file) if name.startswith(f"paucal.{part}.")]
    within = {name: {".".join(name.split(".")[:end]) for end in range(2, name.count(".") + 2)} for name in names}
    return [name for name, modules in within.items() if own not in modules and not modules & allowed]


def test_verbs__import_no_other_verb_but_what_is_listed():
    def others(file: Path) -> list[str]:
        return foreign_modules(file, "verbs", OTHER_VERBS.get(file.relative_to(PACKAGE).parts[1], set()))

    require_none(others, files_of("verbs"))


def test_studies__import_the_public_modules_of_verbs_and_tasks():
    def others(file: Path) -> list[str]:
        return [*foreign_modules(file, "verbs", STUDIES), *foreign_modules(file, "tasks", STUDIES)]

    require_none(others, sorted((PACKAGE / "studies").glob("*.py")))


def test_compare__has_public_modules_and_private_ones():
    files = (PACKAGE / "verbs" / "compare").glob("[!_]*.py")
    assert {f"verbs.compare.{file.stem}" for file in files} == COMPARE | {"verbs.compare.launch"}


def test_imports__pure_parts_use_torch_only():
    pure = [file for file in files() if part_of(file) in THIRD_PARTY_OF_PURE_PARTS]
    assert len(pure) >= 3
    for file in pure:
        roots = {name.split(".")[0] for name in imported_names(file)} - set(sys.stdlib_module_names) - {"paucal"}
        assert roots <= THIRD_PARTY_OF_PURE_PARTS[part_of(file)], file


def test_table__notices_a_forbidden_import():
    assert violations("training", ["paucal.objectives.drloc.DrLoc"]) == ["paucal.objectives.drloc.DrLoc"]
    assert violations("training", ["paucal.objectives.base.Objective"]) == []
    assert violations("losses", ["paucal.data.images"]) == ["paucal.data.images"]
    compare, studies = PACKAGE / "verbs" / "compare" / "_work.py", PACKAGE / "studies" / "grids.py"
    assert {name.split(".")[1] for name in foreign_modules(compare, "verbs", set())} == {"eval"}
    assert "verbs.label.launch.label_set" in foreign_modules(studies, "verbs", COMPARE)


MODELS = ("dhvt", "swin", "lvvit", "esvit", "token_label", "tokenlabel")


def names_of_methods() -> list[str]:
    """All that people can type, as words and as names in code; what is supervised is no name of one method."""
    found = {*pretraining.METHODS, *training.METHODS, *training.EXTRA_LOSSES} - {"supervised"}
    return [form for name in sorted(found) for form in {name, name.replace("-", "_"), name.replace("-", "")}]


@pytest.mark.parametrize("room", ["training", "runner", "rules"])
def test_shared_rooms__name_no_method(room):
    names = [*names_of_methods(), *(MODELS if room == "training" else ())]
    assert {"drloc", "lejepa", "self_distillation", "token-labeling"} <= set(names)
    for file in (PACKAGE / room).glob("*.py"):
        code = ast.unparse(_without_sentences(ast.parse(file.read_text()))).lower()
        assert not [name for name in names if name in code], file


def test_modules__import_each_other_in_no_circle():
    graph = {_module(file): {name for name in imported_names(file) if name.startswith("paucal.")} for file in files()}
    graph = {name: {_nearest(one, graph) for one in found} - {None, name} for name, found in graph.items()}
    order = TopologicalSorter(graph)
    order.prepare()  # raises a CycleError that names the circle


def _module(file: Path) -> str:
    return ".".join(("paucal", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def _nearest(name: str, known: dict) -> str | None:
    """Return the module that an imported name is, or lies in."""
    return name if name in known else next((n for n in [name.rpartition(".")[0]] if n in known), None)


def _without_sentences(tree: ast.Module) -> ast.Module:
    """Take out docstrings, and the words that people read, which may name a paper."""
    tree = _without_docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            node.value = ""
    return tree


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                body[0] = ast.Pass()
    return tree
