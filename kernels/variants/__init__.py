"""Other algorithms for the same operators, as published texts have them."""
