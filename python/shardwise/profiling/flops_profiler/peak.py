"""What a GPU can do at most: dense tensor-core FLOPs a second in bf16 and fp16, without sparsity.

From the vendors' data sheets; a name that is not here has an unknown peak.
"""

import torch

# The first name that occurs in the device's name counts.
PEAKS = (
    ("B200", 2250e12),
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H800", 989e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("L40S", 362e12),
    ("A10G", 70e12),
    ("A10", 125e12),
    ("L4", 121e12),
    ("V100", 125e12),  # fp16 only
)


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """FLOPs a second; None for the CPU, for fp32 and for unknown devices."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS if part in name), None)
