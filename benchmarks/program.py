"""What is prepared and has not been run: every table, seed and search, in order, as one command that can be resumed.

    python -m benchmarks.program                # rewrites the list in results/README.md
    python -m benchmarks.program DATA           # runs it; the same command goes on where it stopped
    python -m benchmarks.program DATA --only natural-search,natural-tuned

Beds and seeds are those of results/natural/division.md, fixed before any run. DATA holds what the tables need: PACS,
pets, places, MNIST's files, BSDS500 and the weights of ResNet-50. Every step is one command of `stablenet bench`, which
trains only what is missing.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stablenet.bench.cells import choose_rows
from stablenet.bench.paper_tables import PaperTable, find_table
from stablenet.bench.plan import choose_columns

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- begin prepared -->\n", "<!-- end prepared -->"
AT_ONCE = 12  # runs on one H200, as the published ones of `natural.toml`
OVERHEAD = 2.5  # starts and evaluations: 124 runs of 11 s took four minutes, 440 of 8 s fourteen, 12 and 11 at once
FIVE, TEN, THREE = tuple(range(50, 55)), tuple(range(50, 60)), tuple(range(50, 53))
PUBLISHED = tuple(range(30, 35))  # of MNIST-M, so that published runs fill a part of the cells
BUDGET = 8


@dataclass(frozen=True, kw_only=True)
class Step:
    """what: for readers.   table: a file below results/, or a table's name.   methods, columns: () for all.

    methods also say in which order a seed's runs are made.
    budget: trials of a search, 0 for a run.   tuned: with what a search chose.   seconds: of training a run, the mean
    over published runs of the kind; 0 where the table states its hours.   at_once: runs.   runs: the folder of runs; a
    step that repeats published ones has its own.
    """

    name: str
    what: str
    table: str
    seeds: tuple[int, ...]
    methods: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    budget: int = 0
    tuned: bool = False
    seconds: float = 11.0
    at_once: int = AT_ONCE
    runs: str = "runs"


STEPS = (
    Step(
        name="natural",
        what="pets over places at 0.95: all competitors and oracles, five seeds",
        table="natural/natural.toml",
        seeds=FIVE,
    ),
    Step(
        name="natural-search",
        what="an equal search for all, eight trials each, on source validation alone",
        table="natural/natural.toml",
        seeds=(50,),
        budget=BUDGET,
    ),
    Step(
        name="natural-tuned",
        what="the same beds with what the search chose",
        table="natural/natural.toml",
        seeds=FIVE,
        tuned=True,
    ),
    Step(
        name="ratios",
        what="pets over places at 0.8, 0.9 and 0.99",
        table="natural/natural-ratios.toml",
        seeds=FIVE,
    ),
    Step(
        name="assignments",
        what="PACS flexible 5:1:1, ten drawn assignments, version 2, DG-MMLD and RSC among the methods",
        table="natural/flexible.toml",
        seeds=TEN,
        seconds=19,
    ),
    Step(
        name="mnist-m",
        what="MNIST-M at all ratios: version 2, weights alone, offsets alone",
        table="mnist-m/version-2.toml",
        seeds=TEN,
        seconds=8,
    ),
    Step(
        name="mnist-m-methods",
        what="MNIST-M at random, 0.9 and 0.95: all competitors",
        table="natural/digits.toml",
        seeds=TEN,
        seconds=10,
    ),
    Step(
        name="mnist-m-search",
        what="an equal search for all there",
        table="natural/digits.toml",
        seeds=(50,),
        budget=BUDGET,
        seconds=10,
    ),
    Step(
        name="mnist-m-tuned",
        what="the same with what the search chose",
        table="natural/digits.toml",
        seeds=TEN,
        tuned=True,
        seconds=10,
    ),
    Step(
        name="covariance",
        what="the paper's method read as the weighted covariance, three penalties, all ratios",
        table="mnist-m/paper-method.toml",
        seeds=TEN,
        seconds=33,
    ),
    Step(
        name="covariance-authors",
        what="the same with the authors' schedule",
        table="mnist-m/paper-method-authors.toml",
        seeds=TEN,
        seconds=44,
    ),
    Step(
        name="covariance-pacs",
        what="the same on PACS at 112 pixels",
        table="pacs/paper-method-112.toml",
        seeds=FIVE,
        seconds=30,
    ),
    Step(
        name="harm",
        what="where nothing is to be gained: places at random, PACS classic and unbalanced, trained",
        table="natural/harm.toml",
        seeds=FIVE,
        seconds=31,
    ),
    Step(
        name="swad",
        what="SWAD beside offsets, on the beds to develop on",
        table="natural/develop.toml",
        methods=("erm", "erm-swad", "recommended", "recommended-swad"),
        columns=("species", "breeds", "few"),
        seeds=tuple(range(5)),
    ),
    Step(
        name="m-ada",
        what="M-ADA at 60,000 images with all three domains, in place of the published rows",
        table="mnist-m/sixty-thousand.toml",
        methods=("m-ada",),
        seeds=PUBLISHED,
        seconds=52,
        runs="runs-m-ada",
    ),
    Step(
        name="paper",
        what="every table of the paper that PACS allows, all methods; seed by seed, plain training first",
        table="paper-resnet50",
        methods=(
            *("erm", "stablenet-recommended", "stablenet", "stablenet-published", "rsc", "jigen", "dg-mmld", "focal"),
            *("metareg", "far", "d-sam", "epi-fcr", "m-ada"),
        ),
        seeds=THREE,
        seconds=0,
        at_once=16,  # they take a few seconds, half of them to start and to evaluate
    ),
    *(
        Step(
            name=f"{part}-mnistm",
            what=f"figure 3, {part}, on MNIST-M",
            table=f"ablation-{part}-mnistm",
            seeds=PUBLISHED,
            seconds=13,
        )
        for part in ("fourier", "memory")
    ),
    *(
        Step(
            name=f"{part}-pacs",
            what=f"figure 3, {part}, on PACS",
            table=f"ablation-{part}-pacs",
            seeds=THREE,
            seconds=6.4,
        )
        for part in ("fourier", "linear", "memory")
    ),
)


def open_table(step: Step) -> PaperTable:
    return find_table(name_table(step) if "/" not in step.table else str(ROOT / name_table(step)))


def name_table(step: Step) -> str:
    return f"results/{step.table}" if "/" in step.table else step.table


def count_runs(step: Step) -> int:
    """Trainings of a step where nothing has been run; columns that read one run differently count once."""
    table = open_table(step)
    columns = choose_columns(table, step.columns)
    pairs = {
        (row.id, row.recipe or column.recipe, column.config)
        for row in choose_rows(table, step.methods)
        for column in columns
    }
    return len(pairs) * len(step.seeds) * max(1, step.budget)


def guess_minutes(step: Step) -> float:
    """GPU minutes. Where no seconds are known, the table states its hours, for three seeds."""
    hours = open_table(step).hours
    if not step.seconds:
        assert hours is not None
        return 60 * hours * len(step.seeds) / 3
    return count_runs(step) * step.seconds * OVERHEAD / AT_ONCE / 60


def write_command(step: Step, data: str) -> list[str]:
    command = ["stablenet", "bench", "search" if step.budget else "run", name_table(step)]
    for option, values in (("--methods", step.methods), ("--columns", step.columns)):
        command += [option, ",".join(values)] if values else []
    command += ["--seeds", ",".join(map(str, step.seeds)) + ("," if len(step.seeds) == 1 else "")]
    command += ["--budget", str(step.budget)] if step.budget else []
    command += ["--tuned"] if step.tuned else []
    command += ["--per-gpu", str(step.at_once)]
    command += [] if step.budget else ["--figures-only"]  # thousands of networks would fill a disk
    command += ["--runs", step.runs] if step.runs != "runs" else []
    return [*command, "--root", data]


def write_list(steps: Sequence[Step] = STEPS) -> str:
    lines = ["| step | what | runs | GPU minutes | command |", "|---|---|---|---|---|"]
    for step in steps:
        command = f"`{shlex.join(write_command(step, 'data'))}`"
        lines.append(
            f"| {step.name} | {step.what} | {count_runs(step):,} | {max(1, guess_minutes(step)):.0f} | {command} |"
        )
    runs, minutes = sum(map(count_runs, steps)), sum(map(guess_minutes, steps))
    lines.append(f"| all | | {runs:,} | {minutes:.0f} | `python -m benchmarks.program data` |")
    return "\n".join(lines) + "\n"


def put(page: str, text: str) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + text + END + rest.split(END)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", default="")
    parser.add_argument("--only", default="", help="names of steps, separated by commas")
    arguments = parser.parse_args()
    if not arguments.data:
        page = ROOT / "results" / "README.md"
        page.write_text(put(page.read_text(encoding="utf-8"), write_list()), encoding="utf-8")
        return
    names = arguments.only.split(",") if arguments.only else [step.name for step in STEPS]
    unknown = set(names) - {step.name for step in STEPS}
    if unknown:
        parser.error(f"no step is called {', '.join(sorted(unknown))}")
    failed = []
    for step in STEPS:
        if step.name in names:
            command = write_command(step, arguments.data)
            print(shlex.join(command), flush=True)
            if subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode:
                failed.append(step.name)
    if failed:
        sys.exit(f"not finished: {', '.join(failed)}; the same command goes on")


if __name__ == "__main__":
    main()
