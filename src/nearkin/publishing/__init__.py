"""A model as a repository of the Hugging Face Hub: on disk, with its card, and pushed on request."""

from nearkin.publishing.card import card
from nearkin.publishing.hub import push
from nearkin.publishing.origin import Origin
from nearkin.publishing.repository import Published, publish

__all__ = ["Origin", "Published", "card", "publish", "push"]
