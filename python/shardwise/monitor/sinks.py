"""Where monitors write: CSV files, TensorBoard, Weights & Biases."""

import csv
import importlib.util
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shardwise import _C

# Section of the configuration -> the pip package that it needs.
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}

Event = tuple[str, float, int]


def check_packages(sections: Iterable[str]) -> None:
    """Raises ConfigError for a monitor whose package is missing."""
    for section in sections:
        package = PACKAGES.get(section)
        if package is not None and not _is_installed(package):
            raise _C.ConfigError(
                f"{section}.enabled: true needs the package {package}, which this Python lacks: "
                f"{sys.executable} -m pip install {package}, or set {section}.enabled to false"
            )


def _is_installed(package: str) -> bool:
    if package in sys.modules:
        return sys.modules[package] is not None
    return importlib.util.find_spec(package) is not None


def make_sink(section: str, settings: dict[str, Any]) -> Any:
    return {"csv_monitor": CsvSink, "tensorboard": TensorBoardSink, "wandb": WandbSink}[section](
        settings
    )


def _make_folder(section: str, settings: dict[str, Any]) -> Path:
    """ConfigError where the folder of a monitor cannot be made, or written to."""
    folder = Path(settings["output_path"]) / settings["job_name"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:
        raise _C.ConfigError(
            f"{section}.output_path: {str(folder)!r} is no folder that can be written to "
            f"({error}); name another one, or set {section}.enabled to false"
        ) from error
    return folder


class CsvSink:
    """A file for each name, ``<output_path>/<job_name>/<name with _ for />.csv``.

    Its rows are the step (samples so far) and the value; a run that goes on appends to the file.
    """

    def __init__(self, settings: dict[str, Any]):
        self.folder = _make_folder("csv_monitor", settings)

    def write(self, events: list[Event]) -> None:
        for name, value, x in events:
            path = self.folder / f"{name.replace('/', '_').replace(' ', '_')}.csv"
            with path.open("a", newline="") as file:
                writer = csv.writer(file)
                if file.tell() == 0:
                    writer.writerow(["step", name.rsplit("/", 1)[-1]])
                writer.writerow([x, value])

    def close(self) -> None:
        pass


class TensorBoardSink:
    """Event files in ``<output_path>/<job_name>``."""

    def __init__(self, settings: dict[str, Any]):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(log_dir=str(_make_folder("tensorboard", settings)))

    def write(self, events: list[Event]) -> None:
        for name, value, x in events:
            self.writer.add_scalar(name, value, x)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandbSink:
    """A run of Weights & Biases. One that the program has begun itself is used as it is."""

    def __init__(self, settings: dict[str, Any]):
        import wandb

        self.wandb = wandb
        self.began = wandb.run is None
        if self.began:
            wandb.init(
                project=settings["project"], group=settings["group"], entity=settings["team"]
            )

    def write(self, events: list[Event]) -> None:
        for name, value, x in events:
            self.wandb.log({name: value}, step=x)

    def close(self) -> None:
        if self.began:
            self.wandb.finish()
