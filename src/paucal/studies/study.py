"""The definition of a study: a table or figure of a paper, the runs that reproduce it, and its smaller scales."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

SCALES = ("tiny", "small", "full")
NETWORKS = ("", "detector", "cascade", "upernet")  # "" for a backbone alone
Kind = Literal["train", "pretrain", "frozen", "detect", "segment", "count", "facts", "pictures", "command"]
Metric = Literal[
    *("top1", "curve", "seconds_per_step", "linear", "knn", "knn_curve"),  # scores of runs
    *("logistic", "correspondence", "correspondence_distance"),  # scores of frozen features, like linear and knn
    *("ap", "ap50", "ap75", "mask_ap", "mask_ap50", "mask_ap75"),  # scores of detectors, for boxes and for masks
    *("mean_iou", "mean_iou_scales", "mean_accuracy", "pixel_accuracy"),  # scores of segmentation networks
    *("params", "gmacs", "gmacs_all"),  # counted
    *("average", "wins"),  # derived from a row's other columns
    *("throughput", "throughput_scaled"),  # timed on this device, without training
    *("quoted", "text"),  # shown only
]
Value = float | str | None  # a published value; None without one
KINDS: tuple[str, ...] = get_args(Kind)
METRICS: tuple[str, ...] = get_args(Metric)
# Metrics that the runs of a study measure, for each kind of study that has runs.
TRAINED: Mapping[str, tuple[str, ...]] = {
    "train": ("top1", "curve", "seconds_per_step"),
    "pretrain": ("linear", "knn", "knn_curve"),
    "frozen": ("logistic", "linear", "knn", "correspondence", "correspondence_distance"),
    "detect": ("ap", "ap50", "ap75", "mask_ap", "mask_ap50", "mask_ap75"),
    "segment": ("mean_iou", "mean_iou_scales", "mean_accuracy", "pixel_accuracy"),
}
COUNTED = ("params", "gmacs", "gmacs_all")
FIGURE_AXES = ("accuracy", "throughput", "parameters")  # quantities of the efficiency figure, each one column
DERIVED = ("average", "wins")
TIMED = ("throughput", "throughput_scaled")


@dataclass(frozen=True)
class DataSet:
    """A data set of a paper.

    Attributes:
        title: Name to show.
        train: Number of training images.
        test: Number of test images that the paper uses.
        classes: Number of classes.
        named: Name of the data set in paucal; "" without one.
        how: How to get its files if paucal does not download them.
        settings: Settings of a run on it, such as `classes`.
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
    """The name of a model of timm or paucal, and arguments of its constructor, each as NAME=VALUE."""

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    """A published model that rows name, with its stand-in at the smaller scales.

    Attributes:
        full: Published model.
        gmacs: Multiply-adds of a forward pass for one image in billions, including attention, to estimate the cost.
        side: Side of the images in pixels.
        standin: Model that replaces it at the smaller scales; None without one.
        network: Detector or segmenter whose backbone it is, one of `NETWORKS`; "" for the model alone.
        shape: Height and width of the images in pixels, if it has a network.
        width: Channels of the head, for a segmenter.
    """

    full: Architecture
    gmacs: float
    side: int = 224
    standin: Architecture | None = None
    network: str = ""
    shape: tuple[int, ...] = ()
    width: int = 512


@dataclass(frozen=True)
class Teacher(Architecture):
    """The teacher that makes label maps at a smaller scale, with the epochs and peak learning rate of its training."""

    epochs: int = 10
    lr: float = 1e-3


@dataclass(frozen=True)
class StartTraining:
    """How the weights that rows start from are trained at a smaller scale.

    Attributes:
        epochs: Epochs of every start.
        side: Side of the images in pixels.
        data: Labelled images; "" for the images of the rows, with the split of the teacher of their label maps.
        images: Maximum number of training images; no effect if `data` is "".
        set: Settings of all starts that are trained with labels.
        pretrain: Settings of all starts that are trained without labels.
    """

    epochs: int
    side: int
    data: str = ""
    images: int = 0
    set: Mapping[str, Any] = field(default_factory=dict)
    pretrain: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """A smaller scale of a study.

    Attributes:
        data: Images that replace all published data sets.
        images: Maximum number of training images.
        epochs: Epochs of a run that has the study's number of epochs at full scale.
        seeds: Seeds of every row.
        side: Side of the images in pixels.
        set: Settings of all runs.
        rows: Names of the rows that are run; () for all that have a stand-in.
        teacher: Teacher of label maps; None if no row needs any.
        start_training: Training of the starts; None if rows have none.
    """

    data: str
    images: int
    epochs: int
    seeds: tuple[int, ...]
    side: int
    set: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    teacher: Teacher | None = None
    start_training: StartTraining | None = None


