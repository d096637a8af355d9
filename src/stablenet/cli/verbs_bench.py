"""`stablenet bench`: the paper's tables, and your own, as runs. `stablenet paper`: everything the paper shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stablenet.cli.completion import complete_method, complete_table
from stablenet.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stablenet.bench import BenchResult, PaperTable
    from stablenet.bench.executors import Executor
    from stablenet.bench.plan import Plan, TablePart
    from stablenet.bench.results import PaperItem


app = typer.Typer(help="Plan, run and summarise the paper's tables or your own.", no_args_is_help=True)

_MOST_SEEDS = 10_000  # of every cell: a table of more is a slip of the pen
TableName = Annotated[
    str,
    typer.Argument(
        metavar="TABLE", help="A table from `stablenet bench list`, or a .toml file.", autocompletion=complete_table
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        help="Rows of the table, or methods from `stablenet list`; comma-separated or repeated.",
        autocompletion=complete_method,
    ),
]
Columns = Annotated[list[str] | None, typer.Option(help="Columns of the table; comma-separated or repeated.")]
Seeds = Annotated[str, typer.Option(help="Number of seeds, counted from 0; or a list such as 10,11,12.")]
Runs = Annotated[Path, typer.Option(help="Folder of run folders.")]
Root = Annotated[Path | None, typer.Option(envvar="STABLENET_DATA", help="Folder or archive of the data source.")]
Device = Annotated[str, typer.Option(help="The device: auto, cpu, cuda or cuda:1.")]
Tuned = Annotated[bool, typer.Option("--tuned", help="Use the values that `bench search` chose.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Parallel runs; by default as many as fit.")]
PerGpu = Annotated[
    int | None, typer.Option(min=1, help="Parallel runs per GPU; by default as many as fit in memory, 1 with Ray.")
]
Threads = Annotated[int, typer.Option(min=1, help="Threads per run.")]
RayAddress = Annotated[
    str | None, typer.Option(help="Address of a Ray cluster: auto, host:port or ray://host:port; local starts one.")
]
Retries = Annotated[int, typer.Option(min=0, help="How often a run is resumed after its worker dies.")]


@app.command("list")
def list_tables(
    table: Annotated[
        str | None,
        typer.Argument(metavar="TABLE", help="Show the paper's numbers for this table.", autocompletion=complete_table),
    ] = None,
) -> None:
    """List the tables, or show the paper's numbers for one."""
    from stablenet.bench.paper_tables import find_table
    from stablenet.cli.bench_output import tabulate_paper, tabulate_tables
    from stablenet.cli.console import Console
    from stablenet.cli.data_output import print_whole

    if table is None:
        Console().print(tabulate_tables())
        return
    found = find_table(table)
    print_whole(tabulate_paper(found))
    for note in found.notes:
        typer.echo(f"note: {note}")


@app.command()
def plan(
    table: TableName,
    methods: Methods = None,
    columns: Columns = None,
    seeds: Seeds = "3",
    runs: Runs = Path("runs"),
    root: Root = None,
    device: Device = "auto",
    jobs: Jobs = None,
    tuned: Tuned = False,
    each: Annotated[bool, typer.Option("--each", help="Also list every run with its command.")] = False,
) -> None:
    """Show which runs a table needs, which are finished, and how long the rest will take."""
    from stablenet.cli.bench_output import describe_time, list_runs, tabulate_plan
    from stablenet.cli.console import Console

    made = _make_plan(table, runs, _choose(methods, columns, seeds, tuned), root, device)
    console = Console()
    console.print(tabulate_plan(made))
    if each:
        for line in list_runs(made):
            console.print(line, soft_wrap=True)
    _warn(made)
    typer.echo(describe_time(made, _count_at_once(device, jobs)))


@app.command()
def run(
    table: TableName,
    methods: Methods = None,
    columns: Columns = None,
    seeds: Seeds = "3",
    runs: Runs = Path("runs"),
    root: Root = None,
    device: Device = "auto",
    jobs: Jobs = None,
    per_gpu: PerGpu = None,
    threads: Threads = 1,
    ray_address: RayAddress = None,
    retries: Retries = 2,
    tuned: Tuned = False,
    figures_only: Annotated[
        bool,
        typer.Option(
            "--figures-only",
            help="For many short runs: write no checkpoints (a stopped run begins anew), keep no networks.",
        ),
    ] = False,
) -> None:
    """Train and evaluate a table's missing runs; run it again to resume."""
    from stablenet.bench.plan import make_orders
    from stablenet.cli.bench_output import EventPrinter, interruptible

    choice = _choose(methods, columns, seeds, tuned)
    made = _make_plan(table, runs, choice, root, device)
    _warn(made)
    executor = _make_executor(runs, device, jobs, per_gpu, threads, ray_address, retries)
    orders = make_orders(
        made.left, made.table, runs, root=root, device=device, threads=threads, figures_only=figures_only
    )
    typer.echo(
        f"{len(made.runs) - len(made.left)} of {len(made.runs)} runs are finished, {len(orders)} to do", err=True
    )
    with interruptible():
        outcomes = executor.run(orders, EventPrinter(len(orders)))
    _show_status(made.table, runs, choice, root)
    if made.damaged or any(outcome.state != "finished" for outcome in outcomes):
        raise typer.Exit(1)


