"""Runs a kernel that nobody trusts: truth and verdict stay in this process, which executes nothing of the kernel's.

`zygote` starts processes, `sandbox` takes their rights away, `worker` serves calls there; `arena` is the memory in which
the arguments lie, `wire` the channel of the answers, `runner` this side of it, and `loading` finds the kernel.
"""
