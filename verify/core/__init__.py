"""The nouns of the tool: specs, formats, operators, results, and their JSON. Loads no torch."""
