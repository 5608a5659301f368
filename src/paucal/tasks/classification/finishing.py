"""Changes of the model between the last step and the test: averaged epochs, temperature and thresholds."""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.data.images import ImageSet
from paucal.distributed import rank
from paucal.evaluation.calibration import choose_thresholds, fit_temperature
from paucal.evaluation.predictions import Predictions, predict_all
from paucal.models.trained import TrainedModel, load_trained, save_trained
from paucal.runner.console import Console
from paucal.runner.images import Advance, eval_loader
from paucal.runner.processes import broadcast_value, wait_for_all
from paucal.runs import RunFolder
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.auto_tune.paired_losses import LOSSES, calibrated_losses, is_better
from paucal.tasks.classification.auto_tune.record import TuneRecord
from paucal.tasks.classification.auto_tune.refit import refit_head
from paucal.tasks.classification.loaders import validation, validation_predictions
from paucal.tasks.classification.unlabelled_images import remembered_images
from paucal.training import Outcome, Watch
from paucal.training.averaging import KeptEpochs, greedy_soup
from paucal.training.keeper import kept_epochs
from paucal.types import UserError
from paucal.wording import counted, percent

LOSS = "val_loss"


@dataclass(frozen=True)
class Finish:
    """Changes of a trained model before its evaluation.

    Attributes:
        epochs: Epochs whose weights were averaged; empty for the model of one epoch or the probe.
        images: Number of validation images that the temperature was fitted to; 0 for none.
        thresholds: Probability above which each class is predicted, chosen on the validation images; None for single
            labels or without validation images.
        mirrored: Sentence on the gain from averaging over mirror images; "" if the validation images show no gain.
        by_loss: Whether this model replaced another for its lower losses, not for a higher accuracy.
        head: Name of the head that was refitted to the features of these weights; "" for the tuned head.
    """

    epochs: tuple[int, ...] = ()
    score: float | None = None
    temperature: float = 1.0
    images: int = 0
    thresholds: tuple[float, ...] | None = None
    mirrored: str = ""
    by_loss: bool = False
    head: str = ""


def watch_of(setup: TrainingSetup) -> Watch:
    """Return the scoring of epochs on the validation images, which must exist."""
    tune_record, settings = setup.tune_record, setup.settings
    floor = None if tune_record is None else tune_record.floor
    scores = validation(setup.data, setup.card.preprocessing, settings)
    return Watch(scores, setup.data.primary_metric.column, LOSS, floor, settings.soup)


def finish_model(run: RunFolder, setup: TrainingSetup, outcome: Outcome, console: Console) -> Finish:
    """Average epochs if that improves validation, fit the temperature or the thresholds, and store the model again.

    The validation images are divided among all processes; each returns the result, and the first writes. A run that is
    killed here repeats this step when it is resumed.
    """
    if not len(setup.data.part("val")):
        return Finish()
    wait_for_all()  # the first process writes the files
    watch = watch_of(setup)
    finish, epoch_store = Finish(), kept_epochs(run, watch)
    if epoch_store is not None and outcome.rows:
        finish, tuned = _try_average(run, setup, outcome, epoch_store, watch, console)
        if tuned is not None:
            finish = _with_refitted_head(run, setup, outcome, finish, tuned, console)
    if setup.card.several:
        return _with_thresholds(run, setup, finish, console)
    if setup.settings.calibrate == "none":
        return finish
    model = load_trained(run, setup.settings.device)
    predictions = _predict_validation(model, setup, console)
    temperature = fit_temperature(predictions.logits, predictions.labels)
    wait_for_all()  # until all have read the model
    if rank() == 0:
        save_trained(run, model.module, model.card.at_temperature(temperature))
    mirrored = ""
    if setup.settings.hflip:  # otherwise mirroring changes the meaning of an image
        logits = _predict_validation(model.mirrored(), setup, console).logits
        mirrored = mirror_sentence(predictions.logits / temperature, logits / temperature, predictions.labels)
    return replace(finish, temperature=temperature, images=len(predictions), mirrored=mirrored)


def mirror_sentence(plain: Tensor, mirrored: Tensor, labels: Tensor) -> str:
    """Return a sentence on the gain of averaging over mirror images; "" for a gain below a standard error.

    The cross-entropy on the validation images decides, as it varies less than the accuracy; the accuracy must not fall.
    `mirrored` has the means of the logits for an image and its mirror image, at the temperature of the `plain` ones.
    """
    gains = F.cross_entropy(plain, labels, reduction="none") - F.cross_entropy(mirrored, labels, reduction="none")
    if len(labels) < 2 or not gains.mean() > gains.std() / math.sqrt(len(labels)):
        return ""
    shares = [float((logits.argmax(1) == labels).double().mean()) for logits in (plain, mirrored)]
    if shares[1] < shares[0]:
        return ""
    before, after = map(percent, shares)
    return (
        f"averaging over mirror images helps: {after} of the validation images are right, {before} without; "
        "give --mirror to predict, eval, export or serve, which doubles their time"
    )


def _with_thresholds(run: RunFolder, setup: TrainingSetup, finish: Finish, console: Console) -> Finish:
    """Choose the probability above which each class is predicted, and store it with the model."""
    model = load_trained(run, setup.settings.device)
    predictions = _predict_validation(model, setup, console)
    thresholds = choose_thresholds(predictions.probabilities, predictions.labels)
    wait_for_all()  # until all have read the model
    if rank() == 0:
        save_trained(run, model.module, model.card.with_thresholds(thresholds))
    return replace(finish, thresholds=thresholds)


