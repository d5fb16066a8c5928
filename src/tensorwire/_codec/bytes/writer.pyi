import numpy as np
from numpy.typing import NDArray

def all_plain(values: NDArray[np.object_]) -> bool: ...
