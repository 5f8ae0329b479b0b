"""The one error a person can mend: it names what is wrong, the value, and the remedy."""


class UserError(ValueError):
    """Raised for what the caller can fix. The command line prints its text on one line and exits with code 2."""
