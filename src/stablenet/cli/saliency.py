"""`stablenet saliency`: where runs look, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from stablenet.engine.runs import Run
    from stablenet.saliency import Gallery, Subjects


def saliency(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.", show_default=False)],
    images: Annotated[
        list[Path] | None, typer.Option(help="Image file, folder or table of one's own, as often as wanted.")
    ] = None,
    masks: Annotated[
        Path | None, typer.Option(help="Folder with a mask per image of one's own: same name, PNG, object not black.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Images of the split, without --images.")] = 8,
    part: Annotated[str, typer.Option(help="Part of the split they are taken from.")] = "test",
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write; numbers go beside it as CSV.")] = Path(
        "saliency.html"
    ),
    rule: Annotated[str, typer.Option(help="Which epoch's model: source-validation, last or oracle.")] = (
        "source-validation"
    ),
    samples: Annotated[int, typer.Option(min=1, help="Noisy copies of every image.")] = 50,
    noise: Annotated[float, typer.Option(help="Their deviation, as a share of the image's range.")] = 0.15,
    root: Annotated[
        Path | None, typer.Option(envvar="STABLENET_DATA", help="Folder or archive the data source lies in.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
) -> None:
    """Show where networks look: smoothed gradients of runs side by side, on one page."""
    from rich.console import Console

    from stablenet.engine.runs import load_run
    from stablenet.saliency import SaliencySettings, look
    from stablenet.saliency.page import tabulate, write_page

    opened = [load_run(path) for path in runs]
    subjects = _find_subjects(opened, images or [], masks, count, part, root)
    settings = SaliencySettings(samples=samples, noise=noise)
    gallery = look(opened, subjects, settings, rule=rule, device=device)
    write_page(gallery, output)
    tabulate(gallery).to_csv(output.with_suffix(".csv"), index=False)
    console = Console()
    console.print(_summarise(gallery))
    console.print(f"page: {output}", markup=False, highlight=False, soft_wrap=True)


def _find_subjects(
    runs: list[Run], images: list[Path], masks: Path | None, count: int, part: str, root: Path | None
) -> Subjects:
    from stablenet.errors import UserError
    from stablenet.evaluation.images import gather_images
    from stablenet.saliency import choose_subjects, read_subjects
    from stablenet.saliency.panels import check_same_split

    if images:
        return read_subjects(runs[0], [Path(path) for path in gather_images(images)["path"]], masks)
    if masks is not None:
        raise UserError("--masks go with --images: give both, or neither")
    check_same_split(runs)
    return choose_subjects(runs[0], count, part, root)


def _summarise(gallery: Gallery) -> Table:
    from rich.markup import escape
    from rich.table import Column, Table

    named = ("on the object", "other noise", "random network", "sanity check")
    table = Table(Column("run", overflow="fold"), *named, title="saliency")
    for view in gallery.views:
        share = "–" if view.mean_share is None else f"{100 * view.mean_share:.1f} %"
        passed = "[green]passed[/]" if view.sanity.passed else "[red]failed[/]"
        found = (view.sanity.repeated, view.sanity.randomised)
        agreement = ("–" if value is None else f"{value:.2f}" for value in found)
        table.add_row(escape(view.run.path.name), share, *agreement, passed)
    if gallery.area is not None:
        table.caption = f"the object covers {100 * gallery.area:.1f} % of the images"
    return table
