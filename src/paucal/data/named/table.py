"""The table of published data sets (`NAMED`): the splits, where to download the files, and where to put the files.

Files have the same paths as torchvision uses, so data sets that another program has downloaded can be used.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paucal.data.images import Hints

ROOT_VARIABLE = "PAUCAL_DATA"  # environment variable with the folder of published data sets
_DEFAULT_HINTS = Hints()
# Folders that may have training images of Open Images.
OPEN_IMAGES_FOLDERS = ("train", *(f"train_{digit:x}" for digit in range(16)))
_DIGIT_OR_SIGN_HINTS = Hints(flip=False, image_size=32)  # a mirrored digit or sign means something else


@dataclass(frozen=True)
class Portion:
    """The images that torchvision's class, or our own reader of a set, opens in one call with these `arguments`."""

    part: str  # split of the images; "" if the data set has no official splits
    count: int  # published number of images
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class PartitionLists:
    """List files that define an official partition of a data set; each file lists the images of one split."""

    title: str
    files: Mapping[str, str]  # name of the list file of each split
    counts: Mapping[str, int]  # published number of images of each split
    archive: str  # official archive of the lists, for messages
    folders: tuple[str, ...]  # folders that are searched for the lists; the first is recommended
    prefix: str  # text that is put before a line of a list to get the path of an image from the root
    example: str  # line of a list, for messages


@dataclass(frozen=True)
class NamedSet:
    """A published data set."""

    title: str
    portions: tuple[Portion, ...]  # parts of the data set; several may belong to the same split
    files: str  # names of the official files on the page `source`, for messages
    source: str  # URL of the page with the official files
    unpacked_paths: tuple[str, ...]  # paths that exist once the files are unpacked, relative to one of `possible_roots`
    folder: str = ""  # folder for the files, relative to the root
    hints: Hints = _DEFAULT_HINTS
    package: str = ""  # extra package that is needed to read the data set
    download_package: str = ""  # extra package that is needed to download the data set
    downloadable: bool = True  # whether torchvision can download the files
    # Why torchvision cannot download the files, as the beginning of a sentence.
    download_obstacle: str = "torchvision can no longer download it"
    note: str = ""  # differences from the official images, splits or classes
    lists: PartitionLists | None = None  # lists of an official partition that torchvision does not know
    possible_roots: tuple[str, ...] = ("",)  # folders, relative to the root, that may contain `unpacked_paths`
    # Folders beside `unpacked_paths`. If any are given, at least one of them must exist.
    alternative_folders: tuple[str, ...] = ()
    labelled: bool = True  # whether paucal reads the labels


def is_published_set(location: str | Path, root: str | Path | None = None) -> bool:
    """Return whether this is the name of a published set; an existing path has precedence unless `root` is set."""
    return isinstance(location, str) and location in NAMED and (root is not None or not Path(location).exists())


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of published sets: `root`, `PAUCAL_DATA`, else `paucal/data` in the user's cache folder."""
    if root is None:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        root = os.environ.get(ROOT_VARIABLE) or f"{cache}/paucal/data"
    return Path(root).expanduser().resolve()


def find_set_root(entry: NamedSet, root: Path) -> Path | None:
    """Return the folder that the paths of a data set are relative to; None if files of the data set are missing."""
    for folder in (root / subfolder for subfolder in entry.possible_roots):
        alternatives = [(folder / path).is_dir() for path in entry.alternative_folders]
        if all((folder / path).exists() for path in entry.unpacked_paths) and (not alternatives or any(alternatives)):
            return folder
    return None


def advice_on_missing(name: str, root: Path, download_failed: bool = False) -> str:
    """Return what to do about missing files of a data set, as the second half of a sentence."""
    entry = NAMED[name]
    advice = f"put {entry.files} from {entry.source} into {root / entry.folder}"
    download = "" if not entry.downloadable else "try again, or " if download_failed else "give --download, or "
    obstacle = "" if entry.downloadable else f"{entry.download_obstacle}, so "
    # torchvision does not download an archive that exists, but still requires the package for downloads.
    unpack = " and give --download to unpack them" if entry.downloadable and not entry.download_package else ""
    return f"{obstacle}{download}{advice}{unpack}, or name the folder that contains the data set with --data-root"


def _split_portions(**counts: int) -> tuple[Portion, ...]:
    """Return portions of a torchvision class with an argument `split`, from the number of images of each split."""
    return tuple(Portion(part, count, {"split": part}) for part, count in counts.items())


def _cifar_set(title: str, number: int) -> NamedSet:
    return NamedSet(
        title=title,
        portions=(Portion("train", 50_000, {"train": True}), Portion("test", 10_000, {"train": False})),
        files=f"cifar-{number}-python.tar.gz",
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        unpacked_paths=("cifar-10-batches-py" if number == 10 else "cifar-100-python",),
    )


