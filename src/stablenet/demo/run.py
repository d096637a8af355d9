"""The whole demo: train, evaluate, read the weights, write the page."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from stablenet.demo.findings import Findings, gather_findings
from stablenet.demo.page import write_page
from stablenet.demo.train import DemoSettings, Report, make_configs, train_all
from stablenet.demo.weights import weigh_samples
from stablenet.errors import UserError


@dataclass(frozen=True)
class Demo:
    """What came out, and where the page is."""

    findings: Findings
    page: Path
    seconds: float


def run_demo(settings: DemoSettings, report: Report = lambda name, epoch: None) -> Demo:
    """Runs that finished before are taken as they are; report is told a run's name and its epochs done."""
    start = time.monotonic()
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {settings.output}: {error.strerror}; choose another --output") from error
    configs = make_configs(settings)
    runs = train_all(configs, settings.runs, settings.count_workers(len(configs)), report)
    findings = gather_findings(runs)
    weights = [weigh_samples(outcome.run) for outcome in findings.method]
    seconds = time.monotonic() - start
    return Demo(findings, write_page(findings, weights, settings, seconds), seconds)
