"""What nobody should type, in all interfaces: one line each, the right exit status, no traceback, no file changed."""

import json
import os
import pickle
import sys
from functools import partial
from pathlib import Path

import pytest

import verify_norm
from verify_norm import UsageError
from verify_norm.cli.app import main

pytest_plugins = ["pytester"]

HEAD = "import verify_norm\n"
BODY = "def rmsnorm_fwd(x, weight, eps): return x\n"


def declared(**options):
    words = ", ".join(f"{name}={value}" for name, value in options.items())
    return f"{HEAD}@verify_norm.kernel(op='rmsnorm_fwd', {words})\n{BODY}"


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("BOOM",)


FILES = {
    "good.py": BODY,
    "syntax.py": "def f(:\n",
    "raises.py": "raise ValueError('a [red]b[/] :smile:\\nc')\n",
    "exits.py": "raise SystemExit(0)\n",
    "base.py": "class Odd(BaseException): pass\nraise Odd('no')\n",
    "null.py": "x = 1\0\n",
    "latin.py": "# coding: nonsense\n",
    "empty.py": "",
    "number.py": "rmsnorm_fwd = 3\n",
    "class.py": "class rmsnorm_fwd: pass\n",
    "strange.py": "def rmsnorm_fwd(foo, bar): return foo\n",
    "unsupported.py": declared(unsupported=3),
    "contract.py": declared(contract={"xhat": "x"}),
    "field.py": declared(contract="verify_norm.Contract(xhat='q')"),
    "bind.py": declared(bind=3),
    "only.py": declared(only=3),
    "clause.py": declared(only="'N%0=8'"),
    "op.py": f"{HEAD}@verify_norm.kernel(op='rmsnrm_fwd')\n{BODY}",
    "runs.py": f"{HEAD}{BODY}verify_norm.audit(rmsnorm_fwd)\n",
    "command.py": f"{BODY}from verify_norm.cli.app import main\nmain()\n",
    "torn.json": '{\n"kernel": "k',
    "emptylist.json": "[]",
    "empty.json": "",
    "null.json": "null",
    "deep.json": "[" * 20000,
    "other.json": '{"a": 1}',
    "newer.json": '{"schema": 99, "kernel": "k"}',
    "leaves.py": f"import os\nos._exit(0)\n{BODY}",
    "getattr.py": "def __getattr__(name):\n    raise OSError('not [red]here[/]')\n",
    "signature.py": "class Norm:\n    @property\n    def __signature__(self):\n        raise RuntimeError('none')\n"
    "    def __call__(self, x, weight, eps):\n        return x\nrmsnorm_fwd = Norm()\n",
    "mute.py": "class Mute:\n    def __repr__(self):\n        raise RuntimeError('no text')\n"
    "def rmsnorm_fwd(x, weight, eps, mode=Mute()):\n    return x\n",
    "method.py": "class Norm:\n    def fwd(self, x, weight, eps):\n        return x\n",
    "frozen.py": "import torch\nclass Frozen(torch.nn.Module):\n    def __init__(self, num_features, eps=1e-5):\n"
    "        super().__init__()\n        for n in ('weight', 'bias', 'running_mean', 'running_var'):\n"
    "            self.register_buffer(n, torch.ones(num_features))\n        self.eps = eps\n"
    "    def forward(self, x):\n        return x\n",
    "wrong.json": '{"schema": 1, "kernel": 3}',
    "digits.json": "1" * 6000,
    "pickle.json": pickle.dumps(Bomb()),
    "utf16.json": "{}".encode("utf-16"),
    "binary.jsonl": b"\xff\x00",
    "spec.jsonl": '{"kernel": "k"}\n',
    "text.txt": "my notes\n",
    "page.html": "my page\n",
    "plan.toml": "kernels = 3\n",
    "notes.md": "# my notes\n",
}
KERNELS = [  # what --kernel names, what is said
    ("'\"", "unknown kernel"),
    ("a\nb", r"unknown kernel 'a\nb'"),
    ("[red]x[/]", "--kernel [red]x[/]: no kernel matches"),
    ("[/]:f", "--kernel [/]:f: no file matches"),
    (":smile:", ":smile cannot be imported"),
    ("x" * 4000, "unknown kernel 'xxxx"),
    ("\u202egnp.exe", r"unknown kernel '\u202egnp"),
    ("\x1b[2J:f", r"--kernel \u001b[2J:f: no file matches"),
    ("\udcff", r"unknown kernel '\udcff'"),
    ("layernrm_bwd", "did you mean layernorm_bwd"),
    ("good.rmsnorm_fwd", "unknown kernel 'good.rmsnorm_fwd': expected path/file.py:fn or package.module:fn"),
    ("folder.py/", "unknown kernel 'folder.py/': expected path/file.py:fn or package.module:fn"),
    ("good.py::rmsnorm_fwd", "'good.py::rmsnorm_fwd' names no attribute; expected path/file.py:fn"),
    ("none.py:f", "no file none.py"),
    ("folder.py:f", "no file folder.py"),
    ("/dev/null:f", "cannot be imported"),
    ("no.such:f", "no.such cannot be imported: ModuleNotFoundError"),
    ("builtins:print", "cannot infer the op from the name 'print'"),
    ("os.path:join.x", "os.path:join has no 'x'"),
    ("good.py:rmsnorm", "good.py has no 'rmsnorm'; its callables are: rmsnorm_fwd"),
    ("syntax.py:f", "syntax.py cannot be imported: SyntaxError"),
    ("raises.py:f", "ValueError: a [red]b[/] :smile: (raises.py, line 1)"),
    ("text.txt:f", "text.txt is no .py file"),
    ("exits.py:f", "exits.py cannot be imported: SystemExit: 0"),
    ("base.py:f", "base.py cannot be imported: Odd: no"),
    ("leaves.py:rmsnorm_fwd", "leaves.py cannot be imported: SystemExit: 0 (leaves.py, line 2)"),
    ("getattr.py:f", "getattr.py raises OSError: not [red]here[/] when it is looked at (getattr.py, line 2)"),
    ("signature.py:rmsnorm_fwd", "raises RuntimeError: none when it is looked at (signature.py, line 4)"),
    ("mute.py:rmsnorm_fwd", "raises RuntimeError: no text when it is looked at (mute.py, line 3)"),
    ("null.py:f", "null.py cannot be imported"),
    ("latin.py:f", "latin.py cannot be imported"),
    ("empty.py:rmsnorm_fwd", "its callables are: none"),
    ("number.py:rmsnorm_fwd", "expected a callable, got 3"),
    ("class.py:rmsnorm_fwd", "is a class, but neither an nn.Module nor"),
    ("strange.py:rmsnorm_fwd", "rmsnorm_fwd"),
    ("unsupported.py:rmsnorm_fwd", "unsupported: expected a function of a case, got 3"),
    ("contract.py:rmsnorm_fwd", "contract: expected a verify_norm.Contract, got {'xhat': 'x'}"),
    ("field.py:rmsnorm_fwd", "contract: xhat: expected none, float64"),
    ("bind.py:rmsnorm_fwd", "bind: expected a text"),
    ("only.py:rmsnorm_fwd", "only: expected a text, as --only takes it, got 3"),
    ("clause.py:rmsnorm_fwd", "N%0=8"),
    ("op.py:rmsnorm_fwd", "unknown op 'rmsnrm_fwd' (did you mean rmsnorm_fwd"),
    ("runs.py:rmsnorm_fwd", "runs.py, line 3 starts a run while runs.py is imported; put it under `if __name__"),
    ("torch.nn.functional:rms_norm.x", "has no 'x'"),
]
K = ("--kernel", "rmsnorm_fwd", "--device", "cpu")
OPTIONS = [  # after K
    (("--op", "rmsnorm_fw"), "unknown op 'rmsnorm_fw' (did you mean rmsnorm_fwd"),
    (("--op", "rmsnorm_fwd", "--op=rmsnorm_bwd"), "--op stands for rmsnorm_fwd and for rmsnorm_bwd: expected one"),
    (("--op", "RMSNorm"), "unknown op 'RMSNorm' (did you mean rmsnorm"),
    (("--op", "layernorm_fwd"), "rmsnorm_fwd is a kernel for rmsnorm_fwd, not for layernorm_fwd"),
    (("--bind", "[/]"), "cannot parse --bind '[/]'"),
    (("--bind", "q=x"), "q"),
    (("--bind", "x=x,x=y"), "--bind 'x=x,x=y': expected each name once, got x twice"),
    (("--bind", "-> y,y"), "--bind '-> y,y': expected each name once, got y twice"),
    (("--bind", "eps=-1"), "--bind eps=-1: eps: expected a finite number of 0 or more, got -1"),
    (("--bind", "eps=1e-6", "--only", "eps=1e-5"), "only: found no case that meets both eps=1e-05 and eps=1e-06"),
    (("--bind", "-> z"), "rmsnorm_fwd has no z; it has y, rstd"),
    (("--only", "N>=1000000000000"), "only: found no case of at most 2^38 elements that meets N>=1000000000000"),
    (("--only", "ndim=0"), "cannot read 'ndim=0'"),
    (("--only", "normalized_ndim<=0"), "cannot read 'normalized_ndim<=0'"),
    (("--only", "eps=nan"), "cannot read 'eps=nan'"),
    (("--only", "N%8=9"), "cannot read 'N%8=9'"),
    (("--only", "dtype=int8"), "unknown dtype 'int8'"),
    (("--dtype", "fp32", "--only", "dtype=bf16"), "rmsnorm_fwd takes bfloat16, and the run asks for float32"),
    (("--only", "ndim=2,weight,ndim=3"), "only: found no case that meets both ndim=2 and ndim=3"),
    (("--op", "rmsnorm | layernorm"), "rmsnorm and layernorm are two norms"),
    (("--op", "rmsnorm | add"), "add stands behind rmsnorm: a chain begins with add or its one norm"),
    (("--op", "rmsnorm(weight_offset=nan)"), "expected a number for weight_offset, got 'nan'"),
    (("--contract", "xhat=x,xhat=float32"), "xhat stands twice"),
    (("--contract", "deterministic=maybe"), "deterministic: expected true or false, got 'maybe'"),
    (("--in-process", "--untrusted"), "--untrusted and --in-process: choose one of them"),
    (("--contract", "lama"), "did you mean llama?); verify-norm show contracts shows all"),
    (("--contract", "xhat=:smile:"), "xhat: expected none, float64"),
    (("--contract", "xhat=" + "x" * 4000), "xhat: expected none, float64"),
    (("--contract", "inplace=y:q"), "inplace: expected pairs"),
    (("--contract", "lanes=nan"), "lanes: expected a whole number of 1 or more"),
    (("--checks", "acuracy"), "unknown check 'acuracy' (did you mean accuracy?); verify-norm list shows all"),
    (("--checks", "\u202e"), r"unknown check '\u202e'; verify-norm list"),
    (("--dtype", "fp7"), "unknown dtype 'fp7'"),
    (("--dtype", ","), "dtypes: expected at least one dtype"),
    (("--device", "tpu"), "unknown device 'tpu'"),
    (("--device", "cuda:-1"), "unknown device 'cuda:-1'"),
    (("--shapes", "[red]"), "shapes: expected one of fuzz, models, all, got '[red]'"),
    (("--seconds", "nan"), "'--seconds'"),
    (("--seconds", "inf"), "seconds: expected a number, 0.1 or more, got inf"),
    (("--seconds", "-1"), "'--seconds'"),
    (("--seconds", "soon"), "'--seconds'"),
    (("--timeout", "nan"), "'--timeout'"),
    (("--timeout", "0"), "'--timeout'"),
    (("--examples", "-1"), "'--examples'"),
    (("--examples", "1.5"), "'--examples'"),
    (("--seed", "-1"), "'--seed'"),
    (("--seed", ""), "'--seed'"),
    (("--worker", "-1"), "'--worker'"),
    *[(("--workers", number), "'--workers'") for number in ("0", "-1", "65", "1.5", "many")],
    (("--sanitize", "mem"), "unknown tool 'mem'"),
    (("--kernal", "x"), "--kernal"),
    (("more",), "more"),
    (("--corpus", "none.jsonl"), "there is no corpus none.jsonl; verify-norm hunt --corpus none.jsonl writes one"),
    (("--corpus", "binary.jsonl"), "cannot read the corpus binary.jsonl"),
    (("--corpus", "pickle.json"), "cannot read the corpus pickle.json"),
    (("--corpus", "spec.jsonl"), "line 1 of the corpus spec.jsonl: the spec has no 'shape'"),
    (("--corpus", "text.txt"), "line 1 of the corpus text.txt: cannot parse"),
    (("--corpus", "folder.py"), "Is a directory"),
    (("--baseline", "none.json"), "there is no baseline none.json"),
    (("--baseline", "folder.py"), "Is a directory"),
    (("--baseline", "/proc/self/mem"), "cannot read /proc/self/mem"),
    (("--json", "good.py"), "cannot write good.py: it is a file of something else; remove it, or name another"),
    (("--json", "text.txt"), "cannot write text.txt: it is a file of something else"),
    (("--json", "spec.jsonl"), "cannot write spec.jsonl: it is a file of something else"),
    (("--json", "folder.py"), "cannot write folder.py: it is a folder"),
    (("--json", "no/such/r.json"), "no writable folder"),
    (("--json", "/proc/r.json"), "cannot write /proc/r.json: no "),
    (("--json", "good.py/r.json"), "cannot write good.py/r.json: Not a directory"),
    (("--json", "r" * 300), "File name too long"),
    (("--json", "loop"), "cannot write loop: Too many levels of symbolic links"),
    (("--json", "socket"), "cannot write socket: it is a socket"),
    (("--json", "to_good"), "cannot write to_good: it is a file of something else"),
    (("--html", "a\0b"), "cannot write a\\u0000b: embedded null byte"),
    (("--html", "page.html"), "cannot write page.html: it is a file of something else"),
    (("--html", "good.py"), "cannot write good.py: it is a file of something else"),
    (("--junit", "good.py"), "cannot write good.py: it is a file of something else"),
    (("--junit", "no/such/r.xml"), "no writable folder"),
    (("--json", "-", "--html", "-"), "--json and --html are both -"),
    (("--json", "-", "--junit", "-"), "--json and --junit are both -"),
    (("--json", "new", "--html", "./new"), "are both"),
]
BASELINES = ["torn", "emptylist", "empty", "null", "deep", "other", "newer", "wrong", "digits", "pickle", "utf16"]
SPECS = [  # fields of a replay line beside or instead of the kernel and a shape, what is said
    ({"shap": [2]}, "unknown field of the spec 'shap' (did you mean shape"),
    ({"shape": []}, "shape: expected one or more sizes"),
    ({"shape": [-1]}, "none negative"),
    ({"shape": [0.5]}, "shape.0"),
    ({"shape": [True]}, "shape.0"),
    ({"shape": [10**30]}, "shape"),
    ({"shape": [2**40, 2**40]}, "at most 2**36 elements"),
    ({"shape": None}, "shape"),
    ({"shape": "x" * 4000}, "shape"),
    ({"eps": -1}, "eps: expected a finite number of 0 or more"),
    ({"eps": float("nan")}, "eps: expected a finite number"),
    ({"offset": float("inf")}, "offset: expected a finite number"),
    ({"log2_scale": 10**6}, "log2_scale: expected a whole number from -1074 to 1024"),
    ({"seed": 2**64}, "seed: expected a whole number"),
    ({"batch": -1}, "batch"),
    ({"momentum": 2}, "momentum: expected a finite number from 0 to 1"),
    ({"dtype": "int8"}, "unknown dtype 'int8'"),
    ({"dtype": 3}, "dtype"),
    ({"frozen": ["q"]}, "unknown frozen input 'q'"),
    ({"further": ["q"]}, "unknown further run 'q'"),
    ({"data": "\u202e[red]"}, r"unknown data family '\u202e[red]'"),
    ({"x_layout": "\udcff"}, "the spec: "),
    ({"normalized_ndim": 5}, "normalized_ndim: expected 1 to the rank of x"),
    ({"num_groups": 2}, "does not fit rmsnorm_fwd, which has no num_groups"),
    ({"shap": [2]}, "unknown field of the spec 'shap' (did you mean shape"),
    ({"kernel": 3}, "the spec's kernel: expected a name, got 3"),
    ({"kernel": "[red]\n"}, r"unknown kernel '[red]\n'"),
    ({"op": [3]}, "the spec's op: expected a name"),
]
COMMANDS = [
    (("replay", "{"), "cannot parse the spec as JSON"),
    (("replay", "[" * 100000), "cannot parse the spec as JSON"),
    (("replay", "3"), "the spec: expected an object"),
    (("replay", '{"shape": [2]}'), "the spec has no 'kernel'"),
    (("replay", "1" * 5000), "cannot parse the spec as JSON"),
    (("replay",), "replay: expected SPEC, got none; SPEC is: The JSON of a replay line"),
    (("same", "rmsnorm_fwd"), "same: expected B, got none; B is: Kernel B, of the same operator"),
    (("list", "rmsnorm"), "list: expected 0 arguments, got rmsnorm too"),
    (("prove", "good.py:f"), "prove: expected 0 arguments, got good.py:f too; a kernel is given as --kernel"),
    (("audit", "good.py:f"), "audit: expected --kernel, got none; Kernel: a name (see list), "),
    (("good.py:f",), "unknown command 'good.py:f': a kernel is given as --kernel good.py:f"),
    (("campaign", "status"), "campaign status: expected FILE, got none; FILE is: The store of a campaign"),
    (("show", "layernorm_bw"), "did you mean layernorm_bwd"),
    (("show", ":smile:[/]"), ":smile cannot be imported"),
    (("schema", "reprot"), "unknown kind of document 'reprot' (did you mean report?)"),
    (("certify", "[red]"), "unknown operator '[red]'"),
    (("zoo", "no such"), "no example's name begins with no such"),
    (("zoo", "--against", "pytroch", "U08"), "unknown policy 'pytroch'; there are: tutorial"),
    (("zoo", "--jobs", "-1"), "'--jobs'"),
    (("hunt", *K, "--output", "z"), "unknown output 'z'; there are: y, rstd"),
    (("hunt", *K, "--corpus", "text.txt"), "line 1 of the corpus text.txt"),
    (("hunt", *K, "--json", "good.py"), "cannot write good.py"),
    (("hunt", *K, "--json", "a.jsonl", "--corpus", "./a.jsonl"), "are both"),
    (("audit", *K, "--html", "page.html"), "cannot write page.html"),
    (("audit", *K, "-k", "layernorm_fwd"), "audit: expected one --kernel, got rmsnorm_fwd, layernorm_fwd; run it once"),
    (("hunt", "-k", "a.py:f", "--kernel=b.py:f"), "hunt: expected one --kernel, got a.py:f, b.py:f"),
    (("exhaust", *K, *K, "--eps", "nan"), "eps: expected a finite number"),
    (("power", *K, "--json", "text.txt"), "cannot write text.txt"),
    (("same", "rmsnorm_fwd", "layernorm_fwd", "--device", "cpu"), "layernorm_fwd"),
    (("same", "rmsnorm_fwd", "[/]", "--device", "cpu"), "unknown kernel '[/]'"),
    (("gradcheck", "torch:sin", "--shapes", "x=4yy"), "--shapes: cannot parse"),
    (("gradcheck", "torch:sin", "--dtype", "fp7"), "unknown dtype 'fp7'"),
    (("gradcheck", "good.py:none"), "good.py has no 'none'"),
    (("compare", "none.json", "none.json"), "cannot read none.json: No such file"),
    (("compare", "a\0b", "none.json"), "cannot read"),
    (("compare", "a.json", "b.json", "--json", "b.json"), "cannot write b.json: the command reads it"),
    (("compare", "a.json", "b.json", "--markdown", "notes.md"), "cannot write notes.md"),
    (("compare", "a.json", "b.json", "--markdown", "-", "--json", "-"), "are both -"),
    (("campaign",), "expected a plan, such as verify-norm campaign plan.toml, or --kernel"),
    (("campaign", "none.toml"), "plan none.toml: No such file"),
    (("campaign", "text.txt"), "plan text.txt: not a plan in TOML"),
    (("campaign", "plan.toml"), "kernels: expected a list of kernels, such as"),
    (("campaign", "status", "text.txt"), "text.txt is no store of a campaign"),
    (("campaign", "report", "none.db"), "there is no store none.db"),
    (("campaign", "run", *K[:2]), "--store: expected a file for the outcomes"),
    (("merge", "text.txt", "--into", "x.db"), "text.txt is no store of a campaign"),
    (("exhaust", *K, "--space", "rows3"), "unknown space 'rows3' (did you mean rows4 or rows2?)"),
    (("exhaust", *K, "--dtype", "fp32"), "take --dtype bf16 or fp16, or --space rows4"),
    (("exhaust", *K, "--eps", "nan"), "eps: expected a finite number of 0 or more, got nan"),
    (("exhaust", *K, "--items", "5:2"), "--items: expected FIRST:LAST with 0 <= FIRST < LAST"),
    (("exhaust", *K, "--resume", "text.txt"), "cannot write text.txt"),
    (("exhaust", *K), "--seconds N runs as many as it can in this time"),
    (("prove",), "expected either --kernel K or --check FILE"),
    (("prove", *K[:2], "--n", "1e3"), "--n '1e3': expected lengths of a row, such as 4096 or 1000,4096"),
    (("prove", *K[:2], "--n", "0"), "--n 0: expected 3 to"),
    (("prove", *K[:2], "--dtype", ""), "expected at least one dtype of fp32, "),
    (("prove", *K[:2], "--dtype", ","), "expected at least one dtype of fp32, "),
    (("prove", *K[:2], "--n", ","), "--n: expected at least one length of a row, such as 4096, got none"),
    (("prove", "--check", "emptylist.json"), "expected a list of certificates, as verify-norm prove --json writes it"),
    (("prove", *K[:2], "--eps", "inf"), "eps: expected a finite number of 0 or more, got inf"),
    (("prove", *K[:2], "--weight-offset", "nan"), "weight_offset: expected a finite number, got nan"),
    (("prove", "--check", "none.json"), "none.json: expected a file of certificates: No such file or directory"),
    (("prove", "--check", "other.json"), "expected a list of certificates, as verify-norm prove --json writes it"),
    (("gradcheck", "torch:sin", "--shapes", "x=4x99999999999999"), "x=4x99999999999999 does not fit into memory"),
    (("gradcheck", "torch:sin", "--shapes", "x=9999999999999x9999999999999"), "does not fit into memory"),
    (("gradcheck", "torch.nn:Linear"), "for tensors pass --shapes in_features=4x64"),
    (("certify", "rmsnorm | sliu"), "unknown stage 'sliu' (did you mean silu?)"),
    ((*K, "--op", "rmsnorm | "), "expected stages as in 'add | rmsnorm(weight_offset=1) | modulate'"),
    ((*K, "--only", "x"), "unknown clause of --only 'x'; there are: ndim"),
    ((*K, "--certificate", "none.json"), "none.json: expected a file of certificates: No such file or directory"),
    (("--kernel", "torch:sin"), "say it with --op layernorm_fwd, or --op layernorm for both directions"),
    (("--kernel", "method.py:Norm.fwd", "--op", "rmsnorm_fwd"), "instance, such as norm = Norm(…), norm.fwd"),
    (("--kernel", "frozen.py:Frozen", "--op", "batchnorm_fwd"), "--only training=false if it never trains"),
    (("nonsense",), "nonsense"),
    (("--seed", "1"), "expected a kernel, such as --kernel layernorm_bwd"),
]
CONFIGS = [  # the text of a pyproject.toml, what is said
    ("[tool.verify-norm", "cannot parse TOML"),
    ("[tool]\nverify-norm = 3", "expected a table, [tool.verify-norm], got 3"),
    ("exampels = 3", "unknown key 'exampels' (did you mean examples"),
    ("examples = -1", "examples: expected a whole number, 0 or more, got -1"),
    ("examples = 1.5", "examples: expected a whole number"),
    ("examples = true", "examples: expected a whole number"),
    ("seconds = nan", "seconds: expected a number, 0.1 or more"),
    ("seconds = inf", "seconds: expected a number, 0.1 or more"),
    ("seed = 1979-05-27", "seed: expected a whole number"),
    ("dtypes = [3]", "dtypes: expected a list of dtypes"),
    ("dtypes = ['[red]']", "unknown dtype '[red]'"),
    ("checks = ['\\u202e']", r"unknown check '\\u202e'"),
    ("contract = {xhat = 'x'}", "contract: expected a contract"),
    ("contract = 'lama'", "unknown contract 'lama'"),
    ("baseline = ''", "baseline: expected the path of a file"),
    ("baseline = 'none.json'", "there is no baseline"),
    ("corpus = 'none.jsonl'", "there is no corpus"),
    ("html = 'page.html'", "it is a file of something else"),
    ("hunt = 3", "hunt: expected a table"),
    ("compare = {share = -1}", "share: expected"),
]
AUDIT = partial(verify_norm.audit, device="cpu")
EXHAUST, NAN = partial(verify_norm.exhaust, "rmsnorm_fwd", device="cpu"), float("nan")
SPEC = '{"kernel": "k", "shape": [2, 8]}'
CALLS = [  # calls in Python, what they say
    (partial(AUDIT, 3), "expected a callable, or its name as 'path/file.py:fn', got 3"),
    (partial(AUDIT, "rmsnorm_fwd", isolate="no"), "isolate: expected True or False, got 'no'"),
    (partial(verify_norm.kernel, print), "kernel: expected the name of an operator, as @verify_norm.kernel(op="),
    (partial(AUDIT, "\0:f"), "cannot be imported"),
    (partial(AUDIT, "rmsnorm_fwd", dtypes=[3]), "dtypes: expected a list of dtypes"),
    (partial(AUDIT, "rmsnorm_fwd", checks=3), "checks: expected a list of checks"),
    (partial(AUDIT, "rmsnorm_fwd", contract={"xhat": "x"}), "contract: expected a contract"),
    (partial(AUDIT, "rmsnorm_fwd", contract=verify_norm.Contract(xhat="q")), "contract: xhat: expected none"),
    (partial(AUDIT, "rmsnorm_fwd", seconds=float("nan")), "seconds: expected a number"),
    (partial(AUDIT, "rmsnorm_fwd", examples="9"), "examples: expected a whole number"),
    (partial(AUDIT, "rmsnorm_fwd", workers=0), "workers: expected a whole number from 1 to 64, got 0"),
    (partial(AUDIT, "rmsnorm_fwd", corpus="a\0b"), "there is no corpus"),
    (partial(verify_norm.replay, "rmsnorm_fwd", "{"), "cannot parse the spec as JSON"),
    (partial(verify_norm.replay, "rmsnorm_fwd", verify_norm.CaseSpec((-1,))), "none negative"),
    (partial(AUDIT, "rmsnorm_fwd", op=3), "op: expected a text, got 3"),
    (partial(AUDIT, "rmsnorm_fwd", bind={"x": "y"}), "bind: expected a text, got {'x': 'y'}"),
    (partial(AUDIT, "rmsnorm_fwd", certificate=3), "certificate: expected a text, got 3"),
    (partial(verify_norm.chain, 3), "stage: expected a text, got 3"),
    (partial(verify_norm.replay, "rmsnorm_fwd", {"shape": [2]}), "spec: expected the JSON of a replay line, or a Case"),
    (partial(verify_norm.same, "rmsnorm_fwd", "rmsnorm_fwd", replay=3), "replay: expected a text, got 3"),
    (partial(EXHAUST, items=5), "items: expected a text, got 5"),
    (partial(EXHAUST, eps="a"), "eps: expected a finite number of 0 or more, got 'a'"),
    *[(partial(EXHAUST, seconds=n), f"seconds: expected a number, 0.1 or more, got {n!r}") for n in (-1, NAN, "a")],
    (partial(verify_norm.run_campaign, None, "s.db"), "plan: expected the path of a plan, or its keys, got None"),
    (partial(verify_norm.run_campaign, {}, 3), "store: expected a text, got 3"),
    (partial(verify_norm.run_campaign, {}, "s.db", shard=3), "shard: expected a text, got 3"),
    (partial(verify_norm.run_campaign, {}, "s.db", jobs=0), "jobs: expected a whole number, 1 or more, got 0"),
    (partial(verify_norm.run_campaign, {}, "s.db", jobs=1.5), "jobs: expected a whole number, 1 or more, got 1.5"),
    (partial(verify_norm.run_campaign, {}, "s.db", stop_after=-1), "stop_after: expected a number, 0.1 or more"),
    (partial(verify_norm.reward, 3), "kernel: expected a text, got 3"),
    (partial(verify_norm.reward, "rmsnorm_fwd", 3), "op: expected a text, got 3"),
    (partial(verify_norm.same, "rmsnorm_fwd", "nothing", device="cpu"), "unknown kernel 'nothing'"),
    (partial(verify_norm.same, "rmsnorm_fwd", "layernorm_fwd", replay=SPEC, device="cpu"), "layernorm_fwd"),
]
PYTEST = [
    (("--norm-examples=-1",), "examples: expected a whole number, 0 or more, got -1"),
    (("--norm-seconds=nan",), "seconds: expected a number, 0.1 or more, got nan"),
    (("--norm-workers=0",), "workers: expected a whole number from 1 to 64, got 0"),
    (("--norm-dtype=fp7",), "unknown dtype 'fp7'"),
    (("--norm-device=tpu",), "unknown device 'tpu'; there are: cpu, cuda, cuda:N"),
    (("--norm-only=x",), "unknown clause of --only 'x'"),
    (("--norm-certificate=none.json",), "expected a file of certificates: No such file"),
    (("--norm-contract=lama",), "did you mean llama"),
    (("--norm-report=no/such/r.json",), "no writable folder"),
    (("--norm-report=good.py",), "cannot write good.py: it is a file of something else"),
]
MARKS = [
    ({}, (), "expected functions, or names such as 'package.module:attr', got none"),
    ({}, (3,), "expected functions, or names such as 'package.module:attr', got 3"),
    ({"expected_failures": "accuracy"}, ("k:a",), """expected as {"accuracy": "why it fails"}, got 'accuracy'"""),
    ({"expected_failures": ["accuracy"]}, ("k:a",), """expected as {"accuracy": "why it fails"}, got ['accuracy']"""),
    ({"contract": "lama"}, ("k",), "unknown contract 'lama'"),
    ({"expected_failures": {"acuracy": "why"}}, ("k",), "unknown check 'acuracy' (did you mean accuracy?)"),
]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Work in a folder of hostile files, none of which may change."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, content in FILES.items():
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    Path("folder.py").mkdir()
    Path("loop").symlink_to("loop")
    Path("to_good").symlink_to("good.py")
    os.mknod("socket", 0o140644)
    before = contents(tmp_path)
    yield
    assert contents(tmp_path) == before