NAMED: dict[str, NamedSet] = {
    "cifar10": _cifar_set("CIFAR-10", 10),
    "cifar100": _cifar_set("CIFAR-100", 100),
    "mnist": NamedSet(
        title="MNIST",
        portions=(Portion("train", 60_000, {"train": True}), Portion("test", 10_000, {"train": False})),
        files="the four files {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz",
        source="http://yann.lecun.com/exdb/mnist/",
        folder="MNIST/raw",
        unpacked_paths=tuple(
            f"MNIST/raw/{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
        ),
        hints=_DIGIT_OR_SIGN_HINTS,
    ),
    "svhn": NamedSet(
        title="Street View House Numbers",
        portions=_split_portions(train=73_257, test=26_032),
        files="train_32x32.mat and test_32x32.mat",
        source="http://ufldl.stanford.edu/housenumbers/",
        unpacked_paths=("train_32x32.mat", "test_32x32.mat"),
        hints=_DIGIT_OR_SIGN_HINTS,
        package="scipy",
    ),
    "stl10": NamedSet(
        title="STL-10",
        portions=_split_portions(train=5_000, test=8_000),
        files="stl10_binary.tar.gz",
        source="https://cs.stanford.edu/~acoates/stl10/",
        unpacked_paths=("stl10_binary",),
        note="the 100,000 images without labels are not used",
    ),
    "food101": NamedSet(
        title="Food-101",
        portions=_split_portions(train=75_750, test=25_250),
        files="food-101.tar.gz",
        source="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
        unpacked_paths=("food-101/meta", "food-101/images"),
    ),
    "dtd": NamedSet(
        title="Describable Textures",
        portions=_split_portions(train=1_880, val=1_880, test=1_880),
        files="dtd-r1.0.1.tar.gz",
        source="https://www.robots.ox.ac.uk/~vgg/data/dtd/",
        folder="dtd",
        unpacked_paths=("dtd/dtd",),
        note="the splits are those of the first of the ten official partitions",
    ),
    "pets": NamedSet(
        title="Oxford-IIIT Pet",
        portions=(Portion("train", 3_680, {"split": "trainval"}), Portion("test", 3_669, {"split": "test"})),
        files="images.tar.gz and annotations.tar.gz",
        source="https://www.robots.ox.ac.uk/~vgg/data/pets/",
        folder="oxford-iiit-pet",
        unpacked_paths=("oxford-iiit-pet/images", "oxford-iiit-pet/annotations"),
    ),
    "flowers102": NamedSet(
        title="Oxford 102 Flowers",
        portions=(
            Portion("train", 1_020, {"split": "train"}),
            Portion("train", 1_020, {"split": "val"}),
            Portion("test", 6_149, {"split": "test"}),
        ),
        files="102flowers.tgz, imagelabels.mat and setid.mat",
        source="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
        folder="flowers-102",
        unpacked_paths=("flowers-102/jpg", "flowers-102/imagelabels.mat", "flowers-102/setid.mat"),
        package="scipy",
        note="train is the official train and validation images together, as in the DrLoc paper",
    ),
    "gtsrb": NamedSet(
        title="German Traffic Signs",
        portions=_split_portions(train=26_640, test=12_630),
        files="GTSRB-Training_fixed.zip, GTSRB_Final_Test_Images.zip and GTSRB_Final_Test_GT.zip",
        source="https://benchmark.ini.rub.de/",
        folder="gtsrb",
        unpacked_paths=("gtsrb/GTSRB/Training", "gtsrb/GTSRB/Final_Test/Images", "gtsrb/GT-final_test.csv"),
        hints=_DIGIT_OR_SIGN_HINTS,
    ),
    "pcam": NamedSet(
        title="PatchCamelyon",
        portions=_split_portions(train=262_144, val=32_768, test=32_768),
        files="the six files camelyonpatch_level_2_split_{train,valid,test}_{x,y}.h5.gz, unpacked,",
        source="https://github.com/basveeling/pcam",
        folder="pcam",
        unpacked_paths=tuple(
            f"pcam/camelyonpatch_level_2_split_{part}_{side}.h5" for part in ("train", "valid", "test") for side in "xy"
        ),
        package="h5py",
        download_package="gdown",
    ),
    "caltech101": NamedSet(
        title="Caltech 101",
        portions=(Portion("", 9_144, {}),),
        files="caltech-101.zip",
        source="https://data.caltech.edu/records/mzrjq-6wc02",
        folder="caltech101",
        unpacked_paths=("caltech101/101_ObjectCategories",),
        hints=Hints(train_per_class=30),
        note="there are no official splits; the background images are a separate class, as in EsViT's table 9",
    ),
    "sun397": NamedSet(
        title="SUN397",
        portions=(Portion("", 108_754, {}),),
        files="SUN397.tar.gz",
        source="https://vision.princeton.edu/projects/2010/SUN/",
        unpacked_paths=("SUN397",),
        lists=PartitionLists(
            title="first of the ten official partitions",
            files={"train": "Training_01.txt", "test": "Testing_01.txt"},
            counts={"train": 19_850, "test": 19_850},
            archive="Partitions.zip (https://vision.princeton.edu/projects/2010/SUN/download/Partitions.zip)",
            folders=("SUN397", "SUN397/Partitions", "Partitions"),
            prefix="SUN397",
            example="/a/abbey/sun_aaalbzqrimafwbiv.jpg",
        ),
    ),
    "aircraft": NamedSet(
        title="FGVC-Aircraft",
        portions=_split_portions(train=3_334, val=3_333, test=3_333),
        files="fgvc-aircraft-2013b.tar.gz",
        source="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
        unpacked_paths=("fgvc-aircraft-2013b",),
        note="the classes are the 100 variants",
    ),
    "cars": NamedSet(
        title="Stanford Cars",
        portions=_split_portions(train=8_144, test=8_041),
        files="the folders cars_train, cars_test and devkit and the file cars_test_annos_withlabels.mat",
        source="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        folder="stanford_cars",
        unpacked_paths=(
            *("stanford_cars/cars_train", "stanford_cars/cars_test"),
            *("stanford_cars/devkit", "stanford_cars/cars_test_annos_withlabels.mat"),
        ),
        package="scipy",
        downloadable=False,
    ),
    "fer2013": NamedSet(
        title="FER2013",
        portions=(
            Portion("train", 28_709, {"usage": "Training"}),
            Portion("val", 3_589, {"usage": "PublicTest"}),
            Portion("test", 3_589, {"usage": "PrivateTest"}),
        ),
        files="fer2013.csv (out of fer2013.tar.gz)",
        source="https://www.kaggle.com/c/challenges-in-representation-learning-facial-expression-recognition-challenge",
        folder="fer2013",
        unpacked_paths=("fer2013/fer2013.csv",),
        downloadable=False,
        download_obstacle="Kaggle only offers it to signed-in users",
    ),
    "ucf101": NamedSet(
        title="UCF101",
        portions=_split_portions(train=9_537, test=3_783),
        files="the folder ucfTrainTestlist and each video's middle frame, as UCF-101/<class>/<video>.jpg,",
        source="https://www.crcv.ucf.edu/data/UCF101.php",
        folder="ucf101",
        unpacked_paths=("ucf101/ucfTrainTestlist", "ucf101/UCF-101"),
        downloadable=False,
        download_obstacle="its frames must be extracted from videos (docs/published_sets.md says how)",
        note="train and test are those of the first of the three official splits",
    ),
    "hateful_memes": NamedSet(
        title="Hateful Memes",
        portions=(Portion("train", 8_500, {"file": "train.jsonl"}), Portion("test", 500, {"file": "dev_seen.jsonl"})),
        files="train.jsonl, dev_seen.jsonl and the folder img",
        source="https://hatefulmemeschallenge.com",
        folder="hateful_memes",
        unpacked_paths=("hateful_memes/train.jsonl", "hateful_memes/dev_seen.jsonl", "hateful_memes/img"),
        downloadable=False,
        download_obstacle="its licence must be accepted manually",
        note="dev_seen is the test split, as in EsViT's table 9; the text of the memes is not read",
    ),
    "webvision": NamedSet(
        title="WebVision 1.0",
        portions=(
            Portion("train", 980_449, {"file": "train_filelist_google.txt", "folder": "google"}),
            Portion("train", 1_459_125, {"file": "train_filelist_flickr.txt", "folder": "flickr"}),
            Portion("val", 50_000, {"file": "val_filelist.txt", "folder": "val_images_256", "paths_in_folder": True}),
        ),
        files="the folders google, flickr and info, and val_images_256 for testing,",
        source="https://data.vision.ee.ethz.ch/cvl/webvision/download.html",
        folder="webvision",
        unpacked_paths=("info",),
        downloadable=False,
        download_obstacle="its archives must be downloaded manually",
        note="training images have the class of the search query that found them, and nobody has checked these classes",
        possible_roots=("webvision", ""),
        alternative_folders=("google", "flickr"),
    ),
    "openimages": NamedSet(
        title="Open Images V4",
        portions=(Portion("train", 9_011_219, {}),),
        files="the folders of train_0.tar.gz to train_f.tar.gz, or all of their images in one folder train,",
        source="https://github.com/cvdfoundation/open-images-dataset",
        folder="openimages",
        unpacked_paths=(),
        downloadable=False,
        download_obstacle="its archives must be downloaded manually",
        note="only the training images, without labels",
        possible_roots=("openimages", ""),
        alternative_folders=OPEN_IMAGES_FOLDERS,
        labelled=False,
    ),
}
