"""What README.md shows of Python runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.S | re.M)


PRINTED = ["The capital of France is ->", '{"name": "', "tokens reused: 1"]


@pytest.mark.parametrize(("example", "printed"), list(zip(EXAMPLES, PRINTED, strict=True)))
def test_the_python_examples_run(
    example: str, printed: str, model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert model_path.exists()  # the example names it
    exec(compile(example, README.name, "exec"), {})
    assert printed in capsys.readouterr().out
