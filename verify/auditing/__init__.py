"""Shows where a kernel loses accuracy, and which arithmetic it really uses.

`survey` reports the errors of every output, `ladders` how errors grow with the data next to `textbook` algorithms,
`fingerprint` infers the arithmetic from the outputs, and `hunt` searches for the worst inputs.
"""
