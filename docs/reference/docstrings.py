"""Prepares docstrings for the reference: examples are shown as code, and the help of a setting as its description."""

import ast
import re
from typing import Any

import griffe

HEADING = re.compile(r"^Example:$", re.MULTILINE)  # griffe knows the plural only
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)  # one without a heading


class Docstrings(griffe.Extension):
    """Reads the code; nothing is imported."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Prepare one docstring."""
        if obj.docstring is not None:
            text = HEADING.sub("Examples:", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```python\n{found[0]}\n```", text)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Give a field that `option(help, default, ...)` declares its help and its default."""
        call = attr.value
        if not isinstance(call, griffe.ExprCall) or str(call.function) != "option":
            return
        named = {one.name: one.value for one in call.arguments if isinstance(one, griffe.ExprKeyword)}
        text, *others = [one for one in call.arguments if not isinstance(one, griffe.ExprKeyword)]
        attr.docstring = griffe.Docstring(_words(ast.parse(str(text), mode="eval").body), parent=attr)
        attr.value = others[0] if others else named.get("default", "None")


def _words(text: ast.expr) -> str:
    """The words of a string; what is put into it when the program runs is shown as an ellipsis."""
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
