"""Every method on the embedded digits, three seeds: can it learn what ERM learns?

    python -m benchmarks.embedded                                # every registered method
    python -m benchmarks.embedded --methods jigen rsc --epochs 3 --out elsewhere   # a quick look
    python -m benchmarks.embedded --page                         # only rewrite the page from saved measurements

With few cores, it is fastest to run one process per core with OMP_NUM_THREADS=1 and a share of the --methods each.

Runs are stored below --runs under the hash of their config: finished ones are reused, interrupted ones are resumed. The
bar is a method's mean accuracy on source validation, at most three points below ERM's. Target accuracy, at the epoch
that source validation chose, is shown in a separate column and decides nothing.

Writes embedded.json and README.md into --out (results/methods); the page also holds the tables of benchmarks.methods.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.evidence import spread as spread_values
from benchmarks.methods import write_note
from stablenet.algorithms import ALGORITHMS
from stablenet.engine.config import RunConfig, assemble_config
from stablenet.engine.run import Run
from stablenet.engine.session import Runtime
from stablenet.engine.train import train
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import DEFAULT_RULE, evaluate_run

RECIPE, REFERENCE = "embedded-dr0.9", "erm"
BAR = 3.0  # points of source validation that a method may lie below ERM
AVERAGED = ("train.averaging=swad",)
# D-SAM needs residual blocks, and trains a module on each background alone, which must hold every class: a ResNet and
# three backgrounds, as many as PACS has source domains, any digit on any of them, and ERM likewise.
RESIDUAL = ("model.name=resnet18", "data.parameters.ratio=random", "data.parameters.backgrounds=3")


@dataclass(frozen=True)
class Variant:
    """A way to use a method. beside: the name of the one it is compared with.   rule: which model counts.
    bar: whether it has to be close to ERM on source validation.
    """

    method: str
    settings: tuple[str, ...] = ()
    beside: str = REFERENCE
    rule: str = DEFAULT_RULE
    note: str = ""
    bar: bool = True


# In addition to every registered method with its defaults; an entry with a method's own name replaces it.
SPECIAL = {
    "stablenet": Variant("stablenet", note="preset recommended", bar=False),
    "stablenet paper": Variant("stablenet", ("method.parameters.preset=paper",), note="preset paper"),
    "erm + swad": Variant("erm", AVERAGED, rule="averaged", note="averaged weights"),
    "stablenet + swad": Variant("stablenet", AVERAGED, rule="averaged", note="averaged weights", bar=False),
    "erm, ResNet-18": Variant("erm", RESIDUAL, beside="erm, ResNet-18", note="three backgrounds, any digit on any"),
    "d-sam": Variant("d-sam", RESIDUAL, beside="erm, ResNet-18", note="ResNet-18, three backgrounds, any digit on any"),
}


def list_variants(methods: list[str]) -> dict[str, Variant]:
    plain = {name: Variant(name) for name in ALGORITHMS if name not in SPECIAL}
    every = {**plain, **SPECIAL}
    if not methods:
        return every
    wanted = {name for name, variant in every.items() if variant.method in methods}
    wanted |= {every[name].beside for name in wanted}
    return {name: variant for name, variant in every.items() if name in wanted}


def make_config(variant: Variant, seed: int, epochs: int | None) -> RunConfig:
    short = [] if epochs is None else [f"train.epochs={epochs}", f"train.milestones=[{max(1, epochs * 2 // 3)}]"]
    return assemble_config(RECIPE, None, [f"method.name={variant.method}", *variant.settings, *short, f"seed={seed}"])


def measure(run: Run, rule: str, device: str) -> dict[str, Any]:
    """Accuracies in per cent, on source validation and on the target, of the model the rule selects, as it predicts.

    In training, D-SAM validates an image without the module of its own background, which is a different question.
    """
    validation, target = evaluate_run(run, rule=rule, parts=("validation", "test"), device=device)
    return {
        "seed": run.config.seed,
        "epochs": run.config.train.epochs,
        "epoch": target.choice.epoch,
        "validation": 100 * validation.figures["accuracy"],
        "target": 100 * target.figures["accuracy"],
    }


def train_all(options: argparse.Namespace) -> dict[str, Any]:
    """Each variant's figures per seed; a method that cannot use the data is listed with the reason."""
    found: dict[str, Any] = {}
    runtime = Runtime(runs=options.runs, device=options.device, resume=True)
    for name, variant in list_variants(options.methods).items():
        seeds = []
        try:
            for seed in options.seeds:
                run = train(make_config(variant, seed, options.epochs), runtime)
                seeds.append(measure(run, variant.rule, options.device))
                print(f"{name}, seed {seed}: {seeds[-1]}", flush=True)
        except UserError as error:
            found[name] = {"refused": str(error)}
            print(f"{name}: {error}", flush=True)
            continue
        uses_domains = ALGORITHMS[variant.method].uses_domains
        found[name] = {"seeds": seeds, "beside": variant.beside, "note": variant.note, "uses_domains": uses_domains}
    return found


