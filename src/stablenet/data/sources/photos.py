"""Published sets of photographs in folders of domains and classes: PACS, VLCS and NICO.

PACS: seven classes in four styles; folders, the original split lists, or a zip archive.
VLCS: five classes in four photo collections, in the DomainBed or the full/train/crossval/test layout.
NICO: 19 classes with 9 or 10 contexts each, in the trees Animal and Vehicle.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from stablenet.data.image_list import ImageList, make_image_list
from stablenet.data.sources.folder import Level, Tree, find_tree, fold, match_names, refuse_empty
from stablenet.data.sources.folder import find_differences as compare_layout
from stablenet.data.sources.source import Download, Source, compare_counts
from stablenet.errors import UserError

PACS_DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
PACS_COUNTS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
_PACS_SPELLINGS = {"art_painting": ("art", "artpaint"), "cartoon": (), "photo": (), "sketch": ()}
_PACS_LAYOUTS = (
    "<domain>/<class>/<image>, also below PACS/ or kfold/",
    "the same with the original lists <domain>_train_kfold.txt and <domain>_crossval_kfold.txt below",
    "a zip archive of either",
)


def read_pacs(root: Path) -> ImageList:
    """Read PACS. An id is domain/class/name without the suffix, and does not depend on the encoding."""
    known = {fold(domain) for domain in PACS_DOMAINS}
    tree = find_tree(root, "pacs", lambda _, names: len(known & names) >= 2, _PACS_LAYOUTS[0])
    tops = {file.split("/")[0] for file in tree.images if file.count("/") == 2}
    domains = match_names("domains", sorted(tops), _PACS_SPELLINGS, tree.root)
    records = []
    for folder, domain in domains.items():
        records += _read_pacs_domain(tree, folder, domain)
    subsets = _read_lists(tree)
    if subsets:
        records = [record | {"subset": _subset(subsets, str(record["id"]), tree.root)} for record in records]
    found = {d: sum(r["domain"] == k for r in records) for k, d in enumerate(PACS_DOMAINS)}
    notes = compare_counts("pacs", found, PACS_COUNTS)
    return make_image_list("pacs", tree.root, PACS_CLASSES, PACS_DOMAINS, records, notes)


def _read_pacs_domain(tree: Tree, folder: str, domain: str) -> list[dict[str, object]]:
    files = [file for file in tree.images if file.startswith(f"{folder}/") and file.count("/") == 2]
    subfolders = [name.split("/")[1] for name in tree.folders if name.startswith(f"{folder}/")]
    classes = match_names("classes", sorted(set(subfolders)), dict.fromkeys(PACS_CLASSES, ()), tree.root / folder)
    full = {file.split("/")[1] for file in files}
    refuse_empty((f"{folder}/{name}" for name in classes if name not in full), tree.root)
    return [
        {
            "id": f"{domain}/{classes[file.split('/')[1]]}/{PurePosixPath(file).stem}",
            "path": tree.prefix + file,
            "label": PACS_CLASSES.index(classes[file.split("/")[1]]),
            "domain": PACS_DOMAINS.index(domain),
        }
        for file in files
    ]


def _read_lists(tree: Tree) -> dict[str, str]:
    """Image id -> "train" or "crossval", from the lists that come with PACS (path, then class from 1)."""
    subsets: dict[str, str] = {}
    for file in tree.files:
        name = PurePosixPath(file).name
        for subset in ("train", "crossval"):
            if name.endswith(f"_{subset}_kfold.txt"):
                for line in filter(str.strip, tree.read_text(file).splitlines()):
                    path = line.split()[0]
                    subsets["/".join(PurePosixPath(path).with_suffix("").parts[-3:])] = subset
    return subsets


def _subset(subsets: dict[str, str], image: str, place: Path) -> str:
    if image not in subsets:
        raise UserError(
            f"the split lists in {place} do not contain {image}: they must cover all four domains, or be deleted"
        )
    return subsets[image]


def compare_pacs(root: Path) -> tuple[str, ...]:
    """All differences to the layout, see `folder`."""
    classes = Level("classes", dict.fromkeys(PACS_CLASSES, ()))
    top = Level("domains", _PACS_SPELLINGS, lambda name, found: classes, others_allowed=True)  # lists may lie there
    return compare_layout("pacs", root, top, _PACS_LAYOUTS[0])


PACS = Source(
    name="pacs",
    title="PACS: photo, art painting, cartoon, sketch; 7 classes",
    origin="Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017",
    licence="not stated by its authors; for research",
    layouts=_PACS_LAYOUTS,
    read=read_pacs,
    counts=PACS_COUNTS,
    differences=compare_pacs,
    downloads=(
        Download(
            url="https://github.com/MachineLearning2020/Homework3-PACS/archive/refs/heads/master.zip",
            file="pacs.zip",
        ),
    ),
    by_hand="download PACS.zip from the authors' page, https://sketchx.eecs.qmul.ac.uk/downloads",
)


VLCS_DOMAINS = ("caltech", "labelme", "pascal", "sun")
VLCS_CLASSES = ("bird", "car", "chair", "dog", "person")
VLCS_COUNTS = {"caltech": 1415, "labelme": 2656, "pascal": 3376, "sun": 3282}
VLCS_SUBSETS = ("train", "crossval", "test")  # the first two are the 70 % from which the paper draws its splits
_VLCS_SPELLINGS = {"caltech": ("Caltech101",), "labelme": (), "pascal": ("VOC2007", "VOC"), "sun": ("SUN09",)}
_VLCS_CLASS_SPELLINGS = {name: (str(number),) for number, name in enumerate(VLCS_CLASSES)}
_VLCS_LAYOUTS = (
    "DomainBed: Caltech101|LabelMe|SUN09|VOC2007/<class>/<image>",
    "CALTECH|LABELME|PASCAL|SUN/train|crossval|test/<class 0-4 or name>/<image>",
    "CALTECH|LABELME|PASCAL|SUN/full/<class>/train_*|crossval_*|test_*",
    "a zip archive of any of these",
)


def read_vlcs(root: Path) -> ImageList:
    """Read VLCS. Ids are paths in the layout found; file names differ between layouts and cannot be matched."""
    known = {fold(name) for own, others in _VLCS_SPELLINGS.items() for name in (own, *others)}
    tree = find_tree(root, "vlcs", lambda _, names: len(known & names) >= 2, _VLCS_LAYOUTS[0])
    domains = match_names("domains", sorted({file.split("/")[0] for file in tree.images}), _VLCS_SPELLINGS, tree.root)
    records = []
    for folder, domain in domains.items():
        records += _read_vlcs_domain(tree, folder, VLCS_DOMAINS.index(domain))
    found = {d: sum(r["domain"] == k for r in records) for k, d in enumerate(VLCS_DOMAINS)}
    notes = compare_counts("vlcs", found, VLCS_COUNTS)
    if any("subset" in record for record in records):
        records = [{"subset": ""} | record for record in records]
    return make_image_list("vlcs", tree.root, VLCS_CLASSES, VLCS_DOMAINS, records, notes)


def _read_vlcs_domain(tree: Tree, folder: str, domain: int) -> list[dict[str, object]]:
    """Read the three published subsets if present, else `full`, else plain class folders."""
    below = {name.split("/")[1] for name in tree.folders if name.startswith(f"{folder}/")}
    if set(VLCS_SUBSETS) <= below:
        return [r for s in VLCS_SUBSETS for r in _read_classes(tree, f"{folder}/{s}", domain, s)]
    if "full" in below:
        return _read_classes(tree, f"{folder}/full", domain, None)
    return _read_classes(tree, folder, domain, "")


def _read_classes(tree: Tree, folder: str, domain: int, subset: str | None) -> list[dict[str, object]]:
    """subset: a published one, None to infer it from the file names, "" if there is none."""
    depth = folder.count("/") + 2
    files = [file for file in tree.images if file.startswith(f"{folder}/") and file.count("/") == depth]
    names = {n.split("/")[-1] for n in tree.folders if n.rpartition("/")[0] == folder}
    classes = match_names("classes", sorted(names), _VLCS_CLASS_SPELLINGS, tree.root / folder)
    full = {file.split("/")[-2] for file in files}
    refuse_empty((f"{folder}/{name}" for name in classes if name not in full), tree.root)
    records: list[dict[str, object]] = []
    for file in files:
        label = VLCS_CLASSES.index(classes[file.split("/")[-2]])
        record: dict[str, object] = {"id": file, "path": tree.prefix + file, "label": label, "domain": domain}
        name = PurePosixPath(file).name
        own = next((s for s in VLCS_SUBSETS if name.startswith(f"{s}_")), "") if subset is None else subset
        records.append(record | {"subset": own} if own else record)
    return records


def compare_vlcs(root: Path) -> tuple[str, ...]:
    """All differences to whichever layout a domain's folder begins, see `folder`."""
    return compare_layout("vlcs", root, Level("domains", _VLCS_SPELLINGS, _below_vlcs_domain), _VLCS_LAYOUTS[0])


