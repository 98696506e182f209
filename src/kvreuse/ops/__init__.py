"""The operations of the forward pass: ``native`` serves them, ``reference`` says what they compute."""
