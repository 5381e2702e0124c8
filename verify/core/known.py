"""Contracts as text, as --contract takes them: "llama,inplace=y:x"; and the weaker ones that libraries are known for.

A text has names for what libraries do, and fields with values. It changes these fields of the kernel's own contract;
the name "strict" sets all others back. A field wins over a name, a later name over an earlier one.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from verify_norm.core.contract import Contract
from verify_norm.core.contract_fields import make
from verify_norm.core.errors import UsageError, one_of
from verify_norm.core.op import Op
from verify_norm.core.ops import OPS

SHOW = "verify-norm show contracts"  # the command that explains them
STRICT: Mapping[str, Any] = asdict(Contract())
NEEDS = {  # what an operator has if a field is about it
    "weight_grad": "dweight",
    "offset_weight": "weight_offset",
    "z": "stages",  # any operation beside the norm
    "scale_floor": "y_scale",
    "e8m0": "y_scale",
    "packing": "y_scale",
}


@dataclass(frozen=True, slots=True)
class Known:
    """A weaker contract that is known: its fields as text, what it means, and whose it is."""

    fields: str
    words: str
    whose: str

    def of(self, own: Contract, op: Op) -> dict[str, Any] | None:
        """Return the fields that change a kernel's own contract so; None if they change nothing the operator has."""
        there = {tensor.name for tensor in (*op.inputs, *op.outputs)} | {*op.attrs}
        there |= {"stages"} if op.composed else set()
        given = {name: value for name, value in read(self.fields).items() if NEEDS.get(name, "x") in there | {"x"}}
        if "inplace" in given:
            pairs = [pair for pair in given["inplace"] if _sides(pair, (op,)) and pair not in own.inplace]
            given["inplace"] = (*own.inplace, *pairs)
        return {name: value for name, value in given.items() if value != getattr(own, name)} or None


