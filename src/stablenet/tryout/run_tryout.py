"""The whole tryout: diagnose, train ERM and StableNet over seeds, compare, write the pages and one sentence."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stablenet.bench import BenchResult, collect, find_table
from stablenet.bench.collect import find_evaluation
from stablenet.bench.executors import Event, LocalExecutor, Place, find_places
from stablenet.bench.plan import TablePart, make_orders, make_plan
from stablenet.bench.results import ENOUGH_IMAGES, ENOUGH_SEEDS, ResultCell
from stablenet.data.image_list import ImageList
from stablenet.data.prepare import check_headers
from stablenet.diagnose.diagnoses import ImageChoices, diagnose_images
from stablenet.diagnose.diagnosis_page import Asked, write_page
from stablenet.diagnose.subject import open_place
from stablenet.engine.config import RunConfig
from stablenet.engine.ranking import find_best
from stablenet.engine.run import load_run
from stablenet.engine.run_data import open_data
from stablenet.engine.session import choose_device
from stablenet.errors import UserError, write_count
from stablenet.evaluation.evaluate import DEFAULT_RULE, find_failures
from stablenet.files import resolve
from stablenet.long_work import format_time
from stablenet.metrics import SMALLEST_GROUP
from stablenet.pages import write_points
from stablenet.registry import unknown_name
from stablenet.report import Closing, ReportSettings, build_report
from stablenet.report.comparisons import write_interval
from stablenet.tryout.plan_tryout import Request, plan_tryout

Report = Callable[[str, int, int], None]  # what is done, how many, of how many
Say = Callable[[str], None]
ERM, STABLENET = "erm", "stablenet"
OVERRUN = 1.2  # of the minutes asked for, from which it is said


@dataclass(frozen=True)
class Tryout:
    """sentence: what was gained.   advice: what to do next.   page: the results.   commands: that do the same.
    overrun: that it took longer than asked for; "" where it did not.
    """

    sentence: str
    advice: str
    page: Path
    diagnosis: Path
    result: BenchResult
    commands: tuple[str, ...]
    overrun: str = ""


@dataclass(frozen=True)
class Basis:
    """What a verdict rests on: test images of a seed, and those of its worst group; the fewest of all runs."""

    images: int
    group: int


def run_tryout(request: Request, say: Say, report: Report) -> Tryout:
    """Run everything; what an earlier start of this request has finished is reused.   say: called with each finding."""
    start = time.monotonic()
    images = request.open()
    say(f"{images.known_as}: {images.describe()}")
    _refuse_place(request, images.contains(resolve(request.output)))
    _check_unseen(request.unseen, images)
    check_headers(images, "or take them out")
    diagnosis = _diagnose(request, say, report)
    kind, _ = choose_device(request.device)
    places = find_places(request.device)
    plan = plan_tryout(request, images, kind, sum(place.most for place in places))
    say(plan)
    result = _train(request, places, report)
    basis = count_basis(result)
    sentence, advice = write_verdict(result, basis, declined=all_declined(result), failed=count_failed(result))
    settings = ReportSettings(
        runs=request.runs,
        output=request.output,
        tables=(str(request.table),),
        root=request.data_root,
        device=request.device,
        panels=0,
    )
    closing = Closing(advice, f"{images.describe()}; {plan}", {"the diagnosis": diagnosis.name}, request.commands())
    page = build_report(settings, closing).page
    overrun = tell_overrun(time.monotonic() - start, request.minutes)
    return Tryout(sentence, advice, page, diagnosis, result, tuple(request.commands()), overrun)


def tell_overrun(seconds: float, minutes: float) -> str:
    if seconds < OVERRUN * 60 * minutes:
        return ""
    return f"it took {format_time(seconds)}, longer than the {format_time(60 * minutes)} of --minutes"


def _refuse_place(request: Request, inside: bool) -> None:
    if inside:
        raise UserError(f"{request.output} lies among the images: choose another --output, outside of {request.place}")


def _check_unseen(context: str, images: ImageList) -> None:
    if not context:
        return
    if images.given_parts:
        raise UserError(
            "--unseen needs images without a split of their own: leave it out, or give --part none for a list"
        )
    if not images.contexts:
        raise UserError(
            f"--unseen {context} needs contexts, and {images.known_as} has none: --context names the column"
        )
    if context not in images.contexts:
        raise UserError(unknown_name("context", context, images.contexts))


def _diagnose(request: Request, say: Say, report: Report) -> Path:
    subject = open_place(request.place, request.label, request.context or None, request.part, request.root)
    found = diagnose_images(subject, ImageChoices(), report)
    page = request.output / "diagnosis.html"
    asked = Asked(kind="own images", data=str(request.place), options=tuple(request.reading))
    write_page(found, page, request.commands()[0], 0.0, asked)
    say(found.verdict.headline)
    return page


def _train(request: Request, places: list[Place], report: Report) -> BenchResult:
    """All runs of the table that are missing, and the filled table."""
    table = find_table(str(request.table))
    part = TablePart(seeds=tuple(range(request.seeds)))
    plan = make_plan(table, request.runs, part, root=request.data_root)
    orders = make_orders(plan.left, table, request.runs, root=request.data_root, device=request.device)
    total = sum(run.run.config.train.epochs for run in plan.runs)
    done = {order.name: 0 for order in orders}
    before = total - sum(run.run.config.train.epochs for run in plan.left)

    def tell(event: Event) -> None:
        if event.kind in ("failed", "lost"):
            raise UserError(f"the run {event.order.name} {event.kind}: {event.reason}")
        if event.kind == "epoch":
            done[event.order.name] = event.epoch
        if event.kind == "finished":
            done[event.order.name] = int(event.order.config["train"]["epochs"])
        report("training", before + sum(done.values()), total)

    if plan.left:
        _prepare_images(plan.left[0].run.config, request, report)
    report("training", before, total)
    LocalExecutor(places, request.runs / ".bench" / "logs").run(orders, tell)
    return collect(table, request.runs, seeds=part.seeds, root=request.data_root)


def _prepare_images(config: RunConfig, request: Request, report: Report) -> None:
    """Decode all images once, before the runs share them: with a bar, and with an error that lists damaged ones."""
    open_data(config, request.data_root, lambda done, total: report("preparing images", done, total)).open_part("train")


def all_declined(result: BenchResult) -> str:
    """Why StableNet trained plainly, if it did so with every seed; else ""."""
    runs = [load_run(ref.path) for value in result.cell(STABLENET, "all").values for ref in value.runs]
    found = [next((r for r in run.records if r["kind"] == "solve" and "acts" in r), None) for run in runs]
    reasons = [str(record["decision"]) for record in found if record is not None and not record["acts"]]
    return reasons[0] if reasons and len(reasons) == len(runs) else ""


def count_failed(result: BenchResult) -> int:
    """Number of runs of plain training that predict one class for everything, or guess."""
    runs = [load_run(ref.path) for value in result.cell(ERM, "all").values for ref in value.runs]
    chosen = [find_best(run.records) for run in runs]
    found = [find_failures(best["validation"]) for best in chosen if best is not None]
    return sum(any(failure.kind in ("one class", "guessing") for failure in failures) for failures in found)


def count_basis(result: BenchResult) -> Basis:
    """Of all runs of the table, by their evaluations."""
    refs = [ref for row in (ERM, STABLENET) for value in result.cell(row, "all").values for ref in value.runs]
    found = [evaluation["figures"] for ref in refs if (evaluation := find_evaluation(ref.path, DEFAULT_RULE))]
    groups = [(figures.get("groups") or {}).get("worst") or {} for figures in found]
    return Basis(
        images=min((int(figures["count"]) for figures in found), default=0),
        group=min((int(group.get("count", 0)) for group in groups), default=0),
    )


def write_verdict(result: BenchResult, basis: Basis, declined: str = "", failed: int = 0) -> tuple[str, str]:
    """One sentence on what was gained, and one on what to do next.

    declined: why StableNet trained plainly.   failed: runs of plain training that learned nothing.
    """
    plain, ours = result.cell(ERM, "all"), result.cell(STABLENET, "all")
    rests_on = f"{write_count(ours.count, 'seed')}, {write_count(basis.images, 'test image')} each"
    if failed:
        return (
            f"Plain training learned nothing in {failed} of {plain.count} runs: the comparison shows nothing.",
            "Give more --minutes, or start from pretrained weights: --backbone resnet50 --pretrained FILE.",
        )
    if declined:
        return (
            "StableNet found nothing to gain and trained plainly, bit for bit: "
            f"{_show(plain)} on the test images ({rests_on}).",
            f"Keep plain training. The reason: {declined}.",
        )
    worst = result.cell(STABLENET, "worst") if any(column.id == "worst" for column in result.columns) else None
    sentence = f"StableNet: {_show(ours)} on the test images, plain training {_show(plain)}: {_compare(ours, rests_on)}"
    if worst is not None and worst.versus is not None:
        size = f"{write_count(basis.group, 'image')} or more"
        sentence += f"; in the worst group of class and context {_compare(worst, size)}"
    return f"{sentence}.", _advise(ours, worst, basis)


def _show(cell: ResultCell) -> str:
    spread = f" ± {cell.deviation:.1f}" if cell.deviation is not None else ""
    return "not measured" if cell.mean is None else f"{cell.mean:.1f}{spread} %"


def _compare(cell: ResultCell, rests_on: str) -> str:
    versus = cell.versus
    if versus is None:
        return "no two seeds to compare"
    interval = write_interval(versus) or "no interval"
    return f"{write_points(versus.mean)} points ({interval}; {rests_on})"


def _advise(ours: ResultCell, worst: ResultCell | None, basis: Basis) -> str:
    """By the worst group where there is one, unless the whole loses; only where there is enough to go by."""
    best = ours.values[0].runs[0].path if ours.values and ours.values[0].runs else None
    if ours.count < ENOUGH_SEEDS or basis.images < ENOUGH_IMAGES:
        return (
            f"Too little for a verdict: it takes {ENOUGH_SEEDS} seeds and {ENOUGH_IMAGES} test images or more. "
            "Give more --seeds, or more images to test on (a given split, --unseen)."
        )
    cells = [ours, *([worst] if worst is not None and basis.group >= SMALLEST_GROUP else [])]
    verdicts = [cell.versus.verdict for cell in cells if cell.versus is not None]
    if "loss" in verdicts:
        return "Do not use StableNet on these images: it loses."
    if "win" in verdicts:
        return f"Use it: stablenet predict {best} YOUR-IMAGES, or train longer with the commands below."
    return (
        "The seeds cannot tell a gain from chance: give more --minutes or --seeds, or keep plain training. "
        "A test part whose contexts differ from the training images (--unseen, or a given split) shows the most."
    )
