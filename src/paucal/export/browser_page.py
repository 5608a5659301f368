"""Export to a single HTML file that classifies images in a browser, without a server or a network connection.

The file contains onnxruntime-web (MIT licence), copied from the folder of its npm package, and the ONNX graph including
the preprocessing, so that the page's script only decodes images.
"""

import base64
import gzip
import re
from collections.abc import Sequence
from pathlib import Path

import jinja2

from paucal.export.onnx_model import OnnxNetwork
from paucal.models.card import ModelCard
from paucal.types import UserError

# The files of onnxruntime-web that the page contains.
RUNTIME_FILE, LOADER_FILE, BINARY_FILE = "ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"
MAX_SIDE = 1024  # longest side in pixels; the browser downscales larger images before the preprocessing to save memory
TEMPLATE = Path(__file__).with_name("browser.html")
MODEL_ELEMENT = re.compile(r'<script type="application/octet-stream" id="model">([A-Za-z0-9+/=]*)</script>')


def runtime_files(folder: Path | None) -> Sequence[Path]:
    """Return the paths of onnxruntime-web's three files; `folder` is the npm package or the package's folder `dist`."""
    advice = "run 'npm pack onnxruntime-web', unpack the archive, and give its folder 'package'"
    if folder is None:
        raise UserError(f"--format html needs --onnxruntime-web FOLDER: {advice}.")
    dist = folder / "dist" if (folder / "dist").is_dir() else folder
    files = [dist / name for name in (RUNTIME_FILE, LOADER_FILE, BINARY_FILE)]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise UserError(f"--onnxruntime-web: {str(folder)!r} does not contain {', '.join(missing)}: {advice}.")
    return files


def write(onnx: bytes, card: ModelCard, path: Path, runtime: Sequence[Path]) -> None:
    """Write the page to `path`; `onnx` is an ONNX file with preprocessing, and `runtime` comes from `runtime_files`."""
    script, loader, binary = (file.read_bytes() for file in runtime)
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        TEMPLATE.read_text(encoding="utf-8")
    )
    page = template.render(
        title=f"Which of {len(card.classes)} classes is it?",
        classes=card.classes,
        thresholds=card.thresholds,
        longest=max(MAX_SIDE, *card.preprocessing.image_size),
        wasm=_compress(binary),
        loader=_compress(loader),
        model=_compress(onnx),
        runtime=script.decode("utf-8").replace("</script", "<\\/script"),
    )
    path.write_text(page, encoding="utf-8")


def _compress(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode("ascii")


def load(path: Path) -> OnnxNetwork:
    """Load the model in a page that this process has written; onnxruntime runs the model instead of a browser."""
    match = MODEL_ELEMENT.search(path.read_text(encoding="utf-8"))
    assert match is not None
    return OnnxNetwork(gzip.decompress(base64.b64decode(match[1])))
