"""What a check finds, in sentences: what it is, whether training would mislead, and what to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paucal.data.images import ImageSet
from paucal.types import UserError

Level = Literal["misleads", "warning", "note"]
LEVELS: tuple[Level, ...] = ("misleads", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One thing that a check has found.

    Attributes:
        name: of the kind, with dashes.
        level: "misleads" where a score would be wrong or a run could not begin, "warning" for what costs accuracy,
            "note" for what is good to know.
        text: what was found, a sentence.
        advice: what to do, a sentence; "" for nothing.
        groups: positions of the images it is about, those that belong together in one group.
    """

    name: str
    level: Level
    text: str
    advice: str = ""
    groups: tuple[tuple[int, ...], ...] = ()

    def to_dict(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return plain JSON values, with the keys of the images."""
        groups = [[keys[position] for position in group] for group in self.groups]
        return {"name": self.name, "level": self.level, "text": self.text, "advice": self.advice, "groups": groups}


@dataclass(frozen=True)
class Checked:
    """A set as a check looks at it.

    Attributes:
        images: the set.
        parts: (N,) "train", "val", "test" or "unused".
        declared: whether the parts are the data's own.
        cut_by: What else the parts are: "as paucal train would cut them", or "not divided".
    """

    images: ImageSet
    parts: NDArray[np.str_]
    declared: bool
    cut_by: str = "as paucal train would cut them"

    def across(self, group: Sequence[int]) -> bool:
        """Return whether images of a group lie in several parts."""
        return len({self.parts[position] for position in group} - {"unused"}) > 1

    def labels_of(self, group: Sequence[int]) -> set[tuple[str, ...]]:
        """Return the classes that the images of a group are of, those without a label left out."""
        return {tuple(self.images.classes_of(position)) for position in group} - {()}


def refusal(name: str, problem: UserError, begin: str = "") -> Finding:
    """Return the finding that a run would refuse a set, in the words in which it would.

    Args:
        name: Name of the kind of finding.
        problem: What the run would say.
        begin: Words before it.
    """
    return Finding(name, "misleads", f"{begin}{str(problem).rstrip('.')}")


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings, the gravest first; those of one level stay in order."""
    return sorted(findings, key=lambda one: LEVELS.index(one.level))


def misleads(findings: Sequence[Finding]) -> bool:
    """Return whether training on the set would mislead."""
    return any(one.level == "misleads" for one in findings)
