"""What a new module of a class must be, besides what it computes."""

import pytest
import torch
from torch import nn

from verify_norm.loading.module_construction import faults

INITIAL = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
ROLES = {name: name for name in INITIAL}


class Norm(nn.Module):
    """As torch's norms are made; a test changes what `how` says."""

    def __init__(self, dim, how="", *, device=None, dtype=None):
        super().__init__()
        self.how = how
        kind = (
            {} if how == "factory ignored" else {"device": None if how == "device ignored" else device, "dtype": dtype}
        )
        self.weight, self.bias = (nn.Parameter(torch.empty(dim, **kind)) for _ in range(2))
        if how != "no statistics":
            self.register_buffer("running_mean", torch.zeros(dim), persistent=how != "not saved")
        self.reset_parameters()
        if how == "from 0":
            nn.init.zeros_(self.weight)

    def reset_parameters(self):
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def extra_repr(self):
        return self.dim if self.how == "repr" else "8"


def found(cls, how="", taken=("dim",), initial=INITIAL):
    return list(faults(lambda **more: cls(8, how, **more), taken, ROLES, initial))


@pytest.mark.parametrize("how", ["", "no statistics"])
def test_a_module_as_those_of_torch_is_right(how):
    assert found(Norm, how) == []


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("repr", "repr() of a new module raises AttributeError: 'Norm' object has no attribute 'dim'"),
        ("not saved", "a new module's state_dict lacks running_mean: "),
        ("device ignored", "made with device=meta has its weight and bias with device=cpu"),
        ("factory ignored", "made with dtype=torch.bfloat16 has its weight and bias with dtype=torch.float32"),
    ],
)
def test_what_is_surely_a_mistake(how, words):
    assert any(words in said and wrong for said, wrong in found(Norm, how))


@pytest.mark.parametrize(
    ("unasked", "words"),
    [
        (("weight", "bias"), "made without weight and bias has weight and bias all the same"),
        (("bias",), "made without bias has bias all the same"),
    ],
)
def test_parameters_for_which_nobody_asked(unasked, words):
    (fault,) = faults(lambda **more: Norm(8, **more), (), ROLES, INITIAL, unasked)
    assert words in fault[0]
    assert fault[1]


@pytest.mark.parametrize("saved", [False, True])
def test_a_weight_that_no_state_dict_has_is_told(saved):
    """Frozen values are in the state_dict, and so in a checkpoint; a constant need not be, but one may forget it."""

    class Held(nn.Module):
        def __init__(self, dim, how=""):
            super().__init__()
            self.register_buffer("weight", torch.ones(dim), persistent=saved)

    told = [
        ("a new module's weight is a buffer that its state_dict lacks" in said, wrong) for said, wrong in found(Held)
    ]
    assert told == [(True, False)] * (not saved)


def test_a_constant_in_the_place_of_a_parameter_is_right():
    class Constant(Norm):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.requires_grad_(False)

    assert list(faults(lambda **more: Constant(8, **more), (), ROLES, INITIAL, ("weight", "bias"))) == []
    assert list(faults(lambda **more: nn.RMSNorm(8, **more), (), {}, INITIAL, ("weight",))) == []


def test_what_a_constructor_is_given_already_is_not_tried():
    assert found(Norm, "device ignored", ("dim", "device")) == []


def test_first_values_and_their_reset_may_have_a_reason():
    assert found(Norm, "from 0") == [
        ("a new module's weight starts at 0, not at 1", False),
        (
            "reset_parameters() does not give weight the values of a new module, as FSDP calls it after to_empty()",
            False,
        ),
    ]
    of_offset = found(Norm, "from 0", initial={**INITIAL, "weight": 0.0})
    assert [words.partition(" ")[0] for words, _ in of_offset] == ["reset_parameters()"]


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_the_gradients_of_its_parameters_do_not_run(register):
    class Hooked(Norm):
        def __init__(self, dim, how="", **more):
            super().__init__(dim, how, **more)
            getattr(self.bias, register)(lambda gradient: None)

    (note,) = found(Hooked)
    assert note[0].startswith("a new module's bias has a hook of its gradient, which does not run here")
    assert not note[1]


def test_a_reset_that_fails_or_forgets_a_parameter():
    class Fails(Norm):
        made = False

        def reset_parameters(self):
            if self.made:
                raise NameError("init")
            super().reset_parameters()
            self.made = True

    class Forgets(Norm):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.gain = nn.Parameter(torch.full((2,), 3.0))

    class Asks(Norm):
        def reset_parameters(self, std=None):
            super().reset_parameters()

    assert ("reset_parameters() of a new module raises NameError: init", True) in found(Fails)
    ((words, wrong),) = found(Forgets)
    assert "does not give gain the values" in words
    assert not wrong
    assert found(Asks) == []


class Needs(nn.Module):
    """Its reset needs an argument; its first values are random; it is never on another device."""

    def __init__(self, dim, how="", device=None, dtype=None):
        super().__init__()
        if device is not None or dtype is not None:
            raise ValueError(how)
        self.weight = nn.Parameter(torch.rand(dim))

    def reset_parameters(self, std):
        raise AssertionError(std)


def test_what_cannot_be_judged_is_not():
    assert found(Needs) == []
