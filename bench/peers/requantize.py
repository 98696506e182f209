"""A GGUF file in Q4_0, for which llama.cpp and OpenVINO have their fastest kernels.

    PYTHONPATH=bench .bench/peers/llama_cpp/bin/python -m peers.requantize IN.gguf OUT.gguf

Quantising what was quantised loses quality: this is for figures of speed only.
"""

from __future__ import annotations

import ctypes
import sys

import llama_cpp


def main() -> int:
    """Write the file; the exit status."""
    if len(sys.argv) != 3:
        print("usage: python -m peers.requantize IN.gguf OUT.gguf", file=sys.stderr)
        return 2
    source, target = (name.encode() for name in sys.argv[1:])
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(source, target, ctypes.byref(params)):
        print(f"error: {sys.argv[1]} could not be quantised to Q4_0", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
