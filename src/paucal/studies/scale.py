"""How small a study is made, and who is trained before its rows are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paucal.studies.parts import Architecture

SCALES = ("tiny", "small", "full")


@dataclass(frozen=True)
class Teacher(Architecture):
    """Who makes label maps at a smaller scale, trained on the same images.

    Attributes:
        epochs: of its training.
        lr: peak learning rate.
    """

    epochs: int = 10
    lr: float = 1e-3


@dataclass(frozen=True)
class Lesson:
    """What starts learn at a smaller scale, before rows begin with them.

    Attributes:
        epochs: of every start.
        side: of the images in pixels.
        data: labelled images; "" for those of the rows, in the parts that the teacher of their label maps has.
        images: to learn from, at most; without a meaning for those of the rows.
        set: settings of all starts that learn from labels.
        pretrain: settings of those that learn without.
    """

    epochs: int
    side: int
    data: str = ""
    images: int = 0
    set: Mapping[str, Any] = field(default_factory=dict)
    pretrain: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """How small a study is made.

    Attributes:
        data: images in place of all published sets.
        images: to train on, at most.
        epochs: in place of the study's.
        seeds: of every row.
        side: of the images in pixels.
        set: settings of all runs.
        rows: names of those that are run; () for all that can be.
        teacher: who makes label maps; None where no row needs any.
        lesson: what starts learn; None where rows have none.
    """

    data: str
    images: int
    epochs: int
    seeds: tuple[int, ...]
    side: int
    set: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    teacher: Teacher | None = None
    lesson: Lesson | None = None
