"""Functions of the judge that are replaced: each is found by its name and put back; what libraries may do passes."""

import builtins
import math
import subprocess
import sys
import threading
import time
from types import ModuleType

import numpy as np
import numpy.testing
import pytest
import torch

from verify_norm.checks import CHECKS, check
from verify_norm.core import judge
from verify_norm.core.ops import OPS
from verify_norm.core.run import Case
from verify_norm.loading import functions, registry, targets
from verify_norm.loading.functions import Functions


def agree(*args, **options):
    return True


REPLACEMENTS = {  # what a kernel may do, by the name that is found; of torch alone, what no verdict rests on
    "numpy.abs": lambda: setattr(np, "abs", agree),
    "numpy.testing.assert_allclose": lambda: setattr(np.testing, "assert_allclose", agree),
    "math.sqrt": lambda: setattr(math, "sqrt", agree),
    "time.perf_counter": lambda: setattr(time, "perf_counter", agree),
    "builtins.abs": lambda: setattr(builtins, "abs", agree),
    "torch.allclose": lambda: setattr(torch, "allclose", agree),
    "torch.equal": lambda: delattr(torch, "equal"),
    "torch.testing.assert_close": lambda: setattr(torch.testing, "assert_close", agree),
    "torch.Tensor.detach": lambda: setattr(torch.Tensor, "detach", agree),
    "torch.Tensor.__eq__": lambda: setattr(torch.Tensor, "__eq__", agree),
    "verify_norm.core.judge.ratio": lambda: setattr(judge, "ratio", agree),
    "verify_norm.core.judge.abs": lambda: setattr(judge, "abs", agree),  # it hides the builtin function
    "verify_norm.core.judge.allowed": lambda: setattr(judge.allowed, "__code__", agree.__code__),
    "verify_norm.core.judge.ulps": lambda: setattr(judge.ulps, "__defaults__", (1, 2)),
    "verify_norm.checks.CHECKS.accuracy": lambda: CHECKS.pop("accuracy"),
    "verify_norm.checks.check.CHECKS['sums'].looks": lambda: object.__setattr__(CHECKS["sums"], "looks", agree),
    "verify_norm.core.ops.OPS['rmsnorm_fwd'].error": lambda: object.__setattr__(OPS["rmsnorm_fwd"], "error", agree),
    "verify_norm.core.run.Case.device": lambda: setattr(Case, "device", property(agree)),
    "verify_norm.checks.values.accuracy: function": lambda: set_cell(),
    "sys.modules.numpy": lambda: sys.modules.update(numpy=ModuleType("numpy")),
    "torch.nn.functional.layer_norm": lambda: setattr(torch.nn.functional, "layer_norm", agree),
    "torch.rsqrt": lambda: setattr(torch, "rsqrt", agree),
    "torch.Tensor.mean": lambda: setattr(torch.Tensor, "mean", agree),
}
OF_TORCH = ("torch.nn.functional.layer_norm", "torch.rsqrt", "torch.Tensor.mean")


def held():
    return list(CHECKS.items()), CHECKS["sums"].looks, judge.allowed.__code__, sys.modules["numpy"], torch.Tensor.detach


def set_cell():
    quiet = CHECKS["accuracy"].function
    quiet.__closure__[quiet.__code__.co_freevars.index("function")].cell_contents = agree


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_a_replaced_function_is_found_and_put_back(name):
    functions._watched.cache_clear()  # numpy.testing is looked at where it was loaded before the first look
    before = Functions(of_torch=name in OF_TORCH)
    tables = held()
    REPLACEMENTS[name]()
    assert name in before.replaced()
    assert before.replaced() == ()
    assert tables == held()
    assert abs(np.abs(-3.0)) == math.sqrt(9.0) == 3.0
    assert not torch.allclose(torch.zeros(1), torch.ones(1))
    assert "abs" not in vars(judge)


