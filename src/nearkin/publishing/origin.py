"""Where a published model comes from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nearkin.protocols.final import FINAL
from nearkin.training import Run


@dataclass(frozen=True)
class Origin:
    """Where a published model comes from.

    Attributes:
        run: The run that trained it; ``None`` for a model whose run is not at hand.
        final: Whether it was trained afterwards on all classes, those of the test included.
        fold: Of a cross-validation, which network it is.
    """

    run: Run | None = None
    final: bool = False
    fold: int | None = None

    @classmethod
    def of(cls, folder: Path, fold: int | None = None) -> Origin:
        """Of the model in a folder: of a run, of its final network, or of a saved model."""
        final = folder.name == FINAL and (folder.parent / "result.json").exists()
        home = folder.parent if final else folder
        is_run = (home / "result.json").exists() and (home / "recipe.toml").exists()
        return cls(Run.existing(home) if is_run else None, final=final, fold=fold)
