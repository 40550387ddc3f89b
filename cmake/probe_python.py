"""Prints what CMake needs to know about one Python and its torch, one KEY=VALUE a line.

torch is located without importing it, which takes seconds.
"""

import importlib.util
import re
import sys
import sysconfig
from pathlib import Path


def package_dir(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(list(spec.submodule_search_locations)[0])


def version_fields(torch_dir: Path) -> dict[str, str]:
    text = (torch_dir / "version.py").read_text()
    version = re.search(r"^__version__ = '([^']+)'", text, re.M)
    cuda = re.search(r"^cuda: Optional\[str\] = '([^']+)'", text, re.M)
    return {
        "SW_TORCH_VERSION": version.group(1) if version else "unknown",
        "SW_TORCH_CUDA": cuda.group(1) if cuda else "",
    }


def main() -> int:
    fields = {
        "SW_PYTHON_VERSION": f"{sys.version_info.major}.{sys.version_info.minor}",
        "SW_PYTHON_INCLUDE": sysconfig.get_paths()["include"],
        "SW_PYTHON_EXT_SUFFIX": sysconfig.get_config_var("EXT_SUFFIX"),
        "SW_SITE_PACKAGES": sysconfig.get_paths()["purelib"],
    }
    torch_dir = package_dir("torch")
    if torch_dir is not None:
        fields["SW_TORCH_DIR"] = str(torch_dir)
        fields.update(version_fields(torch_dir))
    nvidia = package_dir("nvidia")
    if nvidia is not None and (nvidia / "nccl" / "include" / "nccl.h").exists():
        fields["SW_NVIDIA_DIR"] = str(nvidia)
    for key, value in fields.items():
        print(f"{key}={value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
