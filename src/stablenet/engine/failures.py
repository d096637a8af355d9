"""What can go wrong in training, in one sentence each."""

from __future__ import annotations

import torch

from stablenet.engine.config import RunConfig
from stablenet.errors import UserError

_FEW = 5  # sample ids to name


class NonFiniteLoss(UserError):
    """A loss that is NaN or infinite."""


def name_batch(step: int, epoch: int, batch: int, ids: list[str], saved: bool) -> NonFiniteLoss:
    """step, epoch, batch: from 1.   ids: of the batch's samples.   saved: whether there is a checkpoint already."""
    some = ", ".join(ids[:_FEW]) + (" …" if len(ids) > _FEW else "")
    return NonFiniteLoss(
        f"the loss was not finite at step {step} (epoch {epoch}, batch {batch} with {some}): training stopped, "
        f"{'the last good checkpoint is kept' if saved else 'before its first checkpoint'}; "
        "lower train.learning_rate, or look at these images"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """On a GPU, or from the processor's allocator."""
    cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or cpu


def explain_memory(config: RunConfig) -> UserError:
    size = config.train.batch_size
    if size == 1:
        return UserError(
            "out of memory with one image per batch: take smaller images (data.image_size) or a smaller model"
        )
    return UserError(
        f"out of memory with batches of {size}: try --set train.batch_size={size // 2}, and as the batch is half as "
        f"large, --set train.learning_rate={config.train.learning_rate / 2:g}"
    )
