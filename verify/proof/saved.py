"""Files of certificates, as `verify-norm prove --json` writes them."""

import json
from collections.abc import Mapping
from typing import Any

from verify_norm.core.errors import UsageError, first_line


def read(path: str) -> list[dict[str, Any]]:
    """Return the certificates in a file, as `verify-norm prove --json` writes it; raises UsageError."""
    try:
        with open(path, encoding="utf-8") as file:
            certificates = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or first_line(error)
        raise UsageError(f"{path}: expected a file of certificates: {why}") from error
    if isinstance(certificates, list) and certificates and all(isinstance(each, dict) for each in certificates):
        return certificates
    raise UsageError(f"{path}: expected a list of certificates, as verify-norm prove --json writes it")


def title(certificate: Mapping[str, Any]) -> str:
    """Return what a certificate is of, in a few words; fields that it lacks are None."""
    fixed = certificate.get("fixed")
    fixed = fixed if isinstance(fixed, dict) else {}
    return f"{certificate.get('kernel')}, N = {fixed.get('N')}, {fixed.get('dtype')}"


def mentioned(path: str, target: str) -> bool:
    """Return whether a file has a certificate of a kernel of this name; raises UsageError if it cannot be read."""
    return any(named(one.get("kernel")) == named(target) for one in read(path))


def named(target: object) -> str:
    """Return the name of a kernel's function, wherever it is.

    >>> named("kernels/mine.py:layernorm_fwd")
    'layernorm_fwd'
    """
    return str(target).rpartition(":")[2]
