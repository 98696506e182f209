"""The operations of the forward pass: ``native`` serves them, ``reference`` is their twin."""
