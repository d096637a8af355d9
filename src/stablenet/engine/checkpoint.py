"""Tensors and JSON in one safetensors file, put in place in one step. No pickle is ever written or read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.files import write_whole

FORMAT = 1
_META = "stablenet"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write tensors with the JSON `meta` in the file's header."""
    text = json.dumps({"format": FORMAT, **meta}, allow_nan=False)
    # Clones, because safetensors refuses tensors that share memory, and tied weights do.
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    write_whole(path, lambda partial: _write_file(partial, copies, {_META: text}))


def _write_file(path: Path, tensors: dict[str, Tensor], header: dict[str, str]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata=header)
    except SafetensorError as error:  # which tells the system's error number, such as a full disk's, in words alone
        told = re.search(r"\(os error (\d+)\)", str(error))
        if told is None:
            raise
        raise OSError(int(told[1]), os.strerror(int(told[1])), str(path)) from error


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and meta of a file written by `save_tensors`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise UserError(f"there is no {path}") from error
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    meta: dict[str, Any] = json.loads(header.get(_META, "{}"))
    if meta.get("format") != FORMAT:
        raise UserError(f"{path} has format {meta.get('format')} where this version reads {FORMAT}")
    return tensors, meta


def flatten_optimizer(optimizer: torch.optim.Optimizer, prefix: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state as tensors by name, and the rest as plain values."""
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
    # Fused or not is a matter of this device; saved groups know that of the one they were saved on.
    groups = [
        {**saved, **({"fused": own["fused"]} if "fused" in own else {})}
        for saved, own in zip(meta["groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                # Files hold plain rows; fused optimisers want the parameter's own layout, such as channels-last.
                values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def take(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors below a prefix, without it."""
    return {key.removeprefix(f"{prefix}/"): t for key, t in tensors.items() if key.startswith(f"{prefix}/")}
