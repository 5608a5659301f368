"""`paucal export --max-size 5MB --max-ms 30`: write the best file within limits on its size and its time per image.

Files of all formats are compared with the model on validation images, and the best file is evaluated on test images. If
no file of the run's model is within the limits, a smaller model (student) is distilled from the run's model. The
student's network and image size are chosen before training, since files of the untrained network have the same size and
speed. Times are CPU times on one thread, so that other programs on the machine have little influence.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time

import torch
from torch import nn

from paucal.cores import threads_restored
from paucal.export.comparison import Comparison, compare_all
from paucal.export.formats import GRAPHS
from paucal.metrics.intervals import wilson_share
from paucal.runner.time_budget import parse_duration
from paucal.types import UserError
from paucal.verbs.export import graphs
from paucal.verbs.export.settings import ExportSettings
from paucal.verbs.export.students import Student, build_untrained, possible_students, train_student
from paucal.verbs.export.subjects import ExportableClassifier, ExportableDetector, Subject
from paucal.wording import percent

STUDENT_FOLDER = "student"  # name of the folder of the smaller model's run
TIMED_IMAGES = 12  # number of images on which the files of an untrained student are timed
TIME_MARGIN = 0.9  # fraction of --max-ms that the file of an untrained student may take, since measured times vary
MAX_RETIMED_EXCESS = 1.5  # multiple of --max-ms; a file that takes longer is not timed again
MAX_EXTRA_TIMINGS = 3  # largest number of times that one file is timed again
# Number of bytes in each unit of --max-size.
UNIT_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class Limits:
    """Limits on a file; None means that there is no limit."""

    size: int | None  # maximum size in bytes
    milliseconds: float | None  # maximum time per image on one thread

    def excess(self, comparison: Comparison) -> float:
        """Return the larger of size / size limit and time / time limit, which is at most 1 if both limits are met."""
        size_ratio = 0.0 if self.size is None else comparison.size / self.size
        time_ratio = 0.0 if self.milliseconds is None else comparison.milliseconds[1] / self.milliseconds
        return max(size_ratio, time_ratio)

    def __str__(self) -> str:
        size = None if self.size is None else f"{self.size / 1e6:g} MB"
        time = None if self.milliseconds is None else f"{self.milliseconds:g} ms per image"
        return " and ".join(filter(None, (size, time)))


def parse_limits(settings: ExportSettings) -> Limits | None:
    """Return the limits set by --max-size and --max-ms; None if neither option is given."""
    if settings.max_size is None and settings.max_ms is None:
        if settings.time is not None:
            text = "--time limits the training of the smaller model for --max-size or --max-ms"
            raise UserError(f"{text}: give --max-size or --max-ms, or remove --time.")
        return None
    if settings.time is not None:
        parse_duration(settings.time, "--time")
    if settings.int8:
        raise UserError("--max-size and --max-ms also choose among 8-bit files: remove --int8.")
    return Limits(None if settings.max_size is None else parse_size(settings.max_size), settings.max_ms)


def parse_size(text: str) -> int:
    """Return the number of bytes in a size such as "5MB" or "800 KiB".

    Example:
        >>> parse_size("5MB"), parse_size("1.5 MiB")
        (5000000, 1572864)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([A-Za-z]+)", text.strip())
    number = 0 if match is None else int(float(match[1]) * UNIT_BYTES.get(match[2].upper(), 0))
    if number <= 0:
        raise UserError(f"--max-size is {text!r}, expected a size above 0 with its unit, such as 5MB or 800KB.")
    return number


def describe_file(comparison: Comparison) -> str:
    """Return the size and the time of a file as text."""
    return f"{comparison.size / 1e6:.2g} MB and {comparison.milliseconds[1]:.2g} ms per image"


@dataclass(frozen=True)
class Candidate:
    """An exported file, compared with its model."""

    subject: Subject  # model that was exported
    format: str  # name of the format
    int8: bool  # whether the file has weights and activations of 8 bits
    folder: Path  # folder that contains the file and any other files that it needs
    comparison: Comparison  # comparison of the file with the model on validation images
    model: str = ""  # name of the student in the file, for messages; "" if the file contains the run's own model

    @property
    def name(self) -> str:
        """The name of the file."""
        return graphs.file_name(self.format, self.int8)

    def network(self) -> nn.Module:
        """Load the file, and return it as a module."""
        return GRAPHS[self.format].load(self.folder / self.name)

    @property
    def title(self) -> str:
        """The name of the file, followed by the name of the student if the file contains a student."""
        return f"{self.name} of {self.model}" if self.model else self.name

    @property
    def quality(self) -> tuple[float, float]:
        """(accuracy, agreement with the model), by which files are ranked; the accuracy is 0 if it is unknown."""
        return (0.0 if self.comparison.accuracy is None else self.comparison.accuracy[1], self.comparison.agreement)


