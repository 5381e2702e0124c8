"""A ladder in words: where it leaves its bound, why it ends, and which textbook algorithms its errors resemble."""

from verify_norm.auditing.model import Ladder, Rung
from verify_norm.core.case_words import count
from verify_norm.core.errors import alternatives
from verify_norm.report.numbers import step
from verify_norm.report.words import sentence

ALGORITHMS = {
    "two_pass": "two-pass",
    "one_pass": "one-pass",
    "shifted_one_pass": "shifted one-pass",
    "welford": "Welford",
}


def algorithm(name: str) -> str:
    """Return a textbook algorithm's name, as it is written in prose."""
    return ALGORITHMS.get(name, name)


def likeness(ladder: Ladder) -> str:
    """Return a sentence on the algorithms that the kernel's errors resemble; "" where there is no algorithm."""
    names = [algorithm(name) for name in ladder.like]
    if len(names) == 1:
        return f"Like {names[0]}."
    if names and set(ladder.like) == {name for rung in ladder.rungs for name in rung.textbook}:
        return "Like all of these: this data does not tell them apart."
    if names:
        return f"Like {alternatives(names)}: this data does not tell them apart."
    return "Like none of these." if any(rung.textbook for rung in ladder.rungs) else ""


def unjudged(rung: Rung) -> bool:
    """Return whether no bound applies to the errors of a step."""
    return rung.ratio == 0 and rung.error_ulp != 0


def climb(ladder: Ladder) -> str:
    """Return whether and where a ladder exceeds its bound, and why it ends."""
    unbounded = [rung for rung in ladder.rungs if unjudged(rung)]
    words = []
    if ladder.first_over is not None:
        words.append(f"Over its bound first at {ladder.unit} {step(ladder.first_over)}.")
    elif len(unbounded) < len(ladder.rungs):
        words.append("Within its bound at every step that has one." if unbounded else "Within its bound at every step.")
    if unbounded:
        words.append(f"No bound applies at {count(len(unbounded), 'step')}, first at {step(unbounded[0].value)}.")
    words.append(likeness(ladder))
    if ladder.stopped:
        words.append(f"It ends early: {sentence(ladder.stopped)}")
    return " ".join(filter(None, words))
