"""python embed_onnx.py birds.onnx a.jpg b.jpg: unit embeddings by onnxruntime, numpy and Pillow alone."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

file, *images = sys.argv[1:]
how = json.loads(Path(f"{file}.json").read_text(encoding="utf-8"))["preprocessing"]


def pixels(path: str) -> np.ndarray:
    """The pixels of a file that the network sees, uint8 (height, width, 3)."""
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    if how["short_side"]:
        width, height = image.size
        short, side = min(width, height), how["short_side"]
        size = (side * width // short, side * height // short)
        image = image.resize(size, getattr(Image.Resampling, how["interpolation"].upper()))
    left, top = (round((side - how["crop"]) / 2) for side in image.size)
    return np.asarray(image.crop((left, top, left + how["crop"], top + how["crop"])))


session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
(embeddings,) = session.run(None, {"pixels": np.stack([pixels(path) for path in images])})
print(json.dumps({"embeddings": embeddings.tolist(), "similarity": (embeddings @ embeddings.T).tolist()}))
