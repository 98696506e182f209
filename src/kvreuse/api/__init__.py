"""What a user says and what a user gets: plain values, without an engine."""
