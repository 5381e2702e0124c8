"""Tells which exceptions refuse a case in words, and what limit they speak of.

The words alone excuse nothing: `verify_norm.search.limits` compares the cases that raise with those that run.
"""

import re

from verify_norm.core.errors import one_line, quoted_cause

INTERPRETED = "Triton's interpreter has no such function"  # our own words, which no kernel is to blame for
NEEDS_GPU = re.compile(r"\b(cuda|gpu)\b|is_cuda|cpu tensor\?|active drivers", re.IGNORECASE)
KINDS = {  # what a limit may be about: the words for it
    "device": NEEDS_GPU.pattern,
    "rank": r"\b[1-6][- ]?d\b|dimension|\bndim|\.dim\(\)|\brank\b|len\(\w+\.(shape|size\(\))\)|values to unpack|matrix"
    r"|\((?-i:[A-Z])(, ?(?-i:[A-Z]))+\)",  # (B, T, H, D)
    "dtype": r"\b(d|data|scalar)? ?types?\b|float\d*|bfloat16|\bhalf\b|\b(fp|bf)\d+",
    "multiple": r"divisible|multiple|power of|align| % |\b(even|odd)\b",
    "size": r"size|shape|length|hidden|(?<![a-z])dims?\b|features|\brows?\b|\bcol(umn)?s?\b|elements?|values?\b"
    r"|channels?|\b(?-i:[MNC])\b|empty|numel",
    "layout": r"contiguous|strid|layout|memory.format|align",
    "none": r"\bNone\b|NoneType|required|requires|needs?\b|without",
    "eps": r"\beps(ilon)?\b",
    "rotary": r"rotar|rotat",
    "weight_offset": r"offset",
    "modulation": r"modulat|\bscale\b|\bshift\b",
}
REFUSES = re.compile(
    r"only|must|should|expect|require|need|support|not implemented|cannot|can't|at (most|least)|\btakes?\b|exceed|limit"
    r"|too (large|small|long|many|few)|maximum|invalid|allowed|has to|have to|without|\bnot\b|wrong|\bbad\b"
    r"|\b(compiled|built|instantiated|speciali[sz]ed) for\b|\bhandles?\b|\bno (kernel|code|implementation|instance)\b",
    re.IGNORECASE,
)
ANY = "any"  # a refusal by its type, whatever its words are: the cases tell which limit
DELIBERATE = (ValueError, TypeError, NotImplementedError, AssertionError, RuntimeError)
BARE = "AssertionError: assert "  # without words of its own: the line of code
ASSERTED = re.compile(r"\.(n?dim|dtype|shape|size|stride|is_contiguous|numel|is_cuda)\b| None\b")
UNWORDED = {"rank": "values to unpack", "none": "NoneType"}  # Python's own words for another shape, or for a None
# What pybind11 and nanobind say, before any code of the kernel runs, of a None for a tensor.
BOUND = re.compile(r"incompatible function arguments.*\bInvoked with\b.*\bNone(Type)?\b", re.DOTALL)
FAILS = re.compile(  # words of torch and CUDA for what goes wrong inside a kernel
    r"cuda error|cublas|illegal (memory|instruction)|out of (memory|range|bounds|resource)|internal assert|device-side"
    r"|must match the (size|existing)|view size|to view|invalid for input of size|mat1 and mat2|broadcast|singleton"
    r"|does not require grad|(inplace|in-place) operation|(positional|keyword) argument|on the same device"
    r"|returned an (invalid|incorrect)|could not run '",
    re.IGNORECASE,
)


def limits(error: BaseException, *, on_cpu: bool) -> tuple[str, ...]:
    """Return the kinds of limits that an exception of a kernel speaks of; none if it does not refuse the case.

    An exception states a limit if it is of a type that people raise on purpose, and its words are those of a refusal,
    or a bare `assert` about an argument. NotImplementedError refuses by its type. The errors of `x, y = t.shape`, of an
    attribute of None and of a None for a tensor in C++ count too, since they say what was expected. On a GPU an error
    about CUDA is a failure; torch's error about two sizes that do not match is one everywhere.

    >>> limits(ValueError("rms_norm supports only 2-D inputs"), on_cpu=True)
    ('rank',)
    >>> limits(ValueError("N must be a multiple of 8"), on_cpu=True)
    ('multiple', 'size')
    >>> limits(RuntimeError("CUDA error: misaligned address"), on_cpu=False), limits(IndexError("x"), on_cpu=True)
    ((), ())
    """
    message = one_line(error)
    about_device = NEEDS_GPU.search(message) is not None
    if FAILS.search(message) or (about_device and not on_cpu):
        return ()
    if isinstance(error, TypeError) and BOUND.search(str(error)):
        return ("none",)
    unworded = tuple(kind for kind, words in UNWORDED.items() if words in message)
    if unworded:
        return unworded
    cause = quoted_cause(error)
    if cause:
        deliberate = cause[0] in {kind.__name__ for kind in DELIBERATE}
        by_type = cause[0] == NotImplementedError.__name__
    else:
        deliberate, by_type = isinstance(error, DELIBERATE), isinstance(error, NotImplementedError)
    wording = ASSERTED if BARE in message else REFUSES
    refuses = by_type or (deliberate and wording.search(message))
    kinds = [kind for kind in spoken_of(message) if refuses or kind == "device"]
    return (*kinds, ANY) if by_type else tuple(kinds)


def spoken_of(text: str) -> list[str]:
    """Return the kinds of limits whose words are in a text.

    >>> spoken_of("Dimension out of range (expected to be in range of [-1, 0], but got -2)")
    ['rank']
    """
    return [kind for kind, words in KINDS.items() if re.search(words, text, re.IGNORECASE)]
