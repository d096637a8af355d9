"""One honest sentence, made from the numbers alone."""

from __future__ import annotations

from statistics import fmean

from stablenet.demo.findings import Findings
from stablenet.metrics import Paired

LEARNED = 0.9  # accuracy in training, with dropout on, below which a run has not learned its task
TIE = 0.0005  # a twentieth of a point: what the page rounds away


def write_verdict(paired: Paired) -> tuple[str, str]:
    """A headline, and a sentence on how much it is worth.   paired: StableNet minus ERM, as shares of right answers."""
    mean, values = paired.differences.mean, paired.differences.values
    wins, count = sum(value > 0 for value in values), len(values)
    points = f"{abs(100 * mean):.1f} points"
    interval = f"95 % interval {sign(paired.low)} to {sign(paired.high)}"
    if abs(mean) < TIE:
        return "StableNet and ERM did equally well.", f"Ahead in {wins} of {count} seeds; {interval}."
    if mean > 0:
        head = f"StableNet was right more often than ERM on the shifted target: by {points} on average."
        tail = f"It was ahead in {wins} of {count} seeds ({interval}"
    else:
        head = f"StableNet lost: it was right less often than ERM on the shifted target, by {points} on average."
        tail = f"It was ahead in {wins} of {count} seeds ({interval}"
    if paired.is_clear:
        return head, f"{tail}, which leaves out zero)."
    return head, f"{tail}): {_spell(count)} seeds cannot tell this from chance."


def write_learned(findings: Findings) -> str:
    """Whether both methods fitted their own training images by the last epoch."""
    groups = {"ERM": findings.reference, "StableNet": findings.method}
    reached = {name: [o.curves[-1]["train"]["accuracy"] for o in outcomes] for name, outcomes in groups.items()}
    told = " and ".join(f"{name} {100 * fmean(values):.1f} %" for name, values in reached.items())
    failed = [name for name, values in reached.items() if min(values) < LEARNED]
    if failed:
        return f"Accuracy in training in the last epoch: {told}. {' and '.join(failed)} did not learn in every seed."
    return f"Accuracy in training in the last epoch: {told}; every run came to fit its training images."


def sign(share: float) -> str:
    """A difference of shares in points, with its sign: +1.3 or −0.4."""
    return f"{100 * share:+.1f}".replace("-", "−")


def _spell(count: int) -> str:
    return {2: "two", 3: "three", 4: "four", 5: "five"}.get(count, str(count))
