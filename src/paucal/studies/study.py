"""The definition of a study: a table or figure of a paper, the runs that reproduce it, and smaller scales."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

SCALES = ("tiny", "small", "full")
NETWORKS = ("", "detector", "cascade", "upernet")  # "" means the backbone without a detector or segmenter
# Metrics that runs measure, for each kind of study that has runs.
RUN_METRICS: Mapping[str, tuple[str, ...]] = {
    "train": ("top1", "curve", "seconds_per_step"),
    "pretrain": ("linear", "knn", "knn_curve"),
    "frozen": ("logistic", "linear", "knn", "correspondence", "correspondence_distance"),
    "detect": ("ap", "ap50", "ap75", "mask_ap", "mask_ap50", "mask_ap75"),
    "segment": ("mean_iou", "mean_iou_scales", "mean_accuracy", "pixel_accuracy"),
}
KINDS = (*RUN_METRICS, "count", "facts", "pictures", "command")
COUNTED_METRICS = ("params", "gmacs", "gmacs_all")  # counted on the published models, without runs
DERIVED_METRICS = ("average", "wins")  # computed from other columns of the row
TIMED_METRICS = ("throughput", "throughput_scaled")  # timed on this device, without training
SHOWN_METRICS = ("quoted", "text")  # only shown, never measured
METRICS = (
    *dict.fromkeys(chain(*RUN_METRICS.values(), COUNTED_METRICS, DERIVED_METRICS, TIMED_METRICS, SHOWN_METRICS)),
)
# Quantities in the efficiency figure. `Study.draws` names the column of each quantity.
FIGURE_AXES = ("accuracy", "throughput", "parameters")
Value = float | str | None  # published value; None if the paper has no value


@dataclass(frozen=True)
class DataSet:
    """A data set of a paper."""

    title: str
    train: int
    test: int  # number of test images that the paper uses
    classes: int
    named: str = ""  # name by which paucal can open the data set; "" if paucal cannot open it by name
    how: str = ""  # how to get the files if paucal does not download them
    settings: Mapping[str, Any] = field(default_factory=dict)  # settings of runs on this data set, such as `classes`


@dataclass(frozen=True)
class Architecture:
    """The name of a model of timm or paucal, and arguments of the model's constructor, each as NAME=VALUE."""

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    """A published model that rows refer to, with its stand-in at the smaller scales."""

    full: Architecture
    gmacs: float  # multiply-adds per image in billions, including attention; used to estimate the cost
    side: int = 224  # side of the images in pixels
    standin: Architecture | None = None  # replacement at the smaller scales; None if there is no replacement
    network: str = ""  # detector or segmenter whose backbone the model is, one of `NETWORKS`
    shape: tuple[int, ...] = ()  # height and width in pixels of the images of the detector or segmenter
    width: int = 512  # number of channels of a segmenter's head


@dataclass(frozen=True)
class Teacher(Architecture):
    """The teacher that makes label maps at a smaller scale: model, number of epochs and peak learning rate."""

    epochs: int = 10
    lr: float = 1e-3


@dataclass(frozen=True)
class StartTraining:
    """How initial weights (in code called "starts") are trained at a smaller scale."""

    epochs: int
    side: int  # side of the images in pixels
    # Name of the labelled images; "" to use the images of the rows, with the split of the teacher of their label maps.
    data: str = ""
    images: int = 0  # maximum number of training images; no effect if `data` is ""
    set: Mapping[str, Any] = field(default_factory=dict)  # settings of weights that are trained with labels
    pretrain: Mapping[str, Any] = field(default_factory=dict)  # settings of weights that are trained without labels


@dataclass(frozen=True)
class Scale:
    """A smaller scale of a study, with small models, few images and few epochs."""

    data: str  # name of the images that replace all published data sets
    images: int
    # Number of epochs of a run that has `Study.epochs` epochs at full scale; other runs are scaled in proportion.
    epochs: int
    seeds: tuple[int, ...]
    side: int  # side of the images in pixels
    set: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[str, ...] = ()  # names of the rows that are run; () to run all trained rows
    teacher: Teacher | None = None  # teacher that makes label maps; None if no row needs label maps
    start_training: StartTraining | None = None  # training of initial weights; None if all start from random weights


