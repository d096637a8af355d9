"""Features from inside a model that nobody has to change: forward hooks on modules named by their paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.models.taps import shape_tap
from stablenet.registry import unknown_name


class FeatureTaps:
    """Keeps what the modules at `paths` gave in the latest forward pass.

    paths: as in `model.named_modules()`, for example "layer1". Maps (B, C, H, W) and tokens (B, T, C) are pooled to
    (B, 2C), mean and standard deviation over positions; vectors (B, C) stay as they are. Of a module that is used
    several times the last use counts.
    """

    def __init__(self, model: nn.Module, paths: Sequence[str]) -> None:
        if not paths:
            raise UserError("no taps were named: give at least one module's path, for example 'layer1'")
        modules = dict(model.named_modules())
        for path in paths:
            if not path or path not in modules:
                raise UserError(unknown_name("module", path, (name for name in modules if name)))
        self.paths = tuple(paths)
        self.training = True  # whether the latest pass was one of training
        self._caught: dict[str, Tensor] = {}
        self._handles = [modules[path].register_forward_hook(self._catcher(path)) for path in self.paths]

    def take(self) -> dict[str, Tensor]:
        """The features (B, m) of the latest forward pass by path; they are handed over once."""
        missing = [path for path in self.paths if path not in self._caught]
        if missing:
            raise UserError(
                f"the module {missing[0]!r} gave no features since the last loss: run the model on the batch first, "
                "and tap only modules that every forward pass uses"
            )
        caught = {path: self._caught[path] for path in self.paths}
        self._caught.clear()
        return caught

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    def _catcher(self, path: str) -> Any:
        def catch(module: nn.Module, args: Any, output: Any) -> None:
            self.training = module.training
            first = output[0] if isinstance(output, tuple | list) else output  # transformers' blocks give tuples
            if not isinstance(first, Tensor) or first.ndim < 2:
                raise UserError(f"the module {path!r} gives no features of shape (batch, …): tap another one")
            # At once and cut off: what follows may change the output in place.
            self._caught[path] = shape_tap(first.detach(), "meanstd", channels_last=False)

        return catch
