"""How a worker answers: what it says of its sandbox and of the kernel that it has loaded, and in which form."""

import json
import os
import signal
import socket
import sys
from contextlib import closing
from dataclasses import asdict

import pytest
import torch
from forked import ended, fork, forked

from verify_norm.core.run import Called, Damage
from verify_norm.loading import targets
from verify_norm.running.untrusted import wire, worker
from verify_norm.running.untrusted.arena import Arena

TAKES = ("x", "weight", "eps", "weight_offset", "normalized_shape")  # it gets what it may need
BACKWARD = ("dy", "x", "weight", "bias", "mean", "rstd", "eps", "weight_offset", "normalized_shape")
FILE = """
import os

import torch

DURING = []

def rmsnorm_fwd(x, weight, eps):
    return x

def renamed(a, weight, eps):
    return a

def rmsnorm_bwd(dy, x, weight, eps):
    return dy, weight

def layernorm_bwd(dy, x, weight, eps):
    return dy, weight, weight

def broken(x, strange):
    return x

class Norm(torch.nn.RMSNorm):
    def __init__(self, normalized_shape, eps=None, elementwise_affine=True):
        super().__init__(normalized_shape, eps, elementwise_affine)
        DURING.append(os.environ["VERIFY_NORM_INSIDE"])

layer = torch.nn.LayerNorm(8, eps=1e-6)
"""


def read(judge, number, names=()):
    """Return the next answer."""
    return wire.read(lambda size: bytearray(judge.recv(size, socket.MSG_WAITALL)), number, 1000, names)


def test_each_request_gets_one_answer_until_there_are_no_more(monkeypatch):
    judge, theirs = socket.socketpair()
    for number, asked in ((3, {"what": "again", "call": 1}), (4, {"what": "again"})):
        judge.sendall(json.dumps({"number": number, **asked}).encode() + b"\n")
    judge.shutdown(socket.SHUT_WR)
    monkeypatch.setattr(worker._Server, "_again", lambda own, asked: ({0: None, asked["call"]: own.arena}, {}))
    worker.serve(theirs, torch.ones(2, 3))
    ones = torch.ones(2, 3).numpy().tobytes()
    assert read(judge, 3, ("y", "rstd")) == wire.Answer({0: None, 1: wire.Raw("float32", (2, 3), bytearray(ones))})
    assert read(judge, 4).notes == wire.Notes(problem="the worker failed: KeyError: 'call'")
    judge.close()
    theirs.close()


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_ends_with_its_socket(fails, monkeypatch):
    def serve(own, arena):
        own.sendall(b"%d" % arena.file)
        assert not fails

    judge, theirs = socket.socketpair()
    monkeypatch.setattr(worker, "serve", serve)
    with closing(Arena()) as arena:
        pid = fork(worker.main, theirs.fileno(), arena.file)
        theirs.close()
        assert judge.recv(100) == b"%d" % arena.file
        assert judge.recv(100) == b"", "it is closed"
    assert ended(pid) == fails
    judge.close()


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_it_enters_the_sandbox_with_nothing_of_the_judge(device, tmp_path):
    (tmp_path / "input").touch()

    def inside():
        server, said = worker._Server(None, None), []
        os.dup2(os.open(tmp_path / "input", os.O_RDONLY), 0)
        worker.sandbox.enter = lambda *args, gpu: said.append((*args, gpu)) or ["no Landlock"]
        asked = {"device": device, "own": "/own", "folder": str(tmp_path), "folders": ["/a"], "memory": 2**30}
        answer = server._enter(asked)
        os.write(1, os.read(0, 5))
        streams = [os.readlink(f"/proc/self/fd/{file}") for file in range(3)]
        variables = [os.environ[name] for name in ("HOME", "TMPDIR", "TRITON_CACHE_DIR")]
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        return answer, said, streams, variables, os.getcwd(), ignored, server.device

    said = [(["/a"], "/own", 2**30, device != "cpu")]
    answer = {}, {"sandbox": ("no Landlock",)}
    variables = ["/own", "/own", "/own/triton"]
    assert forked(inside) == ((answer, said, [os.devnull] * 3, variables, str(tmp_path), True, device), 0)


