"""What all tests share: the real model, and a run for each instruction set and each codec."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvreuse.config import KV_CACHE_DTYPES
from kvreuse.ops import native

from . import real_models
from .isa_tally import IsaTally
from .kv_codecs import REAL_CODECS
from .model.gguf.gguf_files import write_tiny


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The real model's file; fetched into the user's models folder where it is not there yet."""
    return real_models.default_model()


@pytest.fixture(scope="module")
def real_model(request: pytest.FixtureRequest, model_path: Path) -> Path:
    """A real model's file. A test that takes it runs on the default one, and with ``--real-models``
    on every other that lies in a folder of models."""
    return model_path if request.param is None else real_models.others_here()[request.param]


@pytest.fixture(scope="module", params=KV_CACHE_DTYPES)
def codec(request: pytest.FixtureRequest) -> str:
    """The name of a codec of keys and values; a test that takes it runs once per codec."""
    return str(request.param)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 3 layers, 3 query heads to a KV head of 64 channels, and random weights."""
    path: Path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return write_tiny(path, layers=3, head_dim=64, heads=6, kv_heads=2, vocab=2048, context=2048)


@pytest.fixture(scope="module")
def codec_model(model_path: Path, tiny_model: Path, codec: str) -> Path:
    """The model to test a codec with: the real one for ``bf16``, and for ``auto``, which has planes
    of every codec; a tiny one is enough for the others."""
    return model_path if codec in REAL_CODECS else tiny_model


@pytest.fixture
def isa(request: pytest.FixtureRequest) -> str:
    """The name of one instruction-set path; a test that takes it runs once per path of this CPU."""
    return str(request.param)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-isas",
        action="store_true",
        help="fail where an instruction-set path that this CPU has was not tested",
    )
    parser.addoption(
        "--real-models",
        action="store_true",
        help="test all real models that are here, not the default one only: minutes more",
    )


def pytest_configure(config: pytest.Config) -> None:
    tally = IsaTally(all_isas=config.getoption("--all-isas"))
    config.pluginmanager.register(tally, "isa-tally")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", native.available_isas(), indirect=True)
    if "real_model" in metafunc.fixturenames:
        others = real_models.others_here() if metafunc.config.getoption("--real-models") else {}
        metafunc.parametrize(
            "real_model",
            [None, *others],
            indirect=True,
            ids=lambda name: name or "default",
            scope="module",
        )
