"""The modules whose names users rely on."""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType

import tensorwire as tw
from tensorwire import client, grpc, server
from tensorwire.integrations import kserve, mlserver, tritonclient
from tensorwire.server import wsgi

INTEGRATIONS = (kserve, mlserver, tritonclient)
MODULES: tuple[ModuleType, ...] = (tw, client, grpc, server, wsgi, *INTEGRATIONS)

with suppress(ImportError):  # Starlette is not installed
    from tensorwire.server import starlette

    MODULES += (starlette,)
