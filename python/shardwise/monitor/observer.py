"""What an engine tells about itself while it trains.

The engine calls an ``Observer`` at fixed points of a step. Numbers that are on the device are read
one step late, so that a step of which no line is printed waits for nothing; with nothing turned on
the calls are comparisons of a few attributes.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from shardwise import _C
from shardwise.comm.log import LOG
from shardwise.console import log
from shardwise.dtypes import DTYPES
from shardwise.monitor.memory import memory_in_use
from shardwise.monitor.monitor import SECTIONS, MonitorMaster
from shardwise.monitor.times import LateScalar, Times
from shardwise.profiling.flops_profiler.step_profile import StepProfile

SAMPLES = "Train/Samples/"
NOTHING = nullcontext()


@dataclass
class Losses:
    """Losses of the present accumulation window, with the weights of their micro-batches."""

    weighted: list[torch.Tensor] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    parts: list[torch.Tensor] = field(default_factory=list)  # that add up to the step's loss

    def mean(self) -> torch.Tensor | None:
        """The loss that the step lowers; None where no loss was seen."""
        total = None
        if self.weighted:
            total = torch.stack(self.weighted).sum() / sum(self.weights)
        if self.parts:
            total = torch.stack(self.parts).sum() + (0 if total is None else total)
        return total


@dataclass
class Report:
    """A step whose outcome is not known yet."""

    rate: float
    loss: LateScalar | None


@dataclass
class Speed:
    """Where the time since the last printed line began."""

    began: float | None = None
    samples: int = 0  # of all ranks at that time
    tokens: int = 0  # of this rank since then

    def begin(self, samples: int) -> None:
        self.began, self.samples = time.perf_counter(), samples

    def take(self, samples: int, ranks: int) -> str:
        passed = max(time.perf_counter() - (self.began or 0.0), 1e-9)
        tokens, self.tokens = self.tokens * ranks, 0
        text = f"{(samples - self.samples) / passed:.4g} samples/s"
        self.begin(samples)
        return f"{text}, {tokens / passed:.4g} tokens/s" if tokens else text


class Observer:
    """Step log, monitors, times and the FLOPs profile of one engine.

    Attributes: ``monitor``, for events of the user's own.
    """

    def __init__(self, engine: Any):
        value = engine.config_value
        self._device = engine.device
        self._dtype = DTYPES[engine.resolved_config.model_dtype]
        autocast = value("torch_autocast.enabled") and value("torch_autocast.dtype")
        self._scales_loss = "fp16" in (engine.resolved_config.model_dtype, autocast)
        self._every = value("steps_per_print") or 0
        self._times = Times(engine.device) if value("wall_clock_breakdown") else None
        if self._times is not None and not self._every:
            self._every = 1
        self._profile = None
        if value("flops_profiler.enabled"):
            self._profile = StepProfile(engine.module, value("flops_profiler"), engine.device)
        self.monitor: MonitorMaster | None = None  # until the outputs are opened
        self._show_speed = value("timers.throughput.enabled")
        self._is_first_rank = dist.get_rank() == 0
        self._losses = Losses()
        self._report: Report | None = None
        self._last: dict[str, float] = {}  # what is known of the last settled step
        self._logged: dict[str, Any] = {}  # values that the user gave for the next line
        self._speed = Speed()
        self._times_since = 0  # step

    def open_outputs(self, value: Any) -> str:
        """Begins to write; what this rank has against the places for it, or ""."""
        try:
            if self._profile is not None and self._is_first_rank:
                self._profile.check_output()
            self.monitor = MonitorMaster({section: value(section) for section in SECTIONS})
        except _C.ConfigError as error:
            return str(error)
        return ""

    # ---- called by the engine

    def timed(self, engine: Any, kind: str) -> AbstractContextManager[None]:
        """Surrounds forward, backward and step."""
        if self._speed.began is None and self._every:
            self._speed.begin(engine.global_samples)
        if self._times is None and self._profile is None:
            return NOTHING
        if kind == "forward" and not torch.is_grad_enabled():
            return NOTHING  # an evaluation
        return self._watch(engine, kind)

    @contextmanager
    def _watch(self, engine: Any, kind: str) -> Iterator[None]:
        if self._profile is not None and kind != "step":
            self._profile.begin(engine.global_steps + 1)
        try:
            with self._times.measure(kind) if self._times is not None else NOTHING:
                yield
        except BaseException:
            if self._profile is not None and self._profile.end_counting():
                self._profile = None
                log("the FLOPs profile was given up, since its step failed")
            raise

    def saw_inputs(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward is about to run; counts the tokens [batch, sequence] of language models."""
        if self._every and torch.is_grad_enabled():
            tokens = kwargs.get("input_ids", inputs[0] if inputs else None)
            if isinstance(tokens, torch.Tensor) and tokens.dtype == torch.long and tokens.ndim == 2:
                self._speed.tokens += tokens.numel()

    def saw_loss(
        self, engine: Any, window: Any, loss: torch.Tensor, divided: bool, tokens: Any
    ) -> None:
        """``backward`` is about to run for this loss, which is as the user gave it.

        ``window``: the engine's accumulation window; ``divided``: the engine will divide
        it by the accumulation steps; ``tokens``: its weight, None where micro-batches count alike.
        """
        if not self._needs_loss(engine):
            return
        if window.held == 0 and not window.had_backward:
            self._losses = Losses()
        value = loss.detach().to(torch.float32, copy=True)
        if not divided:
            self._losses.parts.append(value)
            return
        weight = 1 if tokens is None else tokens
        if tokens is not None:  # the mean over no tokens is NaN, and times 0 as well
            value = torch.where(tokens > 0, value, 0.0)
        self._losses.weighted.append(value * weight)
        if not window.had_backward:
            self._losses.weights.append(weight)

    def before_update(self, rates: list[float]) -> None:
        """The window is complete; ``rates`` of the parameter groups are those of this step."""
        losses, self._losses = self._losses, Losses()
        mean = losses.mean()
        self._report = Report(
            rates[0] if rates else 0.0, None if mean is None else LateScalar(mean)
        )
        if self._profile is not None:
            self._profile.end_counting()

    def settled(self, engine: Any, result: dict[str, Any]) -> None:
        """The outcome of the last step is known."""
        if self._times is not None:
            self._times.collect()
        report, self._report = self._report, None
        if report is None or not self._is_first_rank:
            return
        self._last = {"lr": report.rate, "grad_norm": result["norm"]}
        self._last["grad_norm_clipped"] = result["norm_clipped"]
        if report.loss is not None:
            self._last["train_loss"] = report.loss.read()
        if self._scales_loss:
            self._last["loss_scale"] = result["loss_scale"]
        if self.monitor.enabled:
            names = ("train_loss", "lr", "loss_scale", "grad_norm")
            self.monitor.write_events(
                (SAMPLES + name, self._last[name], engine.global_samples)
                for name in names
                if name in self._last
            )

    def after_update(self, engine: Any) -> None:
        """A step was launched; prints if it is time to. Waits for the device only then."""
        if self._is_due(engine.global_steps):
            skipped = engine.skipped_steps  # settles the step
            if self._is_first_rank:
                log(self._line(engine, skipped))
            self._report_times(engine)
        if self._profile is not None and self._profile.end_step(engine.global_steps, self._dtype):
            self._profile = None

    def log(self, engine: Any, name: str, value: Any) -> None:
        """A value of the user's for the monitors and the next printed line."""
        if self._is_first_rank:
            self._logged[name] = value
            self.monitor.write_events([(name, value, engine.global_samples)])

    def close(self, engine: Any) -> None:
        """Ends the monitors and what is being counted."""
        LOG.leave(engine)
        if self._profile is not None:
            self._profile.close(self._dtype)
        if self.monitor is not None:
            self.monitor.close()

    # ---- printing

    def _needs_loss(self, engine: Any) -> bool:
        due = self.monitor.enabled or self._is_due(engine.global_steps + 1)
        return self._is_first_rank and due

    def _is_due(self, step: int) -> bool:
        return self._every > 0 and step % self._every == 0

    def _line(self, engine: Any, skipped: int) -> str:
        last = self._last
        parts = [f"step {engine.global_steps}"]
        if "train_loss" in last:
            whose = " (rank 0)" if engine.world_size > 1 else ""
            parts.append(f"loss {last['train_loss']:.6g}{whose}")
        parts += [f"lr {last['lr']:.3e}", self._norm_text(), f"skipped {skipped}"]
        if "loss_scale" in last:
            parts.append(f"loss scale {last['loss_scale']:g}")
        if self._show_speed:
            parts.append(self._speed.take(engine.global_samples, engine.world_size))
        parts.append(f"memory {memory_in_use(self._device)}")
        parts += [f"{name} {float(value):.6g}" for name, value in self._logged.items()]
        self._logged.clear()
        return ", ".join(parts)

    def _norm_text(self) -> str:
        norm, clipped = self._last["grad_norm"], self._last["grad_norm_clipped"]
        after = f" ({clipped:.4g} after clipping)" if clipped < norm else ""
        return f"gradient norm {norm:.4g}{after}"

    def _report_times(self, engine: Any) -> None:
        if self._times is None:
            return
        taken = self._times.take()
        steps = max(engine.global_steps - self._times_since, 1)
        self._times_since = engine.global_steps
        if not self._is_first_rank:
            return
        parts = [
            f"{kind} {1e3 * seconds / steps:.2f} ms ({calls / steps:.3g} × "
            f"{1e3 * seconds / max(calls, 1):.2f})"
            for kind, (seconds, calls) in taken.items()
        ]
        log(f"time of a step: {', '.join(parts)}")
        if self.monitor.enabled:
            self.monitor.write_events(
                (f"{SAMPLES}elapsed_time_ms_{kind}", 1e3 * seconds / steps, engine.global_samples)
                for kind, (seconds, _) in taken.items()
            )
