"""What tests of `paucal study` share: smaller studies in the place of the package's, and what lies in their folders."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.calls import table
from paucal.studies import reading
from paucal.studies.study import Study


def shrink(monkeypatch: pytest.MonkeyPatch, names: Sequence[str], smaller: Callable[[Study], Study]) -> None:
    known = reading.studies()
    made = {**known, **{name: smaller(known[name]) for name in names}}
    monkeypatch.setattr(reading, "studies", lambda: made)


def rows_of(out: Path) -> dict[tuple[str, str], dict[str, str]]:
    return {(row["row"], row["column"]): row for row in table(out / "results.csv")}


def settings_of(run: Path) -> Mapping[str, Any]:
    return yaml.safe_load((run / "config.yaml").read_text())["settings"]
