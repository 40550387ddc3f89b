"""Names that DeepSpeed keeps in ``deepspeed.runtime``."""

from shardwise.runtime import lr_schedules

__all__ = ["lr_schedules"]
