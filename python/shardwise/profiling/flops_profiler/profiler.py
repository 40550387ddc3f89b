"""FLOPs of a model: between two calls, or of one call."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardwise import _C
from shardwise.profiling.flops_profiler import report
from shardwise.profiling.flops_profiler.counter import Counter
from shardwise.profiling.flops_profiler.peak import peak_flops


class FlopsProfiler:
    """Counts what a model computes between ``start_profile()`` and ``stop_profile()``.

    ``get_total_flops()`` and its like speak of forward, as DeepSpeed's do; backward and recomputed
    FLOPs are counted, not estimated, where a backward runs in between: ``totals()`` has them.
    ``ds_engine`` and ``recompute_fwd_factor`` are accepted; nothing depends on them.
    """

    def __init__(self, model: nn.Module, ds_engine: Any = None, recompute_fwd_factor: float = 0.0):
        self.model = model
        self.started = False
        self._counter: Counter | None = None
        self._began = self._seconds = 0.0

    def start_profile(self, ignore_list: Iterable[type] | None = None) -> None:
        """Begins to count. ``ignore_list``: not available, everything counts."""
        if ignore_list:
            raise _C.UsageError("ignore_list is not available: leave it out, everything counts")
        if self.started:
            raise _C.UsageError("start_profile() was called twice: call stop_profile() first")
        self._counter = Counter(self.model)
        self._counter.__enter__()
        self.started = True
        self._synchronize()
        self._began = time.perf_counter()

    def stop_profile(self) -> None:
        """Ends counting; the numbers stay until ``end_profile()``."""
        if self.started:
            self._synchronize()
            self._seconds = time.perf_counter() - self._began
            self._counter.__exit__(None, None, None)
            self.started = False

    def reset_profile(self) -> None:
        """Forgets the numbers; while counting, counts anew."""
        counting = self.started
        self.end_profile()
        if counting:
            self.start_profile()

    def end_profile(self) -> None:
        """Ends counting and forgets the numbers."""
        self.stop_profile()
        self._counter = None
        self._seconds = 0.0

    def totals(self) -> report.Totals:
        """All numbers."""
        counter = self._counted()
        parameter = next(self.model.parameters(), torch.empty(0))
        return report.Totals(
            parameters=sum(p.numel() for p in self.model.parameters()),
            forward=counter.total("forward"),
            backward=counter.total("backward"),
            recomputed=counter.total("recomputed"),
            seconds=self._seconds,
            what="what ran",
            peak=peak_flops(parameter.device, parameter.dtype),
        )

    def get_total_flops(self, as_string: bool = False) -> int | str:
        """Forward FLOPs."""
        return _shown(self.totals().forward, "FLOPs", as_string)

    def get_total_macs(self, as_string: bool = False) -> int | str:
        """Forward multiply-and-adds: half of the FLOPs."""
        return _shown(self.totals().forward // 2, "MACs", as_string)

    def get_total_params(self, as_string: bool = False) -> int | str:
        """Elements of all parameters."""
        return _shown(self.totals().parameters, "", as_string)

    def get_total_duration(self, as_string: bool = False) -> float | str:
        """Seconds between start and stop."""
        seconds = self.totals().seconds
        return f"{1e3 * seconds:.3f} ms" if as_string else seconds

    def print_model_profile(
        self,
        profile_step: int = 1,
        module_depth: int = -1,
        top_modules: int = 1,
        detailed: bool = True,
        output_file: str | None = None,
    ) -> None:
        """Prints totals, the modules with most FLOPs, and with ``detailed`` a line a module."""
        text = profile_text(
            self._counted(),
            self.model,
            self.totals(),
            {"module_depth": module_depth, "top_modules": top_modules, "detailed": detailed},
            f"step {profile_step}",
        )
        write(text, output_file)

    def print_model_aggregated_profile(self, module_depth: int = -1, top_modules: int = 1) -> None:
        """Prints the module classes with most FLOPs."""
        write("\n".join(report.top_modules(self._counted(), top_modules)), None)

    def _counted(self) -> Counter:
        if self._counter is None:
            raise _C.UsageError("nothing was counted: call start_profile() before the model runs")
        return self._counter

    def _synchronize(self) -> None:
        if any(p.is_cuda for p in self.model.parameters()):
            torch.cuda.synchronize()


def get_model_profile(
    model: nn.Module,
    input_shape: tuple[int, ...] | None = None,
    args: Iterable[Any] = (),
    kwargs: dict[str, Any] | None = None,
    print_profile: bool = True,
    detailed: bool = True,
    module_depth: int = -1,
    top_modules: int = 1,
    warm_up: int = 1,
    as_string: bool = True,
    output_file: str | None = None,
    ignore_modules: Iterable[type] | None = None,
    mode: str = "forward",
) -> tuple[Any, Any, Any]:
    """FLOPs, multiply-and-adds and parameters of one forward (``mode="generate"``: of
    ``model.generate``), without gradients.

    Inputs are ``args`` and ``kwargs``, or ones of ``input_shape``. ``warm_up`` calls go before.
    Numbers, or with ``as_string`` text such as "1.23 GFLOPs".
    """
    if mode not in ("forward", "generate"):
        raise _C.UsageError(f'mode must be "forward" or "generate", but it is {mode!r}')
    args, kwargs = tuple(args), dict(kwargs or {})
    if input_shape is not None:
        if args or kwargs:
            raise _C.UsageError("give input_shape, or args and kwargs, not both")
        parameter = next(model.parameters())
        args = (torch.ones(input_shape, dtype=parameter.dtype, device=parameter.device),)
    if not args and not kwargs:
        raise _C.UsageError("get_model_profile() needs input_shape, args or kwargs")
    call = model if mode == "forward" else model.generate
    was_training = model.training
    model.eval()
    profiler = FlopsProfiler(model)
    try:
        with torch.no_grad():
            for _ in range(warm_up):
                call(*args, **kwargs)
            profiler.start_profile(ignore_modules)
            try:
                call(*args, **kwargs)
            finally:
                profiler.stop_profile()
    finally:
        model.train(was_training)
    if print_profile:
        profiler.print_model_profile(1, module_depth, top_modules, detailed, output_file)
    return (
        profiler.get_total_flops(as_string),
        profiler.get_total_macs(as_string),
        profiler.get_total_params(as_string),
    )


def profile_text(
    counter: Counter, model: nn.Module, totals: report.Totals, settings: dict, title: str
) -> str:
    """Everything that a profile prints."""
    lines = report.summary(totals, title)
    lines += report.top_modules(counter, settings["top_modules"])
    if settings["detailed"]:
        parameters = {
            name: sum(p.numel() for p in module.parameters())
            for module, name in counter.mod_tracker.names.items()
        }
        lines += report.table(counter, parameters, settings["module_depth"])
    return "\n".join(lines)


def write(text: str, output_file: str | None) -> None:
    """To the file, or to standard output."""
    if output_file is None:
        print(text, flush=True)
        return
    with Path(output_file).open("a") as file:
        print(text, file=file)


def _shown(value: int, unit: str, as_string: bool) -> int | str:
    return report.with_unit(value, unit) if as_string else value
