"""Gives Python's statements in a kernel the meaning that Triton's compiler gives them.

Triton's interpreter runs a kernel as Python. What the compiler turns into operations on typed scalars then stays
Python's: the variable of a loop is an int without a type, `and` looks at one truth value for a whole array, a branch
`1.0 if c else 0.0` gives a float that takes the type of its other operand. `Transformer` rewrites these statements into
calls of the functions below, which follow `visit_For`, `visit_BoolOp`, … of triton/compiler/code_generator.py.

What stays: a variable that changes its type in a loop or a branch is an error of the compiler, and none here.
"""

import ast
import builtins
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from verify_norm.running.refusals import INTERPRETED

SPINS = 1000  # of a loop that waits; more than an addition at each spin may need
NAME = "verify_norm_syntax"  # this module, among the globals of a kernel


class Transformer(ast.NodeTransformer):
    """Rewrites a kernel; it replaces Triton's own, which rewrites assignments to one name only."""

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        """Turn the numbers that are assigned into typed scalars; raises ValueError for a = b = c, like the compiler."""
        if len(node.targets) > 1:
            raise ValueError("Multiple assignments are not supported")
        self.generic_visit(node)
        node.value = _call("assigned", node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Ignore an annotation, as the compiler does, but for constexpr."""
        if node.value is None or ast.unparse(node.annotation).endswith("constexpr"):
            return self.generic_visit(node)
        return self.visit_Assign(ast.Assign([node.target], node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.Assign:
        """Turn `a += b` into `a = a + b`."""
        read = ast.parse(ast.unparse(node.target), mode="eval").body
        return self.visit_Assign(ast.Assign([node.target], ast.BinOp(read, node.op, node.value)))

    def visit_For(self, node: ast.For) -> ast.AST:
        """Give the variable of a loop over `range` its type."""
        self.generic_visit(node)
        if isinstance(node.iter, ast.Call):
            node.iter = _call("called", node.iter.func, *node.iter.args, keywords=node.iter.keywords)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Let `min` and `max` be Triton's, where the kernel's module has none of its own."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
            return _call("called", node.func, *node.args, keywords=node.keywords)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        """Refuse the truth value of an array."""
        self.generic_visit(node)
        node.test = _call("truth", node.test)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        """Refuse the truth value of an array; let a loop without a body wait no longer than other programs can help."""
        test = node.test
        takes = any(_takes(call) for call in ast.walk(test) if isinstance(call, ast.Call))
        self.generic_visit(node)
        if all(isinstance(step, ast.Pass) for step in node.body) and not node.orelse:
            return ast.copy_location(ast.Expr(_call("waited", _later(node.test), ast.Constant(takes))), test)
        node.test = _call("truth", node.test)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Type the value of `a if c else b`, where c is no constant."""
        self.generic_visit(node)
        return _call("chosen", node.test, _later(node.body), _later(node.orelse))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Combine arrays element by element."""
        self.generic_visit(node)
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        return _call("joined", ast.Constant(name), *(_later(value) for value in node.values))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """Negate arrays element by element."""
        self.generic_visit(node)
        return _call("negated", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Leave assertions out: a kernel is compiled without them."""
        return ast.Pass()


def _takes(call: ast.Call) -> bool:
    """Return whether a call may take a lock: an exchange, or a comparison with another number than it stores."""
    name, given = ast.unparse(call.func).rpartition(".")[2], [ast.unparse(value) for value in call.args[1:3]]
    return name == "atomic_xchg" or (name == "atomic_cas" and len({*given}) != 1)


def _call(name: str, *arguments: ast.expr, keywords: list[ast.keyword] | None = None) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(NAME, ast.Load()), name, ast.Load()), [*arguments], keywords or [])


def _later(value: ast.expr) -> ast.Lambda:
    none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(none, value)


def _triton() -> tuple[Any, Any]:
    from triton import language
    from triton.runtime import interpreter

    return language, interpreter


