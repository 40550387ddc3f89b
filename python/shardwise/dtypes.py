"""The dtypes of models, by the names that the configuration's answers have."""

import torch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
