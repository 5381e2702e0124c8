"""Whether certificates hold for a kernel as it is now: replayed, and compared with launches that are recorded anew."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from verify_norm.core.errors import UsageError, first_line
from verify_norm.core.kernel import Kernel
from verify_norm.core.proved import Proved
from verify_norm.proof.certificate import plain_forms, versions
from verify_norm.proof.prove import Asked, forms, request, single_m
from verify_norm.proof.recording import record
from verify_norm.proof.replay.check import check
from verify_norm.proof.replay.reading import Rejected
from verify_norm.proof.saved import named, read, title
from verify_norm.proof.shown import Configuration

PLACE = re.compile(r'#loc.*|\s*loc\((?:[^()"]|"[^"]*"|\([^()]*\))*\)')  # in the source
Proofs = dict[tuple[str, str], tuple[Proved, ...]]


def standing(path: str, kernels: Sequence[Kernel], *, untrusted: bool = False) -> Proofs:
    """Return what the certificates of a file say of kernels, by name and operator.

    Raises UsageError: the file cannot be read, has no certificate of any of the kernels, or one that is false; or the
    kernels are untrusted, since their launches are recorded in a process that no sandbox holds.
    """
    if untrusted:
        raise UsageError("--untrusted and --certificate: choose one of them")
    certificates = [certificate for certificate in read(path) if certificate.get("proved")]
    pairs = [(kernel, certificate) for kernel in kernels for certificate in certificates if _is_of(certificate, kernel)]
    if not pairs:
        theirs = ", ".join(dict.fromkeys(str(certificate.get("kernel")) for certificate in certificates)) or "no kernel"
        names = " or ".join(f"{kernel.name} ({kernel.op})" for kernel in kernels)
        raise UsageError(f"{path}: expected a certificate of {names}, got those of {theirs}")
    asked = [_asked(path, kernel, certificate) for kernel, certificate in pairs]
    answers = record([request(each) for each in asked])
    proofs: Proofs = {}
    for (kernel, certificate), each, answer in zip(pairs, asked, answers, strict=True):
        key = kernel.name, kernel.op
        proofs[key] = (*proofs.get(key, ()), _proved(certificate, _stale(certificate, each, answer)))
    return proofs


def _is_of(certificate: Mapping[str, Any], kernel: Kernel) -> bool:
    return certificate.get("op") == kernel.op and named(certificate.get("kernel")) == named(kernel.name)


def _asked(path: str, kernel: Kernel, certificate: dict[str, Any]) -> Asked:
    """Return what a certificate proves, of the kernel as it is now; raises UsageError if the certificate is false."""
    if not kernel.target:
        raise UsageError(f"{kernel.name} is no function of a module or a file: its launches cannot be recorded")
    try:
        check(certificate)
        fixed, asked = certificate["fixed"], certificate["asked"]
        numbers = (fixed["N"], fixed.get("groups", 0), fixed.get("positions", 0))
        config = Configuration(kernel.op, fixed["dtype"], fixed["eps"], fixed["weight_offset"], *numbers)
        return Asked(kernel.target, config, kernel.bind, asked["rows"], asked["most_rows"])
    except (Rejected, LookupError, TypeError) as error:
        raise UsageError(f"{path}: {title(certificate)}: {first_line(error)}") from error


def _stale(certificate: Mapping[str, Any], asked: Asked, answer: Mapping[str, Any]) -> str:
    """Return why a certificate does not hold for what was recorded of the kernel; "" if it does."""
    if "error" in answer:
        return f"its launches cannot be recorded: {answer['error']}"
    for name, here in versions().items():
        if (before := certificate["versions"].get(name)) != here:
            return f"it was made with {name} {before}, and this is {here}"
    theirs, ours = (_code(kernels) for kernels in (certificate["kernels"], answer["kernels"]))
    changed = {kernel["name"] for digest, kernel in answer["kernels"].items() if ours[digest] not in theirs.values()}
    if changed:
        return f"the source of {', '.join(sorted(changed))} has changed"
    recorded = (forms(asked, answer["calls"]), single_m(asked, answer["calls"]))
    same = _with_code(certificate["forms"], theirs) in [_with_code(plain_forms(one), ours) for one in recorded]
    return "" if same else "the host launches its kernels in another way"


def _code(kernels: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the TTIR of each kernel without its places in the source, by its digest."""
    return {digest: re.sub(PLACE, "", kernel["ttir"]) for digest, kernel in kernels.items()}


def _with_code(forms: Any, code: Mapping[str, str]) -> Any:
    """Return forms of launches with the code of each kernel in place of its digest."""
    if isinstance(forms, dict):
        return {key: code[value] if key == "launch" else _with_code(value, code) for key, value in forms.items()}
    return [_with_code(item, code) for item in forms] if isinstance(forms, list) else forms


def _proved(certificate: Mapping[str, Any], stale: str) -> Proved:
    fixed = certificate["fixed"]
    return Proved(
        fixed["N"],
        fixed["dtype"],
        fixed["eps"],
        fixed["layout"],
        certificate["domain"],
        fixed["device"]["name"],
        certificate["contract"],
        tuple(certificate["outputs"]),
        stale,
    )