@dataclass(frozen=True)
class Part:
    """The entries of a row or a column that describe its runs.

    Attributes:
        name: Published name.
        set: Settings at every scale.
        full: Settings at full scale.
        standin: Settings at the smaller scales.
        data: Data set to train on, or to evaluate on for a column of frozen features; "" for a row whose columns name
            it, or a column whose rows name it.
        epochs: Epochs, if they differ from the study's.
        classes: Number of classes of the model whose parameters are counted.
        against: Name of the baseline, another row (or column); "" without one.
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
    """A column of a table, with one number for each row.

    Attributes:
        metric: Metric of its numbers, one of `METRICS`.
        study: Name of another study whose full-scale results contain the numbers; "" for numbers of this study.
        at: Position at which a curve is read, as a share of all epochs; for "knn_curve", of the monitored epochs.
    """

    metric: str = "quoted"
    at: float = 1.0
    study: str = ""


@dataclass(frozen=True)
class Row(Part):
    """A row of a table.

    Attributes:
        values: Published values, one for each column.
        deviations: Published standard deviations, one for each column; () if none is published.
        model: Name of the model to train; "" for a row that is quoted from elsewhere.
        args: Further arguments of the model's constructor, each as NAME=VALUE.
        quoted: Whether the paper took the row's numbers from another paper.
        maps: Whether it is trained with label maps of a teacher.
        start: Name of its start in the study's `starts`; "" for random weights.
        note: Remark to print below the table.
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
    """The weights that rows start from, or whose frozen features are evaluated.

    Attributes:
        words: Description of the weights at full scale, for messages.
        model: Name of the model in the study.
        init: Value of `--init` at full scale; "" if the user has to give a run.
        tag: Tag of timm's weights if `init` is "timm"; "" for timm's default.
        verb: Verb that trains its stand-in at a smaller scale, "train" or "pretrain".
        set: Settings of the stand-in.
    """

    words: str
    model: str
    init: str = ""
    tag: str = ""
    verb: str = "train"
    set: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A table or figure of a paper.

    Attributes:
        name: Name on the command line.
        title: Subject of the table or figure.
        paper: Short name of the paper.
        source: Where the paper is published, such as "arXiv:2106.03746".
        where: Where the table or figure is in the paper, such as "table 1".
        kind: How it is reproduced: the verb of its runs or another computation, one of `KINDS`.
        columns: Columns in the published order.
        rows: Rows in the published order.
        models: Models by the names that rows use.
        recipe: Recipe of every run at full scale; "" without one.
        epochs: Published epochs of a run.
        full: Settings of every run at full scale that the recipe does not contain, such as those of the optimizer.
        seeds: Seeds at full scale.
        scales: Smaller scales by name.
        misprints: Misprints of the paper, and other remarks on its numbers.
        telling: Sentences on what the smaller scales can and cannot show.
        without: Reason for having no smaller scales.
        starts: Starts of its rows by name; empty if all rows start from random weights.
        draws: Name of the column that each of the `FIGURE_AXES` shows; empty for a study without a figure.
        see: How to reproduce a study that cannot be run, or where paucal has what it shows.
        note: Remark to print below the table.
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
        """Whether it is reproduced by runs of a verb, not counted, timed or only shown."""
        return self.kind in TRAINED

    @property
    def trained_columns(self) -> Sequence[Column]:
        """The columns whose numbers are measured by runs."""
        return [column for column in self.columns if column.metric in TRAINED.get(self.kind, ())]

    @property
    def trained_rows(self) -> Sequence[Row]:
        """The rows that have runs, so not those with numbers from other papers."""
        return [row for row in self.rows if self.trains and row.model and not row.quoted]

    def rows_at(self, small: Scale | None) -> list[Row]:
        """Return the rows that are run at a smaller scale; None for the full scale."""
        return [row for row in self.trained_rows if small is None or not small.rows or row.name in small.rows]

    @property
    def data_sets(self) -> Sequence[str]:
        """The names of the data sets that the study's full-scale runs read, in the order of the table."""
        columns = [column.data for column in self.trained_columns]
        return list(dict.fromkeys([*columns, *(row.data for row in self.trained_rows if row.data)]))
