"""Changes of the model between the last training step and the test: averaging, calibration and thresholds."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.data.images import ImageSet
from paucal.distributed import rank
from paucal.evaluation.calibration import choose_thresholds, fit_temperature
from paucal.evaluation.predictions import Predictions, predict_all
from paucal.models.card import ModelCard
from paucal.models.trained import TrainedModel, load_trained, save_trained
from paucal.runner.console import Console
from paucal.runner.images import eval_loader
from paucal.runner.processes import broadcast_value, wait_for_all
from paucal.runs import RunFolder
from paucal.runs.weights import read_weights
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.auto_tune.first_model import copy_with_head
from paucal.tasks.classification.auto_tune.record import LOSSES_KEY, TuneRecord, calibrated_losses, is_better
from paucal.tasks.classification.auto_tune.refit import refit_head
from paucal.tasks.classification.auto_tune.resumed_features import FROZEN_FILE, FrozenOutputs
from paucal.tasks.classification.images import read_listed_images
from paucal.tasks.classification.trainer_inputs import LOSS_COLUMN, make_val_predictor
from paucal.training import Outcome, Validation
from paucal.training.averaging import KeptEpochs, greedy_soup
from paucal.training.keeper import kept_epochs
from paucal.types import UserError
from paucal.wording import counted, percent


@dataclass(frozen=True)
class PostTrainingChanges:
    """Changes of a trained model before its evaluation."""

    # Epochs whose weights the model has now, averaged if there are several; empty if the weights are unchanged.
    epochs: tuple[int, ...] = ()
    score: float | None = None  # score of the new weights on the validation images; None if they are unchanged
    temperature: float = 1.0  # divisor of the logits; 1 if the model is not calibrated
    images: int = 0  # number of validation images that the temperature was fitted to; 0 if none was fitted
    # Probability per class above which the class is predicted; None for no thresholds.
    thresholds: tuple[float, ...] | None = None
    mirrored: str = ""  # sentence on the gain from averaging over mirror images; "" if there is no gain
    by_loss: bool = False  # whether the model was chosen for its lower loss, at nearly equal accuracy
    head: str = ""  # head that was fitted to features of the final weights; "" if the trained head is kept


def finish_model(run: RunFolder, setup: TrainingSetup, outcome: Outcome, console: Console) -> PostTrainingChanges:
    """Average the weights of epochs, refit the head, calibrate the model, and store the improved model.

    Averaged weights or a refitted head are kept only if they are better on the validation images. The validation images
    are divided among all processes. Every process returns the result; only rank 0 writes files. A run that is killed
    during this step repeats the step when the run is resumed.
    """
    validation = setup.validation()
    if validation is None:
        return PostTrainingChanges()
    wait_for_all()  # until rank 0 has written the files
    changes, epoch_store = PostTrainingChanges(), kept_epochs(run, validation)
    if epoch_store is not None and outcome.rows:
        changes, tuned = _try_average(run, setup, outcome, epoch_store, validation, console)
        if tuned is not None:
            changes = _try_refitted_head(run, setup, outcome, changes, tuned, console)
    if setup.settings.calibrate == "none" and not setup.card.is_multi_label:
        return changes
    model = load_trained(run, setup.settings.device)
    predictions = predict_split(model, setup, "val", console, "calibrating")
    if setup.card.is_multi_label:
        thresholds = choose_thresholds(predictions.probabilities, predictions.labels)
        _replace_model(run, model, model.card.with_thresholds(thresholds))
        return replace(changes, thresholds=thresholds)
    temperature = fit_temperature(predictions.logits, predictions.labels)
    _replace_model(run, model, model.card.at_temperature(temperature))
    mirrored = ""
    if setup.settings.hflip:  # `hflip` is False if a mirror image may belong to another class
        logits = predict_split(model.mirrored(), setup, "val", console, "calibrating").logits
        mirrored = mirror_sentence(predictions.logits / temperature, logits / temperature, predictions.labels)
    return replace(changes, temperature=temperature, images=len(predictions), mirrored=mirrored)


def mirror_sentence(plain: Tensor, mirrored: Tensor, labels: Tensor) -> str:
    """Return a sentence on the gain from averaging over mirror images; "" if there is no significant gain.

    The cross-entropy, which varies less than the accuracy, must fall by more than a standard error. The accuracy must
    not fall. `plain` are the (N, K) calibrated logits of the validation images, and `mirrored` the means of the logits
    of each image and its mirror image, at the same temperature.
    """
    gains = F.cross_entropy(plain, labels, reduction="none") - F.cross_entropy(mirrored, labels, reduction="none")
    if len(labels) < 2 or not gains.mean() > gains.std() / math.sqrt(len(labels)):
        return ""
    accuracies = [float((logits.argmax(1) == labels).double().mean()) for logits in (plain, mirrored)]
    if accuracies[1] < accuracies[0]:
        return ""
    before, after = map(percent, accuracies)
    return (
        f"averaging over mirror images helps: {after} of the validation images are classified correctly instead of "
        f"{before}; give --mirror to predict, eval, export or serve, which then take twice as long"
    )


def _replace_model(run: RunFolder, model: TrainedModel, card: ModelCard) -> None:
    wait_for_all()  # until all processes have loaded the old model
    if rank() == 0:
        save_trained(run, model.module, card)


@dataclass(frozen=True)
class _TunedNetwork:
    """A network with the best fine-tuned weights, of one epoch or averaged; the run may keep another model."""

    module: nn.Module
    epochs: tuple[int, ...]
    score: float


def _try_average(
    run: RunFolder,
    setup: TrainingSetup,
    outcome: Outcome,
    epoch_store: KeptEpochs,
    validation: Validation,
    console: Console,
) -> tuple[PostTrainingChanges, _TunedNetwork | None]:
    """Average the weights of stored epochs while the validation score improves; save the average if it is better.

    Also return the network with the average, even if it is not saved; None without stored epochs.
    """
    files = broadcast_value(epoch_store.best_files(outcome.rows))  # all processes must choose the same epochs
    if not files:
        return PostTrainingChanges(), None
    # Averages are evaluated in a new network, since the trained network may be sharded.
    measure = setup.data.primary_metric
    module = replace(setup.card.backbone, pretrained=False).build().model.eval()
    device = torch.device(setup.settings.device)

    def evaluate(state: Mapping[str, Tensor]) -> tuple[float, float]:
        module.load_state_dict(dict(state))
        scores = validation.validate(module.to(device), device)
        return broadcast_value((scores[measure.column], -scores[LOSS_COLUMN]))

    mean, chosen_files, score = greedy_soup(files, evaluate)
    row = outcome.best or {measure.column: validation.floor or 0.0, LOSS_COLUMN: 0.0}
    best = broadcast_value((row[measure.column], -row[LOSS_COLUMN]))
    module.load_state_dict(mean)
    epochs = tuple(sorted(math.ceil(row["epoch"]) for row in outcome.rows if epoch_store.file(row) in chosen_files))
    tuned = _TunedNetwork(module, epochs, score[0])
    by_loss = broadcast_value(not outcome.best and score <= best and _is_better_than_first(setup, tuned))
    if not by_loss and (len(chosen_files) < 2 or score <= best):
        return PostTrainingChanges(), tuned
    if rank() == 0:
        save_trained(run, module, setup.card)
    wait_for_all()
    runner_up = "the first model, whose loss is higher," if by_loss else "the best single epoch"
    console.say(
        f"{'averaged' if len(epochs) > 1 else 'kept'} the weights of {counted(len(epochs), 'epoch')} "
        f"({', '.join(map(str, epochs))}): {measure.format_score(score[0], 'validation images')}, {runner_up} "
        f"{percent(best[0])}"
    )
    return PostTrainingChanges(epochs, score[0], by_loss=by_loss), tuned


def _is_better_than_first(setup: TrainingSetup, tuned: _TunedNetwork) -> bool:
    """Return whether a tuned network is better than the first model; see `is_better` for nearly equal accuracies."""
    first = None if setup.tune_record is None else setup.tune_record.first_model
    if first is None or not first.details.get(LOSSES_KEY):
        return False
    return is_better(tuned.score, _validation_losses(setup, tuned.module), first.score, first.details[LOSSES_KEY])


def _validation_losses(setup: TrainingSetup, module: nn.Module) -> list[float]:
    predict = make_val_predictor(setup.data, setup.card.preprocessing, setup.settings)
    return calibrated_losses(predict(module, torch.device(setup.settings.device)))


def _try_refitted_head(
    run: RunFolder,
    setup: TrainingSetup,
    outcome: Outcome,
    changes: PostTrainingChanges,
    tuned: _TunedNetwork,
    console: Console,
) -> PostTrainingChanges:
    """Fit heads to the features of the tuned network, and keep the best head if it improves on the run's model."""
    record = setup.tune_record
    first = None if record is None else record.first_model
    if record is None or first is None:
        return changes
    refitted = refit_head(setup, tuned.module, console, _find_unlabelled(run, setup, record, console))
    if refitted is None:
        return changes
    score, losses = first.score, first.details.get(LOSSES_KEY, ())
    if outcome.best or changes.epochs:
        score, losses = tuned.score, _validation_losses(setup, tuned.module)
    better = bool(losses) and is_better(refitted.score, refitted.losses, score, losses)
    if not broadcast_value(better):  # all processes follow rank 0, since fits on other processes may differ slightly
        return changes
    if rank() == 0:
        save_trained(run, *copy_with_head(tuned.module, setup.card, refitted.head, refitted.staged))
    wait_for_all()
    score_text = setup.data.primary_metric.format_score(refitted.score, "validation images")
    by_loss = refitted.score <= score
    comparison = f"{percent(score)} without this head{', where the loss is higher' if by_loss else ''}"
    console.say(f"kept a head fitted to the tuned features, {refitted.name}: {score_text}, {comparison}")
    return replace(changes, epochs=tuned.epochs, score=refitted.score, by_loss=by_loss, head=refitted.name)


