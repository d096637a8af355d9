"""The pictures are drawn by the commands that stand beside them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from docs.make_pictures import PICTURES, main
from PIL import Image

from tests.docs.blocks import ROOT, WRITTEN, read_blocks

SHOWN = re.compile(r"!\[[^\]]+\]\(pictures/([\w-]+)\.png\)\s+```bash\n(python docs/make_pictures.py (\S+))\n```")
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in WRITTEN}
COMMANDS = sorted({match[1] for text in TEXTS.values() for match in SHOWN.findall(text)})
QUICK = "python docs/make_pictures.py fourier"


def test_every_picture_stands_beside_its_command():
    beside = {(shown, drawn) for text in TEXTS.values() for shown, _, drawn in SHOWN.findall(text)}
    assert beside == {(name, name) for name in PICTURES}
    blocks = [block for page, text in TEXTS.items() for block in read_blocks(page, text)]
    said = {block.text.strip() for block in blocks if "pictures.py" in block.text}
    assert said == set(COMMANDS)


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=[] if c == QUICK else [pytest.mark.slow], id=c.split()[-1]) for c in COMMANDS]
)
def test_the_command_draws_it(command, tmp_path):
    words = [sys.executable, "-W", "error", *command.split()[1:], "--to", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    (drawn,) = tmp_path.iterdir()
    kept = ROOT / "docs" / "pictures" / drawn.name
    with Image.open(drawn) as new, Image.open(kept) as old:
        assert new.size == old.size


def test_an_unknown_picture_is_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["make_pictures.py", "nothing"])
    with pytest.raises(SystemExit):
        main()
    assert "there is no picture 'nothing': known are fourier" in capsys.readouterr().err
