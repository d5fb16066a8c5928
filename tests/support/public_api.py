"""The modules whose names users rely on."""

from __future__ import annotations

import tensorwire as tw
from tensorwire import client, grpc, server
from tensorwire.integrations import kserve, mlserver, tritonclient

INTEGRATIONS = (kserve, mlserver, tritonclient)
MODULES = (tw, client, grpc, server, *INTEGRATIONS)
