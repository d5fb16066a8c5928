"""The fuzz target "api": calls the public API in any order with any objects.

One input is one *episode*. `World` (world.py) keeps a pool of live objects. Each step reads bytes
from the input to choose one of `OPERATIONS` and its arguments, and puts the result into the pool.
Arguments come mostly from the pool, sometimes from values.py or hostile.py. An episode ends with
its input. The same input gives the same episode, except for the moments at which `collect_always`
lets the garbage collector run.

The methods of hostile objects read the same input. They may run further steps, and so change,
empty or drop the objects that the running call works on.

After each call into tensorwire, `World.call` checks:

- An exception is documented (`is_documented`), or was raised by a hostile object.
- A DecodeError has numbers of the right types, and an offset within the body.
- A frame decodes again, by tensorwire and by support/reference.py, and has the names, datatypes,
  shapes and bytes of the message that was encoded (`check_frame`). A call in which a hostile
  object acted is exempt, because the message may have changed during the call.
- Every byte of a result can be read. AddressSanitizer reports reads out of bounds.

Some inputs are not generated, because no consumer can check them: Arrow arrays with wrong pointers
or buffer sizes; `ndarray.data = ...` and `ndarray.resize(refcheck=False)`, which free memory that
views refer to; and the invalid `str` objects that numpy creates from `U` elements beyond U+10FFFF.
Pickles are altered by calling the function that the pickle would call with other arguments, because
the bytes of a pickle can call anything.

`python -m fuzz.api --seed 1 --steps 100000` runs episodes of random bytes, and prints how to
reproduce a finding.
"""

from __future__ import annotations

from fuzz.api.episodes import api, episode, episode_bytes
from fuzz.api.world import OPERATIONS

__all__ = ["OPERATIONS", "api", "episode", "episode_bytes"]
