"""Tables as data: rows, columns, the recipe of each cell, and the paper's numbers.

A table is one TOML file; the paper's are in `stablenet/bench/paper`, users' own anywhere:

    title = "…"                  # also caption, notes = ["…"], label (of the paper), kind = "table" | "curve", x_title,
                                 # hours (of a GPU, for three seeds of every row that is not extra)
    imports = ["my_package"]     # modules to import first, which register data sources or methods; from the table's
                                 # folder, the current folder or the installed packages
    [settings]                   # config values for every cell, such as train.epochs = 3
    [[column]]
    id = "photo"
    title = "Photo"              # also group = "PACS", x = 0.5 (its position on an axis)
    recipe = "pacs-classic-photo"    # or config = "my.toml", a config file next to the table
    domain = "photo"             # accuracy on one target domain; by default on all target images
    metric = "worst-group"       # instead of accuracy: also mean-group, group-gap (groups of class and context)
    empty = "why"                # this column is empty by design
    [[column]]
    id = "average"
    mean_of = ["photo", "…"]     # instead of a recipe: the mean of other columns, per seed
    [[row]]
    id = "stablenet"
    title = "StableNet"
    method = "stablenet"
    parameters = { preset = "paper" }    # of the method; `settings` are any config values
    recipe = "…"                 # this row's recipe, instead of the columns' recipes
    rule = "averaged"            # selects this row's epochs, whatever the table's rule is (SWAD: its averaged weights)
    extra = true                 # not in the paper: run only if requested
    paper = ["**80.2**", "_79.9_", "-", ""]  # by column: best, second best, a dash, no number in the paper
    quoted = ["PACS"]            # groups whose numbers the paper quotes from elsewhere

A table may also be composed of the paper's tables, with their rows and printed numbers, other recipes and further
settings:

    [[part]]
    table = "ablation-fourier"
    groups = ["PACS"]            # only columns of these groups; by default all
    group = "MNIST-M"            # how the part's columns are headed; the table's title where there are several parts
    recipes = { "nico-ablation" = "mnistm-ablation" }    # beginnings of recipe names, and what takes their place
    [[row]]                      # of several parts, a row is all rows with its id; fields given here replace theirs
    id = "jigen"
    settings = { data.image_size = 111 }
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from stablenet.engine.config import merge, parse_toml
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import RULES
from stablenet.files import read_text
from stablenet.registry import import_own, unknown_name
from stablenet.values import NonNegative, read_fields

Status = Literal["printed", "quoted", "dash", "none"]
Kind = Literal["table", "curve"]
_FOLDER = files("stablenet.bench").joinpath("paper")
Metric = Literal["accuracy", "worst-group", "mean-group", "group-gap"]
_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class PaperNumber:
    """status: printed; quoted from elsewhere and not run again; dash if the paper prints one; none if not printed.
    value: in percent.   best, second: bold and underlined in the paper.
    """

    status: Status = "none"
    value: float | None = None
    best: bool = False
    second: bool = False


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column, see the module's docstring. Exactly one of recipe, config and mean_of is given."""

    id: str
    title: str = ""
    group: str = ""
    recipe: str = ""
    config: str = ""
    domain: str = ""
    mean_of: tuple[str, ...] = ()
    empty: str = ""
    x: float | None = None
    metric: Metric = "accuracy"

    def __post_init__(self) -> None:
        if self.domain and self.metric != "accuracy":
            raise UserError(
                f"the column {self.id!r} has a domain, of which there is only the accuracy: leave metric out"
            )
        if sum(map(bool, (self.recipe, self.config, self.mean_of))) != 1:
            raise UserError(f"the column {self.id!r} needs exactly one of recipe, config and mean_of")

    @property
    def figure(self) -> str:
        """What the column shows: the "mean" of other columns, a "domain", or its metric."""
        return "mean" if self.mean_of else "domain" if self.domain else self.metric


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row. settings: config values that override the recipe's.   rule: of selection, "" for the table's."""

    id: str
    title: str = ""
    method: str
    parameters: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    recipe: str = ""
    rule: str = ""
    extra: bool = False
    paper: tuple[str, ...] = ()
    quoted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rule:
            RULES[self.rule]  # an unknown one is named here

    @property
    def marks(self) -> str:
        """Which labels beyond the class the method needs, as signs (`stablenet.algorithms.MARKS`)."""
        from stablenet.algorithms import ALGORITHMS

        return ALGORITHMS[self.method].marks(self.parameters) if self.method in set(ALGORITHMS) else ""

    @property
    def approximation(self) -> str:
        """How this implementation approximates a method that is not fully published; else empty."""
        from stablenet.algorithms import ALGORITHMS

        return ALGORITHMS[self.method].approximation if self.method in set(ALGORITHMS) else ""

    @property
    def values(self) -> dict[str, Any]:
        """All config values of the row, including the method."""
        return merge(self.settings, {"method": {"name": self.method, "parameters": self.parameters}})


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """hours: expected, of one H200, for three seeds of all rows that are not extra; None where it is not stated.
    path: file of a user's table, None for the paper's tables.
    """

    name: str
    title: str = ""
    caption: str = ""
    label: str = ""
    kind: Kind = "table"
    x_title: str = ""
    notes: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    hours: NonNegative | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    columns: tuple[TableColumn, ...] = ()
    rows: tuple[Row, ...] = ()
    paper: Mapping[tuple[str, str], PaperNumber] = field(default_factory=dict)
    path: Path | None = None

    @property
    def groups(self) -> tuple[str, ...]:
        """The columns' groups, each once."""
        return tuple(dict.fromkeys(column.group for column in self.columns))

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders searched for the table's modules before the installed ones: its own, then the current one."""
        own = (self.path.absolute().parent,) if self.path else ()
        return tuple(dict.fromkeys((*own, Path.cwd())))

    def find_column(self, name: str) -> TableColumn:
        return next(column for column in self.columns if column.id == name)

    def number(self, row: str, column: str) -> PaperNumber:
        """The paper's number; status "none" if it has none."""
        return self.paper.get((row, column), PaperNumber())


