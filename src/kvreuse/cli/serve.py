"""``kvreuse serve``: the OpenAI API over a model."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from kvreuse.cli import terminal
from kvreuse.cli.flags import Flag, FlagGroup, Model, with_flags
from kvreuse.cli.loading import engine_flags, loaded
from kvreuse.errors import ConfigError
from kvreuse.server.config import ServerConfig
from kvreuse.sizes import format_size

if TYPE_CHECKING:
    from kvreuse.llm import LLM

_SEVERAL = {
    "served_model_name": "NAME",
    "api_key": "KEY",
    "allow_origin": "ORIGIN",
    "allow_host": "HOST",
}
SERVER = FlagGroup(
    name="server",
    heading="Server",
    source=ServerConfig,
    special={
        "max_body_size": Flag(type=str, metavar="SIZE"),
        "api_key_file": Flag(metavar="FILE"),
        "request_log": Flag(metavar="FILE"),
        **{name: Flag(type=list[str], metavar=one) for name, one in _SEVERAL.items()},
    },
)
ENGINE = engine_flags()


@with_flags(SERVER, ENGINE)
def serve(
    model: Model,
    *,
    server: dict[str, Any],
    engine: dict[str, Any],
) -> None:
    """Serve a model over HTTP: OpenAI's API, vLLM's and llama.cpp's helpers, and the cache.

    \b
      kvreuse serve smollm2-135m
      kvreuse serve smollm2-135m --host 0.0.0.0 --api-key-file keys.txt
      kvreuse serve smollm2-135m --request-log requests.jsonl --max-queue 64
      curl localhost:8000/v1/completions -H 'Content-Type: application/json' \\
        -d '{"prompt": "Once upon a time", "max_tokens": 32}'

    Every answer says how much of its prompt was reused, and why no more, in its usage and in the
    header x-kvreuse-cache. The address itself shows the cache at work.
    """
    config = ServerConfig(**server)
    try:
        app = importlib.import_module("kvreuse.server.app")
        lifecycle = importlib.import_module("kvreuse.server.lifecycle")
    except ModuleNotFoundError as error:
        message = f"serving needs {error.name}: pip install 'kvreuse[server]'"
        raise ConfigError(message) from None
    config.check_files()
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    names = list(config.served_model_name) or [_name(model)]
    with lifecycle.listen(config) as bound, loaded(model, engine) as (llm, seconds):
        served = app.create_app(llm, config, names)

        def tell(port: int) -> None:
            _tell(llm, config, names, port, seconds)

        lifecycle.serve(served, config, bound, on_listening=tell)


def _name(model: str) -> str:
    """What clients call the model: a file's name without its folder and ending."""
    return Path(model).stem if model.endswith(".gguf") else model


def _tell(llm: LLM, config: ServerConfig, names: list[str], port: int, seconds: float) -> None:
    """Print the address, the model, and how many tokens and answers there is room for."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    pool, console = llm.pool, terminal.stderr()
    pages = terminal.plural(pool.num_pages, "page")
    where = Text.assemble(
        (terminal.one_line(names[0]), "bold"),
        " on ",
        (f"http://{host}:{port}", "bold cyan"),
        (f"  (loaded in {terminal.duration(seconds)}; Ctrl-C ends it)", "dim"),
    )
    room = Text(
        f"KV cache {format_size(pool.nbytes)}: {pool.num_tokens:,} tokens in {pages}; "
        f"up to {llm.config.max_num_seqs} answers at once, "
        f"{llm.engine.max_model_len:,} tokens each",
        "dim",
    )
    console.print(where, soft_wrap=True)
    console.print(room, soft_wrap=True)
    if not config.loopback and not config.keys():
        warning = f" anybody who reaches {host} can use the server: set --api-key-file"
        console.print(Text.assemble(("warning:", "yellow"), warning), soft_wrap=True)
