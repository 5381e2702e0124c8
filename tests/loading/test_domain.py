"""The cases that a callable takes: others are fitted, or refused with a reason, and fitting twice is fitting once."""

import doctest
import inspect
from dataclasses import replace

import pytest
from torch import nn
from torch.nn import functional

from verify_norm.cases import corners, make
from verify_norm.core.errors import UsageError
from verify_norm.core.ops import OPS
from verify_norm.core.spec import CaseSpec
from verify_norm.kernels.domain import narrow_weight
from verify_norm.loading import domain, registry
from verify_norm.loading.domain import Domain
from verify_norm.loading.registry import load_directions


@pytest.mark.parametrize(
    ("function", "spec", "fitted"),
    [
        (lambda x, weight, eps: x, {"bias": False, "weight_offset": 1.0}, {"bias": False, "weight_offset": 0.0}),
        (lambda x, eps: x, {}, {"weight": False}),
        (lambda x, weight, eps: x, {"shape": (4, 2, 8), "normalized_ndim": 2},
         {"shape": (4, 16), "normalized_ndim": 1}),
        (lambda x, weight, eps, offset: x, {"weight_offset": 1.0}, {"weight_offset": 1.0}),
        (lambda x, eps: x, {"special": "nan", "special_in": "weight"}, {"special": "nan", "special_in": "x"}),
        (lambda x, weight, eps: x, {"special": "inf", "special_in": "weight"}, {"special_in": "weight"}),
    ],
)  # fmt: skip
def test_what_a_function_does_not_take_no_case_has(function, spec, fitted):
    (kernel,) = load_directions(function, "rmsnorm_fwd")
    case = CaseSpec(**{"shape": (3, 8), **spec})
    got = kernel.fit(case)
    assert {name: getattr(got, name) for name in fitted} == fitted
    assert kernel.unsupported(got) is None
    assert (kernel.unsupported(case) is None) == (case == got)


def of_a_flag(x, weight, bias, eps, zero_centered_gamma): ...


def of_a_number(x, weight, bias, eps, weight_offset): ...


