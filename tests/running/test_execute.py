"""One call of a kernel: what it raises, returns instead, or warns of."""

import warnings

import pytest
from checking import ROWS, findings, layernorm_fwd
from directions import VALUES

from verify_norm.loading.registry import load_directions
from verify_norm.search.examine import examine


def test_warnings_of_a_kernel_are_no_errors():
    def warning(x, weight, bias, eps, normalized_shape):
        warnings.warn("slow", stacklevel=1)
        return layernorm_fwd(x, weight, bias, eps, normalized_shape)

    assert findings(warning) == set()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("assert x.is_cuda", "AssertionError: assert x.is_cuda"),
        (
            'raise RuntimeError("Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)")',
            "RuntimeError: Pointer argument (at 0) cannot be accessed",
        ),
        ('raise ValueError("x must be on the GPU\\nhere it is not")', "ValueError: x must be on the GPU)"),
    ],
)
def test_a_kernel_for_gpus_alone_is_not_blamed_on_the_cpu(tmp_path, line, said):
    (tmp_path / "gpu.py").write_text(f"def rmsnorm_fwd(x, weight, eps):\n    {line}\n")
    (kernel,) = load_directions(f"{tmp_path / 'gpu.py'}:rmsnorm_fwd")
    examined = examine(kernel, kernel.fit(ROWS), VALUES, "cpu")
    assert examined.unsupported.startswith(f"it does not take CPU tensors ({said}")
    assert examined.findings == ()
