"""Whose argument is whose: aliases, what a user says, and what is said back."""

import inspect

import pytest
import torch

from verify_norm.core.errors import UsageError
from verify_norm.core.ops import OPS
from verify_norm.loading.argument_names import FEATURES, meant
from verify_norm.loading.bind import Candidate, bind
from verify_norm.loading.bind_option import parse

FORWARD, BACKWARD = OPS["layernorm_fwd"], OPS["layernorm_bwd"]


def offered(op):
    return (*(tensor.name for tensor in op.inputs), *op.attrs, FEATURES)


def bound(function, text="", op=FORWARD, **options):
    parameters = list(inspect.signature(function).parameters.values())
    return bind(Candidate(function, "f", op, parse(text)), parameters, offered(op), **options)


def given(op=FORWARD):
    return {name: f"<{name}>" for name in (*offered(op), "y")}


def called(function, text="", op=FORWARD, **options):
    """What the function is called with."""
    return bound(function, text, op, **options).call(function, given(op))


def test_what_the_operator_does_not_have_is_none_where_its_name_is_known():
    def rms_norm(x, weight, bias, residual, eps, prenorm=False): ...

    op = OPS["rmsnorm_fwd"]
    found = bound(rms_norm, op=op)
    assert found.unset == ("bias", "residual")
    assert {a.name: a.value for a in found.arguments if a.source is None} == {"bias": None, "residual": None}
    assert bound(rms_norm, "bias=0", op).unset == ("residual",)
    assert bound(lambda x, weight, bias, residual, eps: x).unset == ("residual",)
    with pytest.raises(UsageError, match="unknown argument rotary; "):
        bound(lambda x, weight, rotary: x, op=op)


def test_the_only_argument_that_fits_nothing_is_x_where_nothing_else_is():
    assert called(lambda act, weight, bias, eps: (act, weight)) == ("<x>", "<weight>")
    assert called(lambda dy, act, weight, rstd: (dy, act), op=OPS["rmsnorm_bwd"]) == ("<dy>", "<x>")
    assert called(lambda act, /, weight: (act, weight)) == ("<x>", "<weight>")
    for function in (lambda x, weight, rotary: x, lambda act, rotary, weight: act):
        with pytest.raises(UsageError, match="unknown argument"):
            bound(function)


@pytest.mark.parametrize(
    ("names", "op", "ours"),
    [
        ("X W B eps", "layernorm_fwd", "x weight bias eps"),
        ("hidden_states weight variance_epsilon", "rmsnorm_fwd", "x weight eps"),
        ("inp g b epsilon", "layernorm_fwd", "x weight bias eps"),
        ("X W eps offset", "rmsnorm_fwd", "x weight eps weight_offset"),
        ("input gamma zero_centered_gamma eps", "layernorm_fwd", "x weight weight_offset eps"),
        ("x G gamma beta eps", "groupnorm_fwd", "x num_groups weight bias eps"),
        ("input groups w b", "groupnorm_fwd", "x num_groups weight bias"),
        ("dY X W B Mean RSTD", "layernorm_bwd", "dy x weight bias mean rstd"),
        ("grad_output input weight mu inv_std", "layernorm_bwd", "dy x weight mean rstd"),
        ("dout x w mean invvar N", "layernorm_bwd", "dy x weight mean rstd features"),
        ("dY dS_out S W RSTD", "add_rmsnorm_bwd", "dy dresidual_out residual_out weight rstd"),
        ("dy x weight rstd dresidual", "add_rmsnorm_bwd", "dy residual_out weight rstd dresidual_out"),
        ("X R W eps", "add_rmsnorm_fwd", "x residual weight eps"),
        ("input running_mean running_var is_training momentum", "batchnorm_fwd",
         "x running_mean running_var training momentum"),
    ],
)  # fmt: skip
def test_other_peoples_names(names, op, ours):
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names.split()]
    candidate = Candidate(None, "f", OPS[op])
    assert bind(candidate, parameters, offered(OPS[op])).sources == tuple(ours.split())


@pytest.mark.parametrize("op", OPS)
def test_the_operators_own_names_are_never_taken_for_others(op):
    assert all(meant(name, offered(OPS[op])) == name for name in offered(OPS[op]))


