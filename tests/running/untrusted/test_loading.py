"""What is believed of a kernel that a worker has loaded: what its signature can say, and nothing else."""

import pickle
from dataclasses import fields, replace

import pytest

from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.spec import CaseSpec
from verify_norm.core.user_operators import operator
from verify_norm.loading.builtin import BUILTIN
from verify_norm.running.untrusted import loading as module
from verify_norm.running.untrusted.loading import LARGE, load_untrusted
from verify_norm.running.untrusted.runner import RemoteFunction
from verify_norm.running.untrusted.wire import Described

FORWARD = Described("rmsnorm_fwd", ("x", "weight", "eps"))
BACKWARD = Described("rmsnorm_bwd", ("dy", "x", "weight", "eps", "frozen"), ("x", "weight", "eps"), autograd=True)
SPEC = CaseSpec((2, 8))


class Judge:
    """Loads kernels, of which a scripted worker says this; notes what the worker is asked, and its end."""

    def __init__(self, *said):
        self.said, self.asked = said, []

    def __call__(self, kernel="norms.py:rmsnorm_fwd", op=None, **options):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, "Worker", lambda *args: self.asked.append(args) or self)
            patched.setattr(module, "load", self.load)
            return load_untrusted(kernel, op, **options)

    def load(self, worker, asked):
        self.asked.append((worker is self, asked))
        if isinstance(self.said[0], Exception):
            raise self.said[0]
        return self.said

    def end(self):
        self.asked.append("end")


def one(said=FORWARD, **options):
    (kernel,) = Judge(said)(**options)
    return kernel


@pytest.mark.parametrize("error", [None, UsageError("it cannot be imported")])
def test_one_worker_is_asked_and_ends(error):
    judge = Judge(error or BACKWARD)
    options = {"op": "rmsnorm_bwd", "bind": "x=inp", "contract": "xhat=x"}
    if error:
        with pytest.raises(UsageError, match="it cannot be imported"):
            judge("norms.py:Norm", **options, device="cuda")
    else:
        judge("norms.py:Norm", **options, device="cuda")
    asked = {"target": "norms.py:Norm", **options}
    assert judge.asked == [("norms.py:Norm", "x=inp", "cuda"), (True, asked), "end"]
    judge = Judge(FORWARD)
    judge()
    asked = {"target": "norms.py:rmsnorm_fwd", "op": None, "bind": "", "contract": ""}
    assert judge.asked == [("norms.py:rmsnorm_fwd", "", "cpu"), (True, asked), "end"]


def test_both_directions_have_stands_for_their_functions():
    """Even numbers are the kernels', odd ones those of their forward passes."""
    kernels = Judge(FORWARD, BACKWARD)("norms.py:Norm", "rmsnorm")
    asked = {"target": "norms.py:Norm", "op": "rmsnorm", "bind": "", "contract": ""}
    runs = [(kernel.name, kernel.op, kernel.run, kernel.forward_run, kernel.autograd) for kernel in kernels]
    forward = RemoteFunction(0, "rmsnorm_fwd", FORWARD.takes, asked)
    backward = (
        RemoteFunction(2, "rmsnorm_bwd", BACKWARD.takes, asked),
        RemoteFunction(3, "rmsnorm_fwd", FORWARD.takes, asked),
    )
    assert runs == [
        ("norms.py:Norm", "rmsnorm_fwd", forward, None, False),
        ("norms.py:Norm", "rmsnorm_bwd", *backward, True),
    ]
    assert [kernel.later for kernel in kernels] == [kernel.run.later for kernel in kernels]
    assert [kernel.target for kernel in kernels] == ["norms.py:Norm"] * 2
    assert one(replace(BACKWARD, forward=None), op="rmsnorm_bwd").forward_run is None
    assert one(replace(FORWARD, forward=("x",))).forward_run is None
    (alone,) = Judge(FORWARD)("norms.py:Norm", "rmsnorm")
    assert alone.op == "rmsnorm_fwd", "a function that autograd cannot differentiate has no backward"


@pytest.mark.parametrize(
    ("kernel", "op", "name"),
    [
        ("norms.py:rms_norm_forward", None, "rmsnorm_fwd"),
        ("norms.py:f", "rmsnorm_fwd", "rmsnorm_fwd"),
        ("rmsnorm_fwd", None, "rmsnorm_fwd"),
        ("rmsnorm_fwd", "rmsnorm_fwd", "rmsnorm_fwd"),
    ],
)
def test_the_operator_is_the_users_or_in_the_name(kernel, op, name):
    assert Judge(FORWARD)(kernel, op)[0].op == name


