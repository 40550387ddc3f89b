"""The engine: an ``nn.Module`` around the user's model whose training steps run in the C++ core."""

import functools
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from shardwise import _C
from shardwise.accessors import ConfigAccessors
from shardwise.checkpointing import keeping
from shardwise.comm.log import watch_engine
from shardwise.complaints import complaint_of_all
from shardwise.console import log
from shardwise.dtypes import DTYPES
from shardwise.forwards import ReplacedForwards
from shardwise.loading import difference, misfit, set_extra_states, tensors_of
from shardwise.membership import about_strangers
from shardwise.monitor.monitor import SECTIONS, MonitorMaster
from shardwise.monitor.observer import Observer
from shardwise.optimizers import ShardedOptimizer, number_of
from shardwise.schedules import needed_arguments
from shardwise.target_tokens import TargetTokens, checked_tokens
from shardwise.unavailable import ENGINE, missing
from shardwise.wiring import EngineParts, Wiring


@dataclass
class Progress:
    """Where training stands; micro-batches are counted by the core's window."""

    global_steps: int = 0
    global_samples: int = 0
    skipped_steps: int = 0
    step_applied: bool = False
    inside_no_sync: bool = False
    warned_no_sync: bool = False
    warned_zero_grad: bool = False
    warned_strangers: bool = False
    # Arguments for the schedule while the outcome of the last step is not known; else None.
    unsettled: dict[str, Any] | None = None
    schedule_needs: list[str] = field(default_factory=list)  # arguments of its step()