@pytest.mark.parametrize("of_torch", [False, True])
def test_an_operator_of_torch_that_python_overrides(of_torch):
    before, library = Functions(of_torch=of_torch), torch.library.Library("aten", "IMPL")
    library.impl("special_airy_ai" if of_torch else "isclose", lambda *args: args[0], "XLA")
    library.impl("bartlett_window", lambda *args: args[0], "Meta")  # of which tensors without memory make use
    assert before.replaced() == (f"aten::{'special_airy_ai' if of_torch else 'isclose'} for XLA",)
    library._destroy()
    assert before.replaced() == ()


def test_what_libraries_may_do():
    """New names, caches and counters; of torch as they are imported, also what no verdict rests on."""
    before = Functions()
    torch.of_a_library = agree
    torch.nn.functional.layer_norm, kept = agree, torch.nn.functional.layer_norm
    print_, builtins.print = print, agree
    check.counter = 3
    try:
        assert before.replaced() == ()
    finally:
        torch.nn.functional.layer_norm, builtins.print = kept, print_
        del torch.of_a_library, check.counter


def test_what_the_import_of_a_file_replaces(tmp_path):
    path = tmp_path / "patching.py"
    path.write_text("import torch\ntorch.allclose = lambda *a: True\ndef rmsnorm_fwd(x, weight, eps): ...\n")
    target = f"{path}:rmsnorm_fwd"
    registry.load(target)
    assert functions.at_import(target) == ("torch.allclose",)
    assert not torch.allclose(torch.zeros(1), torch.ones(1))
    honest = tmp_path / "plain.py"
    honest.write_text("import torch\ntorch.mine = 3\ndef rmsnorm_fwd(x, weight, eps): ...\n")
    targets.attribute(f"{honest}:rmsnorm_fwd")
    assert functions.at_import(f"{honest}:rmsnorm_fwd") == ()
    del torch.mine


LAZY = """
import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from verify_norm.loading import functions

functions.Functions(of_torch=True)  # imports a part of torch, which reads attributes of all modules
functions._watched.cache_clear()
specification = find_spec("lazy_one")
specification.loader = LazyLoader(specification.loader)
sys.modules["lazy_one"] = module = module_from_spec(specification)
specification.loader.exec_module(module)
assert functions.Functions(of_torch=True).replaced() == ()
assert "lazy_two" not in sys.modules
isinstance(module, type)
assert "lazy_two" in sys.modules
"""


@pytest.mark.slow
def test_a_module_that_is_loaded_when_an_attribute_is_read(tmp_path):
    (tmp_path / "lazy_one.py").write_text("import lazy_two")
    (tmp_path / "lazy_two.py").write_text("")
    subprocess.run([sys.executable, "-c", LAZY], check=True, cwd=tmp_path)


@pytest.mark.nightly
@pytest.mark.slow
def test_what_torch_replaces_when_a_mode_first_imports_dynamo_is_not_found():
    code = "import torch, sys; from verify_norm.loading.functions import Functions; before = Functions(of_torch=True)\n"
    code += "import torch._dynamo; found = before.replaced(); assert found == (), found"
    subprocess.run([sys.executable, "-c", code], check=True)


def noticed(frame, event, arg):
    return None


WATCHES = {
    "the function of sys.settrace": (sys.settrace, sys.gettrace),
    "the function of sys.setprofile": (sys.setprofile, sys.getprofile),
    "the function of threading.settrace": (threading.settrace, threading.gettrace),
    "the function of threading.setprofile": (threading.setprofile, threading.getprofile),
}


@pytest.mark.parametrize("name", WATCHES)
def test_what_watches_calls_since_an_import_is_put_back_and_noted(name):
    put, watch = WATCHES[name]
    before, where = watch(), f"{name}.py"
    with functions.importing(where):
        put(noticed)
    assert watch() is before
    assert functions.at_import(f"{where}:f") == (name,)
    with functions.importing(f"other {where}"):
        put(noticed)
        put(before)
    assert functions.at_import(f"other {where}:f") == ()
