"""From what users pass as a configuration to a validated one."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shardwise import _C
from shardwise.process_groups import count_ranks


def load(config: Any, world_size: int, world_size_origin: str) -> _C.Config:
    """Validates a dict, a path of a JSON or HJSON file, or a base64 string.

    Raises ConfigError with everything that is wrong, or IoError for a file that cannot be read.
    """
    if isinstance(config, _C.Config):
        if config.world_size != world_size:
            raise _C.ConfigError(
                f"the configuration was made for {config.world_size} ranks but {world_size_origin} "
                f"has {world_size}: load it again"
            )
        return config
    if isinstance(config, Mapping):
        text = _dump(config)
        return _C.Config.load_text(text, world_size, world_size_origin, "the configuration dict")
    if isinstance(config, (str, os.PathLike)):
        path = os.fspath(config)
        if path.endswith(".hjson") and os.path.exists(path):
            return _load_hjson(path, world_size, world_size_origin)
        return _C.Config.load_argument(path, world_size, world_size_origin)
    raise _C.ConfigError(
        f"config must be a dict, the path of a JSON file, or a base64 string, "
        f"but it is a {type(config).__name__}"
    )


def sections(config: Any, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Sections of a configuration in any form, with their defaults; a dict may have them alone."""
    if isinstance(config, Mapping):
        given = {name: config[name] for name in names if name in config}
        config = load({**given, "train_batch_size": 1}, 1, "its reader")
    elif not isinstance(config, _C.Config):
        config = load(config, count_ranks(), "this job")
    return {name: json.loads(config.value_json(name)) for name in names}


def _dump(config: Mapping[str, Any]) -> str:
    try:
        return json.dumps(config, default=_plain)
    except (TypeError, ValueError) as error:
        raise _C.ConfigError(f"the configuration cannot be written as JSON: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item"):  # numpy and torch scalars
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def _load_hjson(path: str, world_size: int, world_size_origin: str) -> _C.Config:
    try:
        import hjson
    except ImportError as error:
        raise _C.ConfigError(
            f"{path} is HJSON, which needs the package hjson: pip install hjson"
        ) from error

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise _C.ConfigError(f"{path}: the key {key!r} is given twice")
            seen[key] = value
        return seen

    try:
        content = hjson.loads(Path(path).read_text(), object_pairs_hook=refuse_duplicates)
    except OSError as error:
        raise _C.IoError(f"{path}: {error.strerror}") from error
    except (hjson.HjsonDecodeError, UnicodeDecodeError) as error:
        raise _C.ConfigError(f"{path}: {error}") from error
    return _C.Config.load_text(_dump(content), world_size, world_size_origin, path)
