"""Other people's programs on this codec: each module has ``install()`` and ``uninstall()``."""
