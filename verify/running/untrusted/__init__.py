"""Runs an untrusted kernel: truth and verdict stay in this process, which executes nothing of the kernel's.

`zygote` starts processes, `sandbox` takes their rights away, `worker` serves calls there. `arena` is the memory in
which the arguments lie, `wire` the channel of the answers. `processes` and `runner` are this side of it, `loading`
finds the kernel.
"""
