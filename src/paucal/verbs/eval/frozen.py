"""`paucal eval --protocol knn ...`: evaluation of frozen backbones on data sets, with a table and figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, count, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paucal.data.channels.pixel_format import bit_depth_notes
from paucal.data.dataset import SampleKey, ViewDataset
from paucal.data.decoded.cache_folder import features_folder
from paucal.data.loader import inference_batch_size
from paucal.evaluation.plots import save_figure
from paucal.evaluation.protocols import table
from paucal.evaluation.protocols.correspondence import TOP, Change, SecondView, true_positions
from paucal.evaluation.protocols.data import TABLE9, EvaluationData, balanced_sample
from paucal.evaluation.protocols.evaluate import MULTI_LABEL, Protocol, ProtocolOptions, evaluate_backbone
from paucal.evaluation.protocols.features import POOLED, Extraction, FeatureReader, parse_kind
from paucal.evaluation.protocols.linear_probe import ProbeSettings
from paucal.evaluation.protocols.logistic import SolverSettings
from paucal.evaluation.seen_images import Identities, list_seen_images, require_unseen, seen_unlabelled
from paucal.explain.features import Correspondence, match_images
from paucal.explain.figures.cells import MatchedPair, matches_figure
from paucal.explain.figures.pictures import visible_region
from paucal.metrics.intervals import Bootstrap
from paucal.models.named import RANDOM_NAME, FrozenBackbone, find_run, open_frozen, random_baseline
from paucal.report.page import REPORT_FILE, write_report
from paucal.report.pretraining import write_pretraining_report
from paucal.runner.console import Console
from paucal.runner.images import decode_options_for_size
from paucal.runner.inference import check_batch_memory
from paucal.runs import RunFolder
from paucal.runs.folder import find_run_of_init
from paucal.settings.options import setting_fields
from paucal.types import UserError
from paucal.verbs.eval.images import open_data, seen_with_labels
from paucal.verbs.eval.settings import EvalSettings, FrozenSettings

SUITE = "table9"  # value of DATA for all data sets of `TABLE9`
# Function that writes the report of a run, by the command that trained the run.
REPORTS = {"train": write_report, "pretrain": write_pretraining_report}
MAX_COMPARED = table.MAX_MODELS - 2  # the evaluated model and the random model are also in the table
MATCHED_IMAGES = 2  # number of images whose matches are drawn, for each kind of second view
CHANGE_TITLES: dict[Change, str] = {"mirror": "mirrored", "crop": "cropped"}


@dataclass(frozen=True)
class FrozenTable:
    """Scores of frozen backbones on data sets.

    Attributes:
        rows: A row for each data set, protocol and score, with the score of every model and the gains of the first
            model over the other models.
        about: Description of the models, data sets and settings, as JSON values.
        folder: Folder of the table.
    """

    rows: Sequence[table.ProtocolRow]
    about: Mapping[str, Any]
    folder: Path


def evaluate_frozen(
    model: str,
    data: Sequence[str],
    protocols: Sequence[Protocol],
    settings: EvalSettings,
    folder: Path,
    console: Console,
) -> FrozenTable:
    """Evaluate a model, the models to compare it with, and a randomly initialised model; print and store the table.

    If `data` is empty, the images of the run are used; "table9" in `data` means all available data sets of that suite.
    """
    names = [model]
    if settings.compare is not None:
        names += settings.compare
    if settings.cache is not None and settings.no_cache:
        raise UserError("--cache and --no-cache contradict each other: remove either one.")
    if len(names) - 1 > MAX_COMPARED:
        raise UserError(
            f"--compare names {len(names) - 1} models, but at most {MAX_COMPARED} are supported: give fewer models."
        )
    run = find_run(model)
    if run is None and not data:
        raise UserError(f"give DATA to evaluate {model!r} on, before the flags: only a run has its own images.")
    subjects = _open_subjects(names, settings, protocols, console)
    options = _protocol_options(settings, subjects[0])
    rows: list[table.ProtocolRow] = []
    set_descriptions: list[dict[str, Any]] = []
    pictured_data: EvaluationData | None = None
    for opened_data in _open_sets(data, run, subjects, settings, console):
        images, seen_remarks = _leave_out_seen(opened_data, names, console)
        # Some sets of the suite have several classes per image, which some protocols do not support.
        applied: list[Protocol] = [
            name for name in protocols if SUITE not in data or images.labels.ndim == 1 or name in MULTI_LABEL
        ]
        scores = [evaluate_backbone(subject, images, applied, options, console.progress) for subject in subjects]
        outcomes = dict(zip((subject.name for subject in subjects), scores, strict=True))
        rows += table.compare(images.name, outcomes, Bootstrap(settings.seed, settings.bootstrap))
        facts = {"classes": images.n_classes, "metric": images.metric, "how": images.split_description}
        set_descriptions.append({"name": images.name, **images.counts(), **facts, "seen_unlabelled": seen_remarks})
        pictured_data = pictured_data or (images if "correspondence" in applied else None)
    if not rows:
        raise UserError("none of the data sets was found: put the data sets below --data-root, or give --download.")
    console.show(table.protocol_table(rows, Bootstrap().level))
    for text in table.remarks(rows):
        console.say(text)
    description = _describe_evaluation(subjects, set_descriptions, settings, protocols)
    table.store_table(folder, rows, description)
    if drawable := table.shown_rows(rows):
        save_figure(folder / table.SCORES_PICTURE, table.protocols_figure(drawable, description["level"]))
    else:  # the figure of an earlier evaluation would be mistaken for these scores
        (folder / table.SCORES_PICTURE).unlink(missing_ok=True)
    _draw_matches(folder, subjects[0], pictured_data, options, console)
    console.say(f"the table and its figures are in {folder}")
    if run is not None and run.config.exists() and folder == run.evaluation(table.FOLDER):
        _update_report(run, console.say)
    return FrozenTable(rows, description, folder)


def _open_subjects(
    names: Sequence[str], settings: EvalSettings, protocols: Sequence[Protocol], console: Console
) -> list[FrozenBackbone]:
    """Open the models and print their names, sizes and weights; refuse a model without the requested features."""
    is_run = {name: find_run(name) is not None for name in names}
    options = {name: getattr(settings, name) for name in ("model", "network", "pretrained", "seed")}
    subjects = []
    for name in names:
        # A run that is compared with a timm model keeps its input size; --img-size is refused if all models are runs.
        image_size = None if is_run[name] and not all(is_run.values()) else settings.img_size
        subjects.append(open_frozen(name, settings.device, image_size=image_size, **options))
    used_names = {RANDOM_NAME}
    for number, subject in enumerate(subjects):
        numbered_names = (f"{subject.name} ({suffix})" for suffix in count(2))
        name = next(name for name in chain([subject.name], numbered_names) if name not in used_names)
        used_names.add(name)
        subjects[number] = replace(subject, name=name)
    if not settings.no_floor and not subjects[0].random:
        subjects.append(random_baseline(subjects[0], settings.seed))
    for subject in subjects:
        check_batch_memory(_batch_size(settings, subject), subject.preprocessing.image_size)
        if settings.features != "auto" and set(protocols) - {"correspondence"}:
            FeatureReader(subject.backbone, [parse_kind(settings.features)]).close()
    for subject in subjects:
        size = f"{subject.parameters / 1e6:.2f} M parameters"
        console.say(f"{subject.name}: {subject.spec.name}, {size}, {subject.weights}")
    return subjects


def _batch_size(settings: EvalSettings, subject: FrozenBackbone) -> int:
    return inference_batch_size(subject.preprocessing.image_size, subject.device.type, settings.batch_size)


def _protocol_options(settings: EvalSettings, first: FrozenBackbone) -> ProtocolOptions:
    folder = None if settings.no_cache else Path(settings.cache).expanduser() if settings.cache else features_folder()
    kind = None if settings.features == "auto" else parse_kind(settings.features)
    on_gpu = first.device.type == "cuda"
    backend = settings.solver if settings.solver != "auto" else "torch" if on_gpu else "sklearn"
    dtype = {"float32": torch.float32, "float16": torch.float16}[settings.feature_dtype]
    return ProtocolOptions(
        features=kind or POOLED,
        probe_features=kind,
        extraction=Extraction(_batch_size(settings, first), settings.workers, dtype, folder),
        solver=SolverSettings(backend),
        probe=ProbeSettings(epochs=settings.probe_epochs, seed=settings.seed),
        augment=settings.augment,
        seed=settings.seed,
    )


def _open_sets(
    data: Sequence[str],
    run: RunFolder | None,
    subjects: Sequence[FrozenBackbone],
    settings: EvalSettings,
    console: Console,
) -> Iterator[EvaluationData]:
    """Open the data sets one by one; a missing data set of the suite is skipped with a note.

    The resolution fits the model with the largest input. Pixel values of more than 8 bits are converted as for the
    first model.
    """
    inputs = [subject.preprocessing for subject in subjects]
    if len({preprocessing.channels for preprocessing in inputs}) > 1:
        channels = ", ".join(f"{subject.name} {subject.preprocessing.channels}" for subject in subjects)
        raise UserError(f"the models read different numbers of channels ({channels}): use separate calls.")
    largest_side = max(max(preprocessing.image_size) for preprocessing in inputs)
    decode_options = decode_options_for_size([largest_side], inputs[0].decode_options)
    named_sets = [target for target in data if target != SUITE]
    for target in ([*TABLE9, *named_sets] if SUITE in data else named_sets) or [None]:
        try:
            opened_data = open_data(target, run, settings, console, decode_options)
        except UserError as problem:
            if SUITE not in data or target not in TABLE9:
                raise
            console.say(f"left out: {problem}")
            continue
        for note in (*opened_data.images.notes, *bit_depth_notes(opened_data.images, decode_options)):
            console.say(f"note: {note}")
        counts = ", ".join(f"{images} {part}" for part, images in opened_data.counts().items())
        console.say(f"{opened_data.name}: {counts}; {opened_data.split_description}")
        yield opened_data


def _leave_out_seen(
    data: EvaluationData, models: Sequence[str], console: Console
) -> tuple[EvaluationData, dict[str, list[str]]]:
    """Leave out the test images whose labels the first model has seen; refuse other models that saw their labels.

    Print and return, by model, how many of the remaining images were used for pre-training without labels.
    """
    runs, model = {name: find_run(name) or find_run_of_init(name) for name in models}, models[0]
    test = data.split_positions["test"]
    if (run := runs[model]) is not None:
        unseen = test[~seen_with_labels(list_seen_images(run), Identities(data.images, streamed=True))[test]]
        if not len(unseen):
            require_unseen(model, run, data.images, test)
        elif len(unseen) < len(test):
            console.say(
                f"note: left out {len(test) - len(unseen)} of the {len(test)} test images of {data.name}, which "
                f"{model}, or a run it started from, used for training or selection; {len(unseen)} remain"
            )
        data, test = replace(data, split_positions={**data.split_positions, "test": unseen}), unseen
    for name, run in runs.items():
        require_unseen(name, run, data.images, test)
    sentences = {name: seen_unlabelled(run, data.images, test) for name, run in runs.items()}
    for text in dict.fromkeys(text for texts in sentences.values() for text in texts):
        console.say(text)
    return data, sentences


def _describe_evaluation(
    subjects: Sequence[FrozenBackbone], sets: list[dict[str, Any]], settings: EvalSettings, protocols: Sequence[str]
) -> dict[str, Any]:
    return {
        "models": [
            {
                "name": subject.name,
                "backbone": subject.spec.to_dict(),
                "weights": subject.weights,
                "parameters": subject.parameters,
                "preprocessing": subject.preprocessing.to_dict(),
                "fingerprint": subject.fingerprint,
            }
            for subject in subjects
        ],
        "data": sets,
        "protocols": list(protocols),
        "settings": {name: getattr(settings, name) for name in setting_fields(FrozenSettings)},
        "level": Bootstrap().level,
    }


def _update_report(run: RunFolder, say: Callable[[str], None]) -> None:
    """Rewrite the report of a run, if there is one; a failure is only printed, since the scores are stored."""
    write = REPORTS.get(run.verb)
    if write is None or not (run.path / REPORT_FILE).is_file():
        return
    try:
        say(f"added the scores to the report of the run: {write(run.path)}")
    except (UserError, OSError) as problem:
        say(f"note: the report of the run could not be updated ({problem})")


def _draw_matches(
    folder: Path, subject: FrozenBackbone, data: EvaluationData | None, options: ProtocolOptions, console: Console
) -> None:
    """Draw the most confident matches between a few test images and their second views, or print why this fails."""
    with suppress(OSError):  # the figure of an earlier evaluation would be mistaken for matches of this model
        (folder / table.MATCHES_PICTURE).unlink(missing_ok=True)
    if data is None:
        return
    try:
        sample = balanced_sample(data.labels, data.split_positions["test"], MATCHED_IMAGES, options.seed)
        transform, size = subject.preprocessing.transform(), subject.preprocessing.image_size
        pairs = []
        for index, change in product(map(int, sample), options.changes):
            views = [(transform, 1), (SecondView(change, transform), 1)]
            dataset = ViewDataset(data.images, views, options.seed, with_labels=False, with_geometry=True)
            view_sample = dataset[SampleKey(0, index)]
            first, second = (view.to(subject.device) for view in view_sample.views)
            picture, geometry = data.images.store.read(index), view_sample.geometry or []
            all_matches = match_images(subject.backbone.model, first, second, first[0].numel())
            matches, is_correct = scored_matches(all_matches, geometry)
            correct_text = f"{int(is_correct.sum())} of {len(is_correct)} correct"
            names = (f"test image {index}", f"{CHANGE_TITLES[change]}: {correct_text}")
            pictures = visible_region(picture, geometry[0], size), visible_region(picture, geometry[1], size)
            pairs.append(MatchedPair(pictures, matches, names, is_correct))
        save_figure(folder / table.MATCHES_PICTURE, matches_figure(pairs))
    except Exception as problem:  # the scores are more important than the figure
        reason = str(problem).split("\n")[0].rstrip(".") or type(problem).__name__
        console.say(f"note: the matches are not drawn ({reason}).")


def scored_matches(matches: Correspondence, geometry: Sequence[Tensor]) -> tuple[Correspondence, Tensor]:
    """Return the matches that the protocol scores, and a mask of the correct matches among them.

    The protocol scores the most confident matches whose true position is within the second view. `matches` has a match
    for each grid position of the first view, the most confident first. `geometry` has a (2, 3) affine matrix for each
    view, which maps positions in the view to positions in the image.
    """
    grid, (rows, columns) = matches.grids
    first, second = matches.first.cpu(), matches.second.cpu()
    positions = true_positions(geometry[0][None], geometry[1][None], grid)[0][first @ torch.tensor([grid[1], 1])]
    true_cells = ((positions.flip(1) + 1) / 2 * torch.tensor([rows, columns])).floor().long()
    scored_rows = ((true_cells >= 0) & (true_cells < torch.tensor([rows, columns]))).all(1).nonzero()[:TOP, 0]
    first, second = first[scored_rows], second[scored_rows]
    scored = replace(matches, first=first, second=second, similarity=matches.similarity.cpu()[scored_rows])
    return scored, (second == true_cells[scored_rows]).all(1)
