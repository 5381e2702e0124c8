"""The audit: where a kernel loses accuracy, and what is to be blamed for it.

`moments` says how large a mean error and a bias rounding explains, `ulps` what the errors of every output are,
`ladders` how they grow with the data beside textbook algorithms (`textbook`), and `hunt` searches the worst cases,
which `corpus` keeps.
"""
