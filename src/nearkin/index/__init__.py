"""A model and many samples: search, duplicates, clusters, and what looks wrong."""

from nearkin.index.filters import parse_where
from nearkin.index.index import Index
from nearkin.index.items import Added, Hit, Item, NewItem

__all__ = ["Added", "Hit", "Index", "Item", "NewItem", "parse_where"]