class Engine(ConfigAccessors, nn.Module):
    """Trains a module with ZeRO. Made by ``shardwise.initialize``.

    ``engine(...)`` runs the module, ``backward(loss)`` and ``step()`` train it. Attributes that the
    engine lacks are the module's. The parameters belong to the engine until ``destroy()``.
    """

    def __init__(self, parts: EngineParts):
        nn.Module.__init__(self)
        self.module = parts.module
        self.device = parts.device
        self.set_resolved_config(parts.config)
        self._optimizer = parts.optimizer
        self._lr_scheduler = None
        self.training_dataloader = None
        self.global_rank = dist.get_rank()
        self.local_rank = _C.launch_environment()["local_rank"]
        self.world_size = self.dp_world_size = dist.get_world_size()
        self._progress = Progress()
        self._target_tokens = TargetTokens()
        with ExitStack() as undo:
            self._observer = Observer(self)
            undo.callback(self._observer.close, self)
            self._wiring = Wiring(parts, self.config_value, self)
            undo.callback(self._wiring.end, True)
            self._forwards = ReplacedForwards(self, self._wiring)
            undo.callback(self._forwards.restore)
            self._open_outputs()
            watch_engine(self, self._core)
            if self._optimizer is not None:
                self._optimizer.attach(self.zero_grad)
            undo.pop_all()

    @property
    def _core(self) -> _C.Engine:
        return self._wiring.core

    def _open_outputs(self) -> None:
        """Rank 0 writes; where it cannot, every rank says so."""
        complaint = self._observer.open_outputs(self.config_value)
        if any(self.config_value(f"{s}.enabled") for s in (*SECTIONS, "flops_profiler")):
            complaint = complaint_of_all(complaint, self._wiring.everybody)
        if complaint:
            raise _C.ConfigError(complaint)

    # ---- training

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Runs the module."""
        self._wiring.before_forward()
        if self.config_value("fp16.auto_cast"):
            inputs = _cast(inputs, torch.float16)
            kwargs = _cast(kwargs, torch.float16)
        self._observer.saw_inputs(inputs, kwargs)
        try:
            with (
                self._observer.timed(self, "forward"),
                self._autocast(),
                keeping(self._forwards.checkpoint_inputs),
            ):
                output = self.module(*inputs, **kwargs)
            if self._token_weighted:
                self._target_tokens.saw_forward(self.micro_steps, self.module, kwargs, output)
            return output
        except RuntimeError as error:
            if self._core.communication_failed():
                raise self._lost_the_others(error) from error
            hint = self._dtype_hint((inputs, kwargs)) if "dtype" in str(error) else ""
            if not hint:
                raise
            raise _C.UsageError(f"{error}. {hint}") from error

    def _autocast(self) -> AbstractContextManager[None]:
        """16-bit copies are not cached: they would keep whole what stage 3 releases."""
        if not self.config_value("torch_autocast.enabled"):
            return nullcontext()
        dtype = DTYPES[self.config_value("torch_autocast.dtype")]
        return torch.autocast(self.device.type, dtype, cache_enabled=False)

    def _dtype_hint(self, arguments: Any) -> str:
        """What may be wrong when an operation refused to mix dtypes."""
        leaves = pytree.tree_leaves(arguments)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        found = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
        wanted = DTYPES[self.resolved_config.model_dtype]
        if found <= {wanted}:
            return ""
        others = ", ".join(str(dtype) for dtype in found - {wanted})
        return (
            f"The parameters are {wanted} as the configuration says, but the inputs are {others}: "
            f"cast floating-point inputs and targets with .to({wanted})"
        )

    def backward(
        self,
        loss: torch.Tensor,
        retain_graph: bool = False,
        scale_wrt_gas: bool = True,
        tokens: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Backward of a scalar loss, divided by the accumulation steps and scaled in fp16.

        With ``shardwise.token_weighted_loss`` the loss is the mean over ``tokens`` and counts by
        them; a causal language model that gets ``labels=`` needs no ``tokens``.

        Returns the loss divided by the accumulation steps.
        """
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            what = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise _C.UsageError(f"backward() needs a scalar loss but got {what}: reduce it first")
        if not loss.requires_grad:
            raise _C.UsageError(
                "the loss does not require a gradient: no trainable parameter took part in it, or "
                "it was computed under torch.no_grad()"
            )
        if getattr(sys.modules.get("torch._dynamo.config"), "compiled_autograd", False):
            raise _C.UsageError(
                "compiled autograd does not run the engine's hooks: set "
                "torch._dynamo.config.compiled_autograd = False (compiled blocks work)"
            )
        tokens = self._tokens_of(loss, tokens)
        self._observer.saw_loss(self, self._window, loss, scale_wrt_gas, tokens)
        with self._observer.timed(self, "backward"), self._dropping_the_window_on_failure():
            self._core.backward(loss, retain_graph, scale_wrt_gas, tokens)
        divisor = self.gradient_accumulation_steps() if scale_wrt_gas else 1
        return loss.detach() if divisor == 1 else loss.detach() / divisor

    def _tokens_of(self, loss: torch.Tensor, tokens: Any) -> torch.Tensor | None:
        if not self._token_weighted:
            if tokens is not None:
                raise _C.UsageError(
                    "backward(tokens=) has a meaning only with "
                    '"shardwise": {"token_weighted_loss": true}'
                )
            return None
        if tokens is not None:
            return checked_tokens(tokens, loss.device)
        return self._target_tokens.behind(self.micro_steps, loss)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss times the loss scale, for ``engine.scale(loss).backward()``.

        ``loss.backward()`` alone does outside of fp16. Either way gradients are divided by the
        accumulation steps as they arrive; the loss itself is not.
        """
        self._observer.saw_loss(self, self._window, loss, divided=True, tokens=None)
        return self._core.scale(loss)

    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """Ends a micro-batch; at the boundary of the accumulation window updates the weights."""
        self._check_may_step("step")
        if not self._wiring.ended and not self._window.had_backward:
            raise _C.UsageError(
                "step() was called without a backward since the last step() or zero_grad(): call "
                "engine.backward(loss) first"
            )
        boundary = self.is_gradient_accumulation_boundary()
        self._settle()
        self._progress.step_applied = False
        if boundary:
            self._update(lr_kwargs or {})
        else:
            with self._dropping_the_window_on_failure():
                self._core.end_micro_batch()

    def flush_accumulation(self) -> bool:
        """Updates with the micro-batches since the last update, fewer than a whole window.

        For the end of an epoch: the mean over the micro-batches of all ranks counts, also where
        a rank has fewer than others. Returns False, and does nothing, where there are none.
        Collective.
        """
        self._check_may_step("flush_accumulation")
        self._settle()
        with self._dropping_the_window_on_failure():
            held_by_all = self._core.held_by_all()
        if held_by_all:
            self._update({}, held_by_all)
        return held_by_all > 0

    def _check_may_step(self, call: str) -> None:
        if self._progress.inside_no_sync:
            raise _C.UsageError(f"{call}() was called inside no_sync(): leave the context first")

    @property
    def _window(self) -> _C.AccumulationWindow:
        return self._core.window

    @property
    def _token_weighted(self) -> bool:
        return self.config_value("shardwise.token_weighted_loss")

    @contextmanager
    def _dropping_the_window_on_failure(self) -> Iterator[None]:
        """Half of a gradient must not reach the weights."""
        try:
            yield
        except BaseException as error:
            if not self._core.communication_failed():
                self._forget_gradients()
                self._window.drop()
                log("the gradients of this accumulation window were dropped")
            elif isinstance(error, RuntimeError):
                raise self._lost_the_others(error) from error
            raise

    def _lost_the_others(self, error: RuntimeError) -> _C.CommunicationError:
        """A failed collective, with what every rank last said of itself."""
        # autograd passes the text of an error on, not its class.
        whereabouts = self._wiring.whereabouts
        if whereabouts is None:
            return _C.CommunicationError(str(error))
        units = self._wiring.units if self.zero_optimization_partition_weights() else []
        return _C.CommunicationError("\n".join([str(error), *whereabouts.report(units)]))

    def _update(self, schedule_arguments: dict[str, Any], partial_of: int = 0) -> None:
        if self._optimizer is None:
            raise _C.UsageError(
                "step() needs an optimizer: name one in the configuration "
                '("optimizer": {"type": "AdamW"}) or pass optimizer= to initialize()'
            )
        for name in self._progress.schedule_needs:
            if name not in schedule_arguments:
                raise _C.UsageError(
                    f"{type(self._lr_scheduler).__name__}.step() needs {name}, which the engine "
                    f'does not know: call engine.step(lr_kwargs={{"{name}": ...}}), or '
                    f"initialize() without lr_scheduler= and call scheduler.step(...) yourself"
                )
        groups = self._optimizer.param_groups
        rates = [number_of(group, index, "lr") for index, group in enumerate(groups)]
        self._look_for_strangers()
        count = (self._window.held + self._window.had_backward) * self.world_size
        run = functools.partial(self._core.step, partial_of=partial_of)
        self._observer.before_update(rates)
        with (
            self._observer.timed(self, "step"),
            self._dropping_the_window_on_failure(),
            self._optimizer.carried_out_by(run),
        ):
            self._optimizer.step()
        self._progress.unsettled = schedule_arguments
        self._progress.global_steps += 1
        self._forwards.announced.updates += 1
        samples = (partial_of or count) * self.train_micro_batch_size_per_gpu()
        self._progress.global_samples += samples
        if self.device.type == "cpu":
            self._settle()
        self._observer.after_update(self)

    def _look_for_strangers(self) -> None:
        """Says once that the model has parameters which came after ``initialize``."""
        every = self.config_value("shardwise.check_replicas_every")
        if every and (self.global_steps + 1) % every == 0:
            self._refuse_strangers()
        elif not self._progress.warned_strangers:
            names = self._wiring.membership.strangers_at(self.global_steps)
            if names:
                self._progress.warned_strangers = True
                log(f"warning: {about_strangers(names)}")

    def _refuse_strangers(self) -> None:
        """Collective: every rank learns which one has them."""
        mine = about_strangers(self._wiring.membership.strangers())
        complaint = complaint_of_all(mine, self._wiring.everybody)
        if complaint:
            raise _C.UsageError(complaint)

    def _settle(self) -> None:
        """Learns what the last step decided, and moves the schedule. Waits for a GPU."""
        schedule_arguments, self._progress.unsettled = self._progress.unsettled, None
        if schedule_arguments is None:
            return
        result = self._core.last_result()
        self._progress.step_applied = result["applied"]
        self._forwards.announced.loss_scale = result["next_loss_scale"] or 1.0
        if not self._progress.step_applied:
            self._progress.skipped_steps += 1
        elif self._lr_scheduler is not None:
            # torch warns about schedules that move before their optimizer has.
            self._lr_scheduler.optimizer._opt_called = True
            self._lr_scheduler.step(**schedule_arguments)
        self._observer.settled(self, result)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients of the present accumulation window. Not needed after a step."""
        if self._window.held and not self._window.empty and not self._progress.warned_zero_grad:
            self._progress.warned_zero_grad = True
            log(
                "zero_grad() in the middle of an accumulation window drops the gradients of its "
                "earlier micro-batches; step() clears them by itself"
            )
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        self._target_tokens.forget()
        self._core.zero_grad()

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next ``step()`` updates the weights."""
        return self._window.at_boundary

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Overrides the counting of micro-batches from now on."""
        self._window.force_boundary(is_boundary)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Micro-batches without ``step()``. Stages 0 and 1 do not communicate in it."""
        if self._progress.inside_no_sync:
            raise _C.UsageError("no_sync() is active already; it cannot be nested")
        if self.zero_optimization_stage() >= 2 and not self._progress.warned_no_sync:
            self._progress.warned_no_sync = True
            log(
                "no_sync() saves no communication with ZeRO stages 2 and 3, which shard gradients "
                "after each micro-batch; the weights are the same"
            )
        self._progress.inside_no_sync = True
        try:
            yield
        finally:
            self._progress.inside_no_sync = False

    def train(self, mode: bool = True) -> None:
        """Training mode of the module. Returns None, as DeepSpeed's does."""
        self.training = mode
        self.module.train(mode)

    def eval(self) -> None:
        self.train(False)

    # ---- reading

    @property
    def global_steps(self) -> int:
        """Steps so far, skipped ones included."""
        return self._progress.global_steps

    @property
    def micro_steps(self) -> int:
        """Micro-batches so far."""
        return self._window.micro_steps

    @property
    def global_samples(self) -> int:
        """Samples of all ranks so far."""
        return self._progress.global_samples

    @property
    def optimizer(self) -> ShardedOptimizer | None:
        self._settle()
        return self._optimizer

    @property
    def lr_scheduler(self) -> Any:
        self._settle()
        return self._lr_scheduler

    @lr_scheduler.setter
    def lr_scheduler(self, scheduler: Any) -> None:
        self._lr_scheduler = scheduler
        self._progress.schedule_needs = needed_arguments(scheduler)

    @property
    def skipped_steps(self) -> int:
        """Steps that changed nothing because a gradient was not finite."""
        self._settle()
        return self._progress.skipped_steps

    @property
    def loss_scale(self) -> float:
        """The scale of the coming step; 1 outside of fp16."""
        self._settle()
        return self._core.loss_scale()

    def was_step_applied(self) -> bool:
        """Whether the last ``step()`` changed the weights."""
        self._settle()
        return self._progress.step_applied

    def get_global_grad_norm(self) -> float | None:
        """Norm of the whole gradient of the last step before clipping; None before the first."""
        result = self._core.last_result()
        return None if result is None else result["norm"]

    @property
    def grad_norm(self) -> float | None:
        """The same as ``get_global_grad_norm()``: before clipping."""
        return self.get_global_grad_norm()

    @property
    def grad_norm_clipped(self) -> float | None:
        """Norm of the gradient that the last step applied; None before the first."""
        result = self._core.last_result()
        return None if result is None else result["norm_clipped"]

    @property
    def monitor(self) -> MonitorMaster:
        """The monitors of the configuration, for ``engine.monitor.write_events(...)``."""
        return self._observer.monitor

    def log(self, name: str, value: Any) -> None:
        """Sends a value to the monitors, against the samples so far, and to the next printed line.

        A tensor is waited for; ranks other than 0 do nothing.
        """
        self._observer.log(self, name, value)

    def get_lr(self) -> list[float]:
        """Learning rate of each parameter group."""
        self._settle()
        groups = self._optimizer.param_groups if self._optimizer else []
        return [float(group["lr"]) for group in groups]

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Changes the accumulation steps so that a step takes ``train_batch_size`` samples."""
        self._set_config(self.resolved_config.with_train_batch_size(_count(train_batch_size)))

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """Changes the micro-batch, and the samples a step with it."""
        self._set_config(self.resolved_config.with_train_micro_batch_size(_count(micro_batch_size)))

    def _set_config(self, config: _C.Config) -> None:
        steps = json.loads(config.value_json("gradient_accumulation_steps"))
        dtype = json.loads(config.value_json("data_types.grad_accum_dtype"))
        self._core.set_accumulation(steps, dtype)
        self._forwards.announced.accumulation_steps = steps
        self.set_resolved_config(config)

    def memory_report(self) -> dict[str, dict[str, int]]:
        """Bytes that this rank holds, by tier (device, pinned_host, file) and kind."""
        tiers = self._core.memory_report()
        for tier, kinds in tiers.items():
            on_device = tier == "device"
            kinds["buffers"] = sum(b.nbytes for b in self.module.buffers()) if on_device else 0
        return tiers

    def comm_counters(self) -> dict[str, dict[str, float]]:
        """Logical traffic of this rank by collective: calls, elements, bytes × (N−1)/N."""
        return self._core.traffic()

    def reset_comm_counters(self) -> None:
        self._core.reset_traffic()

    def host_times(self) -> dict[str, float]:
        """Microseconds of the engine's host work a unit and direction, without collectives."""
        return self._core.host_times()

    # ---- state

    @torch.no_grad()
    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """The module's full state on the CPU on rank 0, ``{}`` elsewhere. Collective."""
        self._refuse_strangers()
        keep = dist.get_rank() == 0
        full: dict[int, torch.Tensor] = {}
        for index, unit in enumerate(self._wiring.units):
            with self.gathered([index]):
                if keep:
                    for _, _, parameter in unit.parameters:
                        full[id(parameter)] = parameter.detach().to("cpu", copy=True)
        if not keep:
            return {}
        state = self.module.state_dict(*args, **{**kwargs, "keep_vars": True})
        return {
            key: full[id(value)] if id(value) in full else _to_cpu(value)
            for key, value in state.items()
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> Any:
        """Loads full tensors, alike on every rank. Masters follow; moments stay. Collective."""
        own = self.module.state_dict(keep_vars=True)
        everybody = self._wiring.everybody
        complaint = complaint_of_all(misfit(own, state_dict, strict), everybody)
        complaint = complaint or difference(own, state_dict, everybody)
        if complaint:
            raise _C.UsageError(complaint)
        for key, value in tensors_of(own).items():
            if key not in state_dict:
                continue
            if id(value) in self._wiring.index:
                self._core.tensors.set_parameter(self._wiring.index[id(value)], state_dict[key])
            else:
                value.copy_(state_dict[key])
        set_extra_states(self.module, state_dict)
        missing = [key for key in own if key not in state_dict]
        unexpected = [key for key in state_dict if key not in own]
        return nn.modules.module._IncompatibleKeys(missing, unexpected)

    load_module_state_dict = load_state_dict

    def gathered(
        self, units: list[int], modifier_rank: int | None = None
    ) -> AbstractContextManager[None]:
        """The parameters of these units can be read inside, and changed by one rank. Collective."""
        return self._wiring.gathered(units, modifier_rank)

    def full_tensor(self, index: int, kind: str) -> torch.Tensor | None:
        """A copy of a whole parameter, gradient or optimizer state. Collective."""
        if index not in self._wiring.unit_of:
            raise _C.UsageError(f"there is no parameter {index} in this engine")
        if self._is_state(kind):
            return self._optimizer.full_state(self._core, index, kind)
        return self._core.tensors.full(index, kind)

    def local_tensor(self, index: int, kind: str) -> torch.Tensor | None:
        """A copy of this rank's elements, flat."""
        if self._is_state(kind):
            return self._optimizer.local_state(self._core, index, kind)
        return self._core.tensors.local(index, kind)

    def set_tensor(self, index: int, kind: str, value: torch.Tensor, whole: bool) -> bool:
        """Overwrites a master, a gradient or a state; False where there is none."""
        if self._is_state(kind):
            return self._optimizer.set_state(self._core, index, kind, value, whole)
        tensors = self._core.tensors
        return (tensors.set_full if whole else tensors.set_local)(index, kind, value)

    def _is_state(self, kind: str) -> bool:
        return self._optimizer is not None and kind not in ("parameter", "master", "gradient")

    def unit_of(self, index: int) -> int:
        """The unit that parameter ``index`` belongs to."""
        return self._wiring.unit_of[index]

    # ---- end of life

    def destroy(self, whole: bool = True) -> None:
        """Ends the engine and gives the module its full weights back, where they fit. Collective.

        Not ``whole``: no communication; parameters that are sharded throw when read.
        """
        if not self._wiring.ended:
            if whole:
                self._settle()  # the last step's numbers go to the monitors
            try:
                self._observer.close(self)
            finally:
                self._forwards.restore()
                self._progress.unsettled = None
                self._wiring.end(whole)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.destroy(whole=kind is None)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = self.__dict__.get("_modules", {}).get("module")
            if module is not None and hasattr(module, name):
                return getattr(module, name)
            raise missing(name, ENGINE, "engine") from None

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        raise _C.UsageError(
            f"the engine owns the parameters, which are on {self.device}: choose dtype in the "
            f"configuration and move the model before initialize()"
        )

    def to(self, *args: Any, **kwargs: Any) -> "Engine":
        """Accepted where it changes nothing."""
        device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        if dtype is not None or (device is not None and device.type != self.device.type):
            self._apply()
        return self

    def __deepcopy__(self, memo: dict) -> Any:
        raise _C.UsageError("an engine cannot be copied: use engine.state_dict() for its weights")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise _C.UsageError("an engine cannot be pickled: use engine.state_dict() for its weights")


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map_only(
        torch.Tensor,
        lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor,
        value,
    )


def _count(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63:
        return value
    raise _C.UsageError(f"a batch size must be a positive integer, but it is {value!r}")


def _to_cpu(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
