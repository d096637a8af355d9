"""The whole tryout: diagnose, train ERM and StableNet over seeds, compare, write the pages and one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stablenet.bench import BenchResult, collect, find_table
from stablenet.bench.executors import Event, LocalExecutor, Place, find_places
from stablenet.bench.plan import TablePart, make_orders, make_plan
from stablenet.bench.results import ResultCell
from stablenet.diagnose.diagnoses import ImageChoices, diagnose_images
from stablenet.diagnose.diagnosis_page import Asked, write_page
from stablenet.diagnose.subject import open_place
from stablenet.engine.ranking import find_best
from stablenet.engine.run import load_run
from stablenet.engine.session import choose_device
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import find_failures
from stablenet.pages import write_points
from stablenet.report import ReportSettings, build_report
from stablenet.tryout.plan_tryout import Request, plan_tryout

Report = Callable[[str, int, int], None]  # what is done, how many, of how many
Say = Callable[[str], None]
ERM, STABLENET = "erm", "stablenet"


@dataclass(frozen=True)
class Tryout:
    """sentence: what was gained.   advice: what to do next.   page: the results.   commands: that do the same."""

    sentence: str
    advice: str
    page: Path
    diagnosis: Path
    result: BenchResult
    commands: tuple[str, ...]


def run_tryout(request: Request, say: Say, report: Report) -> Tryout:
    """Run everything; what an earlier start of this request has finished is reused.   say: called with each finding."""
    images = request.open()
    say(f"{images.known_as}: {images.describe()}")
    _refuse_place(request, images.contains(request.output.resolve()))
    diagnosis = _diagnose(request, say, report)
    kind, _ = choose_device(request.device)
    places = find_places(request.device)
    say(plan_tryout(request, images, kind, sum(place.most for place in places)))
    result = _train(request, places, report)
    settings = ReportSettings(
        runs=request.runs,
        output=request.output,
        tables=(str(request.table),),
        root=request.data_root,
        device=request.device,
        panels=0,
    )
    page = build_report(settings).page
    sentence, advice = write_verdict(result, declined=all_declined(result), failed=count_failed(result))
    return Tryout(sentence, advice, page, diagnosis, result, tuple(request.commands()))


def _refuse_place(request: Request, inside: bool) -> None:
    if inside:
        raise UserError(f"{request.output} lies among the images: choose another --output, outside of {request.place}")


def _diagnose(request: Request, say: Say, report: Report) -> Path:
    subject = open_place(request.place, request.label, request.context or None, request.part, request.root)
    found = diagnose_images(subject, ImageChoices(), report)
    page = request.output / "diagnosis.html"
    asked = Asked(kind="own images", data=str(request.place))
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

    report("training", before, total)
    LocalExecutor(places, request.runs / ".bench" / "logs").run(orders, tell)
    return collect(table, request.runs, seeds=part.seeds, root=request.data_root)


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


def write_verdict(result: BenchResult, declined: str = "", failed: int = 0) -> tuple[str, str]:
    """One sentence on what was gained, and one on what to do next.

    declined: why StableNet trained plainly.   failed: runs of plain training that learned nothing.
    """
    plain, ours = result.cell(ERM, "all"), result.cell(STABLENET, "all")
    if failed:
        return (
            f"Plain training learned nothing in {failed} of {plain.count} runs: the comparison shows nothing.",
            "Give more --minutes, or start from pretrained weights: --backbone resnet50 --pretrained FILE.",
        )
    if declined:
        return (
            f"StableNet found nothing to gain and trained plainly, bit for bit: {_show(plain)} on the test images.",
            f"Keep plain training. The reason: {declined}.",
        )
    worst = result.cell(STABLENET, "worst") if any(column.id == "worst" for column in result.columns) else None
    sentence = f"StableNet: {_show(ours)} on the test images, plain training {_show(plain)}: {_compare(ours)}"
    if worst is not None and worst.versus is not None:
        sentence += f"; in the worst group of class and context {_compare(worst)}"
    return f"{sentence}.", _advise(ours, worst)


def _show(cell: ResultCell) -> str:
    spread = f" ± {cell.deviation:.1f}" if cell.deviation is not None else ""
    return "not measured" if cell.mean is None else f"{cell.mean:.1f}{spread} %"


def _compare(cell: ResultCell) -> str:
    versus = cell.versus
    if versus is None or versus.low is None or versus.high is None:
        return "no two seeds to compare"
    return (
        f"{write_points(versus.mean)} points (95 % interval {write_points(versus.low)} to {write_points(versus.high)}, "
        f"{len(versus.seeds)} seeds)"
    )


def _advise(ours: ResultCell, worst: ResultCell | None) -> str:
    """By the worst group where there is one, unless the whole loses."""
    verdicts = [cell.versus.verdict for cell in (ours, worst) if cell is not None and cell.versus is not None]
    best = ours.values[0].runs[0].path if ours.values and ours.values[0].runs else None
    if "loss" in verdicts:
        return "Do not use StableNet on these images: it loses."
    if "win" in verdicts:
        return f"Use it: stablenet predict {best} YOUR-IMAGES, or train longer with the commands below."
    return (
        "The seeds cannot tell a gain from chance: give more --minutes or --seeds, or keep plain training. "
        "A test part whose contexts differ from the training images (--unseen, or a given split) shows the most."
    )
