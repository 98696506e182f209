"""Values within messages."""

from __future__ import annotations

import numpy as np

from kvreuse.errors import shown


def test_values_are_shown_on_one_line_of_bounded_length() -> None:
    assert shown("a\nb") == "'a\\nb'"
    assert shown(3) == "3"
    assert shown("x" * 81) == "'" + "x" * 77 + "...'"
    assert shown("x" * 80) == "'" + "x" * 80 + "'"
    assert shown(list(range(100)), 20) == "[0, 1, 2, 3, 4, 5..."
    assert shown(10**5000) == "a number of very many digits"
    assert "\n" not in shown(np.eye(2))
