"""Modules of others: what a bench table imports and a network of one's own may raise, exit, or give anything.

Without `--trust` no such module is executed, wherever its name stands; with it, what it does wrong is one sentence.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from campaign.odd import garble
from campaign.trial import Ending, Trial
from campaign.workshop import TABLE, tiny

TRACE = "import pathlib\npathlib.Path('executed').touch()\n"
MESSAGES = ("''", "'[/b]'", "'a\\nb'", "'\\udcff'", "'x' * 10_000", "3", "None", "b'\\xff'", "['[red]']", "'\\0'")
ERRORS = (
    "ValueError", "KeyError", "OSError", "FileNotFoundError", "UnicodeError", "RuntimeError", "AssertionError",
    "ImportError", "ModuleNotFoundError", "StopIteration", "MemoryError", "NotImplementedError", "SystemExit",
)  # fmt: skip
# What a module may do when it is imported, beside raising one of the errors.
DEEDS = (
    "import sys; sys.exit()", "import sys; sys.exit(0)", "import sys; sys.exit(70)", "exit('bye')", "1 / 0",
    "def f(): f()\nf()", "import nowhere", "from json import nothing", "import own", "from own import missing",
    "open('nowhere')", "class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "print('[/b]')",
    "import warnings; warnings.warn('odd')", "from stablenet.errors import UserError\nraise UserError('my own words')",
    "from stablenet.algorithms import ALGORITHMS\nALGORITHMS.add('erm', 3)", "return 3", "x = (", "\tx = 1\n  y = 2",
    "await f()", "raise 3", "raise KeyboardInterrupt", "import torch; torch.zeros(-1)", "del __name__",
    "from stablenet.data.splits import SPLITS\nSPLITS.add('mine', None)",
)  # fmt: skip
FORWARDS = (
    "return self.f(x)", "return None", "return x", "return 3", "return self.f(x).long()", "return self.f(x).double()",
    "return [self.f(x)]", "return {'a': self.f(x)}", "return self.f(x)[:-1]", "return self.f(x)[:, :1]",
    "return self.f(x)[:, :, None]", "return self.f(x).sum()", "return self.f(x) * float('nan')",
    "raise ValueError('?')",
    "import sys; sys.exit(0)", "return self.f(x).detach()", "return torch.zeros(len(x), 4)",
    "return self.f(x.flatten())",
    "self.n = getattr(self, 'n', 0) + 1\n        return self.f(x)[: 7 if self.n > 2 else None]", "return x.numpy()",
    "assert not self.training\n        return self.f(x)", "assert self.training\n        return self.f(x)",
    "return self.f(x) * 1e38", "return Bad.apply(self.f(x))", "return torch.rand(len(x), 4)",
    "return self.f(x).to('meta')",
    "return self.f(x).half()", "return self.f(x) + 0j", "return self.f(x).numpy()", "return self.forward(x)",
    "raise '?'",
    "return self.f(x)[:0]", "raise ValueError('\\udcff')", "return self.f(x).to_sparse()", "raise KeyboardInterrupt",
)  # fmt: skip
MADE = (
    "self.num_features = 4", "self.num_features = 5", "self.num_features = '4'", "self.num_features = -1", "",
    "self.num_features = 0", "self.num_features = True", "self.num_features = 4.0", "self.num_features = 2**40",
    "self.double()", "self.half()", "self.to('meta')", "self.num_features = 4; self.requires_grad_(False)",
    "self.g = nn.LazyLinear(4)", "self.g = self.f; self.num_features = 4", "raise ValueError('made')", "self.f = None",
    "self.register_buffer('b', torch.zeros(2, dtype=torch.complex64)); self.num_features = 4", "del self.f",
    "self.get_extra_state = lambda: 3; self.num_features = 4", "self.num_features = None; self.g = nn.Linear(4, 3)",
    "self.state_dict = None; self.num_features = 4", "self.w = nn.Parameter(torch.zeros(0)); self.num_features = 4",
)  # fmt: skip
NETWORK = """{trace}import torch
from torch import nn

