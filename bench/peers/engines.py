"""The engines to compare: a new one needs a line here, an adapter and a line in requirements/."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Peer:
    """``environment`` is a folder of ``.bench/peers``; None: the environment of this process."""

    title: str
    module: str
    environment: str | None = None

    @property
    def python(self) -> Path:
        """The interpreter that has the engine."""
        if self.environment is None:
            return Path(sys.executable)
        return ROOT / ".bench" / "peers" / self.environment / "bin" / "python"


PEERS = {
    "kvreuse": Peer("kvreuse", "peers.kvreuse_engine"),
    "llama.cpp": Peer("llama.cpp", "peers.llama_cpp_engine", "llama_cpp"),
    "openvino": Peer("OpenVINO GenAI", "peers.openvino_engine", "openvino_genai"),
}
"""The first is what the others are compared with."""
