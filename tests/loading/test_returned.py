"""The outputs that a callable returns, by name: too many, unknown ones, and what is no tensor."""

import pytest
import torch
from directions import ROWS

from verify_norm.core.ops import OPS
from verify_norm.loading.registry import load_directions
from verify_norm.loading.returned import named
from verify_norm.search.examine import examine


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (
            lambda y: (y, y, y, y),
            "it returned 4 values; rmsnorm_fwd has 2: y, rstd; name what it returns in order, with _ for",
        ),
        (lambda y: {"y": y, "mean": y}, "it returned mean; rmsnorm_fwd has y, rstd"),
        (lambda y: {"y": 1.0}, "y is a float, not a tensor"),
        (lambda y: [y.numpy()], "y is a ndarray, not a tensor"),
        (lambda y: None, "y: expected a float32 tensor, got None"),
    ],
)
def test_a_wrong_number_or_kind_of_outputs_is_a_finding(returned, said):
    (kernel,) = load_directions(lambda x, weight, eps: returned(x), "rmsnorm_fwd")
    (finding,) = examine(kernel, kernel.fit(ROWS), ("signature",), "cpu").findings
    assert finding.check == "signature"
    assert finding.message.startswith(said)


def test_outputs_are_named_in_order_and_a_mapping_by_its_keys():
    y, mean = torch.ones(2, 3), torch.ones(2)
    op = OPS["layernorm_fwd"]
    assert list(named(y, op)) == ["y"]
    assert list(named([y, mean], op)) == ["y", "mean"]
    assert named({"mean": mean, "y": None}, op) == {"mean": mean, "y": None}
    assert named((), op) == {}
    assert named({1: y}, op) == "it returned 1; layernorm_fwd has y, mean, rstd"
