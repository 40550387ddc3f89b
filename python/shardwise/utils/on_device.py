"""``OnDevice``: modules built with another dtype or device, or without memory."""

from typing import Any

import torch

from shardwise import _C


class OnDevice:
    """Tensors made inside lie on ``device`` and, if floating point, have ``dtype``.

    With ``device="meta"`` they take no memory and have no values; give them some, for example with
    ``module.to_empty(device=...)`` and the model's own initialisation, before ``initialize``.
    """

    def __init__(
        self, dtype: torch.dtype | None = None, device: Any = "meta", enabled: bool = True
    ):
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise _C.UsageError(f"OnDevice(dtype={dtype!r}): give a floating-point torch dtype")
        self._dtype, self._enabled = dtype, enabled
        self._device = torch.device(device)
        self._entered: list[tuple[torch.device, torch.dtype]] = []

    def __enter__(self) -> "OnDevice":
        if self._enabled:
            context = torch.device(self._device)
            context.__enter__()
            self._entered.append((context, torch.get_default_dtype()))
            if self._dtype is not None:
                torch.set_default_dtype(self._dtype)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._enabled:
            context, dtype = self._entered.pop()
            torch.set_default_dtype(dtype)
            context.__exit__(kind, error, trace)