@app.command()
def status(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="A table; by default all.", autocompletion=complete_table)
    ] = None,
    methods: Methods = None,
    columns: Columns = None,
    seeds: Seeds = "3",
    runs: Runs = Path("runs"),
    root: Root = None,
    tuned: Tuned = False,
) -> None:
    """Show a table's results so far (mean ± sample standard deviation) and what is missing."""
    from stablenet.bench.paper_tables import find_table
    from stablenet.cli.bench_output import tabulate_progress
    from stablenet.cli.console import Console

    if table is None:
        Console().print(tabulate_progress(runs))
        return
    _show_status(find_table(table), runs, _choose(methods, columns, seeds, tuned), root)


@app.command()
def search(
    table: TableName,
    methods: Methods = None,
    columns: Columns = None,
    budget: Annotated[int, typer.Option(help="Trials per method, including the unchanged recipe.")] = 8,
    seeds: Seeds = "1",
    draw: Annotated[int, typer.Option(help="Seed for drawing the trials.")] = 0,
    space: Annotated[Path | None, typer.Option(help="A TOML file with your own search space.")] = None,
    runs: Runs = Path("runs"),
    root: Root = None,
    device: Device = "auto",
    jobs: Jobs = None,
    per_gpu: PerGpu = None,
    threads: Threads = 1,
    ray_address: RayAddress = None,
    retries: Retries = 2,
) -> None:
    """Search hyper-parameters with an equal budget for every method, on source validation only."""
    from stablenet.bench.paper_tables import find_table
    from stablenet.bench.search import SearchSettings, draw_searches, plan_searches
    from stablenet.bench.search import search as run_search
    from stablenet.cli.bench_output import EventPrinter, interruptible, tabulate_search
    from stablenet.cli.console import Console

    found = find_table(table)
    choice = _choose(methods, columns, seeds, tuned=False)
    settings = SearchSettings(budget=budget, seeds=choice.seeds, draw=draw, space=space)
    left = sum(each.left for each in plan_searches(draw_searches(found, choice, settings, root), runs))
    executor = _make_executor(runs, device, jobs, per_gpu, threads, ray_address, retries)
    typer.echo(f"{left} runs to do", err=True)
    with interruptible():
        searches = run_search(found, runs, choice, settings, executor, EventPrinter(left), root, threads)
    Console().print(tabulate_search(searches))
    typer.echo(f"saved with the table; `stablenet bench run {table} --tuned` uses the chosen values")


def _choose(methods: list[str] | None, columns: list[str] | None, seeds: str, tuned: bool) -> TablePart:
    from stablenet.bench.plan import TablePart

    return TablePart(methods=_split(methods), columns=_split(columns), seeds=_parse_seeds(seeds), tuned=tuned)


def _split(names: list[str] | None) -> tuple[str, ...]:
    parts = tuple(part for name in names or () for part in name.split(",") if part)
    if names and not parts:
        raise UserError("an empty list of names was given: name at least one, or leave the option out for all")
    return parts


def _parse_seeds(text: str) -> tuple[int, ...]:
    """ "3" means 0, 1, 2; "10,11" and "10," are lists."""
    from stablenet.values import is_whole

    parts = [part for part in text.split(",") if part]
    if not parts or not all(is_whole(part.strip()) for part in parts):
        raise UserError(f"--seeds {text!r} is neither a number of seeds nor a list such as 10,11,12")
    if "," not in text and int(parts[0]) > _MOST_SEEDS:
        raise UserError(f"--seeds {text} is a number of seeds, at most {_MOST_SEEDS:,}: for one seed write {text},")
    seeds = tuple(dict.fromkeys(int(part) for part in parts)) if "," in text else tuple(range(int(parts[0])))
    if not seeds:
        raise UserError("--seeds 0 leaves nothing to run: give at least 1")
    return seeds


def _make_plan(table: str, runs: Path, choice: TablePart, root: Path | None, device: str) -> Plan:
    from stablenet.bench.paper_tables import find_table
    from stablenet.bench.plan import make_plan
    from stablenet.engine.session import choose_device, name_device

    kind, chosen = choose_device(device)
    number = chosen[0] if isinstance(chosen, list) else 0
    return make_plan(find_table(table), runs, choice, name_device(kind, number), root)


