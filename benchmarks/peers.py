"""PEERS that live in environments of their own, and are measured there by its interpreter."""

from __future__ import annotations

from .contender import Contender

PEERS: dict[str, Contender] = {}
