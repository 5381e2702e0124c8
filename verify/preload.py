"""What the fork server imports, so that a child of it has it already: torch, the checks, Triton in its interpreter."""

import os

import torch._dynamo  # noqa: F401 — what a TorchDispatchMode imports at its first use, in a second

import verify_norm.isolate  # noqa: F401
from verify_norm import interpreter

if os.environ.get("TRITON_INTERPRET") == "1":  # with a GPU, Triton is the kernel's to import
    interpreter.enable()
