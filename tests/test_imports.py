"""The table of who may import whom, read from the code."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "paucal"
EVERYTHING = {
    *("types", "losses", "backbones", "data", "objectives", "labeling", "runs", "training", "evaluation"),
    *("explain", "transfer", "recipes", "report", "cli"),
}
ALLOWED = {
    "types": set(),
    "losses": {"types"},
    "backbones": {"types"},
    "data": {"types"},
    "objectives": {"types", "losses", "backbones"},
    "labeling": {"types", "backbones", "data", "runs"},
    "runs": {"types"},
    "training": {"types", "data", "runs", "evaluation", "objectives.base"},
    "evaluation": {"types", "backbones", "data", "runs"},
    "explain": {"types", "backbones", "data", "runs"},
    "transfer": {"types", "backbones", "data", "runs", "training"},
    "report": {"types", "runs", "evaluation", "explain"},
    "recipes": EVERYTHING,
    "cli": EVERYTHING,
}
THIRD_PARTY_OF_PURE_PARTS = {"types": {"torch"}, "losses": {"torch"}}


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


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports__follow_the_table(file: Path):
    part = part_of(file)
    assert part in ALLOWED, f"{part} is not in the table"
    assert violations(part, imported_names(file)) == []


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


def test_training__names_no_method():
    methods = ("drloc", "esvit", "dhvt", "token_label", "tokenlabel", "swin", "lvvit")
    for file in (PACKAGE / "training").glob("*.py"):
        code = ast.unparse(_without_docstrings(ast.parse(file.read_text()))).lower()
        assert not [method for method in methods if method in code], file


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                body[0] = ast.Pass()
    return tree