def show(found: dict[str, Any]) -> list[str]:
    lines = [
        "| method | source validation, % | points above ERM | bar | target at that epoch, % | epochs | |",
        "|---|---|---|---|---|---|---|",
    ]
    variants = list_variants([])
    for name, each in found.items():
        if "refused" in each:
            continue
        gap = mean(each, "validation") - mean(found[each["beside"]], "validation")
        free = name == each["beside"] or not variants[name].bar
        bar = "" if free else "holds" if gap >= -BAR else "**BROKEN**"
        shown = "" if name == each["beside"] else f"{gap:+.1f}"
        note = write_note(name, each["note"])
        lines.append(
            f"| {name}{'*' * each['uses_domains']} | {spread(each, 'validation')} | {shown} | {bar} | "
            f"{spread(each, 'target')} | {each['seeds'][0]['epochs']} | {note} |"
        )
    lines += [f"\n- {name} was refused: {each['refused']}." for name, each in found.items() if "refused" in each]
    return lines


def mean(each: dict[str, Any], column: str) -> float:
    return statistics.mean(seed[column] for seed in each["seeds"])


def spread(each: dict[str, Any], column: str) -> str:
    return spread_values([seed[column] for seed in each["seeds"]])


INTRODUCTION = """# Comparison of the methods

## Do they learn?

The embedded digits with a dominant ratio of 0.9 (`--recipe {recipe}`), every method with the settings of its
recipe; mean ± sample standard deviation over {seeds} seeds. Source validation is the accuracy on 130 held-out images
of the training backgrounds, for the model as it predicts, at the epoch that the method's own validation chose. The
bar: at most {bar:g} points below ERM; a method that cannot learn is broken. The bar does not apply to `recommended`,
which is designed to ignore the background: the background alone predicts nine of ten of these labels.

The target column is the test accuracy at the epoch, or of the averaged weights, that source validation chose. It is not
used for selection, the learning rates are those of ERM's recipe, and 500 small images on a few splits cannot rank
methods.

Made by `python -m benchmarks.embedded`.
"""


def write_page(out: Path) -> None:
    """README.md from the figures and tables next to it."""
    found = json.loads((out / "embedded.json").read_text())
    seeds = max(len(each["seeds"]) for each in found.values() if "seeds" in each)
    lines = [
        INTRODUCTION.format(recipe=RECIPE, seeds=seeds, bar=BAR),
        *show(found),
        "",
        "\\* learns from domain labels; here the background.",
        "",
        "## What does a step cost?",
        "",
        "Made by `python -m benchmarks.methods` (on the CPU with `--rounds 30`), which also describes the procedure.",
        "The StableNet rows on the GPU were measured before `recommended` had offsets, which add a regression before",
        "the first epoch and an addition to every step.",
    ]
    for path in sorted(out.glob("speed-*.md")):
        lines += ["", f"### {path.stem.removeprefix('speed-')}", "", path.read_text().rstrip()]
    (out / "README.md").write_text("\n".join(lines) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", default=[], help="only these, beside ERM")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, help="fewer than the recipe's, for a quick look; write it elsewhere")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"))
    parser.add_argument("--out", type=Path, default=Path("results/methods"))
    parser.add_argument("--page", action="store_true", help="train nothing, write the page from what was measured")
    return parser.parse_args()


def main() -> None:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    figures = options.out / "embedded.json"
    if not options.page:
        found = train_all(options)
        # Several processes may each train some of the methods: keep what another one wrote in the meantime.
        old = json.loads(figures.read_text()) if options.methods and figures.exists() else {}
        joined = {**old, **found}
        ordered = {name: joined[name] for name in list_variants([]) if name in joined}
        figures.write_text(json.dumps(ordered, indent=1) + "\n")
    write_page(options.out)
    print((options.out / "README.md").read_text())


if __name__ == "__main__":
    main()
