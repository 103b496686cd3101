"""What several rooms' tests share: another implementation of the schema to compare with."""

import importlib
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCHEMA = Path(__file__).parents[2] / "src" / "regraft" / "wire" / "regraft.proto"


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """A function from the name of a message to its class in Google's library."""
    target = tmp_path_factory.mktemp("schema") / "schema.bin"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{SCHEMA.parent}"]
    command += [f"--descriptor_set_out={target}", SCHEMA.name]
    subprocess.run(command, check=True, capture_output=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own affair
        descriptors = importlib.import_module("google.protobuf.descriptor_pb2")
        pools = importlib.import_module("google.protobuf.descriptor_pool")
        factory = importlib.import_module("google.protobuf.message_factory")
    pool = pools.DescriptorPool()
    for file in descriptors.FileDescriptorSet.FromString(target.read_bytes()).file:
        pool.Add(file)

    def message_class(name: str) -> Any:
        return factory.GetMessageClass(pool.FindMessageTypeByName(f"regraft.{name}"))

    return message_class
