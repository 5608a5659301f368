"""A local server that answers as S3 does, but slowly and with errors, and shards of generated images for it."""

import io
import os
import random
import socket
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

LATENCY, FAILING = 0.05, 0.01
BUCKET = "scale"


def serve(port: int) -> None:
    """Answer as S3 does, but slowly, and now and then with an error."""
    from moto.server import DomainDispatcherApplication, create_backend_app  # pyright: ignore[reportMissingImports]
    from werkzeug.serving import run_simple

    inner, dice = DomainDispatcherApplication(create_backend_app), random.Random(0)

    def application(environment: dict[str, Any], begin: Any) -> Any:
        if environment.get("HTTP_X_MAKING") is None and environment["REQUEST_METHOD"] in ("GET", "HEAD"):
            time.sleep(LATENCY)
            if os.path.exists(os.environ["FAULTS"]) and dice.random() < FAILING:
                begin("503 Slow Down", [("Content-Type", "text/plain"), ("Content-Length", "0")])
                return [b""]
        return inner(environment, begin)

    run_simple("127.0.0.1", port, application, threaded=True)


def make(folder: Path, count: int, shards: int) -> None:
    """Write the images into tar shards with classes, and into litdata's chunks."""
    from PIL import Image

    generator, each = np.random.default_rng(0), count // shards
    (folder / "tar").mkdir(parents=True)
    for shard in range(shards):
        with tarfile.open(folder / "tar" / f"train-{shard:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            for number in range(shard * each, (shard + 1) * each):
                buffer = io.BytesIO()
                pixels = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
                Image.fromarray(pixels).resize((32, 32)).save(buffer, "JPEG")
                for suffix, content in ((".jpg", buffer.getvalue()), (".cls", str(number % 10).encode())):
                    entry = tarfile.TarInfo(f"{number:08d}{suffix}")
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))


def index(folder: Path) -> None:
    """Write the index that `paucal shard` writes with the shards."""
    from paucal.data.shards.index import INDEX_NAME, Shard
    from paucal.data.shards.tar import build_index, index_tar

    files = sorted(folder.glob("*.tar"))
    shards = [Shard(file.name, file.stat().st_size, "train") for file in files]
    build_index(shards, [index_tar(file, file.name, "label") for file in files]).write(folder / INDEX_NAME)


def make_chunks(folder: Path) -> None:
    """Write litdata's chunks of the images in the tar shards."""
    import litdata  # pyright: ignore[reportMissingImports]

    names = sorted(map(str, (folder / "tar").glob("*.tar")))
    with tarfile.open(names[0]) as archive:
        each = len(archive.getnames()) // 2
    litdata.optimize(read_tar, names, str(folder / "chunks"), chunk_size=each, num_workers=1)


def read_tar(name: str) -> Iterator[dict[str, Any]]:
    """Yield the images of a shard for litdata."""
    with tarfile.open(name) as archive:
        for entry in archive:
            if entry.name.endswith(".jpg"):
                yield {"id": int(entry.name[:8]), "image": archive.extractfile(entry).read()}  # type: ignore[union-attr]


def upload(folder: Path, port: int) -> None:
    """Copy the files to the server."""
    import boto3  # pyright: ignore[reportMissingImports]

    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")
    client.create_bucket(Bucket=BUCKET)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            client.upload_file(str(file), BUCKET, file.relative_to(folder).as_posix(), {"ACL": "public-read"})


def free_port() -> int:
    """Return a port that is free."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(port: int) -> None:
    """Wait until the server answers."""
    for _ in range(600):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("the server does not answer")
