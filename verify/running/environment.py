"""Describes the environment of a run: versions, machine, date."""

import platform
from datetime import datetime, timezone

import hypothesis
import numpy as np
import torch

from verify_norm import __version__
from verify_norm.core import packages
from verify_norm.running.interpreter import patch


def environment(device: str) -> dict[str, str]:
    """Return versions, the machine and the date, by name."""
    on_gpu = torch.device(device).type == "cuda"
    facts = {
        "verify-norm": __version__,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "device": torch.cuda.get_device_name(torch.device(device)) if on_gpu else f"CPU ({platform.machine()})",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": str(torch.__version__),  # a class of torch's, which would be imported to read it
        "triton": _triton(),
        "hypothesis": hypothesis.__version__,
    }
    return facts if on_gpu else facts | {"interpreter": _interpreter()}


def _triton() -> str:
    if not packages.present("triton"):
        return "none"
    import triton

    return str(triton.__version__)


def _interpreter() -> str:
    try:
        return patch.enable()
    except RuntimeError as error:  # the caller imported Triton before: only isolated kernels are interpreted
        return f"off here: {error}"