def test_an_operator_of_the_users_own_is_asked_for_by_its_name():
    twice = operator(lambda x: 2 * x, name="twice")
    judge = Judge(replace(FORWARD, op="lie"))
    with pytest.raises(UsageError, match=r"expected own:twice.*_fwd and own:twice.*_bwd, got lie"):
        judge("norms.py:f", twice)
    assert judge.asked[1][1]["op"] == twice.name


def test_constants_of_a_chain_are_bound():
    said = Described("modulate_rmsnorm_fwd", ("x",))
    kernel, *_ = Judge(said)("norms.py:f", "rmsnorm(weight_offset=1) | modulate", bind="x=inp -> y")
    assert (kernel.op, kernel.bind) == ("modulate_rmsnorm_fwd", "weight_offset=1, x=inp -> y")
    assert one(kernel="rmsnorm_fwd", bind="x=inp").bind == "x=inp"


def test_the_contract_is_the_users_or_that_of_our_table():
    """Whatever the kernel declares."""
    assert one().contract == Contract()
    assert one(contract="xhat=x,inplace=y:x").contract == Contract(xhat="x", inplace=("y:x",))
    name = next(
        name for name, record in BUILTIN.items() if record.contract != Contract() and record.op == "rmsnorm_fwd"
    )
    assert one(kernel=name).contract == BUILTIN[name].contract
    changed = one(kernel=name, contract="weight_grad=float16")
    assert changed.contract == replace(BUILTIN[name].contract, weight_grad="float16")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"kernel": len}, "expected the name of a kernel, got <built-in function len>; name it by its file"),
        ({"kernel": "rmsnorm_fwdd"}, "unknown kernel 'rmsnorm_fwdd' .did you mean rmsnorm_fwd.*verify-norm list"),
        ({"kernel": "a:b/norms.py:Some.f"}, "cannot infer the op from the name 'Some.f'"),
        ({"op": "layernorm_fwd", "kernel": "rmsnorm_fwd"}, "is a kernel for rmsnorm_fwd, not for layernorm_fwd"),
        ({"op": "rmsnrm"}, "unknown op 'rmsnrm'"),
        (
            {"op": "./a:b/norms.py:dyt", "kernel": "a:b/norms.py:f"},
            "./a:b/norms.py:dyt stands in the kernel's file; expected it in a file that you trust",
        ),
        ({"only": "bias"}, "only: bias: rmsnorm_fwd has no bias"),
        ({"contract": "nonsense"}, "contract"),
    ],
)
def test_bad_input_is_refused_before_anything_is_started(arguments, said):
    judge = Judge(FORWARD)
    with pytest.raises(UsageError, match=said):
        judge(**arguments)
    assert judge.asked == [] or "contract" in arguments


def test_other_systems_have_no_sandbox(monkeypatch):
    monkeypatch.setattr(module.sys, "platform", "darwin")
    with pytest.raises(UsageError, match="need Linux, and this is darwin"):
        Judge(FORWARD)()


@pytest.mark.parametrize(
    ("said", "op", "words"),
    [
        ((), "rmsnorm_fwd", "expected rmsnorm_fwd, got nothing"),
        ((), "rmsnorm", "expected rmsnorm_fwd and rmsnorm_bwd, got nothing"),
        ((BACKWARD,), "rmsnorm", "expected rmsnorm_fwd and rmsnorm_bwd, got rmsnorm_bwd"),
        ((FORWARD, replace(FORWARD, op="\x1b")), "rmsnorm", "expected rmsnorm_fwd and .*, got rmsnorm_fwd, .u001b"),
    ],
)
def test_a_worker_names_the_operators_that_were_asked_for(said, op, words):
    judge = Judge(*said)
    judge.said = said
    judge.load = lambda worker, asked: said
    with pytest.raises(UsageError, match=f"norms.py:f cannot be loaded: {words}$"):
        judge("norms.py:f", op)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"takes": ("x", "dy")}, "an argument 'dy'"),
        ({"takes": ("x", "\x1b")}, "an argument '.u001b'|an argument '.x1b'"),
        ({"fields": (("shape", (2, 8)),)}, r"shape = \(2, 8\)"),
        ({"fields": (("data", "normal"),)}, "data = 'normal'"),
        ({"fields": (("lie", True),)}, "lie = True"),
        ({"fields": (("weight", True), ("weight_layout", "transposed"))}, "weight_layout = 'transposed'"),
        ({"fields": (("eps", float("nan")),)}, "eps = nan"),
        ({"fields": (("eps", "1e-5"),)}, "eps = '1e-5'"),
        ({"fields": (("eps", None),)}, "eps = None"),
        ({"fields": (("normalized_ndim", 2),)}, "normalized_ndim = 2"),
        ({"affine": (0,)}, r"a weight of shape \(0,\)"),
        ({"affine": (LARGE, 2)}, r"a weight of shape \(1048576, 2\)"),
        ({"affine": (-1,)}, r"a weight of shape \(-1,\)"),
    ],
)
def test_what_no_signature_decides_is_refused(said, words):
    with pytest.raises(UsageError, match=f"^norms.py:rmsnorm_fwd cannot be loaded: no signature decides ({words})$"):
        one(replace(FORWARD, **said))


