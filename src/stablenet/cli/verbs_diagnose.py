"""`stablenet diagnose`: does context predict the label here? `stablenet table`: stable learning on a CSV file."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablenet.cli.completion import complete_backbone, complete_data, complete_split
from stablenet.errors import UserError

if TYPE_CHECKING:
    from stablenet.cli.console import Console
    from stablenet.diagnose import Diagnosis
    from stablenet.diagnose.diagnosis_page import Asked
    from stablenet.tabular.fit import TableReport

Report = Callable[[str, int, int], None]
LABEL = "label"  # the usual name of its column


def _note_old_split(value: str) -> str:
    """The option's name in version 0.1."""
    if value:
        from stablenet.registry import note_renamed

        note_renamed("--setting", "--split")
    return value


# What both verbs ask about a table.
Environment = Annotated[
    str | None, typer.Option("--environment", "--context", help="The column with the context: site, year, background.")
]
Task = Annotated[str, typer.Option(help="Tables: auto, regression or classification.")]
LeaveOut = Annotated[list[str] | None, typer.Option(help="Tables: a column to leave out; repeatable.")]
Categorical = Annotated[
    list[str] | None, typer.Option(help="Tables: a column of numbers that are categories; repeatable.")
]
Missing = Annotated[str, typer.Option(help="Tables: missing values: mark (as a column), drop (the rows) or error.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all random draws.")]


def diagnose(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A folder or zip of images (class/image or domain/class/image, also below train/, test/), a CSV file, "
            "a named source, or a run.",
            autocompletion=complete_data,
        ),
    ],
    target: Annotated[str, typer.Option("--target", "--label", help="CSV: the column to predict.")] = LABEL,
    environment: Environment = None,
    part: Annotated[
        str,
        typer.Option(
            help="CSV of images: the column with a given split, of which the training part is diagnosed; by default "
            "part, split or subset. With none, all images are."
        ),
    ] = "",
    task: Task = "auto",
    leave_out: LeaveOut = None,
    categorical: Categorical = None,
    missing: Missing = "mark",
    split: Annotated[
        str,
        typer.Option(help="Images: diagnose the training part of this split.", autocompletion=complete_split),
    ] = "",
    old_split: Annotated[str, typer.Option("--setting", hidden=True, callback=_note_old_split)] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter of the split, such as ratio=0.9; repeatable.")
    ] = None,
    manifest: Annotated[Path | None, typer.Option(help="Images: diagnose the training part of this manifest.")] = None,
    root: Annotated[
        Path | None,
        typer.Option(help="Folder of a named source or of a CSV's images; by default STABLENET_DATA."),
    ] = None,
    backbone: Annotated[
        str,
        typer.Option(
            help="A network whose first stages give the features, such as resnet50.", autocompletion=complete_backbone
        ),
    ] = "",
    pretrained: Annotated[str, typer.Option(help="Its weights: imagenet, or a .safetensors file.")] = "",
    limit: Annotated[int, typer.Option(min=100, help="Use at most this many images, drawn at random.")] = 10_000,
    seed: Seed = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("diagnosis.html"),
    csv: Annotated[
        Path | None,
        typer.Option("--csv", help="Also list all samples, those first that break the correlation (.csv or .parquet)."),
    ] = None,
) -> None:
    """Check, without training, whether context predicts the label in this data and StableNet would help."""
    from stablenet.cli.outputs import check_outputs
    from stablenet.diagnose.diagnosis_page import write_exceptions, write_page
    from stablenet.evaluation.predict import check_table_path

    check_outputs({"--output": output, "--csv": csv}, [Path(data), manifest, root])
    if csv is not None:
        check_table_path(csv)
    question = _ask(target, environment, task, leave_out, categorical, missing, seed)
    start = time.perf_counter()
    with _show_steps() as report:
        if _is_plain_table(data):
            found = _diagnose_table(Path(data), question, report)
        else:
            subject = _open(data, target, environment, part, split or old_split, settings, manifest, root)
            found = _diagnose_images(subject, backbone, pretrained, root, limit, seed, report)
    asked = _describe(data, question, part, csv, root, _spell_division(split or old_split, settings, manifest))
    if csv is not None:
        write_exceptions(found, csv)
    write_page(found, output, "stablenet " + shlex.join(sys.argv[1:]), time.perf_counter() - start, asked)
    _print_diagnosis(found, output, asked)


