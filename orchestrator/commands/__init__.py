"""One file a command; `cli.py` only declares their arguments."""