@dataclass(frozen=True, kw_only=True)
class JoinedTable:
    """A table of the paper inside another one, see the module's docstring."""

    table: str
    groups: tuple[str, ...] = ()
    group: str = ""
    recipes: dict[str, str] = field(default_factory=dict)

    def rename(self, recipe: str) -> str:
        """The recipe that takes a recipe's place."""
        for old, new in self.recipes.items():
            if recipe.startswith(old):
                return new + recipe.removeprefix(old)
        return recipe


@cache
def list_tables() -> dict[str, PaperTable]:
    """The tables of the package, by name."""
    names = sorted(entry.name for entry in _FOLDER.iterdir() if entry.name.endswith(".toml"))
    return {name: _read_packaged(name) for name in (name.removesuffix(".toml") for name in names)}


@cache
def _read_packaged(name: str) -> PaperTable:
    return _parse(f"{name}.toml", _FOLDER.joinpath(f"{name}.toml").read_text("utf-8"), None)


def find_table(name: str) -> PaperTable:
    """Find a table by name, or read a user's table from its file."""
    path = Path(name)
    if path.suffix == ".toml":
        return _parse(name, read_text(path), path)
    if name not in list_tables():
        raise UserError(unknown_name("table", name, list_tables()) + "; for your own table give its .toml file")
    return list_tables()[name]


def _parse(name: str, text: str, path: Path | None) -> PaperTable:
    try:
        table = _build_table(parse_toml(text, "it"), Path(name).stem, path)
        for module in table.imports:
            import_own(module, table.folders)
        return table
    except UserError as error:
        raise UserError(f"the table {name}: {error}") from error


def _build_table(values: dict[str, Any], name: str, path: Path | None) -> PaperTable:
    joined = values.pop("part", None)
    column_lines, row_lines = (_take_lines(values, line, needed=joined is None) for line in ("column", "row"))
    header = read_fields(PaperTable, {"name": name, **values})
    columns = tuple(read_fields(TableColumn, {"title": str(item["id"]), **item}, "column") for item in column_lines)
    if joined is not None:
        if columns:
            raise UserError("it has both [[part]] and [[column]]: a table is made of one or the other")
        return replace(join_parts(header, _read_parts(joined), row_lines), path=path)
    rows = tuple(_read_row(item) for item in row_lines)
    _check_means(columns)
    paper = {key: number for row in rows for key, number in _read_numbers(row, columns).items()}
    return replace(header, columns=columns, rows=rows, paper=paper, path=path)


