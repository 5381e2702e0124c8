"""Numbers within a range: annotations that fields of cases and contracts have, read where a value is checked."""

import sys
from typing import Annotated

from annotated_types import Interval

LARGEST = sys.float_info.max
Finite = Annotated[float, Interval(ge=-LARGEST, le=LARGEST)]
Single = Annotated[float, Interval(ge=-LARGEST, le=LARGEST), "float32"]  # a number of float32
NotNegative = Annotated[float, Interval(ge=0, le=LARGEST)]
Positive = Annotated[int, Interval(ge=1)]
Exponent = Annotated[int, Interval(ge=-1074, le=1024)]  # of two: float64's smallest number to beyond its largest
Seed = Annotated[int, Interval(ge=0, le=2**64 - 1)]
