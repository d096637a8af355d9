"""What every part is: a name, a share of all trials, and a generator of trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from campaign.trial import Trial

MakeTrial = Callable[[Random, Path, Path], Trial]  # generator, workshop, folder of the trial


@dataclass(frozen=True)
class Part:
    share: float
    make: MakeTrial
