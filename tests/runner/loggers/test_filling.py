"""What a run tells its loggers, with a logger that only listens."""

import sys

import pytest

import paucal
from cli.calls import failure, make_photos
from paucal.runner import loggers as filling
from paucal.runner import loggers as kinds
from paucal.runner.console import RecordingConsole
from paucal.runner.life import begin, resume
from paucal.runner.loggers import LoggerFunctions, Loggers, check_loggers, checked_id
from paucal.runs import RunFolder
from paucal.tasks.classification.job import TrainingJob
from paucal.types import UserError
from tasks.pretraining.short_runs import StopAfter

SMALL = {"model": "vit_mini", "img_size": [16], "model_args": ["depth=1", "embed_dim=16", "num_heads=2"]}
SHORT = {**SMALL, "init": "none", "method": "supervised", "epochs": 3, "lr": 2e-3, "batch_size": 16, "workers": 0}


class Listener:
    """A logger that keeps what it is told, under an id of its own."""

    def __init__(self, version: str | None) -> None:
        self.version = version or "abc-1"
        self.known = version is not None
        self.settings: list[dict] = []
        self.rows: list[tuple[int, dict]] = []
        self.scores: dict[str, float] = {}
        self.saved = 0
        self.ending = ""

    def log_hyperparams(self, values):
        self.settings.append(values)

    def log_metrics(self, values, step):
        self.rows.append((step, values))

    def save(self):
        self.saved += 1


def close(logger: Listener, ending: str) -> None:
    logger.ending = ending


def score(logger: Listener, settings, scores, step) -> None:
    logger.scores = scores


@pytest.fixture
def opened(monkeypatch) -> list[Listener]:
    """The loggers that were opened, in their order; all three programs are listeners."""
    made: list[Listener] = []

    def open_one(run: RunFolder, known: str | None) -> Listener:
        made.append(Listener(known))
        return made[-1]

    for name in kinds.LOGGER_FUNCTIONS:
        monkeypatch.setitem(
            kinds.LOGGER_FUNCTIONS, name, LoggerFunctions(open_one, score, close, lambda logger: "here")
        )  # type: ignore
    monkeypatch.setattr(filling, "check_loggers", lambda names: None)
    monkeypatch.setattr("paucal.runner.life.check_loggers", lambda names: None)
    return made


@pytest.fixture
def photos(tmp_path):
    return make_photos(tmp_path / "photos", classes=2, each=30)


def settings_of(photos, output, **changes):
    from paucal.methods.training_settings import TrainSettings

    values = {**SHORT, "data": str(photos), "output": str(output), **changes}
    return TrainSettings(**values), dict.fromkeys(values, "flag")


def test_run__logs_settings_every_epoch_and_the_test_scores(photos, tmp_path, opened):
    run = paucal.train(photos, output=tmp_path / "run", logger=["mlflow"], **SHORT)
    (logger,) = opened
    assert [step for step, _ in logger.rows] == [row["step"] for row in run.history]
    for (_, told), row in zip(logger.rows, run.history, strict=True):
        assert "step" not in told
        assert told == pytest.approx({name: value for name, value in row.items() if name != "step"})
    assert logger.saved == len(run.history) == 3
    (settings,) = logger.settings
    assert (settings["lr"], settings["epochs"], settings["logger"]) == (2e-3, 3, ["mlflow"])
    assert "time" not in settings
    assert logger.scores == {f"test_{name}": value for name, value in run.metrics.items()}
    assert logger.ending == "success"
    assert RunFolder(run.folder).read_json("loggers.json") == {
        "ids": {"mlflow": "abc-1"},
        "step": run.history[-1]["step"],
    }


def test_run__that_goes_on_fills_the_same_log_once(photos, tmp_path, opened):
    whole = paucal.train(photos, output=tmp_path / "whole", logger=["wandb"], **SHORT)
    steps = [row["step"] for row in whole.history]
    settings, given = settings_of(photos, tmp_path / "cut", logger=["wandb"])
    begin(TrainingJob(), settings, given, RecordingConsole(), [StopAfter(int(steps[1]) + 1)])
    assert opened[1].ending == "stopped"
    result = resume(TrainingJob(), tmp_path / "cut", RecordingConsole())
    first, second = opened[1:]
    assert second.known
    assert (second.version, second.settings) == (first.version, [])
    assert [step for step, _ in [*first.rows, *second.rows]] == steps
    named = [name for name in opened[0].rows[0][1] if name != "seconds"]
    for (_, one), (_, other) in zip(opened[0].rows, [*first.rows, *second.rows], strict=True):
        assert [one[name] for name in named] == [other[name] for name in named]
    assert second.scores == {f"test_{name}": value for name, value in result.metrics.items()}


