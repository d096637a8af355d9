"""The training loop of all methods."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from stablenet.algorithms import Judgement
from stablenet.data.loader import Batch, Loader
from stablenet.data.manifest import Manifest
from stablenet.engine.config import RunConfig
from stablenet.engine.identity import VERSION, describe_weights, name_version, restate, tell_weights
from stablenet.engine.interrupts import (
    CHECKPOINT,
    STOP,
    Agreement,
    Interrupted,
    NonFiniteLoss,
    StopRequest,
    explain_memory,
    is_out_of_memory,
    name_batch,
    name_epoch,
    watch_signals,
)
from stablenet.engine.monitor import Curves, Timing, Watcher, check_loggers
from stablenet.engine.ranking import describe_judgement
from stablenet.engine.run import (
    Run,
    choose_folder,
    describe_config,
    find_version,
    load_run,
    open_folder,
    save_weights,
    tabulate_weights,
)
from stablenet.engine.run_data import check_config, open_data
from stablenet.engine.run_folder import FAILED, FINISHED, INTERRUPTED, RUNNING
from stablenet.engine.session import Runtime, Session, build_session, own_random_numbers, seed_generators, start_fabric
from stablenet.engine.state import Position, keep_models, restore_checkpoint, save_checkpoint, save_model, share_buffers
from stablenet.engine.stepping import EpochMeans, learning_rate, set_rate
from stablenet.engine.swad import Averaging, make_averaging
from stablenet.errors import UserError
from stablenet.files import Lines, hold_lock
from stablenet.long_work import telling
from stablenet.metrics import GroupCounts
from stablenet.weighting.distributed import name_lost_process

Predict = Callable[[Batch], Tensor]  # a batch to logits (b, classes)


@torch.no_grad()
def evaluate_loader(
    predict: Predict, loader: Loader, manifest: Manifest, fabric: Any, weights: Tensor | None = None
) -> dict[str, Any]:
    """Metrics over all samples of the loader.   weights: (n,) for the rows of the part, see `GroupCounts`."""
    device = loader.device
    counts = GroupCounts(len(manifest.domains), len(manifest.classes), device)
    with fabric.autocast():
        for batch in loader.epoch(0):
            if len(batch.y):  # an incomplete last batch may leave a process without samples
                counts.add(predict(batch), batch.y, batch.domain, None if weights is None else weights[batch.index])
    if dist.is_available() and dist.is_initialized():
        for tensor in counts.tensors():
            dist.all_reduce(tensor)
    return counts.figures(manifest.domains, manifest.classes)


def train(config: RunConfig, runtime: Runtime | None = None, watcher: Watcher | None = None) -> Run:
    """Train or resume a run until its end; a finished run is returned unchanged."""
    runtime, watcher = runtime or Runtime(), watcher or Watcher()
    check_config(config)
    check_loggers(runtime.loggers)
    fabric = start_fabric(runtime.device, config.train.precision)
    data = open_data(config, runtime.root, watcher.decode)
    manifest = data.manifest
    described = describe_config(config, manifest, runtime.root)
    folder = choose_folder(described, config, runtime.runs, runtime.folder)
    version = find_version(folder, config)
    if version != name_version(config):  # it continues with the version it was begun with
        config, described = restate(config, version), describe_config(config, manifest, runtime.root, version)
    if not folder.config.exists():
        described["stored_side"] = data.stored_side
    first, parent = fabric.global_rank == 0, folder.path.parent
    new_parent = not parent.exists()
    if not fabric.broadcast(open_folder(folder, described, manifest, runtime.resume) if first else None):
        return load_run(folder.path)
    if not config.data.split:
        watcher.tell(manifest.describe())
    for sentence in tell_weights(config, runtime.root):
        watcher.tell(sentence)
    alone = hold_lock(folder.lock) if first else nullcontext()
    with alone, own_random_numbers(fabric.device), _explained(config), name_lost_process():
        try:
            session = build_session(config, runtime, fabric, folder, data)
            with watch_signals(fabric.world_size) as stop, telling(watcher.tell if first else lambda text: None):
                Training(session, watcher if first else Watcher(), stop, described).run()
        except BaseException:  # a run that could not start, which has no records, leaves no folder
            if first and not folder.records.exists():
                folder.forget()
                if new_parent and not any(parent.iterdir()):
                    parent.rmdir()
            raise
        fabric.barrier()  # the first process writes the last files
    return load_run(folder.path)


@contextmanager
def _explained(config: RunConfig) -> Iterator[None]:
    try:
        yield
    except SystemExit as error:
        raise UserError(f"the network {config.model.name!r} ended the program: remove its call of exit") from error
    except Exception as error:
        if is_out_of_memory(error):
            raise explain_memory(config) from error
        if "without overflow" in str(error):  # of a scalar, in torch's kernels
            raise UserError(
                "a number was too large for single precision: lower train.learning_rate, train.weight_decay or the "
                "largest of method.parameters"
            ) from error
        if not isinstance(error, UserError):
            error.add_note(f"config: {json.dumps(config.plain())}")  # for a report of the error
        raise


class Training:
    """Trains a run from its current position to its end."""

    def __init__(self, session: Session, watcher: Watcher, stop: StopRequest, described: Mapping[str, Any]) -> None:
        self._session, self._watcher, self._stop = session, watcher, stop
        self._config = session.config.train
        self._agreement = Agreement(session.device, session.fabric.world_size)
        self._totals = EpochMeans(session.device, session.fabric.world_size)
        self._averaging = make_averaging(session)
        for samples in (session.training_set, session.validation_set):
            if samples is not None:
                samples.progress, samples.tell = watcher.read, watcher.tell
        self._judge = session.algorithm.judge_epochs() if session.validation else None
        self._position = Position()
        fresh = not session.folder.checkpoint.exists()
        if not fresh:
            self._position = restore_checkpoint(session, self._totals, self._averaging)
        self._records = Lines(session.folder.records, self._position.records) if session.first else None
        self._oracle = Lines(session.folder.oracle, self._position.oracle) if session.target and session.first else None
        self._timing = Timing(session)
        self._curves = Curves(session, self._position.step)
        if fresh:
            self._record(self._describe(described))

    def run(self) -> None:
        """Train; if interrupted or failed, the folder can be resumed, and its status states the reason."""
        position, total = self._position, self._session.total_steps
        self._watcher.begin(self._session.folder.path, position.step, total)
        self._set_status(RUNNING)
        try:
            with name_lost_process():
                while position.step < total:
                    self.run_epoch()
                self._finish()
        except Interrupted:
            self._session.writer.wait()
            self._set_status(INTERRUPTED, "stopped by the user")
            raise
        except BaseException as error:
            self._set_status(FAILED, f"{type(error).__name__}: {error}")
            raise
        finally:
            self._watcher.end()
            self._session.writer.close()
            for file in (self._records, self._oracle, self._timing, self._curves):
                if file is not None:
                    file.close()

    def run_epoch(self) -> None:
        """Train the current epoch to its end, evaluate, record and save models."""
        session, position = self._session, self._position
        session.stepping.start_epoch()
        if position.batch == 0:
            self._totals.clear()
            with self._stop.breakable():  # a checkpoint was made just before
                solved = session.algorithm.start_epoch(position.epoch, session.training_set)
            self._record_solve(solved)
            if position.epoch == 0 and self._judge is not None and session.validation_set is not None:
                self._judge.start(session.validation_set)
        self._timing.start_epoch(position.step)
        for batch in session.batches(position.epoch, position.batch):
            self._start_step()
            self._run_step(batch)
            if position.step == session.total_steps:
                break
            due = self._timing.checkpoint_due()
            agreed = self._agreement.reach(position.step, stop=self._stop.asked, checkpoint=due)
            if agreed == STOP:
                self._interrupt()
            if agreed == CHECKPOINT:
                self._checkpoint()
        self._end_epoch()

    def _run_step(self, batch: Batch) -> None:
        session, position = self._session, self._position
        seed_generators(session.device, session.config.seed, session.fabric.global_rank, position.step)
        set_rate(session.optimizer, learning_rate(self._config, position.epoch, position.step, session.total_steps))
        session.stepper.joined = session.training.size_of(position.batch)
        try:
            with self._stop.breakable():
                loss, diagnostics = session.stepping.take(batch)
        except UserError as error:
            self._check_finite()  # an earlier non-finite loss would be the cause of this error
            where = f"at step {position.step + 1}, epoch {position.epoch + 1}, batch {position.batch + 1}"
            raise UserError(f"{error} ({where})") from error
        self._totals.add(position.step + 1, loss, diagnostics)
        position.step += 1
        position.batch += 1
        logged = position.step % self._config.log_every == 0
        if logged or session.device.type == "cpu":
            self._check_finite()
        if logged:
            values = self._totals.latest()
            self._record({"kind": "step", "step": position.step, "epoch": position.epoch + 1, **values})
        if self._averaging is not None and self._averaging.take(position.step):
            self._judge_average(self._averaging)
        self._watcher.step(position.step, position.epoch + 1, self._totals)

    def _start_step(self) -> None:
        with self._stop.breakable():
            found = self._session.algorithm.start_step(self._position.step, self._session.training_set)
        if found:
            self._session.stepping.renew()
            self._record_solve({"step": self._position.step, **found})

    def _judge_average(self, averaging: Averaging) -> None:
        self._check_finite()
        share_buffers(self._session)
        with self._stop.breakable():
            self._session.algorithm.refit(self._session.training_set)
        assert self._session.validation is not None
        figures = self._evaluate(self._session.validation, self._session.algorithm.validator)
        self._record(averaging.judge(self._position.epoch + 1, figures["loss"]))

    def _end_epoch(self) -> None:
        session, position, validation = self._session, self._position, self._session.validation
        self._check_finite()
        share_buffers(session)
        if position.step == session.total_steps:
            self._keep_weights()
        self._record_solve(session.algorithm.end_epoch(position.epoch))
        with self._stop.breakable():
            found = session.algorithm.refit(session.training_set)
        self._record_solve(found)
        rate = learning_rate(self._config, position.epoch, position.step - 1, session.total_steps)
        position.epoch, position.batch = position.epoch + 1, 0
        self._timing.end_epoch(position.epoch, position.step)
        figures = self._validate(validation) if validation else None
        record = {
            "kind": "epoch",
            "epoch": position.epoch,
            "step": position.step,
            "learning_rate": rate,
            "train": self._totals.means(),
            "validation": figures,
        }
        if figures is not None and not math.isfinite(figures["loss"]):
            raise name_epoch(position.epoch, position.best_epoch)
        judgement = self._judge.judge(figures) if self._judge is not None and figures else Judgement()
        record |= describe_judgement(judgement)
        self._record(record)
        keep_models(session, position, record)
        self._ask_oracle()
        self._totals.clear()
        self._checkpoint()
        self._watcher.epoch(record, judgement.note)

    def _keep_weights(self) -> None:
        """Save the weights of the last step: later changes no longer enter the loss."""
        session = self._session
        columns = session.algorithm.sample_columns()
        if columns and session.first:
            save_weights(session.folder.weights, tabulate_weights(session.manifest, columns))

    def _ask_oracle(self) -> None:
        if self._session.target is None:
            return
        figures = self._evaluate(self._session.target, self._predict)
        if self._oracle is not None:
            self._oracle.append({"kind": "oracle", "epoch": self._position.epoch, "test": figures})

    def _predict(self) -> Predict:
        predictor = self._session.algorithm.predictor()
        return lambda batch: predictor(batch.x)

    def _validate(self, validation: Loader) -> dict[str, Any]:
        weights = self._judge.weights() if self._judge is not None else None
        return self._evaluate(validation, self._session.algorithm.validator, weights)

    def _evaluate(self, loader: Loader, choose: Callable[[], Predict], weights: Tensor | None = None) -> dict[str, Any]:
        """Metrics with the method in eval mode, also while the predictor is chosen: it may be a copy made now."""
        session = self._session
        session.algorithm.eval()
        figures = evaluate_loader(choose(), loader, session.manifest, session.fabric, weights)
        session.algorithm.train()
        return figures

    def _finish(self) -> None:
        session, position = self._session, self._position
        if session.first:
            save_model(session, "last")
        self._keep_average()
        if not session.first:
            return
        self._record({"kind": "end", "epoch": position.epoch, "step": position.step, "best_epoch": position.best_epoch})
        session.writer.wait()
        self._set_status(FINISHED)
        session.folder.checkpoint.unlink(missing_ok=True)

    def _keep_average(self) -> None:
        """Save the averaged model, in addition to the best and the last; all processes take part."""
        session, position = self._session, self._position
        if self._averaging is None:
            return
        predictor, span = self._averaging.install(position.step)
        if session.first:
            save_model(session, "averaged", predictor)
        assert session.validation is not None
        figures = self._evaluate(session.validation, lambda: lambda batch: predictor(batch.x))
        end = {"epoch": position.epoch, "step": position.step}
        self._record({"kind": "averaged", **end, **span, "validation": figures})

    def _checkpoint(self) -> None:
        """Save a checkpoint, unless the loss was not finite: then the previous one stays."""
        self._check_finite()
        position = self._position
        if self._records is not None and not self._session.runtime.figures_only:
            position.records = self._records.length()
            position.oracle = self._oracle.length() if self._oracle else 0
            for lines in (self._records, self._oracle):
                if lines is not None:
                    self._session.writer.do(lines.sync)  # a checkpoint is never ahead of its records
            save_checkpoint(self._session, position, self._totals, self._averaging)
        self._set_status(RUNNING)
        self._timing.checkpoint_done()

    def _interrupt(self) -> None:
        self._checkpoint()
        self._session.writer.wait()
        self._session.fabric.barrier()  # torchrun ends all processes once one exits: wait until the file is written
        raise Interrupted

    def _check_finite(self) -> None:
        bad = self._totals.bad_step()
        if bad is not None:
            raise self._name_batch(bad)

    def _name_batch(self, step: int) -> NonFiniteLoss:
        position = self._position
        batch = position.batch - (position.step - step)  # from 1; the check is always within the epoch
        weights = self._session.algorithm.sampling_weights()
        ids = self._session.training.ids_of(position.epoch, batch - 1, weights)
        saved = position.epoch > 0 or self._session.folder.checkpoint.exists()  # the writer may not be done yet
        return name_batch(step, position.epoch + 1, batch, ids, saved)

    def _describe(self, described: Mapping[str, Any]) -> dict[str, Any]:
        """described: see `describe_config`."""
        session, method = self._session, described["hashed"]["method"]
        return {
            "kind": "start",
            "config_hash": described["hash"],
            **({VERSION: method[VERSION]} if VERSION in method else {}),
            "manifest_hash": session.manifest.hash,
            "parameters": sum(p.numel() for p in session.algorithm.network.parameters()),
            **describe_weights(session.config, session.runtime.root),
            "train": len(session.training.samples),
            "validation": len(session.validation.samples) if session.validation else 0,
            "steps_per_epoch": len(session.training),
        }

    def _record_solve(self, diagnostics: Mapping[str, float | str]) -> None:
        if diagnostics:
            record = {"kind": "solve", "epoch": self._position.epoch + 1, **diagnostics}
            self._record(record)
            self._watcher.solve(record)

    def _record(self, record: dict[str, Any]) -> None:
        if self._records is not None:
            self._records.append(record)
            self._curves.add(record)

    def _set_status(self, state: str, reason: str = "") -> None:
        if self._session.first:
            self._session.folder.set_status(state, self._position.epoch, self._position.step, reason)
