"""Takes many kernels through blocks of cases, in many processes, and keeps the outcomes in one file."""