def _ask(
    target: str,
    environment: str | None,
    task: str,
    leave_out: list[str] | None,
    categorical: list[str] | None,
    missing: str,
    seed: int,
) -> dict[str, Any]:
    """The fields of a `TableQuestion`."""
    if missing == "fill":
        typer.echo("--missing fill is now --missing mark: gaps are marked, and lie at their column's mean", err=True)
        missing = "mark"
    return {
        "target": target,
        "environment": environment,
        "task": task,
        "leave_out": tuple(leave_out or ()),
        "categorical": tuple(categorical or ()),
        "missing": missing,
        "seed": seed,
    }


def _spell_division(split: str, settings: list[str] | None, manifest: Path | None) -> tuple[str, ...]:
    """The options that say which part of the images is diagnosed."""
    words = ["--split", split] if split else []
    words += [word for text in settings or () for word in ("--set", text)]
    return (*words, *(["--manifest", str(manifest)] if manifest is not None else []))


def _describe(
    data: str,
    question: dict[str, Any],
    part: str,
    csv: Path | None,
    root: Path | None,
    division: tuple[str, ...] = (),
) -> Asked:
    """What was diagnosed, with the options that say how it is read."""
    from stablenet.diagnose.diagnosis_page import Asked, Kind
    from stablenet.diagnose.subject import is_source
    from stablenet.engine.run_folder import RunFolder

    listed = str(csv) if csv else ""
    if _is_plain_table(data):
        words = _spell(question)
        return Asked(kind="table", data=data, options=words, table=words, csv=listed)
    if RunFolder(Path(data)).config.is_file():
        return Asked(kind="run", data=data, csv=listed)
    options = ["--target", question["target"]] if question["target"] != LABEL else []
    options += ["--context", question["environment"]] if question["environment"] else []
    options += ["--part", part] if part else []
    options += ["--root", str(root)] if root is not None else []
    kind: Kind = "source" if is_source(data) else "own images"
    return Asked(kind=kind, data=data, options=tuple(options), division=division, csv=listed)


def _spell(question: dict[str, Any]) -> tuple[str, ...]:
    """The question as options, which `diagnose` and `table fit` share; defaults are left out."""
    from stablenet.tabular.reading import TableQuestion

    words: list[str] = []
    for name, value in question.items():
        if value != getattr(TableQuestion, name, None):
            option = f"--{name.replace('_', '-')}"
            words += [word for one in (value if isinstance(value, tuple) else (value,)) for word in (option, str(one))]
    return tuple(words)


def _is_plain_table(data: str) -> bool:
    """Whether this is a CSV file whose columns are features, not a list of images."""
    from stablenet.data.sources.own import has_paths

    path = Path(data)
    return path.suffix == ".csv" and path.is_file() and not has_paths(path)


def _diagnose_table(path: Path, question: dict[str, Any], report: Report) -> Diagnosis:
    from stablenet.diagnose.diagnoses import diagnose_table
    from stablenet.tabular.reading import TableQuestion, read_csv

    return diagnose_table(read_csv(path), TableQuestion(**question), path.stem, report)


def _open(
    data: str,
    label: str,
    context: str | None,
    part: str,
    split: str,
    settings: list[str] | None,
    manifest: Path | None,
    root: Path | None,
) -> Any:
    from stablenet.diagnose.subject import Division, is_source, open_place, open_run, open_source
    from stablenet.engine.config import parse_setting
    from stablenet.engine.run import load_run
    from stablenet.engine.run_folder import RunFolder

    folder = os.environ.get("STABLENET_DATA")
    root = root or (Path(folder) if folder else None)
    if RunFolder(Path(data)).config.is_file():
        if split or settings or manifest or context:
            raise UserError(
                f"{data} is a run, which has its own split: leave --split, --set, --manifest, --context out"
            )
        return open_run(load_run(data), root)
    given = {name: value for text in settings or () for name, value in parse_setting(text).items()}
    if not is_source(data):
        division = Division(manifest=manifest, split=split, parameters=given)
        return open_place(Path(data), "" if label == LABEL else label, context, part, root, division)
    if context is not None:
        raise UserError(f"the contexts of {data} are its domains: leave --context out")
    return open_source(data, root, manifest, split, given)


