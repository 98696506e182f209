"""The errors a user can cause. Each message is one line: what, where, and what to do."""

from __future__ import annotations


def shown(value: object, most: int = 80) -> str:
    """A value within a message of one line: as Python writes it, cut after ``most`` characters."""
    if isinstance(value, str):
        return repr(value if len(value) <= most else value[: most - 3] + "...")
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python writes no integers of thousands of digits
        text = "a number of very many digits"
    return text if len(text) <= most else text[: most - 3] + "..."


class KVReuseError(Exception):
    """Base of every error that is the input's fault; the command line exits with 2."""


class ModelFileError(KVReuseError):
    """A model file that cannot be read, or does not say what it must."""


class ConfigError(KVReuseError, ValueError):
    """A setting that is out of range, or that this machine cannot honour."""


class RequestError(KVReuseError, ValueError):
    """A request that can never be served as it stands."""


class TraceError(KVReuseError, ValueError):
    """A trace of requests that cannot be read, or does not say what it must."""


class ContextLengthError(RequestError):
    """A prompt that is too long: for the context, or for the KV cache."""

    def __init__(self, message: str, limit: int) -> None:
        """``limit`` is how many tokens prompt and answer may have together."""
        super().__init__(message)
        self.limit = limit


class EngineClosedError(RequestError):
    """The engine serves nothing any more."""

    def __init__(self) -> None:
        super().__init__("the engine is closed: nothing is being served any more")


class EngineUseError(KVReuseError, RuntimeError):
    """An engine is used where it must not be: by a second thread, or behind a fork."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the engine cannot be used here: {reason}")