@dataclass(frozen=True)
class RowOrColumn:
    """The fields that rows and columns have in common, which describe runs."""

    name: str
    set: Mapping[str, Any] = field(default_factory=dict)  # settings at every scale
    full: Mapping[str, Any] = field(default_factory=dict)  # settings at full scale
    standin: Mapping[str, Any] = field(default_factory=dict)  # settings at the smaller scales
    # Name of the data set to train on or, in a column of frozen features, to evaluate on. "" in a row if the columns
    # name the data sets, and in a column if the rows do.
    data: str = ""
    epochs: int | None = None  # number of epochs of the runs; None for the study's number
    classes: int | None = None  # number of classes of the model whose parameters are counted; None for the default
    against: str = ""  # name of the baseline, another row or column; "" if there is no baseline


@dataclass(frozen=True)
class Column(RowOrColumn):
    """A column of a table, with one number for each row."""

    metric: str = "quoted"  # one of `METRICS`
    # Epoch at which a training curve is read, as a fraction of all epochs or, for "knn_curve", of the monitored epochs.
    at: float = 1.0
    study: str = ""  # study whose full-scale results contain the numbers; "" if this study measures them


@dataclass(frozen=True)
class Row(RowOrColumn):
    """A row of a table."""

    values: tuple[Value, ...] = ()  # published values, one for each column
    deviations: tuple[float | None, ...] = ()  # published standard deviations of the values; () if unpublished
    model: str = ""  # name of the model to train; "" if the row's numbers are only quoted
    args: tuple[str, ...] = ()  # additional arguments of the model's constructor, each as NAME=VALUE
    quoted: bool = False  # whether the paper copied the row's numbers from another paper
    maps: bool = False  # whether the row is trained with label maps of a teacher
    start: str = ""  # key of the initial weights in the study's `starts`; "" to start from random weights
    note: str = ""


@dataclass(frozen=True)
class InitialWeights:
    """The weights from which the runs of some table rows start, or the weights whose frozen features are evaluated."""

    words: str  # description of the weights at full scale, for messages
    model: str
    init: str = ""  # value of `--init` at full scale; "" if the user must give a run
    tag: str = ""  # tag of timm's weights if `init` is "timm"; "" for timm's default tag
    verb: str = "train"  # command that trains the stand-in at a smaller scale, "train" or "pretrain"
    set: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A table or figure of a paper."""

    name: str
    title: str
    paper: str  # short name of the paper
    source: str  # where the paper is published, such as "arXiv:2106.03746"
    where: str  # where the table or figure is in the paper, such as "table 1"
    kind: str  # one of `KINDS`: the command that computes the runs, or another way to reproduce the table
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    models: Mapping[str, Model] = field(default_factory=dict, repr=False)
    recipe: str = ""  # recipe of every run at full scale; "" if the runs use no recipe
    epochs: int = 1  # published number of epochs of a run
    full: Mapping[str, Any] = field(default_factory=dict)  # settings at full scale that the recipe does not contain
    seeds: tuple[int, ...] = (0,)
    scales: Mapping[str, Scale] = field(default_factory=dict)
    misprints: tuple[str, ...] = ()  # misprints of the paper, and other remarks on its numbers
    telling: str = ""  # sentences on what the smaller scales can and cannot show
    without: str = ""  # reason why the study has no smaller scales; "" if it has smaller scales
    # Initial weights by key; empty if all rows start from random weights.
    starts: Mapping[str, InitialWeights] = field(default_factory=dict)
    # Column for each of `FIGURE_AXES`; empty if the study has no figure.
    draws: Mapping[str, str] = field(default_factory=dict)
    see: str = ""  # how to reproduce a study that cannot be run, or where paucal implements what the study shows
    note: str = ""  # remark to print below the table

    @property
    def trains(self) -> bool:
        """Whether the study has runs; other studies are counted, timed or only shown."""
        return self.kind in RUN_METRICS

    @property
    def trained_columns(self) -> Sequence[Column]:
        """The columns whose numbers are measured by runs."""
        return [column for column in self.columns if column.metric in RUN_METRICS.get(self.kind, ())]

    @property
    def trained_rows(self) -> Sequence[Row]:
        """The rows that have runs. Rows whose numbers the paper took from other papers have no runs."""
        return [row for row in self.rows if self.trains and row.model and not row.quoted]

    def rows_at(self, small: Scale | None) -> list[Row]:
        """Return the rows that are run at the scale `small`, or at full scale if `small` is None."""
        return [row for row in self.trained_rows if small is None or not small.rows or row.name in small.rows]

    @property
    def data_sets(self) -> Sequence[str]:
        """The names of the data sets that the study's full-scale runs read, in the order of the table."""
        columns = [column.data for column in self.trained_columns]
        return list(dict.fromkeys([*columns, *(row.data for row in self.trained_rows if row.data)]))
