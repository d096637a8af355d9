"""Cut-outs over backgrounds: your own, and pets over places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stablenet.data.image_list import JOIN, CutoutList, ImageList, make_image_list
from stablenet.data.sources.folder import Level, Tree, find_tree, fold, sorted_names
from stablenet.data.sources.folder import find_differences as compare_layout
from stablenet.data.sources.source import Source
from stablenet.errors import UserError

SUBSETS = ("train", "test")


@dataclass(frozen=True)
class Layer:
    """name: of its folder or archive, or the beginning of it.   layout: below that, for messages.
    depths: possible numbers of folders above an image, without train and test.
    """

    name: str
    layout: str
    depths: tuple[int, ...]


FOREGROUNDS = Layer("foregrounds", "[train|test/]class/[kind/]image with an alpha channel", (1, 2))
BACKGROUNDS = Layer("backgrounds", "[train|test/]context/image", (1,))
PETS = Layer("pet-cutouts", "cat|dog/breed/image with an alpha channel", (2,))
PLACES = Layer("places", "train|test/kind/image", (1,))
KINDS = ("buildings", "forest", "glacier", "mountain", "sea", "street")


@dataclass(frozen=True)
class _Entry:
    """An image: path inside the root, id, folders above it, and the published subset, "" for none."""

    path: str
    id: str
    folders: tuple[str, ...]
    subset: str


def read_composed(root: Path) -> CutoutList:
    """Your own foregrounds and backgrounds."""
    return _read_layers("composed", root, FOREGROUNDS, BACKGROUNDS, ("class", "kind"))


def read_pets_places(root: Path) -> CutoutList:
    """Pets cut out along their trimaps, by species or breed, and photographs of six kinds of places."""
    return _read_layers("pets-places", root, PETS, PLACES, ("species", "breed"))


def _read_layers(name: str, root: Path, foregrounds: Layer, backgrounds: Layer, levels: tuple[str, str]) -> CutoutList:
    return CutoutList(
        name,
        _read_foregrounds(name, root, foregrounds),
        _read_backgrounds(name, root, backgrounds),
        levels,
    )


def _read_foregrounds(name: str, root: Path, layer: Layer) -> ImageList:
    tree, entries = _read_layer(root, layer)
    classes = sorted_names("class", (entry.folders[0] for entry in entries), root)
    kinds = _name_kinds(entries)
    names = sorted(set(kinds.values()))
    records = [
        _record(entry, label=classes.index(entry.folders[0]), domain=names.index(kinds[entry.folders]))
        for entry in entries
    ]
    return make_image_list(name, tree.root, classes, names, records)


def _read_backgrounds(name: str, root: Path, layer: Layer) -> ImageList:
    tree, entries = _read_layer(root, layer)
    contexts = sorted_names("context", (entry.folders[0] for entry in entries), root)
    joined = [context for context in contexts if JOIN in context]
    if joined:
        raise UserError(f"the context {joined[0]!r} contains {JOIN!r}, which joins contexts: rename its folder")
    records = [_record(entry, label=0, domain=contexts.index(entry.folders[0])) for entry in entries]
    return make_image_list(name, tree.root, ("background",), contexts, records)


def find_pets_places_differences(root: Path) -> tuple[str, ...]:
    """All differences of both layers to the layout, see `folder`."""
    pets = Level("species", {"cat": (), "dog": ()})
    places = Level(
        "subsets", dict.fromkeys(SUBSETS, ()), lambda subset, found: Level("kinds", dict.fromkeys(KINDS, ()))
    )
    found: tuple[str, ...] = ()
    for layer, level in ((PETS, pets), (PLACES, places)):
        expected = f"a folder or zip archive {layer.name} of {layer.layout}"
        found += compare_layout(layer.name, root, level, expected, least=1)
    return found


def _record(entry: _Entry, **numbers: int) -> dict[str, object]:
    subset = {"subset": entry.subset} if entry.subset else {}
    return {"id": entry.id, "path": entry.path, **subset, **numbers}


def _name_kinds(entries: Sequence[_Entry]) -> dict[tuple[str, ...], str]:
    """A name for each class and kind: the kind's own, with its class where several classes have a kind of that name."""
    folders = {entry.folders for entry in entries}
    plain = {above: above[-1] for above in folders}
    if len(set(plain.values())) == len(plain):
        return plain
    return {above: "/".join(above) for above in folders}


def _read_layer(root: Path, layer: Layer) -> tuple[Tree, list[_Entry]]:
    """All images of a layer, with the folders above them; strays are an error."""
    stem = fold(layer.name)
    expected = f"a folder or zip archive {layer.name} of {layer.layout}"
    tree = find_tree(root, layer.name, lambda folder, _: fold(folder).startswith(stem), expected)
    paths = _leave_wrapper(tree.images, stem)
    subsets = {path[0] for path in paths.values()} == set(SUBSETS)
    entries = []
    for file, parts in paths.items():
        *folders, _ = parts[1:] if subsets else parts
        entries.append(_Entry(tree.prefix + file, "/".join(parts), tuple(folders), parts[0] if subsets else ""))
    strays = [entry.path for entry in entries if len(entry.folders) not in layer.depths]
    if strays:
        raise UserError(
            f"{len(strays)} images in {tree.root} are not at {layer.layout}, such as {strays[0]}: move them"
        )
    if not entries:
        raise UserError(f"{tree.root} has no images at {tree.prefix or 'its top'}: expected {layer.layout}")
    return tree, entries


def _leave_wrapper(files: Sequence[str], stem: str) -> dict[str, list[str]]:
    """The parts of each path, without a top folder of the layer's own name, as archives often have one."""
    parts = {file: file.split("/") for file in files}
    tops = {path[0] for path in parts.values() if len(path) > 1}
    if len(tops) == 1 and fold(tops.pop()).startswith(stem):
        return {file: path[1:] for file, path in parts.items()}
    return parts


COMPOSED = Source(
    name="composed",
    title="Your own cut-outs with alpha, composed with backgrounds by the split",
    origin="yours",
    licence="yours",
    layouts=(
        f"foregrounds/{FOREGROUNDS.layout}, and backgrounds/{BACKGROUNDS.layout}",
        "zip archives foregrounds.zip, backgrounds.zip in one folder, or one archive of both folders",
    ),
    read=read_composed,
)
PETS_PLACES = Source(
    name="pets-places",
    title="Pets cut out along their trimaps, over photographs of six kinds of places; composed by the split",
    origin="Parkhi et al., Cats and Dogs, CVPR 2012 (Oxford-IIIT Pet); Intel image classification (places)",
    licence="CC BY-SA 4.0 (pets); not stated by its authors (places)",
    layouts=(f"pet-cutouts[.zip]: {PETS.layout}; and beside it places[.zip]: {PLACES.layout}",),
    read=read_pets_places,
    counts={"pets": 7295, "places": 3900},
    by_hand="cut the images of Oxford-IIIT Pet out along their trimaps as images with alpha (longest side 160), and "
    "choose 500 training and 150 test images of each of the six places of Intel's image classification set",
    differences=find_pets_places_differences,
)