def test_defaults_stay_where_nothing_fits():
    def f(x, weight=None, eps=1e-5, mode="fast", dim=-1):
        return x, weight, eps, mode, dim

    assert called(f) == ("<x>", "<weight>", "<eps>", "fast", -1)


def test_a_normalized_shape_that_is_a_number_by_its_annotation():
    def number(x, normalized_shape: int, eps): ...

    def text(x, normalized_shape: "int", eps): ...

    def any_of_these(x, normalized_shape: int | tuple, eps): ...

    assert [bound(f).sources[1] for f in (number, text, any_of_these)] == [FEATURES, FEATURES, "normalized_shape"]


def test_a_size_or_a_number_is_what_its_annotation_says():
    def lists(x, normalized_shape: list[int], eps: float): ...

    def sizes(x, normalized_shape: "torch.Size", eps: torch.Tensor): ...

    def unions(x, normalized_shape: "list[int]", eps: torch.Tensor | float): ...

    def taken(function):
        given = {"x": None, "normalized_shape": (2, 3), "eps": 0.25}
        return list(bound(function).call(lambda **more: more, given).values())[1:]

    assert taken(lists) == [[2, 3], 0.25]
    size, eps = taken(sizes)
    assert (type(size), size, type(eps), eps.item()) == (torch.Size, (2, 3), torch.Tensor, 0.25)
    assert taken(unions) == [[2, 3], 0.25]

    def scaled(x, scale: torch.Tensor): ...

    assert bound(scaled, op=OPS["rmsnorm_fp8_fwd"]).arguments[1].form is None


def test_positional_arguments_and_stars():
    def only(x, w, /, *, epsilon):
        return x, w, epsilon

    def stars(*args):
        return args

    def everything(x, **more):
        return sorted(more)

    assert called(only) == ("<x>", "<weight>", "<eps>")
    assert called(stars) == tuple(given()[name] for name in offered(FORWARD) if name != "weight_offset")
    assert called(everything) == ["bias", "eps", "normalized_shape", "weight"]
    assert called(everything, op=OPS["rmsnorm_fwd"]) == ["eps", "normalized_shape", "weight", "weight_offset"]
    assert called(everything, "weight_offset=weight_offset") == ["weight_offset"], "what a user names it gets"
    assert bound(only, positional=True).arguments[2].positional


def test_what_no_argument_has_goes_to_the_rest_where_a_user_says_so():
    def f(input, gamma, beta, **kwargs):
        return input, gamma, beta, kwargs

    assert called(f) == ("<x>", "<weight>", "<bias>", {})
    assert called(f, 'eps=eps, mode="llama"') == ("<x>", "<weight>", "<bias>", {"eps": "<eps>", "mode": "llama"})
    assert called(f, "eps=variance_epsilon")[-1] == {"variance_epsilon": "<eps>"}
    assert called(f, "eps=1e-5")[-1] == {}, "a constant of the operator's own is all cases'"
    with pytest.raises(UsageError, match="unknown argument eps"):
        bound(f, "eps=eps", positional=True)


def test_a_wrapper_that_passes_all_on_gets_what_a_user_names():
    """As a decorator without functools.wraps makes one: it takes anything, and what it wraps does not."""

    def wrapped(x, weight, eps):
        return x, weight, eps

    def wrapper(*args, **kwargs):
        return wrapped(*args, **kwargs)

    with pytest.raises(TypeError, match=r"unexpected keyword argument.*--bind x=x,weight=weight,"):
        called(wrapper)
    assert called(wrapper, "x=x, weight=weight, eps=eps") == ("<x>", "<weight>", "<eps>")

    def mistaken(**kwargs):
        return wrapped(nothing=1)

    with pytest.raises(TypeError, match=r"argument 'nothing'$"):
        called(mistaken)


def test_a_callable_of_args_alone_that_gets_too_many_is_told_which():
    def wrapped(x, weight, eps):
        return x, weight, eps

    def wrapper(*args):
        return wrapped(*args)

    def unpacks(*values):
        x, weight, eps = values
        return x, weight, eps

    def refuses(*args):
        raise ValueError("x must be contiguous")

    order = f"gets {', '.join(n for n in offered(FORWARD) if n != 'weight_offset')} in this order: write a function"
    with pytest.raises(TypeError, match=rf"positional arguments.*\(\*args\), which {order}"):
        called(wrapper)
    with pytest.raises(ValueError, match=rf"values to unpack.*\(\*values\), which {order}"):
        called(unpacks)
    with pytest.raises(ValueError, match=r"^x must be contiguous$"):
        called(refuses)


