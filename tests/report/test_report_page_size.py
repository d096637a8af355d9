"""Five hundred runs on one page: built in seconds, light enough to send."""

import json
import shutil
import time
from dataclasses import replace

import pytest

from stablenet.report import build_report

RUNS, SECONDS, BYTES = 500, 20, 15_000_000


@pytest.fixture(scope="module")
def many(made, tmp_path_factory):
    """Copies of the real runs under other seeds."""
    folder = tmp_path_factory.mktemp("many")
    models = [path for path in sorted((made / "runs").iterdir()) if (path / "evaluation.jsonl").exists()]
    for number in range(RUNS):
        model = models[number % len(models)]
        config = json.loads((model / "config.json").read_text())
        seed = 10 + 2 * (number // len(models)) + config["config"]["seed"]
        copy = folder / f"{model.name}-{seed}"
        shutil.copytree(model, copy, ignore=shutil.ignore_patterns("*.safetensors", "*.parquet"))
        config["config"]["seed"] = config["hashed"]["seed"] = seed
        (copy / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow
def test_five_hundred_runs(many, settings, tmp_path):
    changed = replace(settings, runs=many, output=tmp_path, tables=(*settings.tables, "embedded", "mnist-m"), panels=0)
    start = time.process_time()
    report = build_report(changed)
    seconds = time.process_time() - start
    assert len(report.gathered.runs) == RUNS
    assert report.gathered.results[0].cell("erm", "hard").count > 100
    assert seconds < SECONDS
    assert report.page.stat().st_size < BYTES
    print(f"{RUNS} runs: {seconds:.1f} s of processor time, {report.page.stat().st_size / 1e6:.2f} MB")
