"""What executors have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from stablenet.bench.perform import Order, Outcome

RETRIES = 2  # times a run is taken up again after its worker died


@dataclass(frozen=True)
class Event:
    """What happens to a run, for whoever watches. where: the device or cluster that does it."""

    kind: Literal["start", "retry", "finished", "failed", "lost"]
    order: Order
    where: str = ""
    reason: str = ""


Tell = Callable[[Event], None]


class Executor(Protocol):
    """Carries out orders, several at once; every order has an outcome, in the same order."""

    def run(self, orders: Sequence[Order], tell: Tell) -> list[Outcome]: ...


def tell_outcome(tell: Tell, order: Order, outcome: Outcome) -> None:
    tell(Event(outcome.state, order, reason=outcome.reason))
