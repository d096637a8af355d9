"""Loggers by name get the numbers of a run; a missing package is one sentence, before anything is written."""

import csv
import sys
from types import SimpleNamespace

import pytest

from stablenet.engine.config import assemble_config
from stablenet.engine.monitor import LOGGERS, CSVLogger, LogStart
from stablenet.engine.session import Runtime
from stablenet.engine.train import train
from stablenet.errors import UserError
from tests.engine.tiny import SETTINGS

CONFIG = assemble_config(settings=[*SETTINGS, "train.epochs=2", "train.max_steps=12"])


class Service:
    """Stands for wandb or mlflow: keeps what it is told."""

    def __init__(self):
        self.started, self.params, self.logged, self.ended = [], {}, {}, 0

    def init(self, **named):
        self.started.append(named)
        return SimpleNamespace(log=lambda values, step: self.log_metrics(values, step), finish=self.end_run)

    def set_experiment(self, name):
        assert name == "stablenet"

    def start_run(self, **named):
        self.started.append(named)
        return SimpleNamespace(info=SimpleNamespace(run_id="abc"))

    def log_params(self, params):
        self.params |= params

    def log_metrics(self, values, step):
        self.logged.setdefault(step, {}).update(values)

    def end_run(self):
        self.ended += 1


@pytest.fixture
def services(monkeypatch):
    made = {name: Service() for name in ("wandb", "mlflow")}
    for name, service in made.items():
        monkeypatch.setitem(sys.modules, name, service)
    return made


def read_table(folder):
    with (folder / "metrics.csv").open() as file:
        return {int(row["step"]): row for row in csv.DictReader(file)}


def test_all_loggers_get_the_numbers_of_the_records(services, tmp_path):
    folder = tmp_path / "run"
    run = train(CONFIG, Runtime(folder=folder, device="cpu", loggers=("csv", "wandb", "mlflow", "tensorboard", "csv")))
    table = read_table(folder)
    for record in run.records:
        if record["kind"] == "step":
            expected = {"step/loss": record["loss"]}
        elif record["kind"] == "epoch":
            accuracy = record["validation"]["accuracy"]
            expected = {"epoch/train/loss": record["train"]["loss"], "epoch/validation/accuracy": accuracy}
        else:
            continue
        for name, value in expected.items():
            assert float(table[record["step"]][name]) == value
            for service in services.values():
                assert service.logged[record["step"]][name] == value
    assert list((folder / "tensorboard").glob("events*"))
    assert services["mlflow"].params["train.epochs"] == 2
    assert services["wandb"].started[0]["config"] == CONFIG.plain()
    assert {service.ended for service in services.values()} == {1}


def test_a_resumed_run_is_the_same_run_elsewhere(services, tmp_path):
    for _ in range(2):
        for name in ("wandb", "mlflow"):
            LOGGERS[name](LogStart(tmp_path, CONFIG, 0)).close()
    first, second = services["wandb"].started
    assert first == second
    LOGGERS["wandb"](LogStart(tmp_path / "other", CONFIG, 0))
    assert services["wandb"].started[2]["id"] != first["id"]
    assert services["mlflow"].started == [{"run_name": tmp_path.name}, {"run_id": "abc"}]


def test_rows_after_the_checkpoint_are_written_again(tmp_path):
    logger = CSVLogger(LogStart(tmp_path, CONFIG, 0))
    logger.log({"step/loss": 3.0}, 2)
    logger.log({"epoch/train/loss": 2.0}, 3)
    assert read_table(tmp_path)[2]["step/loss"] == "3.0", "written after an epoch"
    logger.log({"step/loss": 1.0}, 4)
    logger.close()
    resumed = CSVLogger(LogStart(tmp_path, CONFIG, 3))
    resumed.log({"step/new": 0.5}, 4)
    resumed.close()
    table = read_table(tmp_path)
    assert table[2]["step/loss"] == "3.0"
    assert (table[4]["step/loss"], table[4]["step/new"]) == ("", "0.5")


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_one_sentence(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"^the logger {name} needs {name}: install it with `pip install 'stablenet\["):
        train(CONFIG, Runtime(runs=tmp_path / "runs", device="cpu", loggers=("csv", name)))
    assert not (tmp_path / "runs").exists()


def test_an_unknown_logger_names_the_known(tmp_path):
    with pytest.raises(UserError, match=r"unknown logger 'wandbb': did you mean 'wandb'\?"):
        train(CONFIG, Runtime(runs=tmp_path, device="cpu", loggers=("wandbb",)))
