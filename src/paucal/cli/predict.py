"""`paucal predict`: classify images, detect objects in images, or predict segmentation masks, with a trained model."""

import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from paucal.cli.arguments import CommandParser, add_settings, build_settings, parse_arguments
from paucal.types import UserError
from paucal.verbs.predict.settings import MovingSettings, OutputSettings, PredictSettings
from paucal.wording import escape_controls

if TYPE_CHECKING:
    from paucal.runner.console import Console

DESCRIPTION = """Classify images with a model of 'paucal train', detect objects with a model of 'paucal detect', or
write segmentation masks with a model of 'paucal segment'.
PATHS are image files, folders (searched to any depth), Parquet files, or patterns such as 'photos/*.jpg'.
If a command with --output was stopped, repeat the command to continue it.
PATHS may also be videos or cameras (camera:0, rtsp://...), and --watch classifies each new image in a folder."""
CLASSIFIER_SETTINGS = ("top_k", "features", "sheet")  # names of settings that are only for classifiers


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = CommandParser("predict", DESCRIPTION)
    parser.add_argument("run", help="run folder")
    # PATHS are optional only with --watch, since argparse ends an optional list ("*") at the first flag and would
    # refuse paths after that flag.
    path_nargs = "*" if any(argument.partition("=")[0] == "--watch" for argument in argv) else "+"
    parser.add_argument("paths", nargs=path_nargs, help="images, folders or patterns; or videos, or camera:0")
    for settings_type in (OutputSettings, PredictSettings, MovingSettings):
        add_settings(parser, settings_type)
    values, given = parse_arguments(parser, argv)
    from paucal.export.reading import task_of_model
    from paucal.models.tasks import DETECTION, REGRESSION, SEGMENTATION
    from paucal.runner.console import Console
    from paucal.runner.plain_console import PlainConsole
    from paucal.settings.options import check_ranges

    settings, outputs = build_settings(values, PredictSettings), build_settings(values, OutputSettings)
    check_ranges(settings)
    check_ranges(outputs)
    has_streams = _has_streams(values.paths, values.watch, given)
    console, task = Console(PlainConsole(stderr=True)), task_of_model(values.run)
    if outputs.to is not None:
        from paucal.verbs.predict.layouts import predict_as_labels

        _refuse_flags(given, ("format", "pictures", *CLASSIFIER_SETTINGS), "--{} is not supported with --to")
        if has_streams:
            raise UserError("--to is not supported for videos, cameras and --watch: remove --to, or give images.")
        predict_as_labels(values.run, values.paths, settings, outputs, console)
        return 0
    if task == REGRESSION:
        _refuse_flags(given, ("pictures", *CLASSIFIER_SETTINGS), "--{} is for classifiers and detectors")
    if has_streams:
        from paucal.verbs.predict.moving import predict_moving

        predict_moving(values.run, values.paths, settings, outputs, build_settings(values, MovingSettings), console)
    elif task == SEGMENTATION:
        _write_masks(values, settings, given, console)
    elif task == DETECTION:
        _refuse_flags(given, CLASSIFIER_SETTINGS, "--{} is for classifiers, but this model is a detector")
        _write_table(values, settings, outputs, console, is_detector=True)
    elif task == REGRESSION:
        _write_table(values, settings, outputs, console, is_detector=False)
    else:
        from paucal.verbs.predict.writing import predict_to_files

        _refuse_flags(given, ["pictures"], "--{} draws detections, but this model is a classifier")
        for text in predict_to_files(values.run, values.paths, settings, outputs, console):
            _print_text(text)
    return 0


def _has_streams(paths: Sequence[str], watch: str | None, given: Mapping[str, str]) -> bool:
    """Return whether the input is videos, cameras or a watched folder; if not, refuse flags for such input."""
    from paucal.verbs.predict.video import is_video_source

    has_streams = watch is not None or any(map(is_video_source, paths))
    for name in ("every", "idle", "annotated"):
        if name in given and not has_streams:
            raise UserError(f"--{name} is for videos, cameras and --watch: remove --{name}, or give a video.")
    return has_streams


def _write_table(
    values: Namespace, settings: PredictSettings, outputs: OutputSettings, console: "Console", is_detector: bool
) -> None:
    """Write the boxes of a detector, or the target values of a regression model, to --output or standard output."""
    from paucal.export.reading import load_model
    from paucal.runner.writable import resolve_table
    from paucal.verbs.predict.launch import open_pictures
    from paucal.verbs.predict.regression import as_text, predict_target_values
    from paucal.writing import write_text

    output, table_format = None, outputs.format
    if outputs.output is not None:
        output, table_format = resolve_table(outputs.output, table_format)
    if is_detector:
        from paucal.verbs.predict.detection import detect_as_text

        text = detect_as_text(values.run, values.paths, settings, replace(outputs, format=table_format), console)
    else:
        prepared = open_pictures(load_model(values.run, settings.device), values.paths, settings, console)
        text = as_text(predict_target_values(*prepared, console), table_format or "csv")
    if output is None:
        _print_text(text)
    else:
        write_text(output, text)


def _write_masks(values: Namespace, settings: PredictSettings, given: Mapping[str, str], console: "Console") -> None:
    from paucal.reading import expand_user_path
    from paucal.runner.writable import FORMATS, UNSUPPORTED_FORMATS
    from paucal.verbs.predict.segmentation import MASKS, OVERLAYS, segment_all
    from paucal.wording import counted, percent

    if values.output is None:
        raise UserError("this model predicts masks: give a new folder for the masks with --output.")
    flags = ("batch_size", "format", "pictures", *CLASSIFIER_SETTINGS)
    _refuse_flags(given, flags, "--{} is for classifiers and detectors, but this model predicts masks")
    folder = expand_user_path(values.output)
    if folder.suffix.lower() in {**FORMATS, **UNSUPPORTED_FORMATS}:
        raise UserError(f"--output: {values.output!r} is a file name, but masks need a folder: give a new folder.")
    predictions = segment_all(values.run, values.paths, folder, settings, console)
    count = len(predictions)
    console.say(f"{counted(count, 'mask')} in {folder / MASKS}, overlays in {folder / OVERLAYS}")
    if predictions:
        names = list(predictions[0].shares)[:8]
        means = {name: sum(prediction.shares[name] for prediction in predictions) / count for name in names}
        shares = ", ".join(f"{name} {percent(share)}" for name, share in means.items())
        console.say(f"mean fraction of the pixels: {shares}")


def _refuse_flags(given: Mapping[str, str], flags: Iterable[str], message: str) -> None:
    """Raise a UserError for the first of `flags` that was given; the flag's name replaces {} in `message`."""
    for name in flags:
        if name in given:
            raise UserError(f"{message.format(name.replace('_', '-'))}: remove --{name.replace('_', '-')}.")


def _print_text(text: str) -> None:
    # Control characters in file names are escaped only on a terminal. Other programs receive the names unchanged.
    sys.stdout.write(escape_controls(text) if sys.stdout.isatty() else text)
