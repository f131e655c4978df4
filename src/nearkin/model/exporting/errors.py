"""What goes wrong when a model is exported, in one sentence."""


class ExportError(ValueError):
    """The model cannot be exported in this way; the message says why and what to do."""


class TooDifferentError(ExportError):
    """The exported file gives other embeddings than the model; it has not been written."""
