"""What a study is: a table or figure of a paper, what each of its rows trains, and what was published of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Kind = Literal["train", "pretrain", "count", "facts", "pictures", "command", "detection", "segmentation"]
Metric = Literal[
    *("top1", "curve", "seconds_per_step", "linear", "knn"),  # of runs
    *("params", "gmacs", "gmacs_all"),  # counted
    *("quoted", "text"),  # shown only
]
Value = float | str | None
KINDS: tuple[str, ...] = get_args(Kind)
METRICS: tuple[str, ...] = get_args(Metric)
TRAINED: Mapping[str, tuple[str, ...]] = {"train": ("top1", "curve", "seconds_per_step"), "pretrain": ("linear", "knn")}
COUNTED = ("params", "gmacs", "gmacs_all")
NETWORKS = ("", "detector", "cascade", "upernet")
SCALES = ("tiny", "small", "full")


@dataclass(frozen=True)
class DataSet:
    """A set of images that a paper used.

    Attributes:
        title: its name for people.
        train: images to train on.
        test: images to test with, as they are used.
        classes: of the images.
        named: the name under which paucal reads it; "" where it has none.
        how: how its files are had, where it has no name.
        settings: of the verb that reads it.
    """

    title: str
    train: int
    test: int
    classes: int
    named: str = ""
    how: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Architecture:
    """A model with the arguments of its constructor.

    Attributes:
        name: as timm or paucal know it.
        args: each as NAME=VALUE.
    """

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    """What a row trains.

    Attributes:
        full: as published.
        gmacs: multiply-adds of an image in billions, with those of attention; what the cost is estimated from.
        side: of the images in pixels.
        standin: what takes its place at the smaller scales; None where nothing does.
        network: around it, of those in `NETWORKS`; "" for the model alone.
        shape: height and width of the images of a network, in pixels.
        width: channels of a segmenter's head.
    """

    full: Architecture
    gmacs: float
    side: int = 224
    standin: Architecture | None = None
    network: str = ""
    shape: tuple[int, ...] = ()
    width: int = 512


@dataclass(frozen=True)
class Part:
    """What a row or a column says about the runs it stands for.

    Attributes:
        name: as published.
        set: settings at every scale.
        full: settings at full scale.
        standin: settings at the smaller scales.
        data: images trained on, or for a column of frozen features those judged on; "" where the other part says it.
        epochs: where they are not those of the study.
        classes: of the model whose parameters are counted.
        against: the name of the row (or column) that it is compared with; "" for none.
    """

    name: str
    set: Mapping[str, Any] = field(default_factory=dict)
    full: Mapping[str, Any] = field(default_factory=dict)
    standin: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""
    epochs: int | None = None
    classes: int | None = None
    against: str = ""


@dataclass(frozen=True)
class Column(Part):
    """What is measured.

    Attributes:
        metric: which number.
        at: of a curve, the share of the epochs after which it is read.
    """

    metric: str = "quoted"
    at: float = 1.0


@dataclass(frozen=True)
class Row(Part):
    """One line of a table.

    Attributes:
        values: published, one for each column; None where there is none.
        deviations: standard deviations beside them.
        model: what is trained; "" where the line is quoted from elsewhere.
        args: further arguments of the model's constructor, each as NAME=VALUE.
        quoted: whether the model is known but its training is another paper's.
        maps: whether it trains with label maps of a teacher.
        note: a remark.
    """

    values: tuple[Value, ...] = ()
    deviations: tuple[float | None, ...] = ()
    model: str = ""
    args: tuple[str, ...] = ()
    quoted: bool = False
    maps: bool = False
    note: str = ""


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
    """

    data: str
    images: int
    epochs: int
    seeds: tuple[int, ...]
    side: int
    set: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    teacher: Teacher | None = None


@dataclass(frozen=True)
class Study:
    """A table or figure.

    Attributes:
        name: under which it is asked for.
        title: what it is about.
        paper: short name of the paper.
        source: where the paper is.
        where: in the paper.
        kind: what it takes to make it anew.
        columns: what is published of each row.
        rows: in their order.
        models: by the names that rows use.
        recipe: settings of every run at full scale.
        epochs: as published.
        full: settings of every run at full scale that the recipe does not hold, such as those of the step.
        seeds: at full scale.
        scales: the smaller ones, by name.
        misprints: of the paper, and what else its numbers have to be read with.
        telling: what the smaller scales can and cannot tell.
        without: why there are no smaller scales.
        start: what runs at full scale begin with and cannot be had by itself; "" for nothing.
        see: of what is not run, where it is found or how it is made.
        note: a remark.
    """

    name: str
    title: str
    paper: str
    source: str
    where: str
    kind: str
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    models: Mapping[str, Model] = field(default_factory=dict, repr=False)
    recipe: str = ""
    epochs: int = 1
    full: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    misprints: tuple[str, ...] = ()
    telling: str = ""
    without: str = ""
    start: str = ""
    see: str = ""
    note: str = ""

    @property
    def trains(self) -> bool:
        """Whether runs are made for it."""
        return self.kind in TRAINED

    @property
    def trained_columns(self) -> Sequence[Column]:
        """The columns that runs give."""
        return [column for column in self.columns if column.metric in TRAINED.get(self.kind, ())]

    @property
    def trained_rows(self) -> Sequence[Row]:
        """The rows that are trained, and not quoted."""
        return [row for row in self.rows if self.trains and row.model and not row.quoted]

    @property
    def data_sets(self) -> Sequence[str]:
        """The sets that its runs at full scale read, in the order of the table."""
        columns = [column.data for column in self.trained_columns]
        return list(dict.fromkeys([*columns, *(row.data for row in self.trained_rows if row.data)]))
