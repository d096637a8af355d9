"""ERM beside StableNet on the embedded data, in minutes and without a network, and a page that shows what came out."""

from stablenet.demo.run import Demo, run_demo
from stablenet.demo.train import DemoSettings

__all__ = ["Demo", "DemoSettings", "run_demo"]
