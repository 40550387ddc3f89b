"""What an engine's configuration says, under DeepSpeed's method names."""

import json
from typing import Any

from shardwise import _C


class ConfigAccessors:
    """Reads a validated configuration; values are parsed once."""

    resolved_config: _C.Config
    _values: dict[str, Any]

    def set_resolved_config(self, config: _C.Config) -> None:
        self.resolved_config = config
        self._values = {}

    def config_value(self, path: str) -> Any:
        """The resolved value of a key, such as ``config_value("zero_optimization.stage")``."""
        if path not in self._values:
            self._values[path] = json.loads(self.resolved_config.value_json(path))
        return self._values[path]

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration as a nested dict."""
        return json.loads(self.resolved_config.to_json())

    def train_batch_size(self) -> int:
        """Samples a step over all ranks."""
        return self.config_value("train_batch_size")

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples that one rank takes through forward at a time."""
        return self.config_value("train_micro_batch_size_per_gpu")

    def gradient_accumulation_steps(self) -> int:
        """Micro-batches a step."""
        return self.config_value("gradient_accumulation_steps")

    def get_batch_info(self) -> tuple[int, int, int]:
        """train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps."""
        return (
            self.train_batch_size(),
            self.train_micro_batch_size_per_gpu(),
            self.gradient_accumulation_steps(),
        )

    def zero_optimization(self) -> bool:
        return self.zero_optimization_stage() > 0

    def zero_optimization_stage(self) -> int:
        return self.config_value("zero_optimization.stage")

    def zero_optimization_partition_gradients(self) -> bool:
        return self.zero_optimization_stage() >= 2

    def zero_optimization_partition_weights(self) -> bool:
        return self.zero_optimization_stage() >= 3

    def fp16_enabled(self) -> bool:
        return self.config_value("fp16.enabled")

    def bfloat16_enabled(self) -> bool:
        return self.config_value("bf16.enabled")

    def gradient_clipping(self) -> float:
        return self.config_value("gradient_clipping")

    def steps_per_print(self) -> Any:
        return self.config_value("steps_per_print")
