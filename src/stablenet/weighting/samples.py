"""Features of a whole set, collected batch by batch: what weights and offsets of all samples are solved from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.weighting import distributed
from stablenet.weighting.budget import read_size
from stablenet.weighting.chunks import Rows
from stablenet.weighting.inputs import Features, join_layers, read_labels
from stablenet.weighting.memory import adopt_saved_shapes

COLLECTED = ("features", "labels", "seen")
ROWS_CHECKED = 4096  # at a time, for NaN and infinities


class SampleStore(nn.Module):
    """What whole-set solves have in common. A subclass adds what it solves for, by sample, as buffers.

    storage: type of the stored features; float16 halves the memory and is enough for pooled activations.
    memory: what a solve may take beside the features, such as "4GiB"; None takes a share of what is free.
    """

    features: Tensor
    labels: Tensor
    seen: Tensor

    def __init__(self, num_samples: int, storage: torch.dtype, memory: str | None, with_labels: bool) -> None:
        super().__init__()
        if num_samples < 1:
            raise UserError(f"num_samples must be at least 1, got {num_samples}")
        if memory is not None:
            read_size(memory)  # a mistake is answered before anything is collected
        self.num_samples = num_samples
        self.memory = memory
        self._storage = storage
        self._with_labels = with_labels
        self.register_buffer("features", torch.empty(0, dtype=storage))
        self.register_buffer("labels", torch.empty(0))
        self.register_buffer("seen", torch.zeros(num_samples, dtype=torch.bool))

    @torch.no_grad()
    def collect(self, index: Tensor, features: Features, labels: Tensor | None = None) -> None:
        """Remember a batch.   index: (B,) in 0 … N−1.   features: (B, m) or layers.   labels: (B,) or (B, C).

        Of a sample that comes again only the latest features count. Several processes call it together, each with its
        part of the batch, and all of them remember the whole: wrappers that give the first one's buffers to all, and
        checkpoints, which the first one writes, then lose nothing.
        """
        z, _ = join_layers(features, least=1 if distributed.processes() == 1 else 0)
        labels = read_labels(labels, len(z), needed=self._with_labels)
        self._check_index(index, len(z))
        self._check_shapes(z, labels)
        z = z.to(self._storage)
        if distributed.processes() > 1:
            sizes = distributed.gather_sizes(len(z), z.device)
            index, z = (distributed.gather_rows(rows, sizes) for rows in (index.to(z.device), z))
            labels = None if labels is None else distributed.gather_rows(labels, sizes)
        if not self.features.numel():
            self._allocate(z, labels)
        self.features[index] = z
        self.seen[index] = True
        if self.labels.numel() and labels is not None:
            self.labels[index] = labels.detach().to(self.labels.dtype)

    def _check_index(self, index: object, size: int) -> None:
        if not isinstance(index, Tensor) or index.shape != (size,):
            got = tuple(index.shape) if isinstance(index, Tensor) else type(index).__name__
            raise UserError(f"index must be a tensor with one entry per sample, shape ({size},), got {got}")
        if index.dtype == torch.bool or index.is_floating_point() or index.is_complex():
            raise UserError(f"index must hold whole numbers, the places of the samples, got {index.dtype}")
        # Elsewhere looking would wait for the device, whose own check of indices stops the program.
        if index.device.type == "cpu" and size and not 0 <= int(index.min()) <= int(index.max()) < self.num_samples:
            raise UserError(
                f"index must lie in 0..{self.num_samples - 1}, the places of the {self.num_samples} samples, "
                f"got {int(index.min())} to {int(index.max())}"
            )

    def _check_shapes(self, z: Tensor, labels: Tensor | None) -> None:
        """Refuse what does not fit to the batches collected so far."""
        if not self.features.numel():
            return
        if z.shape[1] != self.features.shape[1]:
            raise UserError(
                f"features have {z.shape[1]} columns, those collected before have {self.features.shape[1]}: "
                "pass the same layers every time"
            )
        if labels is not None and labels.shape[1:] != self.labels.shape[1:]:
            raise UserError("labels must have one form in all batches: classes (B,), or columns (B, C) of one number")

    def read(self) -> tuple[Tensor, Rows, Tensor | None]:
        """Indices of the samples collected since the last solve, rising, their features and labels."""
        chosen = self.seen.nonzero().squeeze(1)
        if not len(chosen):
            raise UserError("nothing was collected; call collect(index, features, labels) on the batches of an epoch")
        whole = len(chosen) == self.num_samples
        rows = Rows(self.features, chosen=None if whole else chosen)
        if not all(bool(torch.isfinite(part).all()) for _, parts in rows.blocks(ROWS_CHECKED) for part in parts):
            raise UserError(
                f"the collected features hold NaN or inf, or overflow {self._storage}; "
                f"build {type(self).__name__} with storage=torch.float32, or look for a diverging loss"
            )
        return chosen, rows, self.labels[chosen] if self.labels.numel() else None

    def _forget(self) -> None:
        self.seen.fill_(False)
        self.features, self.labels = self.features.new_empty(0), self.labels.new_empty(0)

    def _allocate(self, z: Tensor, labels: Tensor | None) -> None:
        for name, buffer in self.named_buffers(recurse=False):
            setattr(self, name, buffer.to(z.device))
        self.features = torch.zeros(self.num_samples, z.shape[1], dtype=self._storage, device=z.device)
        if labels is not None and self._with_labels:
            self.labels = labels.detach().new_zeros(self.num_samples, *labels.shape[1:])

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        adopt_saved_shapes(self, COLLECTED, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