def clear_epochs(run: RunFolder, setup: TrainingSetup) -> None:
    """Remove the stored weights of the epochs, once the run's model is final."""
    if len(setup.data.part("val")) and (epoch_store := kept_epochs(run, watch_of(setup))) is not None:
        epoch_store.clear()


@dataclass(frozen=True)
class _TunedWeights:
    """A network with the best tuned weights, averaged over some epochs or not, even if the run keeps another model."""

    module: nn.Module
    epochs: tuple[int, ...]
    score: float


def _try_average(
    run: RunFolder, setup: TrainingSetup, outcome: Outcome, epoch_store: KeptEpochs, watch: Watch, console: Console
) -> tuple[Finish, _TunedWeights | None]:
    files = broadcast_value(epoch_store.best_files(outcome.rows))  # all processes must choose the same epochs
    if not files:
        return Finish(), None
    # Averages are evaluated in a new network, since the trained one may be sharded.
    measure = setup.data.primary_metric
    module = replace(setup.card.backbone, pretrained=False).build().model.eval()
    device = torch.device(setup.settings.device)

    def evaluate(state: Mapping[str, Tensor]) -> tuple[float, float]:
        module.load_state_dict(dict(state))
        scores = watch.validate(module.to(device), device)
        return broadcast_value((scores[measure.column], -scores[LOSS]))

    mean, chosen_files, score = greedy_soup(files, evaluate)
    local_best = (outcome.best[measure.column], -outcome.best[LOSS]) if outcome.best else (watch.floor or 0.0, 0.0)
    best = broadcast_value(local_best)
    module.load_state_dict(mean)
    epochs = tuple(sorted(math.ceil(row["epoch"]) for row in outcome.rows if epoch_store.file(row) in chosen_files))
    tuned = _TunedWeights(module, epochs, score[0])
    by_loss = broadcast_value(not outcome.best and score <= best and _is_better_than_first(setup, tuned))
    if not by_loss and (len(chosen_files) < 2 or score <= best):
        return Finish(), tuned
    if rank() == 0:
        save_trained(run, module, setup.card)
    wait_for_all()
    runner_up = "the first model, whose loss is higher," if by_loss else "the best alone"
    console.say(
        f"{'averaged' if len(epochs) > 1 else 'kept'} the weights of {counted(len(epochs), 'epoch')} "
        f"({', '.join(map(str, epochs))}): {measure.format_score(score[0], 'validation images')}, {runner_up} "
        f"{percent(best[0])}"
    )
    return Finish(epochs, score[0], by_loss=by_loss), tuned


def _is_better_than_first(setup: TrainingSetup, tuned: _TunedWeights) -> bool:
    """Return whether a tuned network is better than the first model, by its losses if the accuracies are too close."""
    first = None if setup.tune_record is None else setup.tune_record.first_model
    if first is None or not first.details.get(LOSSES):
        return False
    return is_better(tuned.score, _validation_losses(setup, tuned.module), first.score, first.details[LOSSES])


def _validation_losses(setup: TrainingSetup, module: nn.Module) -> list[float]:
    predict = validation_predictions(setup.data, setup.card.preprocessing, setup.settings)
    return calibrated_losses(predict(module, torch.device(setup.settings.device)))


def _with_refitted_head(
    run: RunFolder, setup: TrainingSetup, outcome: Outcome, finish: Finish, tuned: _TunedWeights, console: Console
) -> Finish:
    """Fit heads to the features of the tuned weights, and keep the best if it is better than the run's model."""
    record = setup.tune_record
    first = None if record is None else record.first_model
    if record is None or first is None:
        return finish
    refitted = refit_head(setup, tuned.module, console, _images_to_read_again(run, setup, record, console))
    if refitted is None:
        return finish
    score, losses = first.score, first.details.get(LOSSES, ())
    if outcome.best or finish.epochs:
        score, losses = tuned.score, _validation_losses(setup, tuned.module)
    better = bool(losses) and is_better(refitted.score, refitted.losses, score, losses)
    if not broadcast_value(better):  # each process has fitted its own
        return finish
    if rank() == 0:
        save_trained(run, *refitted.deployed(tuned.module, setup.card))
    wait_for_all()
    title = setup.data.primary_metric.format_score(refitted.score, "validation images")
    by_loss = refitted.score <= score
    others = f"{percent(score)} without it{', where the loss is higher' if by_loss else ''}"
    console.say(f"kept a head fitted to the tuned features, {refitted.name}: {title}, {others}")
    return replace(finish, epochs=tuned.epochs, score=refitted.score, by_loss=by_loss, head=refitted.name)


def _images_to_read_again(
    run: RunFolder, setup: TrainingSetup, record: TuneRecord, console: Console
) -> ImageSet | None:
    """Return the images without labels that the tuned network reads; None if it reads none."""
    max_images = 0 if record.unlabelled is None else record.unlabelled.details.get("read_again", 0)
    if not max_images:
        return None
    try:
        images = remembered_images(run, setup.settings, setup.data, max_images, console)
    except UserError as problem:  # the images were moved while the run was stopped
        console.say(f"note: no head is fitted to the tuned features of images without labels: {problem}")
        return None
    return images if len(images) else None


def predict_part(
    model: TrainedModel, setup: TrainingSetup, part: str, progress: AbstractContextManager[Advance]
) -> Predictions:
    """Return the predictions of a model for the images of a part."""
    indices = setup.data.part(part)
    loader = eval_loader(setup.data, indices, model.card.preprocessing, setup.settings)
    with progress as advance:
        return predict_all(model.module, loader, model.device, progress=lambda done: advance(done, len(indices)))


def _predict_validation(model: TrainedModel, setup: TrainingSetup, console: Console) -> Predictions:
    return predict_part(model, setup, "val", console.progress("calibrating"))