def test_what_a_user_says():
    def f(a, b, casting_mode, in_place=True, variance_epsilon=0.0):
        return a, b, casting_mode, in_place, variance_epsilon

    text = 'x=a, weight=b, casting_mode="llama", in_place=False, eps=1e-6 -> y, _, mean'
    assert called(f, text) == ("<x>", "<weight>", "llama", False, "<eps>")
    assert bound(f, text).fixed == {"eps": 1e-6}  # every case has it, so what is given is that
    assert bound(f, text).returns == ("y", "_", "mean")


def test_constants_of_the_operator_need_no_argument():
    assert bound(lambda x, weight: x, "eps=1e-6, bias=None").fixed == {"eps": 1e-6, "bias": None}


def test_a_wrapper_that_counts_its_arguments_is_told_that_they_come_by_name():
    def counting(*args, **kwargs):
        return args[0]

    def named(**kwargs):
        return kwargs["hidden"]

    given = {"x": 1, "weight": 2, "bias": None, "eps": 0.0, "normalized_shape": (8,)}
    with pytest.raises(
        IndexError, match=r"out of range; its signature is \(\*args, \*\*kwargs\), which gets all by name"
    ):
        bound(counting).call(counting, given)
    with pytest.raises(KeyError, match=r"^'hidden'$"):
        bound(named).call(named, given)


def test_the_names_of_queries_and_embeddings():
    assert bound(lambda q, weight, bias, eps: q).sources == ("x", "weight", "bias", "eps")
    assert meant("query_states", ("x", "weight")) == "x"
    assert meant("embedding_dim", (FEATURES,)) == FEATURES


def test_outputs_to_write_into():
    def f(out, x, weight, bias, eps, out_mean=None):
        return out

    assert bound(f, outputs=("y", "mean", "rstd")).sources == ("y", "x", "weight", "bias", "eps")
    assert bound(f, "mean=out_mean", outputs=("y", "mean", "rstd")).sources[-1] == "mean"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x=hidden", "--bind x=hidden: unknown argument hidden; layernorm_fwd offers x, weight, bias, eps, "
                     "weight_offset, normalized_shape, features; f takes x, weight, gate"),
        ("gates=gate", "--bind gates=gate: unknown input gates; layernorm_fwd offers x, "),
        ("mode=3", "--bind mode=3: unknown argument mode; layernorm_fwd offers x, "),
        ("gate=llama", "--bind gate=llama: unknown input gate; a text needs quotes, which a shell removes: "
                       "--bind 'gate=\"llama\"'"),
        ("gate=bias", "--bind gate=bias: unknown input gate; the operator's name stands first: --bind bias=gate"),
        ('eps="a"', "--bind eps='a': eps: expected a finite number of 0 or more, got 'a'"),
        ("epsilon=-1", "--bind epsilon=-1: eps: expected a finite number of 0 or more, got -1"),
        ("eps=1e999", "--bind eps=inf: eps: expected a finite number of 0 or more, got inf"),
        ("", "f: unknown argument gate; layernorm_fwd offers x, weight, bias, eps, weight_offset, normalized_shape, "
             "features (--bind NAME=gate with NAME from this list, or --bind gate=<a constant>)"),
    ],
)  # fmt: skip
def test_a_wrong_binding_is_told_with_both_lists(text, said):
    with pytest.raises(UsageError) as caught:
        bound(lambda x, weight, gate: x, text)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_a_flag_is_a_number():
    found = bound(lambda x, weight, unit_offset: x, "unit_offset=True", OPS["rmsnorm_fwd"]).fixed
    assert (found, type(found["weight_offset"])) == ({"weight_offset": 1.0}, float)


def test_a_flag_for_the_offset_gets_no_number():
    def named(x, weight, zero_centered_gamma): ...

    def annotated(x, weight, offset: bool): ...

    def defaulting(x, weight, unit_offset=False): ...

    def number(x, weight, unit_offset: float = 0.0): ...

    def form(function):
        return bound(function).arguments[-1].form

    assert [form(one) for one in (named, annotated, defaulting, number)] == [bool, bool, bool, None]
