"""What a study is: a table or figure of a paper, what each of its rows trains, what was published, and its scales."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

NETWORKS = ("", "detector", "cascade", "upernet")


@dataclass(frozen=True)
class DataSet:
    """A set of images that a paper used.

    Attributes:
        title: its name for people.
        train: images to train on.
        test: images to test with, as they are used.
        classes: of the images.
        named: the name under which paucal reads it; "" where it has none.
        how: how its files are had, where they do not come by themselves.
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


Kind = Literal["train", "pretrain", "frozen", "detect", "segment", "count", "facts", "pictures", "command"]
Metric = Literal[
    *("top1", "curve", "seconds_per_step", "linear", "knn", "knn_curve"),  # of runs
    *("logistic", "correspondence", "correspondence_distance"),  # of frozen features, as linear and knn
    *("ap", "ap50", "ap75", "mask_ap", "mask_ap50", "mask_ap75"),  # of detectors, of boxes and of masks
    *("mean_iou", "mean_iou_scales", "mean_accuracy", "pixel_accuracy"),  # of segmenters
    *("params", "gmacs", "gmacs_all"),  # counted
    *("average", "wins"),  # of a row's other columns
    *("throughput", "throughput_scaled"),  # timed on this device, of nothing that is trained
    *("quoted", "text"),  # shown only
]
Value = float | str | None
KINDS: tuple[str, ...] = get_args(Kind)
METRICS: tuple[str, ...] = get_args(Metric)
TRAINED: Mapping[str, tuple[str, ...]] = {
    "train": ("top1", "curve", "seconds_per_step"),
    "pretrain": ("linear", "knn", "knn_curve"),
    "frozen": ("logistic", "linear", "knn", "correspondence", "correspondence_distance"),
    "detect": ("ap", "ap50", "ap75", "mask_ap", "mask_ap50", "mask_ap75"),
    "segment": ("mean_iou", "mean_iou_scales", "mean_accuracy", "pixel_accuracy"),
}
COUNTED = ("params", "gmacs", "gmacs_all")
DRAWN = ("accuracy", "throughput", "parameters")  # of a picture of efficiency
DERIVED = ("average", "wins")
TIMED = ("throughput", "throughput_scaled")


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
        study: Name of the study whose results at full scale hold the number; "" where the runs of this one give it.
        at: of a curve, the share of the epochs after which it is read; of "knn_curve" those of the monitor.
    """

    metric: str = "quoted"
    at: float = 1.0
    study: str = ""


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
        start: the name of what it begins with, among the study's.
        note: a remark.
    """

    values: tuple[Value, ...] = ()
    deviations: tuple[float | None, ...] = ()
    model: str = ""
    args: tuple[str, ...] = ()
    quoted: bool = False
    maps: bool = False
    start: str = ""
    note: str = ""


@dataclass(frozen=True)
class Start:
    """What rows begin with, or whose frozen features are judged.

    Attributes:
        words: what it is at full scale.
        model: that has learned, by its name in the study.
        init: the `--init` that gives it at full scale; "" where there is none, and a run has to be given.
        tag: which of timm's weights are meant, where `init` is "timm"; "" for timm's own choice.
        verb: that makes what takes its place at a smaller scale, "train" or "pretrain".
        set: settings of that.
    """

    words: str
    model: str
    init: str = ""
    tag: str = ""
    verb: str = "train"
    set: Mapping[str, Any] = field(default_factory=dict)


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
        starts: what its rows begin with, by name; none where they begin with random weights.
        draws: Names of the columns that its picture shows, by what they are in it; none where nothing is drawn.
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
    starts: Mapping[str, Start] = field(default_factory=dict)
    draws: Mapping[str, str] = field(default_factory=dict)
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
