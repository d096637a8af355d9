"""What every page is asked in a browser: accessibility by own rules and by axe-core, and that nothing overflows."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from functools import cache
from pathlib import Path

AXE = "axe-core@4.14.0"
AXE_SHA256 = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# Text nodes whose contrast to the ground behind them is below 4.5 to 1 (WCAG AA), half-transparent grounds mixed.
CONTRAST = """() => {
  const read = (text) => {
    if (text.startsWith("color(srgb")) {
      const found = text.match(/-?[\\d.]+(e-?\\d+)?/g).map(Number);
      return [...found.slice(0, 3).map((v) => 255 * v), found[3] ?? 1];
    }
    const found = text.match(/[\\d.]+/g).map(Number);
    return [found[0], found[1], found[2], found[3] ?? 1];
  };
  const over = (top, below) => [0, 1, 2].map((k) => top[3] * top[k] + (1 - top[3]) * below[k]);
  const light = (rgb) => rgb.map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const ground = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.push(read(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const weak = [];
  const walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || node.closest(".hidden, script, style, title")) continue;
    if (!node.checkVisibility()) continue;
    const style = getComputedStyle(node), below = ground(node);
    const ink = over(read(node.closest("svg") ? style.fill : style.color), below);
    const [a, b] = [light(ink), light(below)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) weak.push(`${ratio.toFixed(2)} ${node.outerHTML.slice(0, 100)}`);
  }
  return weak;
}"""

NAMELESS = """() => {
  const rules = ["img:not([alt])", "img[alt='']", "svg:not([aria-label])", "th:not([scope])",
    "dialog:not([aria-labelledby])"];
  const found = rules.flatMap((rule) => [...document.querySelectorAll(`main ${rule}, body > ${rule}`)]);
  const buttons = [...document.querySelectorAll("button")].filter((node) =>
    !(node.textContent.trim() || node.getAttribute("aria-label") || node.querySelector("img[alt]")));
  const scrolls = [...document.querySelectorAll(".scroll")].filter((node) =>
    node.tabIndex !== 0 || !node.getAttribute("aria-label"));
  const levels = [...document.querySelectorAll("main h1, main h2, main h3, main h4")].map((node) => +node.tagName[1]);
  const jumps = levels.filter((level, k) => level > (levels[k - 1] ?? 0) + 1)
    .map((level) => `heading jumps to h${level}`);
  return [...found, ...buttons, ...scrolls].map((node) => node.outerHTML.slice(0, 120)).concat(jumps);
}"""

STICKING_OUT = """() => [...document.querySelectorAll("main *")].filter((node) => node.checkVisibility()
  && node.getBoundingClientRect().right > innerWidth + 1 && !node.closest(".scroll, svg, .hidden"))
  .map((node) => node.outerHTML.slice(0, 120))"""


@cache
def fetch_axe() -> str | None:
    """The text of axe-core, from npm's registry once per machine; None where there is no npm or no network."""
    folder = Path(tempfile.gettempdir()) / f"stablenet-tests-{os.getuid() if hasattr(os, 'getuid') else ''}" / AXE
    kept = folder / "axe.min.js"
    if not kept.is_file() and not _download(folder):
        return None
    text = kept.read_bytes()
    return text.decode() if hashlib.sha256(text).hexdigest() == AXE_SHA256 else None


def _download(folder: Path) -> bool:
    npm = shutil.which("npm")
    if npm is None:
        return False
    words = [npm, "pack", AXE, "--silent", "--fetch-retries=0", "--fetch-timeout=5000"]
    with tempfile.TemporaryDirectory() as place:
        try:
            subprocess.run(words, cwd=place, check=True, capture_output=True, timeout=30)
        except (subprocess.SubprocessError, OSError):
            return False
        archive = next(Path(place).glob("*.tgz"))
        with tarfile.open(archive) as opened:
            member = opened.extractfile("package/axe.min.js")
            assert member is not None
            text = member.read()
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"axe-{os.getpid()}.partial"
    partial.write_bytes(text)
    partial.replace(folder / "axe.min.js")
    return True


def open_details(page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")


def find_faults(page) -> list[str]:
    """Everything that is wrong on the page as it stands, with all that folds open."""
    open_details(page)
    faults = [f"weak: {text}" for text in page.evaluate(CONTRAST)]
    faults += [f"nameless: {text}" for text in page.evaluate(NAMELESS)]
    faults += [f"sticks out: {text}" for text in page.evaluate(STICKING_OUT)]
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        faults.append("the page scrolls sideways")
    axe = fetch_axe()
    if axe is not None:
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        faults += [f"axe {rule['id']}: {rule['nodes'][0]['html'][:120]}" for rule in found]
    return faults
