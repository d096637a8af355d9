"""Pages made from the code: every method, every verb, the presets, the recipes, the results."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

from docs.machinery.docstrings import escape, render
from docs.machinery.links import adapt_links, find_page

TRY = "stablenet train --recipe embedded-dr0.9 --method {}"
MORE = {"d-sam": " --set model.name=resnet18"}  # it needs residual blocks
ELSEWHERE = {
    "stablenet": "The preset `paper` follows the paper, `published` the authors' code, `recommended` neither: "
    "[Presets](../presets.md) says what differs and why, [Equations and code](../equations.md) follows the formulas.",
}
ROOT = Path(__file__).parents[2]
_COMMENT = re.compile(r"<!-- generated: (\w+) -->")


@cache
def make_pages() -> dict[str, str]:
    """Path inside the site to Markdown."""
    from stablenet.algorithms import ALGORITHMS

    pages = {f"methods/{name}.md": describe_method(name) for name in ALGORITHMS}
    pages["methods/index.md"] = list_methods()
    pages["reference/command-line.md"] = describe_commands()
    changes = ROOT / "CHANGELOG.md"
    pages["changelog.md"], _ = adapt_links(changes, "changelog.md", changes.read_text(encoding="utf-8"))
    return pages | {path: text for path, text, _ in read_results()}


def fill_in(markdown: str) -> str:
    """The page with what its comments `<!-- generated: name -->` stand for."""
    return _COMMENT.sub(lambda match: "\n".join(GENERATED[match[1]]()), markdown)


def tabulate_presets() -> Iterator[str]:
    """Every setting of the weighting by preset, and of `recommended` over a whole set."""
    from stablenet.weighting.dataset import dataset_settings
    from stablenet.weighting.settings import PRESETS

    columns = {name: PRESETS[name] for name in PRESETS}
    columns["recommended, whole set"] = dataset_settings("recommended", {})
    yield "| setting | " + " | ".join(columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for field in fields(PRESETS["paper"]):
        values = (getattr(settings, field.name) for settings in columns.values())
        yield f"| `{field.name}` | " + " | ".join(f"`{value}`" for value in values) + " |"


def tabulate_recipes() -> Iterator[str]:
    from stablenet.engine.config import list_recipes

    yield "| recipe | what |"
    yield "|---|---|"
    for name, recipe in list_recipes().items():
        yield f"| `{name}` | {escape(recipe.title)} |"


def tabulate_paper() -> Iterator[str]:
    """What the paper shows: commands, needs, hours, what has been measured."""
    from stablenet.bench import find_table
    from stablenet.bench.results import list_items

    yield "| | what | commands | needs | GPU hours | measured here |"
    yield "|---|---|---|---|---:|---|"
    for item in list_items():
        commands = "<br>".join(f"`{command}`" for command in item.commands)
        hours = "" if item.hours is None else f"{item.hours:.1f}"
        hours += "".join(f"<br>{name}: {find_table(name).hours:.1f}" for name in item.near)
        yield f"| {item.name} | {escape(item.what)} | {commands} | {', '.join(item.needs)} | {hours} | {item.state} |"


GENERATED = {"presets": tabulate_presets, "recipes": tabulate_recipes, "paper": tabulate_paper}


def list_methods() -> str:
    from stablenet.algorithms import ALGORITHMS, MARKS, explain_marks

    lines = [
        "# Methods",
        "",
        "All methods run in the same loop, on the same splits, with the same selection; `stablenet list methods` "
        f"prints this list. Marks: {explain_marks(''.join(MARKS))}; † an approximation. StableNet and all methods "
        "without the first two marks need no labels beyond the class. Deviations from a method's paper or published "
        "code are listed on its page, under "
        "*Departures*.",
        "",
        "| method | what |",
        "|---|---|",
    ]
    for name in ALGORITHMS:
        kind = ALGORITHMS[name]
        marks = escape(kind.marks({})) + " †" * bool(kind.approximation)
        lines.append(f"| [{name}]({name}.md) {marks} | {escape(kind.title)} |")
    lines += [
        "",
        "The StableNet paper's other failed alternatives, mutual information and disentanglement with variational "
        "autoencoders, are left out on purpose: the paper gives no working form of either.",
    ]
    return "\n".join(lines) + "\n"


def _introduce(kind: type) -> str:
    """What a method's file says of it; nothing where several share a file, as their classes say what they are."""
    from stablenet.algorithms import ALGORITHMS

    alone = sum(ALGORITHMS[name].__module__ == kind.__module__ for name in ALGORITHMS) == 1
    return render(inspect.getdoc(inspect.getmodule(kind)) or "") if alone else ""


