"""Tables in Markdown that grow row by row, and the flags that say on which server they are measured."""

import argparse
from collections.abc import Iterable
from typing import Any

from simulator import Scenario

__all__ = ["Row", "add_server", "print_table", "server_of"]

Row = tuple[str, ...]
SERVER = ("model", "tensor_parallel_size", "gpu", "kv_cache_dtype")


def print_table(rows: Iterable[Row]) -> None:
    """Print rows as they come; the first has the names of the columns."""
    for number, row in enumerate(rows):
        print("| " + " | ".join(row) + " |", flush=True)
        if number == 0:
            print("|" + " --- |" * len(row), flush=True)


def add_server(parser: argparse.ArgumentParser, model: str, gpu: str, kv_cache_dtype: str = "auto") -> None:
    """Flags of the server, and what it is without them."""
    parser.add_argument("--model", default=model)
    parser.add_argument("-tp", "--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--gpu", default=gpu)
    parser.add_argument("--kv-cache-dtype", default=kv_cache_dtype)


def server_of(arguments: argparse.Namespace, **traffic: Any) -> Scenario:
    """The server that was asked for, with this traffic."""
    return Scenario(**{name: getattr(arguments, name) for name in SERVER}, **traffic)
