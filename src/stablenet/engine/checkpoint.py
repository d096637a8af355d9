"""Tensors and JSON in one safetensors file, written atomically. Pickle is never written or read.

A separate thread writes checkpoints and models, so that training does not wait for the disk.
"""

from __future__ import annotations

import json
import queue
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.files import check_file, write_bytes

WAITING = 2  # files that may be queued, so that a slow disk does not fill the memory with copies


class Writer:
    """Runs tasks in order, in a thread. An error is raised at the next call, and the tasks queued after it are skipped.

    If the process is killed, unwritten files are lost: earlier files are complete, and a run can resume from them.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue(WAITING)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="stablenet-writer", daemon=True)
        self._thread.start()

    def save(self, path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Write the tensors' current values, with plain values that must not change afterwards."""
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        copied = torch.cuda.Event() if self._stream is not None else None
        if copied is not None:
            copied.record()
        self.do(lambda: self._save(path, copies, meta, copied))

    def do(self, task: Callable[[], None]) -> None:
        self._raise()
        self._tasks.put(task)

    def wait(self) -> None:
        """Wait until all tasks are done."""
        self._tasks.join()
        self._raise()

    def close(self) -> None:
        """Finish all tasks and end the thread; call it once, also after errors."""
        self._tasks.put(None)
        self._thread.join()
        self._raise()

    def _save(
        self, path: Path, copies: dict[str, Tensor], meta: Mapping[str, Any], copied: torch.cuda.Event | None
    ) -> None:
        if self._stream is None:
            save_tensors(path, copies, meta)
            return
        with torch.cuda.stream(self._stream):  # concurrently with training
            assert copied is not None
            self._stream.wait_event(copied)
            save_tensors(path, copies, meta)

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                if task is None:
                    return
                if self._error is None:
                    task()
            except BaseException as error:
                self._error = error
            finally:
                self._tasks.task_done()

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error


FORMAT = 1
_META = "stablenet"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write tensors with the JSON `meta` in the file's header."""
    from safetensors.torch import save

    # Copies, because safetensors rejects tensors that share memory, as tied weights do.
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"format": FORMAT, "crc": checksum(copies), **meta}, allow_nan=False)
    # Not safetensors' own `save_file`, whose temporary file would stay behind when the process is killed.
    write_bytes(path, save(copies, {_META: text}))


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of the values of contiguous tensors on the CPU, by name."""
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and meta of a file written by `save_tensors`."""
    from safetensors import SafetensorError, safe_open

    check_file(path)
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        meta = json.loads(header.get(_META, "{}"))
    except MemoryError:
        raise
    except (OSError, SafetensorError, ValueError, RuntimeError, TypeError) as error:  # of a garbled header
        raise UserError(f"{path} is damaged: {error}") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        found = meta.get("format") if isinstance(meta, dict) else None
        raise UserError(f"{path} has format {found}, but this version reads {FORMAT}")
    if "crc" in meta and meta["crc"] != checksum(tensors):  # files of version 0.1 have none
        raise UserError(f"{path} is damaged: its checksum does not match; restore it, or train again")
    return tensors, meta


def flatten_optimizer(optimizer: torch.optim.Optimizer, prefix: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state as named tensors, and the rest as plain values."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    rest: dict[str, dict[str, Any]] = {}
    for number, values in state["state"].items():
        rest[str(number)] = {}
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{prefix}/{number}/{name}"] = value
            else:
                rest[str(number)][name] = value
    return tensors, {"groups": state["param_groups"], "rest": rest}


def restore_optimizer(
    optimizer: torch.optim.Optimizer, prefix: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> None:
    """The inverse of `flatten_optimizer`."""
    state: dict[int, dict[str, Any]] = {int(number): dict(values) for number, values in meta["rest"].items()}
    for key, tensor in tensors.items():
        if key.startswith(f"{prefix}/"):
            number, name = key.removeprefix(f"{prefix}/").split("/")
            state[int(number)][name] = tensor
    # Whether to fuse depends on this device, not on the one on which the groups were saved.
    groups = [
        {**saved, **({"fused": own["fused"]} if "fused" in own else {})}
        for saved, own in zip(meta["groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                # Files are contiguous; fused optimisers need the parameter's memory format, such as channels-last.
                values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def take(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, with the prefix removed."""
    return {key.removeprefix(f"{prefix}/"): t for key, t in tensors.items() if key.startswith(f"{prefix}/")}


@contextmanager
def name_misfit(path: Path) -> Iterator[None]:
    """Turn the errors of putting a file's contents in their places into one that names the file."""
    try:
        yield
    except UserError:
        raise
    except (RuntimeError, KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        what = " ".join(str(error).split())[:200]
        raise UserError(
            f"{path} does not fit its run, it is damaged or of another config or version: {what}"
        ) from error