def _make_executor(
    runs: Path,
    device: str,
    jobs: int | None,
    per_gpu: int | None,
    threads: int,
    ray_address: str | None,
    retries: int,
) -> Executor:
    from stablenet.bench.executors import LocalExecutor, RayExecutor, find_places

    if ray_address is not None:
        return RayExecutor(ray_address, device=device, per_gpu=per_gpu or 1, jobs=jobs, retries=retries)
    places = find_places(device, jobs, per_gpu, threads)
    return LocalExecutor(places, runs / ".bench" / "logs", jobs=jobs, retries=retries)


def _count_at_once(device: str, jobs: int | None) -> int:
    """Parallel runs on this machine. A GPU counts as one: several runs on it slow each other down."""
    from stablenet.bench.executors import find_places

    places = find_places(device, jobs)
    return sum(1 if place.capacity is not None else place.most for place in places)


def _warn(plan: Plan) -> None:
    for each in plan.damaged:
        message = f"damaged: {each.folder}: {each.reason}; delete it to run it again"
        typer.secho(message, fg=typer.colors.YELLOW, err=True)


def _show_status(table: PaperTable, runs: Path, choice: TablePart, root: Path | None) -> None:
    from stablenet.bench import collect
    from stablenet.cli.bench_output import tabulate_result
    from stablenet.cli.data_output import print_whole

    result = collect(table, runs, tuned=choice.tuned, seeds=choice.seeds, root=root)
    print_whole(tabulate_result(result, choice))
    for warning in result.warnings:
        typer.secho(f"note: {warning}", fg=typer.colors.YELLOW, err=True)


COMPARED = (
    "paper-resnet50",
    *(f"ablation-{name}-{data}" for data in ("mnistm", "pacs") for name in ("fourier", "linear", "memory")),
)


def paper(
    runs: Annotated[Path, typer.Option(help="Folder of run folders, whose results are counted.")] = Path("runs"),
    page: Annotated[
        Path | None,
        typer.Option(help="Write a Markdown page instead, with the paper's numbers beside those of the runs."),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(help="Page: also these tables of yours, beside the paper's numbers; comma-separated or repeated."),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(envvar="STABLENET_DATA", help="Folder or archive of the data sources.")
    ] = None,
) -> None:
    """List the paper's tables and figures: commands, what they need, GPU hours, and what has been measured."""
    from stablenet.bench import collect, find_table, list_tables
    from stablenet.bench.collect import scan_runs
    from stablenet.bench.results import list_items

    if page is None:
        if tables:
            raise UserError("--tables adds to the page: say with --page where to write it")
        scan = scan_runs(runs)
        known = list_tables() if scan.runs else {}
        filled = {name: collect(table, runs, root=root, scan=scan) for name, table in known.items()}
        for item in list_items():
            typer.echo("\n".join(describe_item(item, filled)))
        typer.echo(
            "GPU hours: three seeds, every row the paper prints, one H200, estimated from the cost of single steps"
        )
        return
    from stablenet.files import write_text
    from stablenet.report.paper_page import lend_numbers, write_comparison

    if not runs.is_dir():
        raise UserError(f"there are no runs in {runs}: make some with `stablenet bench run paper-resnet50`")
    scan = scan_runs(runs)
    wanted = [lend_numbers(find_table(name)) for name in (*_split(tables), *COMPARED)]
    results = [collect(table, runs, root=root, scan=scan) for table in wanted]
    write_text(page, write_comparison(results))
    measured = sum(cell.state == "measured" for result in results for cell in result.cells.values())
    typer.echo(f"page: {page}, {measured} cells with results")


def describe_item(item: PaperItem, results: Mapping[str, BenchResult]) -> Iterator[str]:
    """Lines about a table or figure.   results: filled tables by name; none where there are no runs."""
    from stablenet.bench.paper_tables import find_table
    from stablenet.bench.results import count_cells

    yield f"{item.name}: {item.what}"
    if item.command:
        yield f"    {item.command}"
    for name in (*item.tables, *item.near):
        hours = find_table(name).hours
        yield f"    stablenet bench run {name}" + (f"  (about {hours:.1f} GPU hours)" if hours else "")
    facts = [f"needs {', '.join(item.needs)}"] if item.needs else []
    facts += [f"about {item.hours:.1f} GPU hours"] if item.hours is not None else []
    facts += [f"measured here: {item.state}" if item.measured else item.state] if item.state else []
    if facts:
        yield f"    {'; '.join(facts)}"
    counted = count_cells(item, results) if results else ""
    if counted:
        yield f"    cells with results in your runs: {counted}"