def assigned(value: Any) -> Any:
    """Return a number as a scalar of the type that the compiler gives it; in a tuple, each of them."""
    if type(value) is tuple:
        return tuple(map(assigned, value))
    return _triton()[1].interpreter_semantic.to_tensor(value, False)


def called(function: Any, *arguments: Any, **options: Any) -> Any:
    """Call a function: Python's range, min and max are Triton's in a kernel."""
    if function is builtins.range:
        return induction(*arguments)
    constant = not any(_is_tensor(argument) for argument in arguments)
    if function not in (builtins.min, builtins.max) or constant or len(arguments) < 2:
        return function(*arguments, **options)
    language = _triton()[0]
    combine = language.minimum if function is builtins.min else language.maximum
    result, *rest = arguments
    for other in rest:
        result = combine(result, other)
    return result


def induction(arg1: Any, arg2: Any = None, step: Any = None, **_: Any) -> Iterator[Any]:
    """Yield the values of a loop's variable, in the type that start, end and step have together.

    Raises TypeError if one is no integer, ValueError if a step that is no constant is not positive: compiled, the loop
    would not end, or not begin.
    """
    language, interpreter = _triton()
    semantic = interpreter.interpreter_semantic
    given = (0, arg1, 1 if step is None else step) if arg2 is None else (arg1, arg2, 1 if step is None else step)
    bounds = [semantic.to_tensor(bound) for bound in given]
    if not all(bound.dtype.is_int() for bound in bounds):
        raise TypeError(f"For loop bounds and step must all be ints, are {[str(bound.dtype) for bound in bounds]}")
    kind = semantic.integer_promote_impl(
        semantic.integer_promote_impl(bounds[0].dtype, bounds[1].dtype), bounds[2].dtype
    )
    first, last, stride = (int(semantic.cast(bound, kind).handle.data.item()) for bound in bounds)
    if stride <= 0 and _is_tensor(given[2]):
        if first >= last:
            return
        raise ValueError(
            f"the step {stride} of a loop from {first} to {last} is no constant: compiled, it does not end"
        )
    form = interpreter._get_np_dtype(kind)
    for number in range(first, last, stride):
        yield language.tensor(interpreter.TensorHandle(np.array([number], form), kind), kind)


def truth(value: Any) -> Any:
    """Return a condition; raises ValueError for an array of more than one element."""
    if _is_tensor(value) and value.handle.data.size != 1:
        raise ValueError("Boolean value of Tensor with more than one value is ambiguous")
    return value


def waited(condition: Callable[[], Any], takes: bool) -> None:
    """Wait until a condition no longer holds: here one program runs after another, and none runs while one waits.

    Raises RuntimeError if it goes on to hold and no later program can change that: all are over, or it `takes` a lock.
    Otherwise raises NotImplementedError: on a GPU the later programs run at the same time.
    """
    for _ in range(SPINS):
        if not truth(condition()):
            return
    builder = _triton()[1].interpreter_builder
    if takes or all(at == size - 1 for at, size in zip(builder.grid_idx, builder.grid_dim, strict=True)):
        raise RuntimeError("deadlock: no other program ends the wait, for example by the release of a lock,")
    raise NotImplementedError(f"a program that waits for later ones needs a GPU: {INTERPRETED}")


def chosen(condition: Any, body: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
    """Return `body() if condition else orelse()`, typed if the condition is known only when the kernel runs."""
    value = body() if truth(condition) else orelse()
    return assigned(value) if _is_tensor(condition) else value


def joined(name: str, *operands: Callable[[], Any]) -> Any:
    """Return the logical_and or logical_or of operands: of arrays element by element, and none is left out."""
    tensors, value = [], None
    for operand in operands:
        value = operand()
        if _is_tensor(value):
            tensors.append(value)
        elif bool(value) is (name == "logical_or"):
            return value
    while len(tensors) > 1:
        right, left = tensors.pop(), tensors.pop()
        tensors.append(getattr(left, name)(right))
    return tensors[0] if tensors else value


def negated(value: Any) -> Any:
    """Return `not value`: of an array element by element."""
    return value.__not__() if _is_tensor(value) else not value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, _triton()[0].tensor)