class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, slope):
        raise ValueError('in the backward pass')

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.f = nn.Sequential(nn.Flatten(), nn.LazyLinear(4) if width < 0 else nn.Linear(3 * 28 * 28, 4))
        {made}
    def forward(self, x):
        {forward}

def needs(a, b):
    return Net()
def gives_nothing(): pass
def gives_a_class(): return Net
def gives_text(): return 'net'
def raises(): raise ValueError('[/b]')
def leaves(): raise SystemExit(0)
linear = lambda: nn.Linear(3 * 28 * 28, 4)
number = 3
"""
ATTRIBUTES = ("needs", "gives_nothing", "gives_a_class", "gives_text", "raises", "leaves", "linear", "number", "", "no")
METHODS = ("erm", "stablenet", "rsc", "coral", "mixup", "group-dro", "jtt", "jigen", "irm", "lff")
VERBS = (["bench", "plan"], ["bench", "status"], ["bench", "list"], ["report"])


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    return rng.choice((_import_from_table, _train_network, _train_network))(rng, folder)


def _import_from_table(rng: Random, folder: Path) -> Trial:
    text = rng.choice((rng.choice(DEEDS), f"raise {rng.choice(ERRORS)}({rng.choice(MESSAGES)})"))
    _write(rng, folder / "own.py", TRACE + text)
    name = rng.choice(("own", "own", "own", "own", "own.deeper", "", ".", "..own", "own:Net", "é", "x" * 300, "a b"))
    (folder / "mine.toml").write_text(f"imports = [{name!r}]\n{TABLE}")
    verb = rng.choice(VERBS)
    words = [*verb, "mine.toml", *(["--panels", "0"] if verb == ["report"] else [])]
    return _ask(rng, words)


def _train_network(rng: Random, folder: Path) -> Trial:
    made, forward = rng.choice(MADE), rng.choice(FORWARDS)
    if rng.random() < 0.5:  # otherwise most end when they are built
        made = "self.num_features = 4"
    _write(rng, folder / "own.py", NETWORK.format(trace=TRACE, made=made or "pass", forward=forward))
    attribute = "Net" if rng.random() < 0.8 else rng.choice(ATTRIBUTES)
    words = ["train", "--method", rng.choice(METHODS), "--device", "cpu", *tiny("train.max_steps=4", "train.epochs=1")]
    if rng.random() < 0.2:
        words += ["--set", f"model.parameters={rng.choice(('{width=3}', '{depth=1}', '{width=-1}', '{self=1}'))}"]
    if rng.random() < 0.3:
        (folder / "mine.toml").write_text(f'[model]\nname = "own:{attribute}"\n')
        return _ask(rng, [*words, "--config", "mine.toml"])
    # A name that was typed is trusted.
    return Trial(words=[*words, "--set", f'model.name="own:{attribute}"'], check=check_figures)


def _write(rng: Random, path: Path, text: str) -> None:
    data = text.encode(errors="surrogatepass")
    path.write_bytes(garble(rng, data) if rng.random() < 0.08 else data)


def _ask(rng: Random, words: list[str]) -> Trial:
    """With the user's trust, or without it: then nothing may be executed."""
    if rng.random() < 0.75:
        return Trial(words=["--trust", *words], check=check_figures)
    return Trial(words=words, check=check_untouched)


def check_untouched(ending: Ending) -> str:
    if (ending.folder / "executed").exists():
        return "silent: a module was executed without trust"
    return ""


def check_figures(ending: Ending) -> str:
    """What a training records is JSON."""
    for path in ending.folder.glob("runs/*/records.jsonl"):
        text = path.read_text()
        if "NaN" in text or "Infinity" in text:
            return f"a figure that is not JSON in {path.name}"
    return ""