def formats_to_fit(settings: ExportSettings, subject: Subject) -> list[str]:
    """Return the formats to choose among: those of --format, or all installed formats that support 8-bit files."""
    if settings.format is not None:
        formats: list[str] = [*settings.format]
    else:
        any_size = isinstance(subject, ExportableDetector) or settings.with_preprocessing
        entries = {name: entry for name, entry in GRAPHS.items() if entry.quantise and entry.installed}
        formats = [name for name, entry in entries.items() if not any_size or entry.pixels is None] or ["onnx"]
    for name in formats:
        if name not in GRAPHS or not GRAPHS[name].runs_here:
            raise UserError(
                f"--max-size and --max-ms choose among files that run on this machine, but files of --format {name} "
                f"cannot run here: remove {name} from --format."
            )
    return formats


def find_best_file(
    subject: Subject, formats: Sequence[str], limits: Limits, settings: ExportSettings, work: Path
) -> tuple[Candidate, Comparison]:
    """Return the best file within the limits, in a subfolder of `work`, and its comparison on test images."""
    candidates, say = list(_write_files(subject, formats, settings, work / "own")), subject.console.say
    best = _keep_best(candidates, subject, limits, settings)
    if best is None and type(subject) is ExportableClassifier and not subject.card.is_multi_label:
        if graphs.has_images(subject):
            say(f"no file of the run's model is within {limits}: looking for a smaller model to distil it into")
            student_files = list(_measure_students(subject, formats, limits, settings, work))
            student = next((student for student, files in student_files if _fits_with_margin(limits, files)), None)
            if student is None:
                candidates += [candidate for _, files in student_files for candidate in files]
            else:
                title, time = str(student), settings.training_time
                say(f"{title} is within the limits: distilling the run's model into this network for {time}")
                trained_student = train_student(subject, student, time, work / STUDENT_FOLDER)
                student_candidates = _write_files(trained_student, formats, settings, work / "files")
                files = [replace(candidate, model=title) for candidate in student_candidates]
                candidates += files
                best = _keep_best(files, subject, limits, settings)
        else:
            say(f"note: no smaller model can be trained: the training images of {subject.run.path} are missing")
    if best is None:
        if not candidates:
            raise UserError(f"no file agrees with this model, so no file is within {limits}: use another --format.")
        closest = min(candidates, key=lambda candidate: limits.excess(candidate.comparison))
        reason = "" if limits.excess(closest.comparison) > 1 else ", too close to the limit, since measured times vary"
        raise UserError(
            f"no file is within {limits}: the closest is {closest.title} with {describe_file(closest.comparison)}"
            f"{reason}, so nothing was written; give a larger --max-size or --max-ms."
        )
    return best


def _keep_best(
    files: Sequence[Candidate], subject: Subject, limits: Limits, settings: ExportSettings
) -> tuple[Candidate, Comparison] | None:
    """Return the best file within the limits and its comparison on test images; None if all files exceed the limits."""

    def fits(candidate: Candidate) -> bool:
        return limits.excess(_time_again(candidate, candidate.comparison, limits, settings)) <= 1

    for candidate in sorted(filter(fits, files), key=lambda candidate: candidate.quality, reverse=True):
        comparison, scores = _evaluate_file(candidate, subject, settings)
        comparison = _time_again(candidate, comparison, limits, settings)
        if limits.excess(comparison) <= 1:
            subject.console.say(f"kept {candidate.title}, {describe_file(comparison)} on one thread; {scores}")
            return candidate, comparison
        subject.console.say(
            f"note: {candidate.title} was not kept, since it took {comparison.milliseconds[1]:.2g} ms when timed again"
        )
    return None


def _write_files(
    subject: Subject, formats: Sequence[str], settings: ExportSettings, work_folder: Path
) -> Iterator[Candidate]:
    """Write files of a model in all formats, and yield those whose predictions agree with the model's."""
    writer = graphs.GraphWriter(subject, settings, process_time)
    with one_thread():
        writer.open(formats, graphs.VALIDATION_SPLITS)
        for name, int8 in _list_files(subject, formats, settings):
            folder = work_folder / graphs.file_name(name, int8)
            folder.mkdir(parents=True)
            try:
                comparison = writer.write(name, int8, folder)
            except UserError as problem:
                subject.console.say(f"note: {problem}")
                continue
            assert comparison is not None
            yield Candidate(subject, name, int8, folder, comparison)


