"""Which pages that nobody uses go first."""
