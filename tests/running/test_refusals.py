"""What the words of an exception speak of: a refusal of a class of cases, or a failure."""

import doctest

import pytest
import torch

from verify_norm.core.errors import one_line
from verify_norm.running import refusals
from verify_norm.running.refusals import limits


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("expected 2D input (got 3D input)"), "rank"),
        (AssertionError("x must have 2 dimensions"), "rank"),
        (ValueError("too many values to unpack (expected 2)"), "rank"),
        (RuntimeError("\"rms_norm\" not implemented for 'Double'; dtype unsupported"), "dtype"),
        (RuntimeError("expected scalar type Float but found Half"), "dtype"),
        (NotImplementedError("bf16 only"), "dtype"),
        (ValueError("hidden_size 7 is not a multiple of 8"), "multiple"),
        (ValueError("x must be 16-byte aligned"), "multiple"),
        (ValueError("head_dim must be even, got 7"), "multiple"),
        (ValueError("unsupported head_dim"), "size"),
        (NotImplementedError("rotary embeddings of a part of the row are not supported"), "rotary"),
        (RuntimeError("This layer norm doesn't support feature dim >= 64KB."), "size"),
        (ValueError("Expected more than 1 value per channel when training"), "size"),
        (RuntimeError("Expected input.is_contiguous() to be true, but got false."), "layout"),
        (ValueError("bias=None is not supported"), "none"),
        (AttributeError("'NoneType' object has no attribute 'data_ptr'"), "none"),
        (
            TypeError(
                "norm(): incompatible function arguments. The following argument types are supported:\n    1. (x: "
                "torch.Tensor)\n\nInvoked with: tensor([[1.,\n 2.]]), None, 1e-05"
            ),
            "none",
        ),
        (
            TypeError(
                "norm(): incompatible function arguments. The following argument types are supported:\n    1. norm(x"
                ": torch.Tensor) -> None\n\nInvoked with types: torch.Tensor, NoneType"
            ),
            "none",
        ),
        (ValueError("eps must be positive"), "eps"),
        (RuntimeError("x must be a CUDA tensor"), "device"),
        (TypeError("compiled for torch.bfloat16 but x is torch.float32"), "dtype"),
        (ValueError("no kernel of hidden size 100"), "size"),
        (NotImplementedError("hidden size 100"), "size"),  # its type refuses
        (NotImplementedError("reshape it first"), "any"),
    ],
)
def test_a_refusal_names_its_limit(error, kind):
    assert kind in limits(error, on_cpu=True)


def compiled(refuses):
    """Return what torch.compile raises where a norm refuses its arguments."""

    @torch.compile(backend="eager", fullgraph=True)
    def norm(x):
        return refuses(x)

    with pytest.raises(Exception, match=r".") as caught:
        norm(torch.ones(4, 4, 4))
    return caught.value


def test_a_refusal_that_torch_compile_meets_is_read_where_it_quotes_it():
    refused = compiled(lambda x: torch.nn.functional.batch_norm(x, None, None, training=True, eps=0.0))
    assert "eps" in limits(refused, on_cpu=True)
    assert one_line(refused).endswith("ValueError: batch_norm eps must be positive during training, but got 0.0")
    failed = compiled(lambda x: x + torch.ones(3))
    assert limits(failed, on_cpu=True) == ()
    assert "broadcast a dimension" in one_line(failed)


def test_only_what_people_raise_on_purpose_is_read_in_what_torch_compile_quotes():
    error = type("TorchRuntimeError", (RuntimeError,), {})
    said = "RuntimeError when making fake tensor call\n  Explanation: Dynamo failed: f(): got {}('{}')\n  Hint: none"
    assert "rank" in limits(error(said.format("ValueError", "expected 2-D x\\nnot this")), on_cpu=True)
    assert limits(error(said.format("IndexError", "expected 2-D x")), on_cpu=True) == ()
    assert one_line(error(said.format("E", "a\\nb"))) == "TorchRuntimeError: E: a"
    assert one_line(error("expected 2-D x\nHint")) == "TorchRuntimeError: expected 2-D x"


def norm(x: torch.Tensor, bias: torch.Tensor):
    if x.dim() == 3:
        raise ValueError("only 2-D x is supported")
    assert x.is_contiguous(), "x must be contiguous"
    return x + bias


@pytest.mark.parametrize(
    ("x", "bias", "kind", "said"),
    [
        (torch.ones(2, 2, 2), torch.ones(2), "rank", "ValueError: only 2-D x is supported"),
        (torch.ones(2, 3).T, torch.ones(2), "layout", "AssertionError: x must be contiguous"),
        (torch.ones(2, 2), None, "none", "RuntimeError: Expected a proper Tensor but got None (or "),
        (torch.ones(2, 2), torch.ones(3), "", "RuntimeError: The size of tensor a (2) must match the size of "),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated")
def test_a_refusal_in_torchscript_is_read_below_its_traceback(x, bias, kind, said):
    with pytest.raises(Exception, match="TorchScript interpreter") as caught:
        torch.jit.script(norm)(x, bias)
    assert one_line(caught.value).startswith(said)
    found = limits(caught.value, on_cpu=True)
    assert kind in found if kind else found == ()


@pytest.mark.parametrize(
    "error",
    [
        IndexError("expected 2-D x"),  # nobody refuses by it
        KeyError(torch.bfloat16),
        ZeroDivisionError("division by zero"),
        AssertionError("assert blocks <= 4"),
        RuntimeError("The size of tensor a (3) must match the size of tensor b (5) at non-singleton dimension 1"),
        RuntimeError("shape '[4, 8]' is invalid for input of size 33"),
        RuntimeError("view size is not compatible with input tensor's size and stride"),
        RuntimeError("CUDA error: misaligned address"),
        NotImplementedError(
            "Could not run 'aten::_foo' with arguments from the 'Meta' backend"
        ),  # torch's, of no caller
        RuntimeError(
            "FBackward returned an invalid gradient at index 1 - got [] but expected shape compatible with [30]"
        ),
        TypeError("f() missing 1 required positional argument: 'bias'"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        ValueError("not today"),
        MuteError(),
        KeyboardInterrupt(),
    ],
)
def test_a_failure_speaks_of_no_limit(error):
    assert limits(error, on_cpu=False) == ()


def test_on_a_gpu_no_error_about_cuda_is_a_refusal():
    assert limits(RuntimeError("Triton needs CUDA tensors of 2 dimensions"), on_cpu=False) == ()
    assert limits(RuntimeError("Triton needs CUDA tensors of 2 dimensions"), on_cpu=True)[:2] == ("device", "rank")


def test_an_assertion_without_words_refuses_if_it_is_about_an_argument():
    def kinds(line):
        return limits(AssertionError(f"assert {line}"), on_cpu=True)

    assert "rank" in kinds("x.dim() == 2")
    assert "layout" in kinds("x.is_contiguous()")
    assert "dtype" in kinds("x.dtype == torch.float16")
    assert "none" in kinds("weight is not None")
    assert kinds("x.is_cuda")[0] == "device"
    assert kinds("len(found) == size") == ()


def test_doctests():
    assert doctest.testmod(refusals).failed == 0
