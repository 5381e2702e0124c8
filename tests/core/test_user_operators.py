"""A user's operator from its function to its records, its names, and what is said of a wrong one."""

import functools

import numpy as np
import pytest
import torch

import verify_norm
from verify_norm.core import user_operators
from verify_norm.core.errors import UsageError
from verify_norm.core.ops import OPS

FILE = '''
import numpy as np
import verify_norm

def dyt(x, weight, bias, alpha):
    """y = weight·tanh(alpha·x) + bias."""
    return weight * np.tanh(alpha * x) + bias

dynamic_tanh = verify_norm.operator(dyt, tensors={"alpha": "1"})
'''


DOUBLE = "import verify_norm\n\ndouble = verify_norm.operator(lambda x: 2 * x, name='double')\n"


def f(x, weight, *, eps):
    return weight * x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)


def sine(x, weight):
    return weight * np.sin(x)


def of_y(y):
    return y


def of_foo(x, *, foo):
    return foo * x


def of_eps(x, eps):
    return x + eps


def of_scale(x, scale):
    return x * scale


def of_taken(x, y):
    return x + y


def of_none():
    return 0


def test_the_length_of_an_array_is_its_number_of_rows():
    with pytest.raises(UsageError, match="y of a row depends on other rows"):
        verify_norm.operator(lambda x: x * len(x), name="as_long")


class Raising:
    """A function that has no code of its own."""

    def __call__(self, x):
        raise ValueError("never again")


def of_any(x, *rest):
    return x


def crashing(x, weight):
    return weight + x[:, :2]


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (sine, {}, r"operator sine: test_user_operators.py:\d+: no rule for the operation sin; those known are "),
        (crashing, {}, r"operator crashing: test_user_operators.py:\d+: ValueError: operands could not be broadcast"),
        (lambda x: torch.relu(x), {"name": "f"}, "must be Tensor, not Carried; write it with NumPy's operations"),
        (of_y, {}, "expected x as the first argument, got y$"),
        (lambda y, z: y, {"name": "f"}, "expected x as the first argument, got y, z$"),
        (of_none, {}, "expected x as the first argument, got none$"),
        (of_taken, {}, "operator: y is no tensor: give it another name$"),
        (functools.partial(f, eps=1), {}, "expected name= with a name, and a function, not functools.partial"),
        (Raising(), {"name": "f"}, "^operator f: ValueError: never again$"),
        (of_foo, {}, "unknown option of an operator 'foo'"),
        (of_eps, {}, r"eps is no tensor: an option is keyword-only, as in f\(x, \*, eps\)"),
        (of_scale, {}, "scale has another meaning in cases; give it another name"),
        (lambda x, offset: x * offset, {"name": "moved"}, "offset has another meaning in cases"),
        (of_any, {}, r"got a function with \*args or \*\*kwargs"),
        (lambda x: x, {}, "expected name="),
        (3, {"name": "three"}, "expected name= with a name, and a function, not 3"),
        (max, {}, "expected a Python function, got <built-in function max>"),
        (f, {"name": "norm_fwd"}, "expected a name without a direction"),
        (f, {"tensors": ["weight"]}, "tensors: expected dimensions by name"),
        (f, {"positive": 3}, "positive: expected a list of names, got 3"),
        (f, {"statistics": "rstd"}, "statistics: expected a list of names, got 'rstd'"),
        *(
            (f, {"statistics": names}, f"statistics: expected new names of outputs, got '{names[-1]}'")
            for names in (["class"], ["_m"], ["a b"], ["weight"], ["eps"], ["dy"], ["y"], ["m", "m"])
        ),
        (lambda x: np.log(-np.abs(x)), {"name": "f"}, "y is not finite at usual values; positive= names tensors"),
        (f, {"tensors": {"w": "N"}}, "unknown tensor of the operator 'w'"),
        (f, {"tensors": {"weight": "K"}}, "weight: expected MN, N or 1 as its dimensions, got 'K'"),
        (f, {"tensors": {"x": "N"}}, "x: expected MN as its dimensions"),
        (f, {"statistics": ["rstd"]}, r"expected 2 outputs \(y, rstd\), got 1"),
        (f, {"gradient": lambda dy, x, weight, *, eps: (dy, weight)}, "dx along a random direction is"),
    ],
)
def test_what_is_said_of_a_wrong_one(function, options, said):
    with pytest.raises(UsageError, match=said) as raised:
        user_operators.operator(function, **options)
    assert "\n" not in str(raised.value)


def test_two_of_one_name_stay_two():
    one, two = (user_operators.operator(function, name="same") for function in (lambda x: 2 * x, lambda x: 3 * x))
    assert user_operators.found(one.name) is one
    assert user_operators.found(two.name) is two


