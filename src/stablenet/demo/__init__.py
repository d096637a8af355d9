"""ERM beside StableNet on the embedded data, in minutes and without a network, and a page that shows what came out."""

from stablenet.demo.run import Demo, DemoSettings, run_demo

__all__ = ["Demo", "DemoSettings", "run_demo"]
