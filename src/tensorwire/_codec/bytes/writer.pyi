import numpy as np
from numpy.typing import NDArray

def are_exact(values: NDArray[np.object_]) -> bool: ...
