"""Which cases other libraries' kernels and torch's do not take: the boundary of each reason."""

import pytest
import torch

from verify_norm.core.spec import CaseSpec
from verify_norm.kernels import domain

NARROW = {"dtype": "bfloat16", "weight_dtype": "float32"}
STREAM = {"dtype": "float16", "residual_dtype": "float32"}


@pytest.mark.parametrize(
    ("reason", "refused", "taken"),
    [
        (domain.no_offset, {"weight_offset": 1.0}, {}),
        (domain.bias_of_another_type, {"weight": False, **NARROW}, {**NARROW}),
        (domain.bias_of_another_type, {"weight": False, **NARROW}, {"weight": False, "bias": False, **NARROW}),
        (domain.bias_needs_weight, {"weight": False}, {"weight": False, "bias": False}),
        (domain.strided_weight, {"weight_layout": "every_other"}, {"weight_layout": "every_other", "weight": False}),
        (domain.one_value, {"shape": (2, 3, 1)}, {"shape": (2, 3, 2)}),
        (domain.one_value, {"shape": (0, 3, 2)}, {"shape": (1, 3, 2)}),
        (domain.one_value_a_group, {"shape": (1, 3), "num_groups": 3}, {"shape": (2, 3), "num_groups": 3}),
        (domain.liger_addition, {"weight": False}, {}),
        (domain.liger_addition, STREAM, {}),
        (domain.residual_of_another_type, STREAM, {"residual_dtype": "float32"}),
        (domain.types_here, STREAM, {"dtype": "float16"}),
        (domain.types_here, {"weight_dtype": "float16"}, NARROW),
        (domain.needs_both, {"bias": False}, {}),
        (domain.liger_groups, {"shape": (2, 4)}, {"shape": (2, 4, 1)}),
        (domain.short_rows, {"shape": (1, 2**14 + 1)}, {"shape": (1, 2**14)}),  # 64 KB of float32
        (domain.short_rows, {"shape": (1, 2**15 + 1), "dtype": "float16"}, {"shape": (1, 2**15), "dtype": "float16"}),
        (domain.flash, {"weight_offset": 0.5}, {"weight_offset": 1.0}),
        (domain.flash, {"weight": False}, {}),
        (domain.last_dimension, {"shape": (2, 4, 1)}, {"shape": (2, 4)}),
        (domain.float32_weight, {"dtype": "float16"}, {"dtype": "float16", "weight_dtype": "float32"}),
        (domain.offset_needs_weight, {"weight_offset": 1.0, "weight": False}, {"weight_offset": 1.0}),
    ],
)
def test_a_reason_stands_on_its_side_of_the_boundary(reason, refused, taken):
    said = reason(CaseSpec(**{"shape": (4, 8), **refused}))
    assert said is not None
    assert "\n" not in said
    assert reason(CaseSpec(**{"shape": (4, 8), **taken})) is None


def refuses(function, *arguments):
    try:
        function(*arguments)
    except ValueError as error:
        return "more than 1" in str(error)
    return False


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1), (1, 6, 1), (2, 6, 1), (1, 2, 2)])
def test_torch_refuses_the_cases_that_we_say_it_refuses(shape):
    x, functional = torch.ones(shape), torch.nn.functional
    said = domain.one_value_a_group(CaseSpec(shape, num_groups=shape[1]))
    assert refuses(functional.group_norm, x, shape[1]) == (said is not None)
    if len(shape) > 2:  # to instance_norm two dimensions are one sample
        assert refuses(functional.instance_norm, x) == (domain.one_value(CaseSpec(shape)) is not None)


def test_without_a_gpu_cuda_is_refused_in_words(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    domain.no_cuda.cache_clear()
    assert domain.needs_cuda(CaseSpec((2, 3))) == "it is CUDA C++, and torch sees no GPU here"
    domain.no_cuda.cache_clear()
