"""The options of a search, as text, as a list or as a value: read, and refused in words."""

import pytest
import torch
from pydantic import ValidationError

from verify_norm.core.check_names import CHECK_NAMES
from verify_norm.core.contract import Contract
from verify_norm.core.errors import UsageError
from verify_norm.core.known import whole
from verify_norm.core.settings import DEFAULTS, Seconds, Workers
from verify_norm.search import crew, options
from verify_norm.search.options import Options, flags


def refused(**given):
    with pytest.raises(UsageError) as caught:
        options.options(**given)
    return str(caught.value)


def test_the_help_has_the_usual_number_of_processes():
    assert f"1 on a CPU, at most {crew.USUAL['cuda']} on a GPU" in flags()["workers"].help
    assert crew.USUAL["cpu"] == 1


def test_the_least_value_of_a_quantity():
    assert (options.least(Seconds), options.least(Workers)) == (0.1, 1.0)
    assert isinstance(options.least(Workers), float)


@pytest.mark.parametrize(
    ("names", "parts"),
    [("a", ["a"]), (" a , b", ["a", "b"]), ("a,,b,", ["a", "b"]), ("", []), (("a, b", "c"), ["a, b", "c"])],
)
def test_names_are_separated_by_commas_or_are_a_list(names, parts):
    assert options.split(names) == parts


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"dtypes": "fp32,bf16"}, "dtypes", ("float32", "bfloat16")),
        ({"dtypes": ["half"]}, "dtypes", ("float16",)),
        ({"dtypes": torch.float16}, "dtypes", ("float16",)),
        ({"dtypes": (torch.bfloat16, "fp32")}, "dtypes", ("bfloat16", "float32")),
        ({"dtypes": (name for name in ["fp16"])}, "dtypes", ("float16",)),
        ({"checks": "accuracy, memory"}, "checks", ("accuracy", "memory")),
        ({"checks": ""}, "checks", ()),
        ({"contract": "xhat=x"}, "contract", "xhat=x"),
        ({"contract": None}, "contract", ""),
        ({"only": "ndim=2"}, "only", "ndim=2"),
        ({"only": None}, "only", ""),
        ({"examples": 0}, "examples", 0),
        ({"seconds": 3}, "seconds", 3.0),
        ({"workers": None}, "workers", None),
        ({"workers": 64}, "workers", 64),
        ({"timeout": None}, "timeout", None),
        ({"shapes": "all"}, "shapes", "all"),
    ],
)
def test_an_option_has_the_value_that_is_given(given, name, value):
    assert getattr(options.options(**given), name) == value


def test_a_contract_stands_for_all_of_its_fields():
    assert options.options(contract=Contract(xhat="x", lanes=4)).contract == whole(Contract(xhat="x", lanes=4))
    assert options.options(contract=" xhat = x ").contract == "xhat=x"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dtypes": "fp7"}, ["dtypes: unknown dtype 'fp7'", "float32"]),
        ({"dtypes": torch.int8}, ["dtypes: unknown dtype 'int8'"]),
        ({"dtypes": ","}, ["dtypes: ", "fp32, f32, bf16, fp16, half"]),
        ({"dtypes": ["fp32", 3]}, ['dtypes: expected a list of dtypes, such as ["fp32", "bf16"], got [\'fp32\', 3]']),
        ({"dtypes": 16}, ["dtypes: ", "got 16"]),
        ({"dtypes": None}, ["dtypes: ", "got None"]),
        ({"checks": "acuracy"}, ["checks: unknown check 'acuracy'", "accuracy", "verify-norm list"]),
        ({"checks": 3}, ['checks: expected a list of checks, such as ["accuracy"], got 3']),
        ({"contract": 3}, ['contract: expected a contract, such as "llama,inplace=y:x", got 3']),
        ({"contract": "lama"}, ["contract: unknown contract 'lama'", "llama"]),
        ({"contract": "xhat=q"}, ["contract: xhat: expected none, float64"]),
        ({"only": 3}, ["only: expected what the kernel takes, such as ", "got 3"]),
        ({"only": "N%8=9"}, ["only: cannot read 'N%8=9'"]),
        ({"examples": -1}, ["examples: expected a whole number, 0 or more, got -1"]),
        ({"seed": "x"}, ["seed: expected a whole number, 0 or more, got 'x'"]),
        ({"seconds": 0.09}, ["seconds: expected a number, 0.1 or more, got 0.09"]),
        ({"seconds": float("inf")}, ["seconds: expected a number, 0.1 or more, got inf"]),
        ({"workers": 65}, ["workers: expected a whole number from 1 to 64, got 65"]),
        ({"timeout": "soon"}, ["timeout: expected a number, 0.1 or more, got 'soon'"]),
        ({"device": 1}, ['device: expected "auto", "cpu", "cuda" or "cuda:N", got 1']),
        ({"shapes": "large"}, ["shapes: expected one of fuzz, models, all, got 'large'"]),
        ({"untrusted": 1}, ["untrusted: expected true or false, got 1"]),
        ({"exampels": 1}, ["unknown key 'exampels' (did you mean examples?)", "dtypes, checks"]),
        ({"examples": -1, "seed": -1}, ["examples: "]),
    ],
)
def test_a_wrong_option_is_refused_in_words(given, said):
    words = refused(**given)
    assert words.startswith(said[0])
    assert all(part in words for part in said)
    assert "\n" not in words


def test_a_long_value_is_shortened():
    assert refused(examples="x" * 500).endswith("got '" + "x" * 59)


def test_options_do_not_change():
    with pytest.raises(ValidationError):
        options.options().examples = 3


def test_each_option_has_a_flag_of_its_own():
    flags = options.flags()
    assert flags.keys() == Options.model_fields.keys()
    assert len({flag.name for flag in flags.values()}) == len(flags)
    assert flags["dtypes"].name == "--dtype"
    assert all(flag.name.startswith("--") and flag.help for flag in flags.values())


def test_each_check_and_the_defaults_are_options():
    assert options.options(checks=list(CHECK_NAMES)).checks == tuple(CHECK_NAMES)
    assert options.types(["fp32"]) == ("float32",)
    assert options.options().seconds == DEFAULTS.seconds


class Other:
    """A value of another library that is called as torch's are."""


Other.__name__ = "dtype"


def test_only_torchs_types_are_types():
    assert options._is_torch_dtype(torch.float32)
    assert not options._is_torch_dtype(Other())
    assert not options._is_torch_dtype(torch.Size((3,)))
    assert not options._is_torch_dtype("torch.float32")
    assert "got [<" in refused(dtypes=[Other()])
