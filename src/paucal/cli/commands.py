"""The commands that parse their settings and call one function of `paucal.verbs`: convert, eval, explain and others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from paucal.cli.arguments import CommandParser, parse_with_settings
from paucal.settings.shared import DATA_HELP


@dataclass(frozen=True)
class Command:
    """A command that calls a function of `paucal.verbs` with its positional arguments, its settings and a console."""

    settings: str  # name of the settings dataclass in `paucal.verbs.VERB.settings`
    function: str  # name of the function in `paucal.verbs.VERB.launch`
    arguments: Mapping[str, Mapping[str, Any]]  # options of each positional argument, by name
    description: str
    skip: Sequence[str] = ()  # names of settings that have no flag, since positional arguments give their values


COMMANDS = {
    "convert": Command(
        "ConvertSettings",
        "convert_set",
        {
            "data": {"help": f"images: {DATA_HELP}; images with masks, or with boxes"},
            "output": {"help": "new or empty folder for the images and their labels"},
        },
        """Write a data set, with its images and splits, in another layout for other programs or paucal commands.
Boxes can be written as yolo, coco, voc, csv, label-studio or cvat; boxes with outlines can also be written as masks.
Masks can be written as index masks or coco, and classes of images as folders, csv, label-studio or cvat. Annotations
that the layout cannot store are counted and reported.""",
        skip=("data", "output"),
    ),
    "eval": Command(
        "EvalSettings",
        "evaluate_model",
        {
            "run": {"metavar": "MODEL", "help": "run folder; with --protocol also a weights file or timm model"},
            "sources": {"nargs": "*", "metavar": "DATA", "help": f"labelled images: {DATA_HELP}"},
        },
        """Evaluate the model of a run on labelled images, a detector on boxes, a segmentation network on masks.
Without DATA, or if DATA is the data set of the run, the run's test images are used. For another data set, the test
split is used (the validation split if there is no test split), or else all images. Images that were used to train or
select the model are left out. --protocol (knn, linear, logistic, correspondence or few-labels) evaluates a frozen
backbone instead, which can be the backbone of a run, a weights file, or any timm model. The backbone is compared with
the same architecture with random weights.""",
        skip=("data",),
    ),
    "explain": Command(
        "ExplainSettings",
        "explain_all",
        {
            "model": {"help": "run folder, or a timm model with published weights"},
            "images": {"nargs": "+", "help": "images, folders or patterns"},
        },
        """Draw the attention of a trained model, attributions of its predictions, and its features.
IMAGES are files, folders (searched to any depth), Parquet files, or patterns such as 'photos/*.jpg'. --show matches
takes two images, or a single image, which is then compared with its mirror image. --show localization needs a run that
was trained with DrLoc.""",
    ),
    "export": Command(
        "ExportSettings",
        "export_all",
        {"run": {"help": "run folder"}},
        """Write the model of a run for other programs: weights that timm and the Hugging Face hub read, a
torch.export program, an ONNX model, or an 8-bit model. Each exported model is compared with the original on real
images before it is kept.""",
    ),
    "label": Command(
        "LabelSettings",
        "label_set",
        {"data": {"help": f"images: {DATA_HELP}"}},
        """Write label maps: a trained classifier (the teacher) predicts classes for grid cells of every image.
'paucal train --method token-labeling --labels' trains on these maps. The teacher is first evaluated on labelled images.
To continue an interrupted command, repeat the command. With --from-published, maps that the authors of token labeling
published (one file per image) are converted instead.""",
        skip=("data",),
    ),
    "next": Command(
        "NextSettings",
        "choose_next",
        {
            "run": {"help": "run folder of 'paucal train', 'detect' or 'segment'"},
            "data": {"help": "unlabelled images: a folder, table, archive, Parquet file, ..."},
        },
        """Choose the unlabelled images that are worth labelling next.
The command chooses images for which the model is uncertain and which resemble many other images, and some random
images. Duplicates and images that the run already has labels for are left out. --output writes a list of the chosen
images with predictions. --to writes the images and predictions for a labelling tool, in which you correct the
predictions; 'paucal train', 'detect' and 'segment' read the tool's exports.""",
        skip=("data",),
    ),
    "serve": Command(
        "ServeSettings",
        "serve",
        {"run": {"nargs": "?", "help": "run folder, exported folder, or .onnx file; not needed with --classes"}},
        """Open a page in your browser to try a model: drop an image and see its classes with calibrated
probabilities, whether the image resembles the training images, and the evidence for the prediction. No data leaves this
machine. With --label, the page shows unlabelled images, the most useful first; you label each image with one key, and
--save stores the labels. To label without a model, give --classes.""",
    ),
    "shard": Command(
        "ShardSettings",
        "shard_set",
        {
            "data": {"help": f"images: {DATA_HELP}"},
            "output": {"help": "new or empty folder for the shards, or a URL such as s3://bucket/set"},
        },
        """Write the images of a data set into shards: a few large files instead of millions of small files.
Each split gets its own shards, with its images in random order. Image files are stored unchanged, and unreadable images
are reported. An index lets a run on a million images begin in seconds, on this machine or from object storage. Data
sets of up to a few hundred thousand images on a local disk do not need shards: paucal decodes these images once and
caches the result.""",
        skip=("data", "output"),
    ),
}


def run(verb: str, argv: Sequence[str]) -> int:
    """Run one of `COMMANDS` and return the exit code."""
    command = COMMANDS[verb]
    settings_type = getattr(import_module(f"paucal.verbs.{verb}.settings"), command.settings)
    parser = CommandParser(verb, command.description)
    for name, options in command.arguments.items():
        parser.add_argument(name, **options)
    values, settings = parse_with_settings(parser, settings_type, argv, command.skip)
    from paucal.runner.console import Console

    function = getattr(import_module(f"paucal.verbs.{verb}.launch"), command.function)
    # Positional arguments in `skip` are fields of `settings`.
    further_values = [getattr(values, name) for name in command.arguments if name not in command.skip]
    function(*further_values, settings, Console())
    return 0