def _measure_students(
    teacher: ExportableClassifier,
    formats: Sequence[str],
    limits: Limits,
    settings: ExportSettings,
    work_folder: Path,
) -> Iterator[tuple[Student, list[Candidate]]]:
    """Yield students and the files of their untrained networks, until a student has a file within the limits."""
    images = graphs.open_comparison_images(settings.data, TIMED_IMAGES, teacher)
    milliseconds_per_pixel: dict[str, float] = {}  # time of each network's fastest file, by the network's name
    unsuitable: set[str] = set()  # networks whose files are too large or cannot be written
    for choice in possible_students(teacher):
        name, side = choice.name, choice.side
        expected_ms = milliseconds_per_pixel.get(name, 0.0) * side**2
        if name in unsuitable or (limits.milliseconds is not None and expected_ms > 1.2 * limits.milliseconds):
            continue
        student = build_untrained(teacher, choice)
        writer, files = graphs.GraphWriter(student, settings, process_time), []
        with one_thread():
            writer.open(formats, images=images)
            for number, (format_name, int8) in enumerate(_list_files(student, formats, settings)):
                folder = work_folder / f"untrained-{name}-{side}-{number}"
                folder.mkdir(parents=True)
                try:
                    comparison = writer.measure(format_name, int8, folder)
                except UserError as problem:
                    teacher.console.note(str(problem))
                    continue
                candidate = Candidate(student, format_name, int8, folder, comparison, str(choice))
                comparison = _time_again(candidate, comparison, _with_margin(limits), settings)
                files.append(replace(candidate, comparison=comparison))
        yield choice, files
        if files and _fits_with_margin(limits, files):
            return
        if not files or (
            limits.size is not None and min(candidate.comparison.size for candidate in files) > limits.size
        ):
            unsuitable.add(name)
        else:
            milliseconds_per_pixel[name] = min(candidate.comparison.milliseconds[1] for candidate in files) / side**2


def _with_margin(limits: Limits) -> Limits:
    return replace(limits, milliseconds=limits.milliseconds and TIME_MARGIN * limits.milliseconds)


def _fits_with_margin(limits: Limits, files: Sequence[Candidate]) -> bool:
    return any(_with_margin(limits).excess(candidate.comparison) <= 1 for candidate in files)


def _list_files(subject: Subject, formats: Sequence[str], settings: ExportSettings) -> list[tuple[str, bool]]:
    """Return (format, whether the file is an 8-bit file) for each file to write, full-precision files first."""
    has_int8_files = not settings.with_preprocessing and not isinstance(subject, ExportableDetector)
    int8_files = [(name, True) for name in formats if has_int8_files and GRAPHS[name].quantise]
    return [*((name, False) for name in formats), *int8_files]


def _evaluate_file(candidate: Candidate, subject: Subject, settings: ExportSettings) -> tuple[Comparison, str]:
    """Compare a file with the run's model on test images; return the comparison and its scores as text."""
    test_images = graphs.open_comparison_images(settings.data, settings.images, subject)
    student, with_preprocessing = None, graphs.includes_preprocessing(candidate.format, settings)
    if candidate.subject is not subject:
        own_images = graphs.open_comparison_images(settings.data, settings.images, candidate.subject).images
        student = candidate.subject, own_images
    with one_thread(), subject.console.progress(f"evaluating {candidate.name}") as advance:
        arguments = test_images.images, test_images.labels, advance, student, process_time
        comparison = compare_all(subject, candidate.network(), with_preprocessing, *arguments)
    comparison = replace(comparison, size=candidate.comparison.size)
    image_text = f"{comparison.images} {test_images.description}"
    if comparison.accuracy is None or subject.unit != "images":
        agreement = percent(comparison.agreement)
        return comparison, f"{agreement} of its predictions on {image_text} equal those of the run's model"
    original, exported = (wilson_share(accuracy, comparison.images) for accuracy in comparison.accuracy)
    file_text, model_text = (
        f"{percent(interval.value)} ({percent(interval.ends[0])} to {percent(interval.ends[1])})"
        for interval in (exported, original)
    )
    return comparison, f"accuracy on {image_text}: {file_text}; the run's model: {model_text}"


def _time_again(candidate: Candidate, comparison: Comparison, limits: Limits, settings: ExportSettings) -> Comparison:
    """Time a file again if it is slightly too slow, and return the comparison with the shortest of the measured times.

    Other programs on the machine can only slow a file down, and must not let a trained student be rejected.
    """
    subject, with_preprocessing = candidate.subject, graphs.includes_preprocessing(candidate.format, settings)
    if limits.excess(replace(comparison, milliseconds=(0.0, 0.0))) > 1:  # too large
        return comparison
    for _ in range(MAX_EXTRA_TIMINGS):
        if not 1 < limits.excess(comparison) <= MAX_RETIMED_EXCESS:
            break
        splits = graphs.VALIDATION_SPLITS
        images = graphs.open_comparison_images(settings.data, TIMED_IMAGES, subject, splits).images
        with one_thread():
            new_timing = compare_all(subject, candidate.network(), with_preprocessing, images, None, clock=process_time)
        original, exported = comparison.milliseconds
        comparison = replace(comparison, milliseconds=(original, min(exported, new_timing.milliseconds[1])))
    return comparison


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread inside the block, for measurements against --max-ms."""
    with threads_restored():
        torch.set_num_threads(1)
        yield
