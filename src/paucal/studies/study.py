"""The definition of a study: a table or figure of a paper, the runs that reproduce it, and smaller scales."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

SCALES = ("tiny", "small", "full")
NETWORKS = ("", "detector", "cascade", "upernet")  # "" means the backbone without a detector or segmenter
Kind = Literal["train", "pretrain", "frozen", "detect", "segment", "count", "facts", "pictures", "command"]
Metric = Literal[
    *("top1", "curve", "seconds_per_step", "linear", "knn", "knn_curve"),  # scores of runs
    *("logistic", "correspondence", "correspondence_distance"),  # scores of frozen features, as are linear and knn
    *("ap", "ap50", "ap75", "mask_ap", "mask_ap50", "mask_ap75"),  # scores of detectors, for boxes and for masks
    *("mean_iou", "mean_iou_scales", "mean_accuracy", "pixel_accuracy"),  # scores of segmentation networks
    *("params", "gmacs", "gmacs_all"),  # counted on the published models
    *("average", "wins"),  # derived from a row's other columns
    *("throughput", "throughput_scaled"),  # timed on this device, without training
    *("quoted", "text"),  # only shown, never measured
]
Value = float | str | None  # published value; None if the paper has no value
KINDS: tuple[str, ...] = get_args(Kind)
METRICS: tuple[str, ...] = get_args(Metric)
# Metrics that runs measure, for each kind of study that has runs.
RUN_METRICS: Mapping[str, tuple[str, ...]] = {
    "train": ("top1", "curve", "seconds_per_step"),
    "pretrain": ("linear", "knn", "knn_curve"),
    "frozen": ("logistic", "linear", "knn", "correspondence", "correspondence_distance"),
    "detect": ("ap", "ap50", "ap75", "mask_ap", "mask_ap50", "mask_ap75"),
    "segment": ("mean_iou", "mean_iou_scales", "mean_accuracy", "pixel_accuracy"),
}
COUNTED_METRICS = ("params", "gmacs", "gmacs_all")  # counted on the published models, without runs
# Quantities in the efficiency figure. `Study.draws` names the column of each quantity.
FIGURE_AXES = ("accuracy", "throughput", "parameters")
DERIVED_METRICS = ("average", "wins")  # computed from other columns of the row
TIMED_METRICS = ("throughput", "throughput_scaled")  # timed on this device, without training


@dataclass(frozen=True)
class DataSet:
    """A data set of a paper.

    Attributes:
        test: Number of test images that the paper uses.
        named: Name by which paucal can open the data set; "" if paucal cannot open it by name.
        how: How to get the files if paucal does not download them.
        settings: Settings of a run on this data set, such as `classes`.
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
    """The name of a model of timm or paucal, and arguments of the model's constructor, each as NAME=VALUE."""

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    """A published model that rows refer to, with its stand-in at the smaller scales.

    Attributes:
        gmacs: Multiply-adds of a forward pass for one image, in billions, including attention; used to estimate the
            cost.
        side: Side of the images in pixels.
        standin: Model that replaces the published model at the smaller scales; None if there is no such model.
        network: Detector or segmenter whose backbone the model is, one of `NETWORKS`; "" for the model without a
            detector or segmenter.
        shape: Height and width in pixels of the images of the detector or segmenter.
        width: Number of channels of a segmenter's head.
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
    """The teacher that makes label maps at a smaller scale: model, number of epochs and peak learning rate."""

    epochs: int = 10
    lr: float = 1e-3


@dataclass(frozen=True)
class StartTraining:
    """How initial weights (in code called "starts") are trained at a smaller scale.

    Attributes:
        side: Side of the images in pixels.
        data: Name of the labelled images; "" to use the images of the rows, with the split of the teacher that makes
            the rows' label maps.
        images: Maximum number of training images; no effect if `data` is "".
        set: Settings of all initial weights that are trained with labels.
        pretrain: Settings of all initial weights that are trained without labels.
    """

    epochs: int
    side: int
    data: str = ""
    images: int = 0
    set: Mapping[str, Any] = field(default_factory=dict)
    pretrain: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """A smaller scale of a study, with small models, few images and few epochs.

    Attributes:
        data: Name of the images that replace all published data sets.
        epochs: Number of epochs of a run that has `Study.epochs` epochs at full scale; other runs are scaled in
            proportion.
        side: Side of the images in pixels.
        rows: Names of the rows that are run; () to run all trained rows.
        teacher: Teacher of label maps; None if no row needs label maps.
        start_training: Training of the initial weights; None if the rows start from random weights.
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
class RowOrColumn:
    """The fields that rows and columns have in common, which describe runs.

    Attributes:
        set: Settings at every scale.
        full: Settings at full scale.
        standin: Settings at the smaller scales.
        data: Name of the data set to train on. In a column of frozen features, the data set to evaluate on. "" in a row
            if the columns name the data sets, and "" in a column if the rows name the data sets.
        epochs: Number of epochs; None for the study's number of epochs.
        classes: Number of classes of the model whose parameters are counted; None for the default.
        against: Name of the baseline, which is another row or another column; "" if there is no baseline.
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
class Column(RowOrColumn):
    """A column of a table, with one number for each row.

    Attributes:
        metric: Metric of the numbers, one of `METRICS`.
        study: Name of another study whose full-scale results contain the numbers; "" if this study measures them.
        at: Epoch at which a training curve is read, as a fraction of all epochs; for "knn_curve", as a fraction of the
            monitored epochs.
    """

    metric: str = "quoted"
    at: float = 1.0
    study: str = ""


@dataclass(frozen=True)
class Row(RowOrColumn):
    """A row of a table.

    Attributes:
        values: Published values, one for each column.
        deviations: Published standard deviations, one for each column; () if no deviations are published.
        model: Name of the model to train; "" if no model is trained because the row's numbers are only quoted.
        args: Additional arguments of the model's constructor, each as NAME=VALUE.
        quoted: Whether the paper copied the row's numbers from another paper.
        maps: Whether the row is trained with label maps of a teacher.
        start: Key of the row's initial weights in the study's `starts`; "" to start from random weights.
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
class InitialWeights:
    """The weights from which the runs of some table rows start, or the weights whose frozen features are evaluated.

    Attributes:
        words: Description of the weights at full scale, for messages.
        init: Value of `--init` at full scale; "" if the user must give a run.
        tag: Tag of timm's weights if `init` is "timm"; "" for timm's default tag.
        verb: Command that trains the stand-in at a smaller scale, "train" or "pretrain".
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
        paper: Short name of the paper.
        source: Where the paper is published, such as "arXiv:2106.03746".
        where: Where the table or figure is in the paper, such as "table 1".
        kind: How the table or figure is reproduced, one of `KINDS`: the command that computes the runs, or another
            method.
        recipe: Recipe of every run at full scale; "" if the runs use no recipe.
        epochs: Published number of epochs of a run.
        full: Settings of every run at full scale that the recipe does not contain, such as optimizer settings.
        misprints: Misprints of the paper, and other remarks on its numbers.
        telling: Sentences on what the smaller scales can and cannot show.
        without: Reason why the study has no smaller scales; "" if it has smaller scales.
        starts: Initial weights of the rows by name; empty if all rows start from random weights.
        draws: Name of the column for each of the `FIGURE_AXES`; empty if the study has no figure.
        see: How to reproduce a study that cannot be run, or where paucal implements what the study shows.
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
    starts: Mapping[str, InitialWeights] = field(default_factory=dict)
    draws: Mapping[str, str] = field(default_factory=dict)
    see: str = ""
    note: str = ""

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