@pytest.mark.parametrize(
    ("name", "op", "described", "kernels"),
    [
        ("renamed", "rmsnorm_fwd", [{"takes": TAKES}], ["rmsnorm_fwd"] * 2),
        (
            "rmsnorm_bwd",
            "rmsnorm_bwd",
            [{"takes": ("dy", "x", "weight", "eps"), "forward": ("x", "weight", "eps")}],
            ["rmsnorm_bwd", "rmsnorm_fwd"],
        ),
        (
            "Norm",
            "rmsnorm",
            [{"takes": TAKES}, {"takes": ("dy", "x", "weight", "rstd", *TAKES[2:], "frozen"), "forward": TAKES}],
            ["rmsnorm_fwd", "rmsnorm_fwd", "rmsnorm_bwd", "rmsnorm_fwd"],
        ),
        ("layernorm_bwd", "layernorm_bwd", [{"takes": BACKWARD}], ["layernorm_bwd"] * 2),
        ("layer", "layernorm_fwd", [{"affine": (8,)}], ["layernorm_fwd"] * 2),
    ],
)
def test_what_it_says_of_a_kernel(name, op, described, kernels, tmp_path):
    file = tmp_path / "a:b" / "norms.py"
    file.parent.mkdir()
    file.write_text(FILE)

    def inside():
        server = worker._Server(None, None)
        target = f"{file}:{name}"
        bind = "x=a" if name == "renamed" else ""
        contract = "inplace=y:x" if op == "rmsnorm_fwd" else ""
        outputs, notes = server._load({"target": target, "op": op, "bind": bind, "contract": contract})
        after, path = os.environ["VERIFY_NORM_INSIDE"], str(file.parent) in sys.path
        during = sys.modules[targets.module_name(str(file))].DURING
        said = [asdict(one) for one in notes["kernels"]]
        have = [kernel.op for kernel in server.kernels]
        forwards = [kernel.forward_run for kernel in server.kernels[::2] if kernel.forward_run]
        assert all(kernel.run is run for kernel, run in zip(server.kernels[-1:], forwards, strict=False))
        return outputs, said, have, server.kernels[0].contract.inplace, during, after, path

    (outputs, said, have, inplace, during, after, path), status = forked(inside)
    assert (outputs, status, have) == ({}, 0, kernels)
    assert [one["op"] for one in said] == kernels[::2]
    assert said == [one | expected for one, expected in zip(said, described, strict=True)]
    assert [one["forward"] for one in said] == [expected.get("forward") for expected in described]
    assert [one["autograd"] for one in said] == ["frozen" in one["takes"] for one in said]
    assert bool(inplace) == (op == "rmsnorm_fwd")
    assert all(words.startswith(f"{file} is imported;") for words in during)
    assert bool(during) == (name == "Norm")
    assert after == f"the kernel {file}:{name} runs"
    assert path


def test_a_kernel_that_cannot_be_loaded_is_a_problem(tmp_path):
    (tmp_path / "norms.py").write_text(FILE)

    def inside():
        asked = {"target": f"{tmp_path}/norms.py:broken", "op": "rmsnorm_fwd", "bind": "", "contract": ""}
        return worker._Server(None, None)._load(asked)

    (outputs, notes), _ = forked(inside)
    assert (outputs, notes.keys()) == ({}, {"problem"})
    assert "strange" in notes["problem"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "float8_e4m3fn"])
def test_an_output_is_sent_as_it_is(dtype):
    tensor = torch.arange(6).to(getattr(torch, dtype)).reshape(3, 2).t()
    same = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    assert worker._raw(tensor) == wire.Raw(dtype, (2, 3), bytearray(same))
    negative = torch.complex(torch.ones(2), torch.ones(2)).conj().imag
    assert negative.is_neg()
    assert worker._raw(negative).data == bytearray((-torch.ones(2)).numpy().tobytes())
    assert worker._raw(torch.ones((), requires_grad=True)).shape == ()


def test_what_is_said_without_end_is_cut_off():
    long, shown = "x" * 501, "x" * 499 + "…"
    many = [Damage("y", "after", 4, 0, "y")] * 61
    texts = (long, "x" * 500, *"a" * 60)
    said = Called({}, long, True, texts, tuple(many), (("y", "x"),) * 61, texts, texts, texts, texts)
    told = worker._call_notes(said)
    cut = (shown, "x" * 500, *"a" * 58)
    assert told == {
        "problem": shown,
        "refused": True,
        "overlaps": (("y", "x"),) * 60,
        "damage": (("y", "after", 4, 0, "y"),) * 60,
        **dict.fromkeys(("limits", "effects", "operators", "differs_on_gpu", "beyond"), cut),
    }
    told = worker._call_notes(Called(damage=(Damage(long, "in", 1, 2),)))
    assert (told["problem"], told["refused"], told["damage"]) == (None, False, ((shown, "in", 1, 2, None),))
    assert wire.packed(1, {}, told), "it fits"
