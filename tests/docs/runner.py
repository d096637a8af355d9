"""Does what a page says, block after block, in one empty folder."""

from __future__ import annotations

import glob
import linecache
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch

from tests.docs.blocks import Block, split_words
from tests.docs.commands import check_command

# Programs that do the same anywhere or would change the environment the tests run in.
_LEFT_OUT = ("pip", "git")
_FOR_THE_SHELL = re.compile(r"[|<>$;&`]")


PRINTED = "what it prints"  # title of a text block that shows the output of the command before it


class Reader:
    """A reader of one page: writes its files, runs its Python in one namespace and its commands one after the other.

    shorter: what is put in the place of what, so that tests are quick; every replacement has to occur.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, shorter: dict[str, str]):
        self.folder, self._shorter = folder, dict(shorter)
        self.names: dict[str, object] = {}
        self._unused = set(shorter)
        self._told = ""  # by the latest command
        settings = {"STABLENET_CACHE": str(folder / ".cache"), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
        for name, value in settings.items():
            patch.setenv(name, value)
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        patch.delenv("STABLENET_DATA", raising=False)
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))

    def follow(self, blocks: list[Block]) -> None:
        for block in blocks:
            self._follow(block)
        assert not self._unused, f"the page no longer says {self._unused}"

    def _follow(self, block: Block) -> None:
        if block.language == "text" and block.title == PRINTED:
            assert squeeze(block.text) in squeeze(self._told), (
                f"{block.page}, line {block.line}: it prints {self._told}"
            )
        if block.excerpt or block.language not in ("python", "bash", "toml"):
            return
        if block.title:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._shorten(block.text), encoding="utf-8")
        elif block.language == "python":
            self._run_python(block)
        elif block.language == "bash" and not block.reason:
            for command in block.commands:
                self._run_command(block, self._shorten(command))

    def _shorten(self, text: str) -> str:
        for long, short in self._shorter.items():
            if long in text:
                text = text.replace(long, short)
                self._unused.discard(long)
        return text

    def _run_python(self, block: Block) -> None:
        text = self._shorten(block.text)
        name = f"<{block.page}, line {block.line}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # for tracebacks
        with redirect_stdout(StringIO()), torch.random.fork_rng():
            exec(compile(text, name, "exec"), self.names)

    def _run_command(self, block: Block, command: str) -> None:
        check_command(command)
        words = split_words(command)
        if words[0] in _LEFT_OUT:
            return
        if words[0] == "stablenet" and not _FOR_THE_SHELL.search(command):
            code, told = run_stablenet(words[1:])
        else:
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=280)
            code, told = done.returncode, done.stdout + done.stderr
        self._told = told
        assert code == 0, f"{block.page}, line {block.line}: {command}\n{told}"


def squeeze(text: str) -> str:
    """Words in their order; numbers may differ from machine to machine."""
    return re.sub(r"\d+(\.\d+)?", "#", " ".join(text.split()))


def run_stablenet(words: list[str]) -> tuple[int, str]:
    """The command in this process, which spares an import of torch; exit status and what it printed."""
    from stablenet.cli.main import run as main

    given = [found for word in words for found in (sorted(glob.glob(word)) or [word])]
    out = StringIO()
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(out):
        patch.setattr(sys, "argv", ["stablenet", *given])
        with pytest.raises(SystemExit) as ended:
            main()
    torch.set_num_threads(threads)
    return ended.value.code or 0, out.getvalue()