def contents(folder):
    """Return what is in a folder: the bytes of files, None of others."""
    return {path.name: path.read_bytes() if path.is_file() else None for path in folder.iterdir()}


def refused(arguments, said, monkeypatch, capsys):
    """Run a command line; expect one line, which says this, and the status of a usage error."""
    monkeypatch.setattr(sys, "argv", ["verify-norm", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    notes = (f"verify-norm {verify_norm.__version__}: ", "verify-norm: defaults of ")
    lines = [line for line in printed.err.splitlines() if not line.startswith(notes)]
    assert ended.value.code == 2, printed.err
    assert len(lines) == 1, printed.err
    assert said in lines[0]
    assert lines[0].isprintable()
    assert len(lines[0]) < 2100
    assert printed.out == ""


ROWS = [
    *((("--kernel", name, "--device", "cpu"), said) for name, said in KERNELS),
    *(((*K, *options), said) for options, said in OPTIONS),
    *(((*K, "--baseline", f"{name}.json"), f"{name}.json: not a") for name in BASELINES if name != "newer"),
    ((*K, "--baseline", "newer.json"), "a newer verify-norm wrote it"),
    *((("replay", json.dumps({"kernel": "rmsnorm_fwd", "shape": [2, 8]} | spec)), said) for spec, said in SPECS),
    *COMMANDS,
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "said"), ROWS, ids=map(str, range(len(ROWS))))
def test_the_command_line_refuses_in_one_line(arguments, said, monkeypatch, capsys):
    refused(arguments, said, monkeypatch, capsys)


@pytest.mark.parametrize(("text", "said"), CONFIGS, ids=map(str, range(len(CONFIGS))))
def test_a_table_of_defaults_is_refused_in_one_line(text, said, monkeypatch, capsys, tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    table = text if text.startswith("[") else f"[tool.verify-norm]\n{text}"
    (folder / "pyproject.toml").write_text(table, encoding="utf-8")
    (folder / "page.html").write_text("my page")
    monkeypatch.chdir(folder)
    refused(K, said, monkeypatch, capsys)


@pytest.mark.parametrize(("call", "said"), CALLS, ids=map(str, range(len(CALLS))))
def test_python_raises_a_usage_error(call, said):
    with pytest.raises(UsageError) as caught:
        call()
    assert said in str(caught.value)


@pytest.mark.parametrize(("options", "said"), PYTEST, ids=map(str, range(len(PYTEST))))
def test_pytest_refuses_its_options_before_it_collects(options, said, pytester):
    Path("good.py").write_text(BODY)
    ended = pytester.runpytest_inprocess(*options)
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in ended.errlines if line]
    assert len(lines) == 1
    assert said in lines[0]
    assert Path("good.py").read_text() == BODY


@pytest.mark.parametrize(("options", "targets", "said"), MARKS, ids=map(str, range(len(MARKS))))
def test_a_wrong_mark_is_a_value_error(options, targets, said):
    with pytest.raises(ValueError, match="parametrize_checks: ") as caught:
        verify_norm.parametrize_checks(*targets, **options)
    assert said in str(caught.value)
