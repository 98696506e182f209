"""Tools that measure and explain; only the command line imports them."""