def test_a_forward_pass_and_a_tie_are_held_to_the_same():
    with pytest.raises(UsageError, match="no signature decides an argument 'dy'"):
        one(replace(BACKWARD, forward=("x", "dy")), op="rmsnorm_bwd")
    with pytest.raises(UsageError, match="unknown tie 'bound'"):
        one(replace(FORWARD, tied="bound"))


@pytest.mark.parametrize(
    ("said", "taken", "refused"),
    [
        ({}, SPEC, None),
        ({"fields": (("weight", True), ("eps", 1e-6), ("frozen", ()))}, replace(SPEC, eps=1e-6), SPEC),
        ({"affine": (8,)}, CaseSpec((2, 3, 8)), CaseSpec((2, 8, 3))),
        ({"affine": (LARGE,)}, CaseSpec((1, LARGE)), SPEC),
        ({"affine": (1,)}, CaseSpec((3, 1)), SPEC),
        ({"constants": (("eps", 1e-6),)}, replace(SPEC, eps=1e-6), SPEC),
    ],
)
def test_a_signature_decides_which_cases_the_kernel_gets(said, taken, refused):
    kernel = one(replace(FORWARD, **said))
    assert kernel.refuses(taken) is None
    assert kernel.fitted(taken) == taken
    if refused is not None:
        assert kernel.refuses(refused)
        assert kernel.refuses(kernel.fitted(refused)) is None


def test_of_other_operators_too():
    said = Described("batchnorm_fwd", ("x", "weight", "bias"), ranks=(4,), tied="follows")
    kernel = one(said, op="batchnorm_fwd", kernel="norms.py:f")
    assert kernel.refuses(CaseSpec((2, 3, 4, 5), bias=True)) is None
    assert kernel.refuses(CaseSpec((2, 3, 4), bias=True))
    assert kernel.refuses(CaseSpec((2, 3, 4, 5), bias=False))


def test_the_users_clauses_hold_besides_the_kernels_constants():
    kernel = one(replace(FORWARD, constants=(("eps", 1e-6),)), only="dtype=fp16")
    assert (kernel.only, kernel.dtypes) == ("dtype=fp16,eps=1e-06", ("float16",))
    assert kernel.refuses(replace(SPEC, dtype="float32", eps=1e-6))


def test_what_it_leaves_is_told_in_visible_characters():
    kernel = one(replace(FORWARD, unset=("mask\n",), kept=(("mode\n", "'fast'\n"),)))
    assert (kernel.unset, kernel.kept) == (("mask\\n",), (("mode\\n", "'fast'\\n"),))


def test_arguments_that_may_be_overwritten_and_frozen_inputs_shape_the_cases():
    shared = CaseSpec((4, 8), x_layout="expanded")
    assert one().refuses(shared) is None
    assert one(contract="inplace=y:x").refuses(shared)
    backward = one(BACKWARD, op="rmsnorm_bwd", kernel="norms.py:f")
    assert backward.refuses(CaseSpec((2, 8), frozen=("x",))) is None
    assert backward.refuses(CaseSpec((2, 8), frozen=("x", "weight")))
    plain = one(replace(BACKWARD, autograd=False), op="rmsnorm_bwd", kernel="norms.py:f")
    assert plain.refuses(CaseSpec((2, 8), frozen=("x",)))
    assert not one(replace(FORWARD, autograd=True)).autograd, "a forward makes no gradients"


def narrow(spec):
    if spec.shape[-1] == 1:
        raise ValueError("a bug")
    return "too wide" if spec.shape[-1] > 8 else None


def test_a_kernel_of_our_table_refuses_what_it_says_there(monkeypatch):
    """In other processes of the judge too."""
    monkeypatch.setitem(BUILTIN, "rmsnorm_fwd", replace(BUILTIN["rmsnorm_fwd"], unsupported=narrow))
    kernel = one(kernel="rmsnorm_fwd")
    for refuses in (kernel.refuses, pickle.loads(pickle.dumps(kernel.unsupported))):
        assert refuses(SPEC) is None
        assert refuses(CaseSpec((2, 9))) == "too wide"
        with pytest.raises(UsageError, match=f"unsupported of {kernel.target} raises ValueError: a bug"):
            refuses(CaseSpec((2, 1)))


def test_what_a_signature_may_decide_are_fields_of_cases():
    assert module.DECIDED.keys() <= {field.name for field in fields(CaseSpec)}
