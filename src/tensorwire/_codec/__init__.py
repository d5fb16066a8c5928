"""The codec: bytes to messages and back. Private; `tensorwire` exports its public names."""