def test_what_a_function_says_of_its_arguments():
    def sloped(x, weight, gate, a, *, eps=1e-6, slope=0.5):
        """The root of X."""
        return slope * weight * gate * x / np.sqrt(a + eps), x.sum(-1)

    made = user_operators.operator(sloped, tensors={"gate": "MN", "a": "1"}, statistics=["m_"], positive=["a"])
    assert made.function.options == ("eps",), "an argument with a default is no option of a case"
    assert made.function.outputs == ("y", "m_")
    assert made.summary.startswith("The root of X; bound by ")
    forward, backward = made.records(made.name)
    shown = {t.name: (t.extent, t.role, t.dtype, t.positive) for t in forward.inputs}
    assert shown == {
        "x": ("data", "input", "x", False),
        "weight": ("affine", "weight", "weight", False),
        "gate": ("data", "input", "x", False),
        "a": ("one", "weight", "weight", True),
    }
    assert [t.name for t in backward.inputs] == ["dy", *shown, "m_"]
    assert user_operators.operator(lambda x: 2 * x, name="double").summary.startswith("your own operator; bound by ")


def test_files_of_one_name_in_two_folders_hold_two_operators(tmp_path, monkeypatch):
    found = []
    for folder in ("a", "b:c"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "doubles.py").write_text(DOUBLE)
        monkeypatch.chdir(tmp_path / folder)
        found.append(user_operators.found("doubles.py:double"))
        assert user_operators.found(f"{tmp_path}/{folder}/doubles.py:double") is found[-1]
    assert found[0] is not found[1]
    (tmp_path / "bare.py").write_text("double = 2\n")
    said = rf"^--op {tmp_path}/bare.py:double: expected an operator .*bare.py has no operator$"
    with pytest.raises(UsageError, match=said):
        user_operators.found(f"{tmp_path}/bare.py:double")


def test_one_in_a_file_is_found_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "tanhs.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    forward, backward = user_operators.records("tanhs.py:dynamic_tanh_fwd")
    assert OPS["tanhs.py:dynamic_tanh_bwd"] == backward
    assert [t.name for t in backward.inputs] == ["dy", "x", "weight", "bias", "alpha"]
    assert [(t.name, t.extent, t.dtype) for t in backward.outputs] == [
        ("dx", "data", "x"), ("dweight", "affine", "weight"), ("dbias", "affine", "weight"), ("dalpha", "one", "weight")
    ]  # fmt: skip
    assert forward.summary.startswith("y = weight·tanh(alpha·x) + bias; bound by running error analysis")
    assert user_operators.found("tanhs.py:dynamic_tanh").name == f"{tmp_path}/tanhs.py:dynamic_tanh"
    for name, said in {
        "tanhs.py:tanh": "--op tanhs.py:tanh: expected an operator that .* made; tanhs.py has dynamic_tanh",
        "none.py:a": "no file none.py",
        "no_such_module:a": "cannot be imported: ModuleNotFoundError",
        "own:nothing": "unknown operator of this process",
    }.items():
        with pytest.raises(UsageError, match=said):
            user_operators.records(name)


def tanh(x, weight, alpha):
    return (torch.tanh(alpha.float() * x.float()) * weight.float()).to(x.dtype)


def without_alpha(x, weight, alpha):
    return (torch.tanh(x.float()) * weight.float()).to(x.dtype)


@pytest.mark.slow
def test_every_door_takes_one(unexplained):
    def local(x, weight, alpha):
        return weight * np.tanh(alpha * x)

    op = user_operators.operator(local, tensors={"alpha": "1"})
    assert op.name == "own:local"
    asked = {"checks": "accuracy", "examples": 0, "dtypes": "fp32", "only": "ndim<=2,N<=40", "isolate": False}
    assert verify_norm.verify(tanh, op, **asked).ok
    forward, backward = verify_norm.verify(without_alpha, op, **asked)
    assert {(finding.check, finding.output) for finding in forward.findings} == {("accuracy", "y")}
    assert "dx" in {finding.output for finding in backward.findings}
    x, w, alpha = torch.randn(3, 8), torch.randn(8), torch.randn(1)
    verify_norm.assert_norm_close(tanh(x, w, alpha), op, x, w, alpha)
    with pytest.raises(
        AssertionError,
        match="a loose bound, by running error analysis of own:local_fwd's operations in float32, then one rounding",
    ):
        verify_norm.assert_norm_close(without_alpha(x, w, alpha), op, x, w, alpha)
    assert {*verify_norm.bound(f"{op.name}_bwd", x, x, w, alpha)} == {"dx", "dweight", "dalpha"}
    with pytest.raises(UsageError, match="own:f_fwd needs eps"):
        verify_norm.bound(user_operators.operator(f), x, w)


def test_a_module_whose_parameters_no_case_sets_is_refused():
    class Module(torch.nn.Module):
        def forward(self, x):
            return x

    op = user_operators.operator(lambda x, alpha: alpha * x, name="scaled", tensors={"alpha": "1"})
    with pytest.raises(UsageError, match="its alpha would not have the values of a case; expected a function"):
        verify_norm.verify(Module, op, isolate=False)
