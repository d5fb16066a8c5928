"""The codec, which converts bytes to messages and back. `tensorwire` exports its public names."""
