"""The page of a campaign: what was tried, what failed, and the commands to repeat it, from the summary alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

WHAT = {
    "archives": "zip archives: damaged, with paths outside, links, members of gigabytes",
    "diverging": "trainings of every method at rates up to 1e300, and what reads their folders",
    "estimators": "generated tables to the estimators",
    "images": "image files of every form, and of none",
    "machines": "little memory, full and read-only disks, other users' files, clocks that jump",
    "masks": "masks of every form and damage",
    "names": "odd names of folders, classes, columns and runs",
    "options": "options of every verb",
    "pairs": "two processes on one folder",
    "runs": "run folders with one file damaged",
    "settings": "settings of a training",
    "signals": "kills, interrupts and terminations at random moments",
    "soak": "memory and open files of a longer training",
    "stores": "pixel stores and manifests with one file damaged",
    "strangers": "modules and networks of others",
    "systems": "limits on files, no home, paths in the way",
    "tables": "CSV tables of every kind",
    "toml": "configs, bench tables and search spaces",
    "weighting": "generated batches to the weighting",
}
_COLUMNS = ("tried", "inputs", "clean", "mended", "failed", "skipped")


def write_page(path: Path, summary: dict[str, Any], command: str) -> None:
    """command: that wrote the summary."""
    path.write_text("\n".join(_describe(summary, command)) + "\n", encoding="utf-8")


def _describe(summary: dict[str, Any], command: str) -> Iterator[str]:
    yield "# The campaign"
    yield ""
    yield f"Written by `{command}`, seed {summary['seed']}; one seed generates the same trials. A trial is clean if"
    yield "it ends well or is refused in one sentence, leaves nothing half-written, and says nothing wrong that can be"
    yield "checked. A traceback, the last net (status 70) and a hang of 60 seconds are failures."
    yield ""
    yield f"**{summary['tried']:,} trials with {summary['inputs']:,} inputs: {summary['clean']:,} clean,"
    yield f"{summary['failed']:,} failing, {summary['skipped']:,} skipped** because the machine did not allow them."
    yield f"{summary['mended']:,} of the clean ones had failed before: mended, then repeated."
    if summary["tried"] < summary["asked"]:
        yield f"It was stopped before all {summary['asked']:,} trials were done; the parts take turns, so that each was"
        yield f"tried to {summary['tried'] / summary['asked']:.0%}, and the same command goes on."
    yield ""
    yield "| part | what | trials | inputs | clean | failed before | failing | skipped |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for name, counts in summary["parts"].items():
        numbers = (f"{counts.get(key, 0):,}" for key in _COLUMNS)
        yield f"| {name} | {WHAT[name]} | {' | '.join(numbers)} |"
    yield from ("", "## Kills", "")
    yield "A process is killed at a random moment, up to three times; then the same command runs to its end. All files"
    yield "are byte for byte those of an undisturbed command; of `try`, which plans by measured time, their names are."
    yield from ("", "| verb | kills |", "|---|--:|")
    yield from (f"| {verb} | {count} |" for verb, count in summary["kills"].items())
    yield f"| all | {sum(summary['kills'].values())} |"
    yield from _list("Failing", summary["faults"])
    yield from _list("Failed before, clean now", summary["mended_faults"])


def _list(title: str, faults: dict[str, Any]) -> Iterator[str]:
    """The shortest command of each kind of fault."""
    yield from ("", f"## {title}", "")
    if not faults:
        yield "None."
    for found in faults.values():
        one = found["shortest"][0]
        yield from (f"{found['count']} × (`--only {one['trial']}`)", "", "```text")
        yield from (_print(one["command"]), _print(one["fault"]), "```", "")


def _print(text: str) -> str:
    """On one line and within its block, whatever it holds."""
    return " ".join(text.replace("`", "'").encode("unicode_escape").decode().split())