def _find_unlabelled(
    run: RunFolder, setup: TrainingSetup, record: TuneRecord, console: Console
) -> ImageSet | FrozenOutputs | None:
    """Return the unlabelled images to refit heads with, or stored outputs of the frozen stages for these images.

    None if the run uses no unlabelled images after tuning.
    """
    details = {} if record.unlabelled is None else record.unlabelled.details
    if details.get("resumed") and setup.settings.freeze == details["frozen_stages"]:
        is_same_size = details["image_size"] == list(setup.card.preprocessing.image_size)
        with suppress(UserError):  # the file is missing or damaged; the images are read instead
            if is_same_size:
                return FrozenOutputs.from_tensors(read_weights(run.path / FROZEN_FILE))
    if not details.get("read_again"):
        return None
    try:
        images = read_listed_images(run, setup.settings, setup.data, details["read_again"], console)
    except UserError as problem:  # the images were moved while the run was stopped
        console.say(f"note: the tuned network does not use the images without labels: {problem}")
        return None
    return images if len(images) else None


def predict_split(model: TrainedModel, setup: TrainingSetup, split: str, console: Console, title: str) -> Predictions:
    """Return the predictions of a model for one split, such as "val"."""
    indices = setup.data.split_indices(split)
    loader = eval_loader(setup.data, indices, model.card.preprocessing, setup.settings)
    with console.progress(title) as advance:
        return predict_all(model.module, loader, model.device, progress=lambda done: advance(done, len(indices)))
