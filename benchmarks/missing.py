"""Why something is not measured."""


class Missing(Exception):
    """A program is not installed here; the text says which."""


class Unsupported(Exception):
    """The contender has no way to do this, or it would take too long; the text says why."""
