"""The version of torch that this build was made for."""

from shardwise import _C

REQUIRED = "2.11.0"


def check_torch(version: str) -> None:
    """Raises ImportError for another torch, InternalError for one that behaves differently."""
    if version.split("+")[0] != REQUIRED:
        raise ImportError(
            f"shardwise {_C.version} was built for torch {REQUIRED} but torch {version} is "
            f"installed: pip install torch=={REQUIRED}"
        )
    _C.check_torch()
