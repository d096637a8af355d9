"""NICO: 19 classes with 9 or 10 contexts each, in the trees Animal and Vehicle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from stablenet.data.image_list import ImageList, make_image_table
from stablenet.data.sources.folder import Level, find_tree, fold, match_names, refuse_empty
from stablenet.data.sources.folder import find_differences as compare_layout
from stablenet.data.sources.source import Source, compare_counts
from stablenet.errors import UserError

COUNTS = {  # images per class, from the authors' table
    "animal": {
        "bear": 1609,
        "bird": 1590,
        "cat": 1479,
        "cow": 1192,
        "dog": 1624,
        "elephant": 1178,
        "horse": 1258,
        "monkey": 1117,
        "rat": 846,
        "sheep": 918,
    },
    "vehicle": {
        "airplane": 930,
        "bicycle": 1639,
        "boat": 2156,
        "bus": 1009,
        "car": 1026,
        "helicopter": 1351,
        "motorcycle": 1542,
        "train": 750,
        "truck": 1000,
    },
}
_LAYOUTS = ("Animal|Vehicle/<class>/<context>/<image>, also below NICO/", "a zip archive of it")


def read(root: Path, *, name: str, kinds: tuple[str, ...]) -> ImageList:
    """Read NICO. Domains are the names of contexts; several classes may share one ("on grass")."""
    wanted = {fold(spelling): kind for kind in kinds for spelling in (kind, f"{kind}s")}
    tree = find_tree(root, "nico", lambda _, names: bool(wanted.keys() & names), _LAYOUTS[0])
    tops = {folder: wanted[fold(folder)] for folder in tree.folders if fold(folder) in wanted}
    missing = set(kinds) - set(tops.values())
    if missing:
        raise UserError(f"{tree.root} lacks the tree {missing.pop()}: {name} needs {' and '.join(kinds)}")
    published = {c: n for kind in kinds for c, n in COUNTS[kind].items()}
    classes = _match_classes(tree.folders, tops, tree.root)
    leaves = [folder for folder in tree.folders if folder.count("/") == 2 and folder.split("/")[0] in tops]
    files = [file for file in tree.images if file.count("/") == 3 and file.split("/")[0] in tops]
    full = {file.rpartition("/")[0] for file in files}
    refuse_empty((leaf for leaf in leaves if leaf not in full), tree.root)
    contexts = sorted({file.split("/")[2] for file in files})
    order = sorted(published)
    records: list[dict[str, object]] = [
        {
            "id": file,
            "path": tree.prefix + file,
            "label": order.index(classes["/".join(file.split("/")[:2])]),
            "domain": contexts.index(file.split("/")[2]),
        }
        for file in files
    ]
    found = {own: sum(r["label"] == k for r in records) for k, own in enumerate(order)}
    notes = compare_counts(name, found, published)
    return make_image_table(name, tree.root, order, contexts, records, notes)


def _match_classes(folders: tuple[str, ...], tops: dict[str, str], place: Path) -> dict[str, str]:
    """Class folder ("Animal/bear") -> class, for every tree."""
    classes: dict[str, str] = {}
    for top, kind in tops.items():
        below = [f.split("/")[1] for f in folders if f.count("/") == 1 and f.startswith(f"{top}/")]
        spellings = {own: (f"{own}s",) for own in COUNTS[kind]}
        names = match_names("classes", below, spellings, place / top)
        classes |= {f"{top}/{folder}": own for folder, own in names.items()}
    return classes


def find_differences(root: Path, *, name: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """All differences to the layout, see `folder`; a class has 9 or 10 contexts, whatever their names."""

    def classes_of(kind: str, found: Sequence[str]) -> Level:
        return Level("classes", {own: (f"{own}s",) for own in COUNTS[kind]})

    top = Level("trees", {kind: (f"{kind}s",) for kind in kinds}, classes_of, others_allowed=True)
    return compare_layout(name, root, top, _LAYOUTS[0], least=1)


def _describe(name: str, title: str, kinds: tuple[str, ...]) -> Source:
    return Source(
        name=name,
        title=title,
        origin="He, Shen and Cui, Towards Non-I.I.D. Image Classification, Pattern Recognition 2021",
        licence="not stated by its authors; for research",
        layouts=_LAYOUTS,
        read=partial(read, name=name, kinds=kinds),
        counts={c: n for kind in kinds for c, n in COUNTS[kind].items()},
        differences=partial(find_differences, name=name, kinds=kinds),
        by_hand="request NICO (not NICO++) at https://nico.thumedialab.com and unpack its trees",
    )


SOURCE = _describe("nico", "NICO: 19 classes in 188 contexts", ("animal", "vehicle"))
ANIMAL_SOURCE = _describe("nico-animal", "NICO, the 10 animals", ("animal",))
VEHICLE_SOURCE = _describe("nico-vehicle", "NICO, the 9 vehicles", ("vehicle",))
