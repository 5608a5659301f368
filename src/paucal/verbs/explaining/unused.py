"""Settings of `paucal explain` that belong to pictures which are not asked for."""

import re
from collections.abc import Sequence

from paucal.types import UserError
from paucal.verbs.explaining.settings import ExplainSettings

CELL = re.compile(r"\s*(\d{1,6})\s*,\s*(\d{1,6})\s*")  # --token as ROW,COLUMN

_USED_BY: dict[str, tuple[str, tuple[str, ...]]] = {
    "explain_class": ("chooses the classes of the attribution", ("attribution",)),
    "layer": ("chooses the layers of the attention", ("attention", "head-tokens")),
    "token": ("chooses queries of the attention, or a cell of the localization", ("attention", "localization")),
    "teacher": ("draws a teacher's token labels", ("tokens",)),
    "against": ("compares the entropy of heads", ("entropy",)),
}


def require_use(views: Sequence[str], settings: ExplainSettings) -> None:
    """Refuse settings that no picture would follow.

    Raises:
        UserError: a setting belongs to a view that is not drawn, or names a query that it cannot take.
    """
    for name, (does, users) in _USED_BY.items():
        if getattr(settings, name) is not None and not set(users) & set(views):
            raise UserError(f"--{name.replace('_', '-')} {does}: add --show {' or '.join(users)}.")
    if settings.method != "auto" and "attribution" not in views:
        raise UserError("--method chooses how the attribution is computed: add --show attribution.")
    if settings.token and "attention" not in views and not any(map(CELL.fullmatch, settings.token)):
        raise UserError(f"--token is {settings.token[0]!r}, and the localization starts at a cell: give ROW,COLUMN.")
