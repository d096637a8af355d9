"""One command from your own images to a verdict: diagnosis, plain training and StableNet over seeds, one page.

In reading order: `plan_tryout` (what this machine and these images allow, and the files that say what is trained, and
how long it may take) and `run_tryout` (everything in order, and the sentence at the end).
"""

from stablenet.tryout.plan_tryout import Request
from stablenet.tryout.run_tryout import Tryout, run_tryout

__all__ = ["Request", "Tryout", "run_tryout"]