def _take_lines(values: dict[str, Any], line: str, needed: bool) -> list[dict[str, Any]]:
    """The [[column]] or [[row]] tables of a file."""
    lines = values.pop(line, [])
    listed = isinstance(lines, list) and all(isinstance(item, dict) and "id" in item for item in lines)
    if (needed and not lines) or not listed:
        raise UserError(f"it needs at least one [[{line}]], each with an id")
    _refuse_twins(line, [item["id"] for item in lines])
    return list(lines)


def _read_parts(lines: Any) -> list[JoinedTable]:
    if not isinstance(lines, list) or not lines or not all(isinstance(line, dict) for line in lines):
        raise UserError("its parts must be written as [[part]], each with a table")
    parts = [read_fields(JoinedTable, line, "part") for line in lines]
    known = sorted(entry.name.removesuffix(".toml") for entry in _FOLDER.iterdir() if entry.name.endswith(".toml"))
    for part in parts:
        if part.table not in known:
            raise UserError(unknown_name("table in a part", part.table, known))
    return parts


def join_parts(header: PaperTable, parts: Sequence[JoinedTable], row_lines: Sequence[dict[str, Any]]) -> PaperTable:
    """The header's table with the columns, rows and printed numbers of the parts; of several, ids begin with theirs."""
    columns: list[TableColumn] = []
    rows: dict[str, Row] = {}
    paper: dict[tuple[str, str], PaperNumber] = {}
    for part in parts:
        table, prefix = _read_packaged(part.table), f"{part.table}-" if len(parts) > 1 else ""
        kept = [column for column in table.columns if not part.groups or column.group in part.groups]
        if not kept:
            raise UserError(f"the part {part.table} has no columns in {', '.join(part.groups)}")
        for column in kept:
            group = part.group or (table.title if prefix else column.group)
            means = tuple(prefix + name for name in column.mean_of)
            recipe = part.rename(column.recipe)
            columns.append(replace(column, id=prefix + column.id, group=group, recipe=recipe, mean_of=means))
            paper |= {(row.id, prefix + column.id): table.number(row.id, column.id) for row in table.rows}
        for row in table.rows:
            rows.setdefault(row.id, replace(row, recipe=part.rename(row.recipe), paper=()))
    for line in row_lines:
        old = rows.get(line["id"])
        changed = _read_row({"method": old.method, **line} if old else line)
        rows[line["id"]] = replace(old, **{name: getattr(changed, name) for name in line}) if old else changed
    return replace(header, columns=tuple(columns), rows=tuple(rows.values()), paper=paper)


def _read_row(values: Mapping[str, Any]) -> Row:
    if "method" not in values:
        raise UserError(f"the row {values['id']!r} has no method")
    return read_fields(Row, {"title": str(values["id"]), **values}, "row")


def _refuse_twins(part: str, names: Sequence[str]) -> None:
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise UserError(f"the {part} {twins[0]!r} is defined twice")


def _check_means(columns: Sequence[TableColumn]) -> None:
    """Check that means are over columns with runs."""
    known = [column.id for column in columns if not column.mean_of]
    for column in columns:
        for name in column.mean_of:
            if name not in known:
                raise UserError(unknown_name(f"column in mean_of of {column.id!r}", name, known))


def _read_numbers(row: Row, columns: Sequence[TableColumn]) -> dict[tuple[str, str], PaperNumber]:
    if row.paper and len(row.paper) != len(columns):
        raise UserError(f"the row {row.id!r} has {len(row.paper)} printed numbers for {len(columns)} columns")
    pairs = zip(columns, row.paper, strict=False)  # a row without numbers is not in the paper
    return {(row.id, column.id): _read_number(text, column.group in row.quoted) for column, text in pairs}


def _read_number(text: str, quoted: bool) -> PaperNumber:
    """Parse **80.2** (best), _79.9_ (second best), - (a printed dash) or nothing (no number)."""
    if text in ("", "-"):
        return PaperNumber("dash" if text else "none")
    best, second = text.startswith("**"), text.startswith("_")
    plain = text.removeprefix("**").removesuffix("**") if best else text.removeprefix("_").removesuffix("_")
    if not _NUMBER.fullmatch(plain):
        raise UserError(f'the printed number {text!r} must be one of "80.2", "**80.2**", "_80.2_", "-" and ""')
    return PaperNumber("quoted" if quoted else "printed", float(plain), best, second)