NAMES = {
    "strict": Known("", "float32 throughout, one rounding at the end, the same bits in every run", "the default"),
    "llama": Known(
        "xhat=x,partials=x",
        "x̂ is rounded to the type of x before the weight, and so is each term of dweight",
        "LlamaRMSNorm of transformers",
    ),
    "vllm": Known(
        "residual=rounded,xhat=x,inplace=y:x+residual_out:residual",
        "the rounded sum is normalized, x̂ is rounded before the weight, both results overwrite inputs",
        "rms_norm and fused_add_rms_norm of vLLM, csrc/layernorm_kernels.cu",
    ),
    "vllm_quant": Known(
        f"xhat=x,z=x,scale_floor={1 / (448 * 512)!r},inplace=residual_out:residual",
        "x̂ and z are rounded, no scale is below 1/(448·512), the sum overwrites the residual",
        "rms_norm_dynamic_per_token_quant of vLLM to float8_e4m3fn, csrc/quantization/fused_kernels",
    ),
    "liger": Known(
        "residual=rounded,xhat=x,partials=x,inplace=dx:dy",
        'casting_mode "llama", the rounded sum is normalized, dx overwrites dy',
        "LigerRMSNorm and LigerFusedAddRMSNorm, by default",
    ),
    "apex": Known(
        "lanes=64",
        "16 blocks of 4 threads each sum the rows of dweight and dbias in float32",
        "FusedLayerNorm and FusedRMSNorm of apex, csrc/layer_norm_cuda_kernel.cu",
    ),
}
WEAKER = (  # one promise less each, first those that cost no accuracy; of one field, the weakest last
    Known("output=promoted", "y has the type that torch promotes x and weight to", "weight * x̂ in LlamaRMSNorm"),
    Known("deterministic=false", "sums over rows have another order in every run", "atomic additions of blocks"),
    Known("inplace=y:x", "y overwrites x", "rms_norm of inference engines, out=x"),
    Known("inplace=residual_out:residual", "residual_out overwrites residual", "fused additions, residual += x"),
    Known("inplace=residual_out:x", "residual_out overwrites x", "fused additions, x += residual"),
    Known("inplace=y:residual", "y overwrites residual", ""),
    Known("inplace=y:x+residual_out:residual", "both results overwrite inputs", "vLLM's fused_add_rms_norm"),
    Known("inplace=dx:dy", "dx overwrites dy", "Liger's in_place=True"),
    Known("inplace=dx:x", "dx overwrites x", ""),
    Known("inplace=dx:residual_out", "dx overwrites residual_out", ""),
    Known("inplace=dx:dresidual_out", "dx overwrites dresidual_out", ""),
    Known("output=float32", "y and dx are float32", "torch under autocast; apex's mixed norms with a float32 weight"),
    Known("output=float16", "y and dx are float16", "results for a matrix product in float16"),
    Known("output=bfloat16", "y and dx are bfloat16", "results for a matrix product in bfloat16"),
    Known("weight_grad=float32", "dweight and dbias are float32", "gradients that go on to float32 master weights"),
    Known("weight_grad=float16", "dweight and dbias are float16", "gradients of float32 weights in the type of x"),
    Known("weight_grad=bfloat16", "dweight and dbias are bfloat16", "gradients of float32 weights in the type of x"),
    Known("saturate=saturate", "a result beyond its type's largest number is that number", "casts with .satfinite"),
    Known(f"scale_floor={1 / (448 * 512)!r}", "no scale is below 1/(448·512)", "vLLM's float8_e4m3fn"),
    Known(
        f"scale_floor={1e-10 / 448!r}", "max |z| counts as 1e-10 at least, of float8_e4m3fn", "groups of SGLang, vLLM"
    ),
    Known(f"scale_floor={1e-10 / 127!r}", "max |z| counts as 1e-10 at least, of int8", "groups of SGLang and vLLM"),
    Known(f"scale_floor={1e-4 / 448!r}", "max |z| counts as 1e-4 at least, of float8_e4m3fn", "DeepGEMM"),
    Known(f"scale_floor={2.0**-23!r}", "no scale is below 2^-23", "vLLM's int8"),
    Known("e8m0=rceil", "the power of two of max |z|/L is rounded upwards", "PTX cvt.rp, torchao's RCEIL"),
    Known("e8m0=ceil", "the power of two of max |z| is rounded upwards", "torchao's CEIL"),
    Known("e8m0=even", "max |z| is rounded before its power of two is taken", "torchao's EVEN"),
    Known("packing=high", "the first of two numbers of 4 bits is in the upper half of their byte", ""),
    Known("lanes=32", "sums have 32 runs", "a warp; a matrix product of a CPU"),
    Known("lanes=8", "sums have 8 runs", "a vector register of a CPU"),
    Known("summation=atomic", "sums over rows are one running sum", "one addition a row to global memory"),
    Known("summation=atomic,deterministic=false", "every row is added by an atomic", "Liger's group_norm"),
    Known("summation=sequential", "every sum is one running sum", "batch_norm of torch's CPU; loops in C"),
    Known("variance=shifted", "the variance is E[d²] − E[d]², d = x − x[0]", "one-pass kernels with a shift"),
    Known("expanded=true", "(x − mean)·a + b is computed as x·a + (b − mean·a)", "torch's CPU and its group_norm"),
    Known(
        "expanded=true,summation=atomic",
        "(x − mean)·a + b is computed as x·a + (b − mean·a), and sums over rows are one running sum",
        "layer_norm of torch's CPU",
    ),
    Known("products=bf16x6", "sums are products of matrices in bfloat16, 6 for each", "tl.dot's bf16x6"),
    Known("products=tf32x3", "sums are products of matrices in TF32, 3 for each", "tl.dot's tf32x3; 3xTF32 of CUTLASS"),
    Known("products=bf16x3", "sums are products of matrices in bfloat16, 3 for each", "tl.dot's bf16x3"),
    Known(
        "products=tf32", "sums are products of matrices in TF32", "tl.dot of float32, unless input_precision says more"
    ),
    Known("products=bf16", "sums are products of matrices in bfloat16", "tl.dot of operands cast to bfloat16"),
    Known("residual=rounded", "the rounded sum is normalized", "vLLM's and Liger's fused_add_rms_norm"),
    Known("partials=x", "partial sums of dweight and dbias have the type of x", "llama's casting"),
    Known("offset_weight=weight", "weight + weight_offset is rounded to the type of weight", "1 + weight in bfloat16"),
    Known("xhat=x", "x̂ is rounded to the type of x before the weight", "Llama's RMSNorm"),
    Known("xhat=float16", "x̂ is rounded to float16 before the weight", ""),
    Known("xhat=bfloat16", "x̂ is rounded to bfloat16 before the weight", ""),
    Known(
        "xhat=x,offset_weight=weight", "x̂ and weight + weight_offset are rounded", "the first RMSNorm of gemma_pytorch"
    ),
    Known("z=x", "each result between two operations has the type of x", "modules of torch in turn"),
    Known("xhat=x,z=x", "x̂ and each result between two operations have the type of x", "vLLM's quantized norms"),
    Known("stats=x", "mean and rstd are saved in the type of x", "native_layer_norm of torch's CPU"),
    Known("stats=bfloat16", "mean and rstd are saved in bfloat16", ""),
    Known("stats=float16", "mean and rstd are saved in float16", ""),
)