def _below_vlcs_domain(domain: str, found: Sequence[str]) -> Level:
    """Classes, or the published subsets with classes in each, or `full` with them."""
    classes = Level("classes", _VLCS_CLASS_SPELLINGS)
    subsets = [name for name in found if name in VLCS_SUBSETS]
    if subsets:
        return Level("subsets", dict.fromkeys(VLCS_SUBSETS, ()), lambda name, below: classes, others_allowed=True)
    if "full" in found:
        return Level("subsets", {"full": ()}, lambda name, below: classes, others_allowed=True)
    return classes


VLCS = Source(
    name="vlcs",
    title="VLCS: PASCAL VOC 2007, LabelMe, Caltech-101, SUN09; 5 classes",
    origin="Torralba and Efros, Unbiased Look at Dataset Bias, CVPR 2011",
    licence="that of the four collections; for research",
    layouts=_VLCS_LAYOUTS,
    read=read_vlcs,
    counts=VLCS_COUNTS,
    differences=compare_vlcs,
    by_hand="download VLCS.tar.gz with DomainBed's download script (python -m domainbed.scripts.download), or the "
    "archive with the folders full, train, crossval and test that JiGen's and Epi-FCR's code link to, and unpack it "
    "(tar archives are not read directly)",
)


NICO_COUNTS = {  # images per class, from the authors' table
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
_NICO_LAYOUTS = ("Animal|Vehicle/<class>/<context>/<image>, also below NICO/", "a zip archive of it")


def read_nico(root: Path, *, name: str, kinds: tuple[str, ...]) -> ImageList:
    """Read NICO. Domains are the names of contexts; several classes may share one ("on grass")."""
    wanted = {fold(spelling): kind for kind in kinds for spelling in (kind, f"{kind}s")}
    tree = find_tree(root, "nico", lambda _, names: bool(wanted.keys() & names), _NICO_LAYOUTS[0])
    tops = {folder: wanted[fold(folder)] for folder in tree.folders if fold(folder) in wanted}
    missing = set(kinds) - set(tops.values())
    if missing:
        raise UserError(f"{tree.root} lacks the tree {missing.pop()}: {name} needs {' and '.join(kinds)}")
    published = {c: n for kind in kinds for c, n in NICO_COUNTS[kind].items()}
    classes = _match_nico_classes(tree.folders, tops, tree.root)
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
    return make_image_list(name, tree.root, order, contexts, records, notes)


def _match_nico_classes(folders: tuple[str, ...], tops: dict[str, str], place: Path) -> dict[str, str]:
    """Class folder ("Animal/bear") -> class, for every tree."""
    classes: dict[str, str] = {}
    for top, kind in tops.items():
        below = [f.split("/")[1] for f in folders if f.count("/") == 1 and f.startswith(f"{top}/")]
        spellings = {own: (f"{own}s",) for own in NICO_COUNTS[kind]}
        names = match_names("classes", below, spellings, place / top)
        classes |= {f"{top}/{folder}": own for folder, own in names.items()}
    return classes


def compare_nico(root: Path, *, name: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """All differences to the layout, see `folder`; a class has 9 or 10 contexts, whatever their names."""

    def classes_of(kind: str, found: Sequence[str]) -> Level:
        return Level("classes", {own: (f"{own}s",) for own in NICO_COUNTS[kind]})

    top = Level("trees", {kind: (f"{kind}s",) for kind in kinds}, classes_of, others_allowed=True)
    return compare_layout(name, root, top, _NICO_LAYOUTS[0], least=1)


def _describe_nico(name: str, title: str, kinds: tuple[str, ...]) -> Source:
    return Source(
        name=name,
        title=title,
        origin="He, Shen and Cui, Towards Non-I.I.D. Image Classification, Pattern Recognition 2021",
        licence="not stated by its authors; for research",
        layouts=_NICO_LAYOUTS,
        read=partial(read_nico, name=name, kinds=kinds),
        counts={c: n for kind in kinds for c, n in NICO_COUNTS[kind].items()},
        differences=partial(compare_nico, name=name, kinds=kinds),
        by_hand="request NICO (not NICO++) at https://nico.thumedialab.com and unpack its trees",
    )


NICO = _describe_nico("nico", "NICO: 19 classes in 188 contexts", ("animal", "vehicle"))
NICO_ANIMAL = _describe_nico("nico-animal", "NICO, the 10 animals", ("animal",))
NICO_VEHICLE = _describe_nico("nico-vehicle", "NICO, the 9 vehicles", ("vehicle",))
