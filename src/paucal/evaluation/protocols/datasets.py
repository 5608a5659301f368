"""The 18 data sets of EsViT's Table 9 (the public data sets of CLIP's linear evaluation).

All data sets can be opened by name. `open_voc2007` opens VOC2007, whose images have several classes each;
`paucal.data.named` opens the other sets.
"""

from typing import NamedTuple

from paucal.metrics.measures import MetricName


class Table9Set(NamedTuple):
    """The numbers of classes, training images (with validation images) and test images, and the metric, in the paper.

    The comments in `TABLE9` correct errors of the paper.
    """

    classes: int
    train: int
    test: int
    metric: MetricName = "accuracy"


TABLE9: dict[str, Table9Set] = {
    "food101": Table9Set(102, 75_750, 25_250),  # 101 classes
    "cifar10": Table9Set(10, 50_000, 10_000),
    "cifar100": Table9Set(100, 50_000, 10_000),
    "sun397": Table9Set(397, 19_850, 19_850),  # the first of ten official partitions, of 50 + 50 images per class
    "cars": Table9Set(196, 8_144, 8_041),  # no longer available
    "aircraft": Table9Set(100, 6_667, 3_333, "mean_per_class"),  # the classes are the variants
    "voc2007": Table9Set(20, 5_011, 4_952, "map11"),
    "dtd": Table9Set(47, 3_760, 1_880),
    "pets": Table9Set(37, 3_680, 3_669, "mean_per_class"),
    # There is no official split; 30 images of each class are training images. The background counts as a class.
    "caltech101": Table9Set(102, 3_060, 6_084, "mean_per_class"),
    "flowers102": Table9Set(102, 2_040, 6_149, "mean_per_class"),
    "mnist": Table9Set(10, 60_000, 10_000),
    "fer2013": Table9Set(8, 32_298, 3_589),  # 7 classes; train is Training and PublicTest, test is PrivateTest
    "stl10": Table9Set(10, 5_000, 8_000),
    "gtsrb": Table9Set(43, 26_728, 12_630),  # paucal's source has 26,640 training images
    "pcam": Table9Set(2, 294_912, 32_768),
    "ucf101": Table9Set(101, 9_537, 3_783),  # the middle frame of each video; the first of three official splits
    "hateful_memes": Table9Set(2, 8_500, 500, "roc_auc"),  # test is dev_seen
}


def metric_of(name: str) -> MetricName:
    """Return the metric of a data set by its name; "accuracy" if the set is not in Table 9.

    >>> metric_of("pets"), metric_of("photos")
    ('mean_per_class', 'accuracy')
    """
    return TABLE9[name].metric if name in TABLE9 else "accuracy"
