"""Runs an exported file with its runtime alone, as a separate program: torch, timm and paucal cannot be imported.

Usage: runtime_alone.py FILE ARRAY, where ARRAY is the input as a .npy file; prints the output as JSON.
"""

import json
import sys
from pathlib import Path

import numpy as np

for name in ("torch", "timm", "paucal"):
    sys.modules[name] = None  # type: ignore[assignment]


def answer(path: Path, given: np.ndarray) -> np.ndarray:
    if path.suffix == ".xml":
        import openvino  # type: ignore[import-not-found]

        return openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(given)[0]
    if path.suffix == ".tflite":
        from ai_edge_litert.interpreter import Interpreter  # type: ignore[import-not-found]

        interpreter = Interpreter(str(path))
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], given)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: given})[0]


if __name__ == "__main__":
    print(json.dumps(answer(Path(sys.argv[1]), np.load(sys.argv[2])).tolist()))