@pytest.mark.parametrize(
    ("function", "bind", "offsets"),
    [
        (of_a_flag, "", [0.0, 0.0, 0.0, 1.0]),
        (of_a_flag, "zero_centered_gamma=True", [1.0, 1.0, 1.0, 1.0]),
        (of_a_number, "", [-0.25, 0.0, 0.25, 1.0]),
        (lambda x, weight, bias, eps: x, "", [0.0, 0.0, 0.0, 0.0]),
        (lambda x, weight, bias, eps: x, "weight_offset=1", [1.0, 1.0, 1.0, 1.0]),
        (lambda x, weight, bias, eps, **more: x, "", [0.0, 0.0, 0.0, 0.0]),
        (lambda *given: given[0], "", [0.0, 0.0, 0.0, 0.0]),
        (nn.LayerNorm, "", [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_the_offsets_of_a_layernorm_are_those_of_its_argument(function, bind, offsets):
    (kernel,) = load_directions(function, "layernorm_fwd", bind)
    specs = [CaseSpec((3, 8), weight_offset=one) for one in (-0.25, 0.0, 0.25, 1.0)]
    assert [kernel.fit(spec).weight_offset for spec in specs] == offsets
    assert all(kernel.unsupported(kernel.fit(spec)) is None for spec in specs)
    assert all(isinstance(kernel.fit(spec).weight_offset, float) for spec in specs)


@pytest.mark.parametrize(
    "target",
    [nn.LayerNorm(24), nn.BatchNorm2d, nn.GroupNorm(2, 8), functional.rms_norm, "rmsnorm_fwd",
     nn.LayerNorm(24, bias=False), nn.RMSNorm(24, eps=1e-5, elementwise_affine=False)],  # of which all may be frozen
)  # fmt: skip
def test_every_corner_can_be_fitted_and_fitting_twice_is_fitting_once(target):
    for kernel in load_directions(target):
        for spec in corners.corners(OPS[kernel.op], ("float32", "bfloat16"), frozen=kernel.autograd):
            fitted = kernel.fit(spec)
            assert kernel.fit(fitted) == fitted
            assert kernel.unsupported(fitted) == (narrow_weight(fitted) if target == "rmsnorm_fwd" else None)
            make.exact_inputs(fitted, OPS[kernel.op])


def test_a_module_takes_any_number_of_rows_though_few_are_drawn():
    (kernel, _) = load_directions(nn.LayerNorm(4096))
    many = CaseSpec((4096, 4096))
    assert kernel.fit(many).shape[0] < 4096
    assert kernel.unsupported(many) is None
    assert kernel.unsupported(CaseSpec((4096, 4095))) == "it takes shape = (32, 4096) only"


@pytest.mark.parametrize(
    ("target", "op", "said"),
    [
        (lambda x, weight: x, "rmsnorm_fwd", "has no argument for eps: give its value, such as --bind eps=1e-5"),
        (lambda input, gamma, **kw: input, "rmsnorm_fwd", "--bind eps=1e-5, or pass it to **kw by --bind eps=eps"),
        (lambda weight, eps: weight, "rmsnorm_fwd", "has no argument for x; rmsnorm_fwd offers x, weight"),
        (
            lambda x, weight, eps: x,
            "groupnorm_fwd",
            "has no argument for num_groups: give its value, such as --bind num_groups=8",
        ),
        (lambda x, weight, eps: x, "add_rmsnorm_fwd", "has no argument for residual"),
    ],
)
def test_a_function_without_an_essential_argument_is_told_in_one_line(target, op, said):
    with pytest.raises(UsageError) as caught:
        load_directions(target, op)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_instance_of_many_features_gets_fewer_rows():
    wide = Domain(affine=(2**14,))
    assert wide.fit(CaseSpec((100, 8))).shape == (8, 2**14)  # 2**17 elements
    assert wide.fit(CaseSpec((2, 3, 8))).shape == (2, 3, 2**14)
    assert Domain(affine=(2**20,)).fit(CaseSpec((100, 8))).shape == (3, 2**20)


@pytest.mark.parametrize(
    ("within", "shape", "fitted"),
    [
        (Domain("channels", ranks=(4,)), (2, 3, 5), (2, 3, 5, 1)),
        (Domain("channels", ranks=(4,)), (2, 3, 5, 6, 7), (2, 3, 5, 42)),
        (Domain("channels", ranks=(2, 3)), (2, 3), (2, 3)),
        (Domain("groups", (("num_groups", 4),)), (2, 6, 5), (2, 8, 5)),  # 6 channels in 3 groups: two channels each
        (Domain("groups", affine=(12,)), (2, 6, 5), (2, 12, 5)),
    ],
)
def test_channels_and_ranks_are_fitted(within, shape, fitted):
    groups = 3 if within.view == "groups" else None
    assert within.fit(CaseSpec(shape, num_groups=groups)).shape == fitted


@pytest.mark.parametrize(
    ("tied", "weight", "bias", "fitted"),
    [
        ("follows", True, False, True),
        ("follows", False, True, False),
        ("needs", True, False, False),
        ("needs", False, True, False),
        ("", False, True, True),
    ],
)
def test_a_bias_is_tied_to_the_weight(tied, weight, bias, fitted):
    assert Domain(tied=tied).fit(CaseSpec((2, 3), weight=weight, bias=bias)).bias is fitted


def test_a_case_outside_is_refused_with_the_reason():
    held = Domain(fields=(("bias", False), ("eps", 1e-6)), own=lambda spec: "odd" if spec.shape[0] % 2 else None)
    assert held.unsupported(CaseSpec((2, 3))) == "it takes eps = 1e-06 only"
    assert held.unsupported(CaseSpec((2, 3), eps=1e-6)) == "it takes no bias"
    assert held.unsupported(CaseSpec((2, 3), eps=1e-6, bias=False)) is None
    assert held.unsupported(CaseSpec((3, 3), eps=1e-6, bias=False)) == "odd"


def test_doctests():
    assert doctest.testmod(domain).failed == 0


def text(spec):
    return "it takes 2-D x only" if len(spec.shape) != 2 else None


@pytest.mark.parametrize("own", ["lambda spec: text(spec)", "text", "partial(check, most=2)", "Check()"])
def test_what_a_file_declares_is_found_again_at_its_target(own, tmp_path):
    """Neither a lambda, nor what stands in a file, can be pickled by name."""
    path = tmp_path / "declares.py"
    path.write_text(
        f"from functools import partial\nimport verify_norm\n{inspect.getsource(text)}\n"
        "def check(spec, most): return text(spec)\n"
        "class Check:\n    def __call__(self, spec): return text(spec)\n"
        f"@verify_norm.kernel(op='rmsnorm_fwd', only='N%8=0', unsupported={own})\n"
        "def rms(x, weight, eps): return x\n"
    )
    for kernel in (registry.load(f"{path}:rms"), registry.load(f"{path}:rms")):
        target, record = registry.sent(kernel)
        there = registry.received(target, record)
        for made in (kernel, there):
            assert made.refuses(made.fitted(CaseSpec((2, 8)))) is None
            assert made.refuses(made.fitted(CaseSpec((2, 3, 8)))) == "it takes 2-D x only"
            assert made.fitted(CaseSpec((2, 7))).shape[-1] % 8 == 0
            assert made.refuses(CaseSpec((2, 7))) is not None


def test_what_cannot_be_sent_asks_for_one_process():
    kernel = replace(registry.load("rmsnorm_fwd_torch"), unsupported=lambda spec: None)
    with pytest.raises(UsageError, match=r"its unsupported cannot be sent to .*: Can't pickle .*; .* --in-process"):
        registry.sent(kernel)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (lambda spec: 1 / 0, 'k.py:f raises ZeroDivisionError: division by zero, in the case {"kernel": "k.py:f", '),
        (lambda spec: True, "k.py:f: expected a reason in words, or None, got True"),
        (lambda spec: False, "got False"),
        (lambda spec: " ", "got ' '"),
    ],
)
def test_other_answers_are_mistakes(own, said):
    with pytest.raises(UsageError) as caught:
        domain.Own(own, "k.py:f", False)(CaseSpec((2, 8)))
    assert said in str(caught.value)
