"""Where a run stands, and all of it in one checkpoint: model, method, optimiser, sums, position."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor
from torch import distributed as dist

from stablenet.engine.averaging import Averaging
from stablenet.engine.checkpoint import flatten_optimizer, load_tensors, restore_optimizer, take
from stablenet.engine.session import Session
from stablenet.engine.totals import Totals
from stablenet.models import Network

OPTIMIZER = "engine"  # its name in a checkpoint


@dataclass
class Position:
    """epoch: the one in work, from 0.   batch: batches of it that are done.   step: steps done in all.
    best_epoch: from 1, 0 before the first.   best_rank: its `validation_rank`.
    records, oracle: bytes of the two files that belong to this position.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best_epoch: int = 0
    best_rank: tuple[float, float] = (float("-inf"), 0.0)
    records: int = 0
    oracle: int = 0


def save_checkpoint(session: Session, position: Position, totals: Totals, averaging: Averaging | None) -> None:
    """Everything needed to go on from here as if nothing had happened.

    Of several processes the first one's state is that of all: weights, optimisers, sums and averages are the same in
    each, and so are buffers wherever they are read (`share_buffers`). Order and random numbers follow the position.
    """
    tensors: dict[str, Tensor] = {f"method/{k}": v for k, v in session.algorithm.state_dict().items()}
    flat, settings = flatten_optimizer(session.optimizer, f"optimizer/{OPTIMIZER}")
    meta: dict[str, Any] = {"position": _plain(position), "optimizers": {OPTIMIZER: settings}}
    tensors |= flat
    sums, meta["totals"] = totals.state()
    tensors |= {f"totals/{name}": tensor for name, tensor in sums.items()}
    if averaging is not None:
        means, meta["averaging"] = averaging.state()
        tensors |= {f"averaging/{name}": tensor for name, tensor in means.items()}
    session.writer.save(session.folder.checkpoint, tensors, meta)


def restore_checkpoint(session: Session, totals: Totals, averaging: Averaging | None) -> Position:
    """Put the session back to where its checkpoint was written."""
    tensors, meta = load_tensors(session.folder.checkpoint)
    session.algorithm.load_state_dict(take(tensors, "method"))
    restore_optimizer(session.optimizer, f"optimizer/{OPTIMIZER}", tensors, meta["optimizers"][OPTIMIZER])
    totals.restore(take(tensors, "totals"), meta["totals"])
    if averaging is not None:
        averaging.restore(take(tensors, "averaging"), meta["averaging"])
    position = Position(**meta["position"])
    rank = position.best_rank
    position.best_rank = (float("-inf"), 0.0) if rank is None else (rank[0], rank[1])
    return position


def share_buffers(session: Session) -> None:
    """Give the first process's buffers to all: those are kept, and what is measured now has to be what is kept.

    BatchNorm counts the statistics of each process's share. The wrapper of several processes does the same before
    every pass in training, so that it makes no difference there whether a checkpoint came between.
    """
    if session.fabric.world_size > 1:
        for buffer in session.algorithm.buffers():
            dist.broadcast(buffer, 0)


def save_model(session: Session, which: str | int, predictor: Network | None = None) -> None:
    """What is kept after training: the predictor's weights, and how its body differs from its family's.

    predictor: in place of the method's own.
    """
    predictor = predictor or session.algorithm.predictor()
    meta = {"adaptation": session.algorithm.network.adaptation}
    session.writer.save(session.folder.model(which), predictor.state_dict(), meta)


def _plain(position: Position) -> dict[str, Any]:
    plain = asdict(position)
    if not position.best_epoch:
        plain["best_rank"] = None  # JSON has no infinity
    return plain