def describe_method(name: str) -> str:
    """One method from its own words: module, class and settings; marked if it approximates or needs domain labels."""
    from stablenet.algorithms import ALGORITHMS

    kind = ALGORITHMS[name]
    lines = [f"# {name}", "", _introduce(kind), ""]
    if kind.approximation:
        lines += ['!!! warning "An approximation"', f"    {escape(kind.approximation)}", ""]
    lines += [_split_departures(render(inspect.getdoc(kind) or ""), _say_elsewhere(name)), ""]
    lines += [f"- Learns from domain labels: {'yes' if kind.uses_domains else 'no'}"]
    lines += [f"- Learns from group labels (class × domain): {'yes' if kind.uses_groups else 'no'}"]
    lines += [f"- Its paper chooses settings by group labels: {'yes' if kind.selects_by_groups else 'no'}"]
    lines += [f"- Trains in several processes: {'yes' if kind.several_processes else 'no, in one'}"]
    file = Path(inspect.getfile(kind)).relative_to(ROOT / "src")
    lines += [f"- Code: `src/{file}`", "", "## Settings", ""]
    lines += [render(inspect.getdoc(kind.settings_type) or ""), "", *_tabulate_settings(kind.settings_type), ""]
    lines += ["## Try it", "", "```bash", TRY.format(name) + MORE.get(name, ""), "```", ""]
    notes = [note for note in _recipe_notes() if _is_about(note, kind.__name__, name)]
    if notes:
        lines += ["Choices in the recipes where its paper and code are silent or were designed for other data:", ""]
        lines += [f"- {escape(note)}" for note in notes]
    return "\n".join(lines) + "\n"


def _say_elsewhere(name: str) -> str:
    """The text under the heading if the docstring lists no departures."""
    from stablenet.algorithms import ALGORITHMS

    if ALGORITHMS[name].approximation:
        return "All of it is an approximation: the text above says what is known, what is borrowed and what is ours."
    return ELSEWHERE.get(name, "Its description names none.")


def _split_departures(text: str, elsewhere: str) -> str:
    """Departures under their own heading; if the docstring lists none, the page says so."""
    before, word, after = text.partition("Departures")
    if not word:
        return f"{text}\n\n## Departures\n\n{elsewhere}"
    more, _, said = after.partition(": ")
    said = said[0].upper() + said[1:]
    return f"{before.rstrip()}\n\n## Departures{more}\n\n{said}"


def _recipe_notes() -> list[str]:
    """What the recipes of the embedded data, MNIST-M and PACS say of single methods, each sentence once."""
    from stablenet.engine.config import list_recipes

    return list(dict.fromkeys(note for recipe in list_recipes().values() for note in recipe.notes))


def _is_about(note: str, *names: str) -> bool:
    said, colon, _ = note.partition(": ")
    plain = {re.sub(r"\W", "", name).lower() for name in names}
    return bool(colon) and any(re.sub(r"\W", "", part).lower() in plain for part in said.split(", "))


def _tabulate_settings(settings: type[Any]) -> Iterator[str]:
    known = fields(settings)
    if not known:
        return
    yield "| setting | default |"
    yield "|---|---|"
    for field in known:
        made = field.default_factory() if field.default_factory is not MISSING else field.default
        shown = f"{made:.4g}" if isinstance(made, float) else repr(made)
        yield f"| `method.parameters.{field.name}` | `{shown}` |"


def describe_commands() -> str:
    """All verbs with their arguments and options, from the command line itself."""
    from typer.main import get_command

    from stablenet.cli.verbs import app

    lines = ["# Command line", "", "Every command prints this with `--help`.", ""]
    for words, command in walk_commands("stablenet", get_command(app)):
        if not hasattr(command, "commands"):
            lines += [f"## {words}", "", escape(command.help or ""), "", *_tabulate_options(command), ""]
    return "\n".join(lines) + "\n"


def walk_commands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command below one, with the words that call it."""
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk_commands(f"{words} {name}", child)


def _tabulate_options(command: Any) -> Iterator[str]:
    shown = [parameter for parameter in command.params if parameter.name != "help"]
    if not shown:
        return
    yield "| | | default |"
    yield "|---|---|---|"
    for parameter in shown:
        words = ", ".join(f"`{word}`" for word in (*parameter.opts, *parameter.secondary_opts))
        if parameter.param_type_name == "argument":
            words = f"`{(parameter.metavar or parameter.name).upper()}`"
        plain = parameter.default not in (None, False, ()) and not callable(parameter.default)
        default = f"`{parameter.default}`" if plain and not parameter.required else ""
        yield f"| {words} | {escape(getattr(parameter, 'help', None) or '')} | {default} |"


def read_results() -> Iterator[tuple[str, str, list[Path]]]:
    """(path in the site, Markdown, files it shows) of every README below results."""
    for readme in sorted((ROOT / "results").rglob("README.md")):
        page = find_page(readme)
        assert page is not None
        yield page, *adapt_links(readme, page, readme.read_text(encoding="utf-8"))
