"""Pushing a repository to the Hugging Face Hub: only where it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nearkin.networks.pretrained import hub_is_reachable


def push(folder: Path, repository: str, *, private: bool = False, hub: Any = None) -> str:
    """Upload a published folder to the Hub, as one commit.

    Args:
        folder: That :func:`nearkin.publish` wrote.
        repository: ``name`` or ``user/name`` on the Hub; it is made if it is not there.
        private: Whether a new one is private.
        hub: A ``huggingface_hub.HfApi``, or something with its ``whoami``, ``create_repo`` and
            ``upload_folder``; by default one with the token that is logged in.

    Returns:
        The address of the repository.

    Raises:
        ConnectionError: There is no network, or nobody is logged in; the message says what to do.
    """
    api = _hub() if hub is None else hub
    try:
        api.whoami()
    except Exception as error:  # whatever the Hub says about a missing or wrong token
        raise ConnectionError(
            f"the Hugging Face Hub does not know who is pushing ({type(error).__name__}): log in with hf "
            f"auth login, or set HF_TOKEN. Everything is written to {folder}, and nothing was pushed"
        ) from error
    try:
        made = api.create_repo(repo_id=repository, repo_type="model", private=private, exist_ok=True)
        name = getattr(made, "repo_id", repository)
        api.upload_folder(
            folder_path=str(folder), repo_id=name, repo_type="model", commit_message="Published by nearkin"
        )
    except Exception as error:  # whatever the Hub refuses
        told = " ".join(str(error).split())[:300]
        raise ConnectionError(
            f"could not push {folder} to {repository} on the Hugging Face Hub: {told}. The folder is whole; "
            "the same command tries again"
        ) from error
    return str(made)


def _hub() -> Any:
    try:
        from huggingface_hub import HfApi  # noqa: PLC0415  (seconds long)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "pushing needs the package huggingface_hub, which is not installed: pip install huggingface_hub",
            name="huggingface_hub",
        ) from None
    if not hub_is_reachable():
        raise ConnectionError(
            "there is no network that leads to the Hugging Face Hub: the folder is written, and nothing was "
            "pushed. The same command pushes it where there is one"
        )
    return HfApi(library_name="nearkin")
