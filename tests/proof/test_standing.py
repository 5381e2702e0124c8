"""Whether a certificate stands for a kernel as it is now, and what a run says of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from verify_norm.cli.app import app
from verify_norm.core.errors import UsageError
from verify_norm.loading.registry import load
from verify_norm.proof import standing as module
from verify_norm.proof.certificate import certificate
from verify_norm.proof.prove import Asked, prove
from verify_norm.proof.shown import Configuration
from verify_norm.proof.standing import standing

SUPPORT = Path(__file__).parent.parent / "support"
SAVED = SUPPORT / "certificate.json"
SOURCE = (SUPPORT / "unproved.py").read_text(encoding="utf-8")
CHANGED = {  # a file with another kernel of that name, and why its certificate is stale
    "kernel": ("x * (rstd * w)", "(x * rstd) * w", "the source of _row has changed"),
    "library": ("squares += x * x", "squares = squares + x * x", ""),  # another text of the same code
    "host": ("rstd, n, eps, triton", "rstd, n, eps + 0.0, triton", ""),  # another way to the same launch
    "eps": ("rstd, n, eps, triton", "rstd, n, 2.0 * eps, triton", "the host launches its kernels in another way"),
    "grid": ("_row[(x.shape[0],)]", "_row[(x.shape[0], 2)]", "the host launches its kernels in another way"),
}


@pytest.mark.nightly
@pytest.mark.slow
def test_a_certificate_stands_for_the_launches_it_was_made_of(tmp_path, monkeypatch):
    config = Configuration("rmsnorm_fwd", "float16", 1e-5, 0.0, 200)
    (found,) = (certificate(one) for one in prove([Asked(f"{SUPPORT / 'unproved.py'}:looped_fwd", config)]))
    path = tmp_path / "saved.json"
    path.write_text(json.dumps([found]), encoding="utf-8")
    kernels = []
    for name, (old, new, _) in CHANGED.items():
        assert old in SOURCE
        (tmp_path / f"{name}.py").write_text(SOURCE.replace(old, new), encoding="utf-8")
        kernels.append(load(f"{tmp_path / name}.py:looped_fwd", "rmsnorm_fwd", ""))
    told = standing(str(path), kernels)
    for kernel, (name, (*_, why)) in zip(kernels, CHANGED.items(), strict=True):
        (one,) = told[kernel.name, kernel.op]
        assert (one.columns, one.domain) == (200, "every M, 1 ≤ M ≤ 2147483647")
        assert one.stale.startswith(why), name
        assert bool(one.stale) == bool(why), name
    path.write_text(json.dumps([found | {"versions": found["versions"] | {"triton": "2.0"}}]), encoding="utf-8")
    monkeypatch.setattr(module, "record", lambda asked: [{"kernels": {}, "calls": []} for _ in asked])
    ((one,),) = standing(str(path), kernels[:1]).values()
    assert one.stale.startswith("it was made with triton 2.0, and this is ")


def saved(**changed):
    found = json.loads(SAVED.read_text(encoding="utf-8"))
    return json.dumps([found | changed])


MISTAKES = {
    "no file": (None, "expected a file of certificates"),
    "no JSON": ("{", "expected a file of certificates"),
    "no list": ("{}", "expected a list of certificates"),
    "another kernel's": (saved(kernel="groupnorm_fwd"), "expected a certificate of layernorm_fwd (layernorm_fwd), got"),
    "another operator's": (saved(op="rmsnorm_fwd"), "expected a certificate of layernorm_fwd (layernorm_fwd), got"),
    "not proved": (saved(proved=False), "got those of no kernel"),
    "false": (saved(values={}), "claimed as {}"),
    "no fields": (
        '[{"kernel": "layernorm_fwd", "op": "layernorm_fwd", "proved": true, "schema": 1}]',
        "that has forms and outputs",
    ),
    "fixed": (saved(fixed=None), "cannot be replayed"),
    "asked": (saved(asked={}), "'rows'"),
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_wrong_file_is_one_line_and_status_2(text, message, tmp_path):
    if text is not None:
        (tmp_path / "saved.json").write_text(text, encoding="utf-8")
    found = CliRunner().invoke(app, ["--kernel", "layernorm_fwd", "--certificate", str(tmp_path / "saved.json")])
    assert found.exit_code == 2
    assert message in " ".join(found.output.split())
    assert "Traceback" not in found.output


def test_what_has_no_target_or_no_trust_is_refused(tmp_path):
    path = tmp_path / "saved.json"
    path.write_text(saved(), encoding="utf-8")
    kernel = load("layernorm_fwd", None, "")
    with pytest.raises(UsageError, match="choose one of them"):
        standing(str(SAVED), [kernel], untrusted=True)
    with pytest.raises(UsageError, match="its launches cannot be recorded"):
        standing(str(path), [replace(kernel, target="")])
