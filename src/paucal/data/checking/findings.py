"""Findings of a check as sentences: the problem, how grave it is, and what to do."""

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
    """One problem or fact that a check has found.

    Attributes:
        name: Kind of the finding, with dashes.
        level: "misleads" if a score would be wrong or a run could not begin, "warning" if accuracy suffers, "note" for
            other facts.
        text: Sentence on what was found.
        advice: Sentence on what to do; "" for nothing.
        groups: Positions of the images that it is about; images that belong together are in one group.
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
    """A set of images and its parts.

    Attributes:
        images: N images.
        parts: (N,) "train", "val", "test" or "unused".
        declared: Whether the parts are the data's own.
        cut_by: Origin of other parts: "as paucal train would cut them", or "not divided".
    """

    images: ImageSet
    parts: NDArray[np.str_]
    declared: bool
    cut_by: str = "as paucal train would cut them"

    def across(self, group: Sequence[int]) -> bool:
        """Return whether images of a group lie in several parts."""
        return len({self.parts[position] for position in group} - {"unused"}) > 1

    def labels_of(self, group: Sequence[int]) -> set[tuple[str, ...]]:
        """Return the classes that the images of a group have, without unlabelled ones."""
        return {tuple(self.images.classes_of(position)) for position in group} - {()}


def refusal(name: str, problem: UserError, begin: str = "") -> Finding:
    """Return the finding that a run would refuse a set, with the message of the run.

    Args:
        name: Name of the kind of finding.
        problem: Error that the run would raise.
        begin: Words before it.
    """
    return Finding(name, "misleads", f"{begin}{str(problem).rstrip('.')}")


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings, the gravest first; those of one level stay in order."""
    return sorted(findings, key=lambda one: LEVELS.index(one.level))


def misleads(findings: Sequence[Finding]) -> bool:
    """Return whether training on the set would mislead."""
    return any(one.level == "misleads" for one in findings)
