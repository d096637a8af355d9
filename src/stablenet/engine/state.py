"""The state of a run, saved in one checkpoint: model, method, optimiser, sums, position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor
from torch import distributed as dist

from stablenet.engine.checkpoint import flatten_optimizer, load_tensors, name_misfit, restore_optimizer, take
from stablenet.engine.ranking import WORST, GroupRank, group_rank, pseudo_group_rank, validation_rank
from stablenet.engine.session import Session
from stablenet.engine.stepping import EpochMeans
from stablenet.engine.swad import Averaging
from stablenet.files import replace_nan
from stablenet.models import Network

OPTIMIZER = "engine"  # its name in a checkpoint


@dataclass
class Position:
    """epoch: the current one, from 0.   batch: its batches done so far.   step: total steps done.
    best_epoch: from 1, 0 before the first.   best_rank: its `validation_rank`, None before the first.
    group_rank, pseudo_rank: the highest one so far, None where no epoch has one.
    records, oracle: lengths of the two files at this position, in bytes.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best_epoch: int = 0
    best_rank: tuple[float, float] | None = None
    group_rank: GroupRank | None = None
    pseudo_rank: GroupRank | None = None
    records: int = 0
    oracle: int = 0


def save_checkpoint(session: Session, position: Position, totals: EpochMeans, averaging: Averaging | None) -> None:
    """Save everything needed to resume exactly from here.

    The first process's state is that of all: weights, optimisers, sums and averages are the same in each, and so are
    buffers wherever they are read (`share_buffers`). Order and random numbers follow from the position.
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


def restore_checkpoint(session: Session, totals: EpochMeans, averaging: Averaging | None) -> Position:
    """Restore the session from its checkpoint."""
    tensors, meta = load_tensors(session.folder.checkpoint)
    with name_misfit(session.folder.checkpoint):
        session.algorithm.load_state_dict(take(tensors, "method"))
        restore_optimizer(session.optimizer, f"optimizer/{OPTIMIZER}", tensors, meta["optimizers"][OPTIMIZER])
        totals.restore(take(tensors, "totals"), meta["totals"])
        if averaging is not None:
            averaging.restore(take(tensors, "averaging"), meta["averaging"])
        position = Position(**meta["position"])
        if position.best_rank is not None:
            first, second = (WORST if part is None else float(part) for part in position.best_rank)
            position.best_rank = first, second
        position.group_rank, position.pseudo_rank = map(_read_rank, (position.group_rank, position.pseudo_rank))
    return position


def _read_rank(rank: Sequence[float | None] | None) -> GroupRank | None:
    if rank is None:
        return None
    worst, mean, loss = (WORST if part is None else float(part) for part in rank)
    return worst, mean, loss


def share_buffers(session: Session) -> None:
    """Broadcast the first process's buffers, so that the evaluated state is the one that is saved.

    BatchNorm's statistics are those of each process's share of a batch. DistributedDataParallel also broadcasts buffers
    before every training pass, so a checkpoint in between makes no difference.
    """
    if session.fabric.world_size > 1:
        for buffer in session.algorithm.buffers():
            dist.broadcast(buffer, 0)


def save_model(session: Session, which: str | int, predictor: Network | None = None) -> None:
    """Save a predictor's weights, and how its backbone differs from its family's.

    predictor: instead of the method's.
    """
    predictor = predictor or session.algorithm.predictor()
    meta = {"adaptation": session.algorithm.network.adaptation}
    session.writer.save(session.folder.model(which), predictor.state_dict(), meta)


def keep_models(session: Session, position: Position, record: Mapping[str, Any]) -> None:
    """Save the models of an epoch that ranks higher than all before it, and its own model on request.

    record: the epoch's.
    """
    kept: list[str | int] = []
    rank, groups, pseudo = validation_rank(record), group_rank(record), pseudo_group_rank(record)
    if session.runtime.figures_only:
        groups = pseudo = None
    if position.best_rank is None or rank > position.best_rank:
        position.best_rank, position.best_epoch = rank, position.epoch
        kept.append("best")
    if groups is not None and (position.group_rank is None or groups > position.group_rank):
        position.group_rank = groups
        kept.append("worst-group")
    if pseudo is not None and (position.pseudo_rank is None or pseudo > position.pseudo_rank):
        position.pseudo_rank = pseudo
        kept.append("worst-pseudo-group")
    if session.runtime.keep_epochs:
        kept.append(position.epoch)
    for which in kept if session.first else ():
        save_model(session, which)


def _plain(position: Position) -> dict[str, Any]:
    plain = asdict(position)
    for rank in ("best_rank", "group_rank", "pseudo_rank"):
        plain[rank] = replace_nan(getattr(position, rank))  # JSON has no infinity
    return plain
