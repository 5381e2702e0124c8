"""The function under check: which of its outputs count, fresh leaves, and gradients of what nothing depends on."""

import pytest
import torch

from verify_norm.core.errors import UsageError
from verify_norm.gradcheck.subject import Subject, backward, gradients, tensors

POINTS = {"x": torch.tensor([1.0, 2.0], dtype=torch.float64), "w": torch.tensor([3.0, 4.0], dtype=torch.float64)}


def subject(function, **fields):
    arguments = {"x": None, "w": None, "k": 10}
    return Subject("f", function, arguments, POINTS, "float32", **fields)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ((torch.ones(1), 2), "f returns a int; expected a tensor or a tuple of tensors"),
        ({"y": torch.ones(1)}, "f returns a dict; expected"),
        (torch.arange(3), "f returns no floating-point tensor, so there is nothing to differentiate"),
    ],
)
def test_what_is_no_tensor_is_refused_in_words(returned, said):
    with pytest.raises(UsageError, match=said):
        tensors(returned, "f")


def test_integer_outputs_are_left_out_and_outputs_are_chosen_by_position():
    def function(x, w, k):
        return x, torch.argmax(x), k * w

    assert [y.tolist() for y in subject(function).call({})] == [[1.0, 2.0], [30.0, 40.0]]
    assert [y.tolist() for y in subject(function, outputs=(1,)).call({})] == [[30.0, 40.0]]
    assert subject(lambda *args: args[0] + args[2], keyword=False).call({})[0].tolist() == [11.0, 12.0]


def test_gradients_by_hand_and_none_of_what_is_frozen_or_unused():
    dy = [torch.ones(2)]
    found = gradients(subject(lambda x, w, k: x * x * w), dy)
    assert {name: g.tolist() for name, g in found.items()} == {"x": [6.0, 16.0], "w": [1.0, 4.0]}
    assert set(gradients(subject(lambda x, w, k: x * w), dy, frozen=("w",))) == {"x"}
    assert gradients(subject(lambda x, w, k: 2 * x), dy)["w"] is None
    leaf = torch.ones(2, requires_grad=True)
    assert backward([torch.ones(2)], dy, {"x": leaf}) == {"x": None}


def test_leaves_are_fresh_in_every_call():
    one = subject(lambda x, w, k: x.detach().zero_() + w)
    one.call(one.leaves())
    assert one.leaves()["x"].tolist() == [1.0, 2.0]
    assert one.arithmetic == "float32"
    assert subject(None, inner="bfloat16").arithmetic == "bfloat16"
