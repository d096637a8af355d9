"""ERM and StableNet on the bundled data in minutes, without a download, and a page that shows the results.

In reading order: `run_demo` (the whole demo, and its page with charts) and `demo_runs` (its training runs, figures and
the sentence made from them).
"""

from stablenet.demo.demo_runs import DemoSettings
from stablenet.demo.run_demo import Demo, run_demo

__all__ = ["Demo", "DemoSettings", "run_demo"]
