"""The run folder: its files, whether it may be trained in, and how a changed config is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stablenet.data.manifest import Manifest
from stablenet.engine.config import HASH_DIGITS, RunConfig, compare
from stablenet.engine.identity import identify, read_contents
from stablenet.errors import UserError
from stablenet.files import is_locked, read_json, remove_lock, write_json

RUNNING, INTERRUPTED, FAILED, FINISHED = "running", "interrupted", "failed", "finished"
KILLED = "killed"  # what a run is that says `running` while no process holds its lock


@dataclass(frozen=True)
class RunFolder:
    """Names of everything in a run folder."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.tsv"

    @property
    def records(self) -> Path:
        return self.path / "records.jsonl"

    @property
    def oracle(self) -> Path:
        return self.path / "oracle.jsonl"

    @property
    def timing(self) -> Path:
        return self.path / "timing.jsonl"

    @property
    def weights(self) -> Path:
        return self.path / "weights.parquet"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def model(self, which: str | int) -> Path:
        """which: "best", "last", or an epoch (from 1)."""
        return self.path / (f"{which}.safetensors" if isinstance(which, str) else f"epoch-{which:04d}.safetensors")

    def set_status(self, state: str, epoch: int, step: int, reason: str = "") -> None:
        # Told again with every checkpoint, so it need not wait for the disk.
        values = {"state": state, "reason": reason, "epoch": epoch, "step": step}
        write_json(self.status, values, sync=state == FINISHED)

    def read_status(self) -> dict[str, Any]:
        """The status; a run that says `running` while nobody trains in it was killed."""
        if not self.status.exists():
            return {"state": KILLED, "reason": "", "epoch": 0, "step": 0}
        status: dict[str, Any] = read_json(self.status)
        if status["state"] == RUNNING and not is_locked(self.lock):
            status["state"] = KILLED
        return status

    def forget(self) -> None:
        """Take away what was made for a run that could not begin; whatever else lies there stays."""
        for file in (self.config, self.manifest, self.status):
            file.unlink(missing_ok=True)
        remove_lock(self.lock)
        if not any(self.path.iterdir()):
            self.path.rmdir()


def describe_config(config: RunConfig, manifest: Manifest, root: Path | None) -> dict[str, Any]:
    """What `config.json` holds: the config as given, what it is hashed by, and the hash."""
    identity = identify(config, read_contents(config, root, manifest))
    return {"config": config.plain(), "hashed": identity.hashed, "hash": identity.hash}


def choose_folder(described: dict[str, Any], config: RunConfig, runs: Path, chosen: Path | None) -> RunFolder:
    """The folder a config belongs to, by its hash, or the one the user chose."""
    return RunFolder(chosen or runs / f"{config.name}-{described['hash'][:HASH_DIGITS]}")


def open_folder(folder: RunFolder, described: dict[str, Any], manifest: Manifest, resume: bool) -> bool:
    """Make the folder ready for training; False where the run has finished already.

    Refuses a folder of another config, showing the difference, and a run with a checkpoint unless it is to be resumed.
    """
    if folder.config.exists():
        old = read_json(folder.config)
        if old["hash"] != described["hash"]:
            lines = "\n  ".join(compare(old["hashed"], described["hashed"]))
            raise UserError(
                f"{folder.path} belongs to another config; choose another folder, or undo the difference:\n  {lines}"
            )
        status = folder.read_status()
        if status["state"] == FINISHED:
            return False
        if not resume and folder.checkpoint.exists():
            raise UserError(
                f"{folder.path} holds this run already, {status['state']} at step {status['step']}: "
                "go on with --resume, or remove the folder to start again"
            )
        return True
    if folder.path.exists() and any(folder.path.glob("[!.]*")):
        raise UserError(f"{folder.path} exists and is no run folder: choose another one")
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the run folder {folder.path} cannot be made: {error.strerror}; choose another --runs"
        ) from error
    manifest.save(folder.manifest)
    folder.set_status(RUNNING, 0, 0)
    write_json(folder.config, described)
    return True