def test_epochs__that_a_kill_has_undone_are_not_logged_twice(tmp_path, opened):
    run, rows = RunFolder(tmp_path), [{"epoch": n, "step": 5 * n, "val_top1": n / 10} for n in (1.0, 2.0, 3.0)]
    with Loggers(run, ["wandb"], RecordingConsole()) as loggers:
        loggers.log_row(rows[0])
        loggers.log_row(rows[1])
    with Loggers(run, ["wandb"], RecordingConsole()) as loggers:  # the newest state was that of the first epoch
        loggers.log_row(rows[1])
        loggers.log_row(rows[2])
    assert [[step for step, _ in logger.rows] for logger in opened] == [[5, 10], [15]]
    with Loggers(run, ["wandb"], RecordingConsole()) as loggers:
        loggers.forget_step()  # changed on purpose: what comes differs from what was
        loggers.log_row(rows[0])
    assert [step for step, _ in opened[-1].rows] == [5]


def test_a_logger_that_joins__gets_the_settings_and_what_comes(tmp_path, opened):
    run, row = RunFolder(tmp_path), {"epoch": 1.0, "step": 5.0}
    with Loggers(run, ["wandb"], RecordingConsole()) as loggers:
        loggers.log_row(row)
    with Loggers(run, ["wandb", "mlflow"], RecordingConsole()) as loggers:
        loggers.log_settings(settings_of("x", "y")[0])
    assert [len(logger.settings) for logger in opened] == [0, 0, 1]


def test_a_logger_that_fails__is_left_out_and_the_run_ends_as_it_would(photos, tmp_path, opened, monkeypatch):
    plain = paucal.train(photos, output=tmp_path / "plain", **SHORT)

    def fail(self, values, step):
        raise ConnectionError("the server\nis gone")

    monkeypatch.setattr(Listener, "log_metrics", fail)
    console = RecordingConsole()
    settings, given = settings_of(photos, tmp_path / "run", logger=["mlflow"])
    result = begin(TrainingJob(), settings, given, console)
    assert result.metrics == plain.metrics
    assert opened[0].scores == {}
    notes = [line for line in console.said if "failed" in line]
    assert notes == ["note: mlflow failed (the server is gone); the run continues, and metrics.csv has all values"]


def test_a_program_that_cannot_start__is_one_sentence(tmp_path, monkeypatch):
    def fail(run, known):
        raise ConnectionError("no server")

    monkeypatch.setattr(filling, "check_loggers", lambda names: None)
    monkeypatch.setitem(kinds.LOGGER_FUNCTIONS, "mlflow", LoggerFunctions(fail, score, close, str))
    with pytest.raises(UserError, match=r"--logger mlflow cannot be started \(ConnectionError: no server\)"):
        Loggers(RunFolder(tmp_path), ["mlflow"], RecordingConsole()).__enter__()


def test_the_first_loggers__are_ended_where_a_later_one_cannot_start(tmp_path, opened, monkeypatch):
    def fail(run, known):
        raise ConnectionError("no server")

    monkeypatch.setitem(kinds.LOGGER_FUNCTIONS, "wandb", LoggerFunctions(fail, score, close, str))
    with pytest.raises(UserError, match="--logger wandb"):
        Loggers(RunFolder(tmp_path), ["mlflow", "wandb"], RecordingConsole()).__enter__()
    assert opened[0].ending == "failed"


def test_other_processes__log_nothing(photos, tmp_path, opened, monkeypatch):
    calls = iter([True])
    monkeypatch.setattr("paucal.runner.life.is_rank_zero", lambda: next(calls, False))
    paucal.train(photos, output=tmp_path / "run", logger=["mlflow"], **SHORT)
    assert opened == []


def test_missing_package__is_said_before_anything_is_written(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kinds, "find_spec", lambda name: None)
    said = failure(capsys, "train", photos, "--logger", "wandb", "--output", tmp_path / "run")
    assert 'pip install "paucal[wandb]"' in said
    assert not (tmp_path / "run").exists()


def test_a_folder_with_the_name_of_a_package__is_none(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)  # where it is installed
    with pytest.raises(UserError, match="needs the package wandb"):
        check_loggers(["wandb"])


def test_unknown_logger__is_refused(photos, capsys):
    assert "--logger" in failure(capsys, "train", photos, "--logger", "comet")


@pytest.mark.parametrize("found", [None, 3, "", "../up", "a b", "x" * 65])
def test_ids_of_a_damaged_record__count_as_none(found):
    assert checked_id(found) is None
    assert checked_id("0294db037b134e99") == "0294db037b134e99"
