"""The 18 data sets of EsViT's Table 9 (the public data sets of CLIP's linear evaluation), with their sources.

The numbers of classes and images are from the paper. Notes correct errors of the paper. All data sets can be opened by
name. `open_voc` opens VOC2007, whose images have several classes each; `paucal.data.named` opens the other sets.
"""

from dataclasses import dataclass

from paucal.metrics.measures import MetricName


@dataclass(frozen=True)
class Table9Set:
    """One data set of Table 9.

    Attributes:
        title: Name of the set for display.
        classes: Number of classes.
        train: Number of training images, including validation images.
        test: Number of test images.
        metric: Metric that the paper reports.
        source: Where the images come from.
        note: Correction of the paper's numbers, or a remark.
    """

    title: str
    classes: int
    train: int
    test: int
    metric: MetricName
    source: str
    note: str = ""


TABLE9: dict[str, Table9Set] = {
    "food101": Table9Set(
        "Food-101", 102, 75_750, 25_250, "accuracy", "torchvision, food-101.tar.gz of ETH Zurich", note="101 classes"
    ),
    "cifar10": Table9Set("CIFAR-10", 10, 50_000, 10_000, "accuracy", "torchvision, University of Toronto"),
    "cifar100": Table9Set("CIFAR-100", 100, 50_000, 10_000, "accuracy", "torchvision, University of Toronto"),
    "sun397": Table9Set(
        "SUN397",
        397,
        19_850,
        19_850,
        "accuracy",
        "torchvision, SUN397.tar.gz of Princeton, and the lists of Partitions.zip",
        note="the first of ten official partitions, of 50 + 50 images per class",
    ),
    "cars": Table9Set(
        "Stanford Cars", 196, 8_144, 8_041, "accuracy", "the data set's page", note="no longer available"
    ),
    "aircraft": Table9Set("FGVC Aircraft (variants)", 100, 6_667, 3_333, "mean_per_class", "torchvision, Oxford VGG"),
    "voc2007": Table9Set(
        "VOC2007 classification",
        20,
        5_011,
        4_952,
        "map11",
        "the PASCAL VOC page: VOCtrainval_06-Nov-2007.tar and VOCtest_06-Nov-2007.tar",
        note="an image may have several classes",
    ),
    "dtd": Table9Set("Describable Textures", 47, 3_760, 1_880, "accuracy", "torchvision, Oxford VGG"),
    "pets": Table9Set("Oxford-IIIT Pets", 37, 3_680, 3_669, "mean_per_class", "torchvision, Oxford VGG"),
    "caltech101": Table9Set(
        "Caltech-101",
        102,
        3_060,
        6_084,
        "mean_per_class",
        "torchvision, Caltech",
        note="no official parts: 30 images of each class train; 102 counts the background images, as here",
    ),
    "flowers102": Table9Set("Oxford Flowers 102", 102, 2_040, 6_149, "mean_per_class", "torchvision, Oxford VGG"),
    "mnist": Table9Set("MNIST", 10, 60_000, 10_000, "accuracy", "torchvision, yann.lecun.com"),
    "fer2013": Table9Set(
        "Facial Emotion Recognition 2013",
        8,
        32_298,
        3_589,
        "accuracy",
        "Kaggle, fer2013",
        note="7 classes; train is Training and PublicTest, test is PrivateTest",
    ),
    "stl10": Table9Set("STL-10", 10, 5_000, 8_000, "accuracy", "torchvision, Stanford"),
    "gtsrb": Table9Set(
        "GTSRB",
        43,
        26_728,
        12_630,
        "accuracy",
        "torchvision, Ruhr-Universität Bochum",
        note="26,640 training images here",
    ),
    "pcam": Table9Set("PatchCamelyon", 2, 294_912, 32_768, "accuracy", "torchvision, Zenodo"),
    "ucf101": Table9Set(
        "UCF101",
        101,
        9_537,
        3_783,
        "accuracy",
        "the UCF101 page",
        note="the middle frame of each video; the first of three official splits",
    ),
    "hateful_memes": Table9Set(
        "Hateful Memes", 2, 8_500, 500, "roc_auc", "the Hateful Memes challenge of Facebook AI", note="test is dev_seen"
    ),
}


def metric_of(name: str) -> MetricName:
    """Return the metric of a data set by its name; "accuracy" if the set is not in Table 9.

    Example:
        >>> metric_of("pets"), metric_of("photos")
        ('mean_per_class', 'accuracy')
    """
    return TABLE9[name].metric if name in TABLE9 else "accuracy"