def _diagnose_images(
    subject: Any, backbone: str, pretrained: str, root: Path | None, limit: int, seed: int, report: Report
) -> Diagnosis:
    from stablenet.diagnose.diagnoses import ImageChoices, diagnose_images

    choices = ImageChoices(backbone=backbone, pretrained=pretrained, root=root, limit=limit, seed=seed)
    return diagnose_images(subject, choices, report)


@contextmanager
def _show_steps() -> Iterator[Report]:
    """Yields a function to call with step, number done and total; one bar per step, on the error stream."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from stablenet.cli.console import Console, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield report


def _print_diagnosis(found: Diagnosis, page: Path, asked: Asked) -> None:
    from stablenet.cli.console import Console
    from stablenet.diagnose.diagnosis_page import suggest_steps

    console = Console()
    for note in found.notes:
        console.print(f"note: {note}", style="yellow")
    console.print(found.verdict.headline, style="bold")
    for reason in found.verdict.reasons:
        console.print(f"- {reason}")
    console.print(f"Weights: {found.weights_from}.")
    console.print(found.verdict.advice)
    console.print(f"page: {page}", soft_wrap=True)
    if asked.csv:
        console.print(f"ranked list: {asked.csv}", soft_wrap=True)
    console.print(f"next: {suggest_steps(asked, found.verdict.level)[0].command}", soft_wrap=True)


app = typer.Typer(help="Stable learning on tables.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Stable learning on tables."""


@app.command()
def fit(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A CSV table with a header row.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    environment: Environment = None,
    task: Task = "auto",
    method: Annotated[str, typer.Option(help="stable, dwr, srdo, or crbr (classification).")] = "stable",
    estimator: Annotated[str, typer.Option(help="linear, mlp or forest.")] = "linear",
    leave_out: LeaveOut = None,
    categorical: Categorical = None,
    missing: Missing = "mark",
    seed: Seed = 0,
    page: Annotated[Path | None, typer.Option(help="Page to write; by default next to the data, as .html.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Also write the table with a column `weight` (CSV).")] = None,
    save: Annotated[
        Path | None, typer.Option(help="Also write the model: .json, plain numbers, or .joblib, a pickle.")
    ] = None,
) -> None:
    """Fit a table, cross-validate over its environments and write a page."""
    from stablenet.cli.console import Console
    from stablenet.cli.outputs import check_outputs, name_beside
    from stablenet.tabular.estimators import check_saving
    from stablenet.tabular.fit import TableChoices, fit_table, write_page
    from stablenet.tabular.reading import read_csv

    question = _ask(target, environment, task, leave_out, categorical, missing, seed)
    choices = TableChoices(**question, method=method, estimator=estimator)
    if save is not None:
        check_saving(save, estimator)
    where = page or name_beside(data, ".html")
    check_outputs({"--page": where, "--weights": weights, "--save": save}, [data])
    report = fit_table(read_csv(data), choices)
    write_page(report, where)
    console = Console()
    _print_report(console, report)
    _write_extras(report, weights, save)
    console.print(f"page: {where}", soft_wrap=True)


def _write_extras(report: TableReport, weights: Path | None, save: Path | None) -> None:
    from stablenet.frames import write_csv
    from stablenet.tabular.estimators import save_model

    if weights is not None:
        columns: dict[str, Any] = {report.choices.target: report.y, "weight": report.model.weights_}
        write_csv(report.x.assign(**columns), weights)
    if save is not None:
        save_model(report.model, save)


def _print_report(console: Console, report: TableReport) -> None:
    from rich.table import Table

    from stablenet.tabular.fit import summarise

    for note in report.notes:
        console.print(f"note: {note}", style="yellow")
    measure = "RMSE" if report.task == "regression" else "error rate"
    table = Table("left out", "rows", "equal weights", "learned weights", title=f"{measure} on held-out rows")
    for held in report.held_out:
        table.add_row(held.name, f"{held.rows:,}", f"{held.plain:.4g}", f"{held.weighted:.4g}")
    table.add_section()
    for name, plain, weighted in summarise(report):
        table.add_row(name, "", f"{plain:.4g}", f"{weighted:.4g}")
    console.print(table)
    console.print(report.verdict)
    model = report.model
    share = model.ess_ / len(report.x)
    left = model.dependence_after_ / model.dependence_before_ if model.dependence_before_ else 1.0
    kept = f"effective sample size {model.ess_:,.0f} ({100 * share:.0f} %)"
    console.print(f"dependence left {100 * left:.0f} %, {kept}")
