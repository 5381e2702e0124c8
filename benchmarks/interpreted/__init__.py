"""Small programs over what norm kernels use, which `interpreter.py` compares; nothing here imports verify_norm."""

from . import elementwise, reductions, statements

PROGRAMS = [*elementwise.PROGRAMS, *statements.PROGRAMS, *reductions.PROGRAMS]