def meanings() -> dict[str, str]:
    """Return what each field means, from the docstring of Contract.

    >>> meanings()["accumulate"]
    'type of every intermediate and every sum.'
    """
    entries = re.findall(r"^(\w+) : (.*(?:\n +.*)*)", inspect.cleandoc(Contract.__doc__ or ""), re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _sides(pair: str, ops: Iterable[Op] = OPS.values()) -> bool:
    """Return whether one of the operators has the output and the input of a pair."""
    output, _, given = pair.partition(":")
    return any(output in {t.name for t in op.outputs} and given in {t.name for t in op.inputs} for op in ops)


def read(text: str) -> dict[str, Any]:
    """Return the fields that a text changes; raises UsageError for what it does not understand, and what stands twice.

    >>> read("llama,inplace=y:x")
    {'xhat': 'x', 'partials': 'x', 'inplace': ('y:x',)}
    """
    named: dict[str, Any] = {}
    own: dict[str, Any] = {}
    seen: set[str] = set()
    for part in text.split(",") if text else ():
        name, equals, value = (side.strip() for side in part.partition("="))
        if equals:
            own |= _field(one_of("field of a contract", name, STRICT, see=SHOW), value)
        else:
            one_of("contract", name, [*NAMES, *(f"{field}=…" for field in STRICT)], see=SHOW)
            named |= STRICT if name == "strict" else read(NAMES[name].fields)
        if name in seen:
            also = "; pairs are joined by +" * (name == "inplace")
            raise UsageError(f"{name} stands twice in {text!r}{also}")
        seen.add(name)
    return named | own


def _field(name: str, text: str) -> dict[str, Any]:
    """Return a field with the value that its text stands for."""
    if name != "inplace":
        return {name: getattr(make({name: text}), name)}
    pairs = () if text == "none" else tuple(pair.strip() for pair in text.split("+"))
    if wrong := [pair for pair in pairs if not _sides(pair)]:
        outputs = "pairs of an output and an input that it may overwrite, such as y:x+residual_out:residual"
        raise UsageError(f"inplace: expected {outputs}, got {wrong[0]!r:.60}")
    return {name: pairs}


def checked(text: str) -> str:
    """Return the text, without spaces, if it can be read; raises UsageError as `read`."""
    read(text)
    return "".join(text.split())


def write(given: Mapping[str, Any]) -> str:
    """Return the text of these fields.

    >>> write({"inplace": ("y:x", "residual_out:residual"), "expanded": True, "xhat": None})
    'inplace=y:x+residual_out:residual,expanded=true,xhat=none'
    """
    return ",".join(f"{name}={_text(value)}" for name, value in given.items())


def _text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "+".join(map(str, value)) or "none"
    return str(value).lower()  # no field takes text with capitals


def whole(contract: Contract) -> str:
    """Return the text of a contract, whatever a kernel declares.

    >>> whole(Contract(xhat="x"))
    'strict,xhat=x'
    """
    return ",".join(filter(None, ("strict", write(changed(contract)))))


def overwritten(contract: Contract) -> list[tuple[str, str]]:
    """Return what a contract lets a kernel overwrite, as (output, argument).

    >>> overwritten(Contract(inplace=("dx:dy",)))
    [('dx', 'dy')]
    """
    return [(output, argument) for output, _, argument in (pair.partition(":") for pair in contract.inplace)]


def changed(contract: Contract) -> dict[str, Any]:
    """Return the fields in which a contract is not strict."""
    return {name: value for name, value in asdict(contract).items() if value != STRICT[name]}


def caution(fields: Mapping[str, Any]) -> str:
    """Return which kernels may not declare a contract that explains them, such as "; …"; "" where any may."""
    return "; a kernel without matrix products is wrong" if "products" in fields else ""


def doubtful(fields: Mapping[str, Any], dtypes: Iterable[str]) -> bool:
    """Return whether a contract comes after all others: of matrix products, where something was found in 16 bits alone.

    There they explain much of what a kernel without matrix products rounds in another way, such as Llama's dweight.

    >>> doubtful({"products": "tf32"}, ["bfloat16"]), doubtful({"products": "tf32"}, ["bfloat16", "float32"])
    (True, False)
    """
    return "products" in fields and "float32" not in dtypes


def declared(own: Contract, text: str, op: Op) -> Contract:
    """Return a kernel's own contract with the changes of a text, without pairs of `inplace` that the operator lacks."""
    made = make(asdict(own) | read(text))
    return replace(made, inplace=tuple(pair for pair in made.inplace if _sides(pair, (op,))))


def joined(texts: Iterable[str]) -> dict[str, Any]:
    """Return the fields of several texts together; their pairs of `inplace` are joined.

    >>> joined(["inplace=y:x,xhat=x", "inplace=residual_out:residual"])
    {'inplace': ('y:x', 'residual_out:residual'), 'xhat': 'x'}
    """
    found: dict[str, Any] = {}
    for given in map(read, texts):
        pairs = dict.fromkeys((*found.get("inplace", ()), *given.get("inplace", ())))
        found |= given | ({"inplace": tuple(pairs)} if pairs else {})
    return found
